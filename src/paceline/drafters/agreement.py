"""Union of a copied draft and a network draft, with combined acceptance probabilities (estimates).

Agreement counts as partly independent evidence. On disagreement, with probabilities c of the
copy and q of the network: copy : network : neither = c (1-q) : 2 q (1-c) : 2 (1-q) (1-c).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from paceline.types import ROOT, TokenTree

# Share of the copy's probability that counts as independent evidence on agreement.
_AGREEING = 0.8


def weighed(copy: TokenTree, other: TokenTree, least: float) -> TokenTree:
    """Merge two drafts with scores, that of more expected accepted tokens first.

    `other` knows more. Nodes of the second draft need a combined probability above `least`.
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
    # Conditional probability of each node given its parent.
    assert draft.scores is not None
    scores = draft.scores.tolist()
    reached = [*scores, 1.0]  # that of the root stands at its index, -1
    return [
        score / reached[parent] if reached[parent] else 0.0
        for score, parent in zip(scores, parents, strict=True)
    ]


def _join(other: TokenTree, tokens: list[int], parents: list[int]) -> list[int]:
    # Appends the nodes of `other` to the union; returns their indices there.
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
    # Combined acceptance probability of each node of the union; nodes of the copy come first.
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
