"""CTC drafter: parallel slots with blanks, collapsed to tokens (Wen et al. 2024).

The loss sums over all alignments of the same tokens. Blank is one trained logit after the draft
vocabulary. A tree has the most probable beginnings of collapsed texts, with the mass of all their
alignments in the beam (the paper transforms the paths of a candidate tree one by one). The paper
also regresses hidden states; here features of several layers are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from paceline.lab.training.batches import Batch

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from paceline.core import tree as trees
from paceline.core.options import require
from paceline.core.types import ROOT, Budget, LogitArray, ProbArray, TokenTree
from paceline.drafters.network.build import LoadedNetwork
from paceline.drafters.network.drafter import TrainedDrafter
from paceline.drafters.network.trees import TreeDrafts
from paceline.errors import InvalidOption
from paceline.models.config import ModelConfig
from paceline.models.ops import Ops, Rows
from paceline.networks.base import Network, Shapes
from paceline.networks.blocks import slot_shapes, slots_behind
from paceline.networks.runner import Chain
from paceline.sampling.generation import Generation


def collapse(slots: Sequence[int], blank: int) -> list[int]:
    """Return the indices of slots that stand for tokens: the first of every run that is not blank.

    Equal tokens with a blank between them are two tokens.
    """
    before = [blank, *slots]
    return [i for i, token in enumerate(slots) if token != blank and token != before[i]]


def with_blank(ops: Ops, state: Rows) -> Rows:
    """Return the logits of a state by the LM head, and that of the blank behind them."""
    head = ops.head(state, norm="norm")
    return ops.concat([head, ops.linear(state, ["blank"], norm="norm")])


class CTC(Network):
    """Draft up to `width` tokens in one pass over the slots."""

    name: ClassVar[str] = "ctc"
    layers: ClassVar[int] = 1

    def __init__(
        self, config: ModelConfig, *, width: int = 6, tokens: int = 3, ffn_size: int = 0
    ) -> None:
        """Size the network: `width` slots, trained on `tokens` tokens (1 to `width`).

        Raises:
            InvalidOption: a size is out of range.
        """
        super().__init__(config, steps=1, width=width)
        require(1 <= tokens <= width, "tokens", tokens, f"1 to {width}, the slots")
        self.tokens = tokens
        self.ffn_size = ffn_size or config.ffn_size

    def shapes(self) -> Shapes:
        shapes = slot_shapes(self.config, self.width, self.ffn_size)
        return {**shapes, "blank": (1, self.config.hidden_size)}

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        return slots_behind(ops, self.config, features, tokens, "slots")

    def logits(self, ops: Ops, state: Rows, step: int) -> Rows:
        return with_blank(ops, state)

    def own_loss(self, logits: Any, batch: Any, places: Any, prompt_weight: float) -> Any:
        return ctc_loss(logits, batch, places, self.tokens, prompt_weight)

    def read_argmax(self, columns: Any, count: int) -> Any:
        import torch

        before = torch.nn.functional.pad(columns[..., :-1], (1, 0), value=count - 1)
        kept = (columns != count - 1) & (columns != before)
        first = (~kept).to(torch.int8).argsort(dim=-1, stable=True)
        return columns.masked_fill(~kept, -2).gather(-1, first)


def collapsed(chain: Chain) -> Chain:
    """Return the tokens that a chain of slots stands for; runners-up are of a slot, not a depth."""
    places = collapse(chain.tokens, -1)
    tokens, runner_ups = ([part[at] for at in places] for part in (chain.tokens, chain.runner_ups))
    return Chain(tokens, [chain.chances[at] for at in places], runner_ups, [0.0] * len(places))


def beginnings(chances: ProbArray, beam: int = 16, tokens: int = 8) -> dict[tuple[int, ...], float]:
    """Return the chance that the collapsed text begins so, by beginning.

    CTC prefix beam search (Hannun et al. 2014). With a beam and `tokens` that leave nothing out,
    chances are exact.

    Args:
        chances: float64 `[slots, draft vocabulary + 1]`, blank last.
        beam: texts kept from slot to slot.
        tokens: tokens looked at in a slot, the most probable.
    """
    blank = chances.shape[1] - 1
    # By text: the mass of alignments that end in a blank, and of those that end in its last token.
    found: dict[tuple[int, ...], tuple[float, float]] = {(): (1.0, 0.0)}
    for row in chances:
        best = np.argsort(-row[:blank], kind="stable")[:tokens].tolist()
        after: defaultdict[tuple[int, ...], list[float]] = defaultdict(lambda: [0.0, 0.0])
        for text, (ended, open_) in found.items():
            after[text][0] += (ended + open_) * row[blank]
            for token in best:
                if text and text[-1] == token:
                    after[text][1] += open_ * row[token]
                    after[(*text, token)][1] += ended * row[token]
                else:
                    after[(*text, token)][1] += (ended + open_) * row[token]
            if text and text[-1] not in best:
                after[text][1] += open_ * row[text[-1]]
        kept = sorted((text for text in after if sum(after[text])), key=lambda t: -sum(after[t]))
        found = {text: (after[text][0], after[text][1]) for text in kept[:beam]}
    out: defaultdict[tuple[int, ...], float] = defaultdict(float)
    for text, masses in found.items():
        for end in range(1, len(text) + 1):
            out[text[:end]] += sum(masses)
    return dict(out)


class CTCDrafter(TrainedDrafter):
    """CTC drafter: slots that may stay blank; with `runner_ups=false` the collapsed chain alone."""

    name: ClassVar[str] = "ctc"
    paper = "after CTC-drafter, Wen et al. 2024, arXiv:2412.00061"

    def expand_by(self, trees: TreeDrafts | None) -> None:
        if trees is not None:
            fix = "leave out growth, and use a verifier of deterministic drafts"
            raise InvalidOption(f"drafter 'ctc' drafts slots that may stay blank: {fix}")
        super().expand_by(trees)

    def _draft(
        self, version: LoadedNetwork, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        updates = list(map(self._context_update, sequences, budgets))
        if self._runner_ups:
            branches = version.runner.start(updates)
            pairs = zip(branches, budgets, strict=True)
            drafts = [self._grow_tree(branch.logits, budget) for branch, budget in pairs]
        else:
            slots = version.runner.draft(updates, version.runner.depth)
            drafts = self._chains(sequences, budgets, list(map(collapsed, slots)))
        for sequence in sequences:
            self._progress[sequence.id].consumed()
        return drafts

    def _grow_tree(self, logits: LogitArray, budget: Budget) -> TokenTree:
        wide = np.exp(logits - logits.max(axis=-1, keepdims=True), dtype=np.float64)
        found = beginnings(wide / wide.sum(axis=-1, keepdims=True))
        fitting = [text for text in found if len(text) <= budget.depth]
        # A beginning is no less probable than what goes on from it; of equals the shorter first.
        best = sorted(fitting, key=lambda text: (-found[text], len(text)))[: budget.nodes]
        builder = trees.Builder()
        places: dict[tuple[int, ...], int] = {(): ROOT}
        for text in best:
            token = int(self._ids[text[-1]])
            places[text] = builder.add(places[text[:-1]], token, found[text])
        return builder.tree(self.name)


def ctc_loss(
    slots: Sequence[Tensor], batch: Batch, places: Tensor, tokens: int, prompt_weight: float
) -> Tensor:
    """Return the CTC loss of the next `tokens` tokens, per token in nats (Graves et al. 2006).

    `slots` are per slot `[texts, time, draft vocabulary + 1]` logits, blank last. Only positions
    whose next tokens are in the text, in the draft vocabulary and alignable count.
    """
    import torch
    from torch.nn import functional

    from paceline.lab.training.losses import weighted_mean
    from paceline.lab.training.objective import labels, wanted, wide

    depths = range(1, tokens + 1)
    says = torch.stack([labels(batch, places, depth) for depth in depths], dim=-1)
    counts = wanted(batch, tokens, prompt_weight).to(says.device)
    repeats = (says[..., 1:] == says[..., :-1]).sum(-1)  # each takes a blank in between
    rows = (counts > 0) & (says >= 0).all(-1) & (tokens + repeats <= len(slots))
    if not rows.any():
        return slots[0].sum() * 0
    chances = torch.stack([wide(each[rows]).log_softmax(-1) for each in slots])
    count = int(rows.sum())
    losses = functional.ctc_loss(
        chances,
        says[rows],
        torch.full((count,), len(slots)),
        torch.full((count,), tokens),
        blank=chances.shape[-1] - 1,
        reduction="none",
    )
    return weighted_mean(losses / tokens, counts[rows])
