"""The cache of followers against ordered dictionaries of ordered dictionaries."""

from __future__ import annotations

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from paceline.methods.lookahead import Followers, Run

RUN = st.lists(st.integers(0, 4), min_size=1, max_size=2).map(tuple)


@given(st.integers(1, 5), st.integers(1, 3), st.lists(st.tuples(RUN, RUN), max_size=60))
def test_it_equals_two_levels_of_least_recently_used(
    capacity: int, width: int, added: list[tuple[Run, Run]]
) -> None:
    cache = Followers(capacity, width)
    naive: OrderedDict[Run, OrderedDict[Run, None]] = OrderedDict()
    for leader, follower in added:
        cache.add(leader, follower)
        runs = naive.setdefault(leader, OrderedDict())
        naive.move_to_end(leader)
        runs[follower] = None
        runs.move_to_end(follower)
        if len(runs) > width:
            runs.popitem(last=False)
        if len(naive) > capacity:
            naive.popitem(last=False)
        assert len(cache) == len(naive)
        for known in {leader for leader, _ in added}:
            assert list(cache.after(known)) == list(reversed(naive.get(known, {})))
