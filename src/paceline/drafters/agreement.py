"""What two drafts promise together: a copy of earlier text, and a draft that knows more.

Where both say the same token, it comes true oftener than either says: as if the copy were evidence
of its own. Where they differ, what each says speaks against the other: with chances c of the copy
and q of the other, that the copy is right, that the other is, and that neither is are as
c (1 - q) to 2 q (1 - c) to 2 (1 - q) (1 - c). Both rules come as near to what happens as a logistic
regression on c and q (`docs/results.md`, trained drafters). They make estimates, and no guarantee
hangs on these.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from paceline.types import ROOT, TokenTree

_AGREEING = 0.8
"""Share of a copy's chance that counts as evidence of its own where the other says the same."""


def weighed(copy: TokenTree, other: TokenTree, least: float) -> TokenTree:
    """The union of two drafts, with what its nodes promise together.

    The draft that promises more tokens by that stands first, whole, and behind it what the other
    one has beside it with a chance of more than `least`.

    Args:
        copy: with scores, and without a law.
        other: likewise, of a drafter that knows more.
        least: chance of being committed.
    """
    tokens, parents = copy.tokens.tolist(), copy.parents.tolist()
    copied = _given_parents(copy, parents)
    places = _join(other, tokens, parents)
    said = dict(zip(places, _given_parents(other, other.parents.tolist()), strict=True))
    scores = _together(copied, said, parents)
    count = len(copied)
    if sum(scores[:count]) >= sum(map(scores.__getitem__, places)):
        order = [*range(count), *(n for n in places if n >= count and scores[n] > least)]
    else:
        order = [*places, *(n for n in range(count) if n not in said and scores[n] > least)]
    moved = {ROOT: ROOT} | {node: index for index, node in enumerate(order)}
    mine = copy.origins or (copy.source,) * count
    theirs = dict(zip(places, other.origins or (other.source,) * len(places), strict=True))
    named = [mine[node] if node < count else theirs[node] for node in order]
    return TokenTree(
        np.array([tokens[node] for node in order], dtype=np.int64),
        np.array([moved[parents[node]] for node in order], dtype=np.int64),
        source=named[0],
        scores=np.array([scores[node] for node in order]),
        origins=tuple(named) if len(set(named)) > 1 else (),
    )


def _given_parents(draft: TokenTree, parents: list[int]) -> list[float]:
    """Chances of nodes where their parents stand."""
    assert draft.scores is not None
    scores = draft.scores.tolist()
    reached = [*scores, 1.0]  # that of the root stands at its index, -1
    return [
        score / reached[parent] if reached[parent] else 0.0
        for score, parent in zip(scores, parents, strict=True)
    ]


def _join(other: TokenTree, tokens: list[int], parents: list[int]) -> list[int]:
    """Put another draft's nodes into a union that holds one already. Gives their places."""
    known = dict(zip(zip(parents, tokens, strict=True), range(len(tokens)), strict=True))
    places: list[int] = []
    for token, parent in zip(other.tokens.tolist(), other.parents.tolist(), strict=True):
        place = (places[parent] if parent != ROOT else ROOT, token)
        node = known.get(place)
        if node is None:
            node = known[place] = len(tokens)
            tokens.append(token)
            parents.append(place[0])
        places.append(node)
    return places


def _together(copied: list[float], said: Mapping[int, float], parents: list[int]) -> list[float]:
    """Chances of being committed, by node of the union: those of the copy come first."""
    surest: dict[int, float] = {}  # by parent that the other goes on from: what it is surest of,
    for node, chance in said.items():
        above = parents[node]
        surest[above] = max(surest.get(above, 0.0), chance)
    against = dict.fromkeys(surest, 0.0)  # what the copy says there that it does not,
    total = dict.fromkeys(surest, 0.0)  # and all of it together
    for node, above in enumerate(parents[: len(copied)]):
        if above in surest and node not in said:
            against[above] += copied[node]
    chances = copied + [0.0] * (len(parents) - len(copied))
    for node, above in enumerate(parents):
        if above not in surest:
            continue
        sure, doubt = surest[above], against[above]
        if node in said:
            agreeing = _AGREEING * chances[node]
            chance = 1 - (1 - said[node]) * (1 - agreeing)
            chance *= 2 * (1 - doubt) / (2 - doubt * (1 + sure))
        else:
            chance = (
                chances[node] * (1 - sure) / (2 - doubt * (1 + sure)) if sure else chances[node]
            )
        chances[node] = chance
        total[above] += chance
    scores: list[float] = []
    for chance, above in zip(chances, parents, strict=True):
        share = chance / max(1.0, total[above]) if above in total else chance
        scores.append(share * (scores[above] if above != ROOT else 1.0))
    return scores
