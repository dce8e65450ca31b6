"""Trees that join what comes of two: drafts with scores, a chain and its runner-ups, and a draft
and what a constraint forces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import mul

import numpy as np

from paceline.core import tree as trees
from paceline.core.constraint import ConstraintState
from paceline.core.types import ROOT, Budget, TokenTree
from paceline.networks.runner import Chain
from paceline.policy.constants import AGREEING
from paceline.sampling.generation import Generation

# Name of the drafter of forced runs.
SOURCE = "grammar"


def weighed(copy: TokenTree, other: TokenTree, least: float) -> TokenTree:
    """Merge two drafts with scores, that of more expected accepted tokens first.

    `other` knows more. Nodes of the second draft need a combined probability above `least`.
    """
    builder = trees.Builder.of(copy)
    tokens, parents = builder.tokens, builder.parents
    copied = _given_parents(copy)
    places = builder.graft(other)
    predicted = dict(zip(places, _given_parents(other), strict=True))
    scores = _together(copied, predicted, parents)
    count = len(copied)
    if sum(scores[:count]) >= sum(map(scores.__getitem__, places)):
        order = [*range(count), *(n for n in places if n >= count and scores[n] > least)]
    else:
        order = [*places, *(n for n in range(count) if n not in predicted and scores[n] > least)]
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


def _given_parents(draft: TokenTree) -> list[float]:
    # Conditional probability of each node given its parent.
    assert draft.scores is not None
    scores, parents = draft.scores.tolist(), draft.parents.tolist()
    reached = [*scores, 1.0]  # that of the root stands at its index, -1
    return [
        score / reached[parent] if reached[parent] else 0.0
        for score, parent in zip(scores, parents, strict=True)
    ]


def _together(
    copied: list[float], predicted: Mapping[int, float], parents: list[int]
) -> list[float]:
    # Combined acceptance probability of each node of the union; nodes of the copy come first.
    surest: dict[int, float] = {}  # by parent that the other goes on from: what it is surest of,
    for node, probability in predicted.items():
        above = parents[node]
        surest[above] = max(surest.get(above, 0.0), probability)
    against = dict.fromkeys(surest, 0.0)  # what the copy says there that it does not,
    total = dict.fromkeys(surest, 0.0)  # and all of it together
    for node, above in enumerate(parents[: len(copied)]):
        if above in surest and node not in predicted:
            against[above] += copied[node]
    probabilities = copied + [0.0] * (len(parents) - len(copied))
    for node, above in enumerate(parents):
        if above not in surest:
            continue
        sure, doubt = surest[above], against[above]
        if node in predicted:
            agreeing = AGREEING * probabilities[node]
            probability = 1 - (1 - predicted[node]) * (1 - agreeing)
            probability *= 2 * (1 - doubt) / (2 - doubt * (1 + sure))
        else:
            probability = (
                probabilities[node] * (1 - sure) / (2 - doubt * (1 + sure))
                if sure
                else probabilities[node]
            )
        probabilities[node] = probability
        total[above] += probability
    scores: list[float] = []
    for probability, above in zip(probabilities, parents, strict=True):
        share = probability / max(1.0, total[above]) if above in total else probability
        scores.append(share * (scores[above] if above != ROOT else 1.0))
    return scores


def with_runner_ups(chain: Chain, chances: Sequence[float], room: int, source: str) -> TokenTree:
    """Return the first tokens of a network's chain, and up to `room` runner-ups as leaves.

    The chain stands first, so that no cache row has to be moved to retain it. `chances` are the
    acceptance probabilities of its tokens, given those before.
    """
    depth = len(chances)
    scores = list(accumulate(chances, mul))
    tokens, parents = list(chain.tokens[:depth]), list(range(ROOT, depth - 1))
    if room > 0:
        above = [1.0, *scores]
        # Runner-ups are accepted as the network says, within what the chain's own tokens leave.
        beside = [
            above[at] * min(chain.runner_up_probs[at], 1 - chances[at]) for at in range(depth)
        ]
        likely = sorted(range(depth), key=beside.__getitem__, reverse=True)[:room]
        for at in sorted(likely):
            if beside[at] > 0:
                tokens.append(chain.runner_ups[at])
                parents.append(at - 1)
                scores.append(beside[at])
    return TokenTree(
        np.array(tokens, dtype=np.int64),
        np.array(parents, dtype=np.int64),
        source=source,
        scores=np.array(scores),
    )


def constrained(sequence: Generation, draft: TokenTree, most: Budget, branches: bool) -> TokenTree:
    """Return a deterministic draft cut to what may be said, with a forced run, within `most`.

    The target decides about the run like about any draft. `branches`: drafts may be trees, else the
    run stands for a draft that does not go the same way. Drawn drafts are returned as they are:
    dropping what was drawn would bias p/q rules, and what is forbidden is rejected anyway.
    """
    state = sequence.sampler.constraint
    if state is None or draft.sampling is not None:
        return draft
    draft = _allowed(state, draft)
    run = min(most.nodes, most.depth)
    forced = state.forced()[:run] if run else ()
    if not forced:
        return draft
    chain = trees.chain(forced, SOURCE, scores=np.ones(len(forced)))
    merged = trees.merge(chain, draft)
    merged = trees.limit(merged, most.nodes, most.depth)
    return merged if branches or trees.is_chain(merged) else chain


def _allowed(state: ConstraintState, draft: TokenTree) -> TokenTree:
    # A node is tried once: with the first leaf below it.
    good: dict[int, bool] = {ROOT: True}
    for path in trees.leaf_paths(draft):
        tokens: Sequence[int] = draft.tokens[list(path)].tolist()
        count = state.valid(tokens)
        good.update((node, place < count) for place, node in enumerate(path))
    kept = [node for node in range(len(draft)) if good[node]]
    return draft if len(kept) == len(draft) else trees.take(draft, np.array(kept, dtype=np.int64))
