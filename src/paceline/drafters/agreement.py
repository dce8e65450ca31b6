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
    tokens: list[int] = []
    parents: list[int] = []
    copied, said = _chances([copy, other], tokens, parents)
    scores = _together(copied, said, parents)
    first, second = sorted((copied, said), key=lambda part: -sum(map(scores.__getitem__, part)))
    order = [*first, *(node for node in second if node not in first and scores[node] > least)]
    place = {ROOT: ROOT} | {node: index for index, node in enumerate(order)}
    origins = dict(zip(said, map(other.origin, range(len(said))), strict=True))
    origins |= zip(copied, map(copy.origin, range(len(copied))), strict=True)
    named = [origins[node] for node in order]
    return TokenTree(
        np.array([tokens[node] for node in order], dtype=np.int64),
        np.array([place[parents[node]] for node in order], dtype=np.int64),
        source=named[0],
        scores=np.array([scores[node] for node in order]),
        origins=tuple(named) if len(set(named)) > 1 else (),
    )


def _chances(
    drafts: list[TokenTree], tokens: list[int], parents: list[int]
) -> list[dict[int, float]]:
    """For each draft, chances of its nodes given their parents, by the nodes of the union, which
    `tokens` and `parents` take in."""
    known: dict[tuple[int, int], int] = {}
    out = []
    for draft in drafts:
        assert draft.scores is not None
        scores = draft.scores.tolist()
        nodes: list[int] = []
        chances: dict[int, float] = {}
        for token, parent, score in zip(
            draft.tokens.tolist(), draft.parents.tolist(), scores, strict=True
        ):
            above, reached = (nodes[parent], scores[parent]) if parent != ROOT else (ROOT, 1.0)
            node = known.setdefault((above, token), len(tokens))
            if node == len(tokens):
                tokens.append(token)
                parents.append(above)
            nodes.append(node)
            chances[node] = score / reached if reached else 0.0
        out.append(chances)
    return out


def _together(
    copied: Mapping[int, float], said: Mapping[int, float], parents: list[int]
) -> list[float]:
    """Chances of being committed, by node of the union."""
    surest = dict.fromkeys(parents, 0.0)  # by parent: what the other is surest of,
    against = dict.fromkeys(parents, 0.0)  # what the copy says that the other does not,
    total = dict.fromkeys(parents, 0.0)  # and all of it together
    for node, above in enumerate(parents):
        if node in said:
            surest[above] = max(surest[above], said[node])
        else:
            against[above] += copied[node]
    chances = []
    for node, above in enumerate(parents):
        sure, doubt = surest[above], against[above]
        if node in said:
            chance = 1 - (1 - said[node]) * (1 - _AGREEING * copied.get(node, 0.0))
            chance *= 2 * (1 - doubt) / (2 - doubt * (1 + sure))
        elif sure:
            chance = copied[node] * (1 - sure) / (2 - doubt * (1 + sure))
        else:
            chance = copied[node]
        chances.append(chance)
        total[above] += chance
    scores: list[float] = []
    for chance, above in zip(chances, parents, strict=True):
        share = chance / max(1.0, total[above])
        scores.append(share * (scores[above] if above != ROOT else 1.0))
    return scores
