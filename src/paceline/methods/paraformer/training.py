"""Training of Paraformer's predictor and decoder on the transcripts that a Whisper writes.

Two passes of the decoder (glancing): the first has no gradient; a share of its errors is how many
tokens are shown to the second, which learns the others. Weights of rows are scaled to fire as often
as there are tokens, and learn to sum to that without. Whisper tells times, so both hold for each
segment, where the paper has a whole sentence. It goes on with minimum word errors, which is left
out here. It begins as a linear map: `fuse` is fitted to Whisper's hidden states before tokens, and
what the layers add begins at zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from paceline.core.types import IntArray, LogitArray
from paceline.lab.training.card import Judged
from paceline.lab.training.data import Text
from paceline.lab.training.objective import Hits
from paceline.lab.training.optimisers import Rated, adam
from paceline.methods.gad.training import DEPTH, AtAnchors, HeardTask, followed
from paceline.methods.gad.transcript import EVERY
from paceline.methods.networks.glancing import some
from paceline.methods.paraformer.drafter import LAYERS, Paraformer, fired, weighed
from paceline.models.config import ModelConfig
from paceline.models.weights import Weights
from paceline.networks.base import Network

RATIO = 0.75
"""Of the errors of the first pass so many are shown to the second (FunASR's)."""

RIDGE = 0.01
"""Of the mean square of what fires, added where `fuse` is fitted."""


def shares(weights: Tensor, count: int) -> Tensor:
    """Return what each of `count` emissions has of each row, `[count, rows]`: `Firing` in one step.

    Weights are scaled first, so that they sum to `count`.
    """
    scaled = weights * (count / weights.sum())
    ends, begins = scaled.cumsum(0), torch.arange(count)[:, None]
    inside = torch.minimum(ends, begins + 1.0) - torch.maximum(ends - scaled, begins + 0.0)
    return inside.clamp_min(0)


def segments(text: Text, times: int) -> Iterator[tuple[int, int, IntArray]]:
    """Yield first row, end and tokens of what a text has up to its next time, from row 0 on.

    Rows are of every `EVERY`; behind the last time they have no end.
    """
    tokens = text.tokens[text.prompt_length :]
    marks = np.flatnonzero(tokens >= times)
    rows = [0, *((tokens[marks] - times) // EVERY).tolist(), 1 << 32]
    for begin, end, part in zip(rows[:-1], rows[1:], np.split(tokens, marks), strict=True):
        yield begin, end, part[part < times]


class Passes(NamedTuple):
    """Both passes over a text: draft indices of what is right, logits `[tokens, draft vocabulary]`
    of the second, which tokens it was shown, and how many weights are too much or too little."""

    right: Tensor
    logits: Tensor
    shown: Tensor
    off: Tensor


class ParaformerTask(HeardTask):
    """Predictor and decoder."""

    network: Paraformer
    reads = "rows"
    marks: ClassVar[bool] = False
    conditions = "drafts of what one pass says against words as they stand"

    @classmethod
    def begins(
        cls, network: Network, model: ModelConfig, weights: Weights
    ) -> dict[str, LogitArray]:
        first = model.layers - LAYERS
        out = {"slots": np.zeros(network.shapes()["slots"], np.float32)}
        for name in network.shapes():
            head, _, rest = name.partition(".")
            if head == "layers":
                layer, _, part = rest.partition(".")
                out[name] = weights[f"layers.{first + int(layer)}.{part}"]
            elif head == "norm":
                out[name] = weights[name]
        return out

    def optimisers(self) -> list[Rated]:
        """Return Adam's for all: most matrices begin as Whisper's, which Muon would turn."""
        return [adam(self.module.named().values(), self.recipe.rate / 40)]

    def begin(self) -> None:
        super().begin()
        rows = np.mean([len(self._source.of(each)) for each in self.texts[:32]])
        words = [len(self._words(each)) for each in self.texts]
        rate, named = np.mean(words) / rows, self.module.named()
        with torch.no_grad():
            # It fires as often as there are tokens, from the start.
            named["fire"].zero_()
            named["fire.bias"].fill_(math.log(rate / (1 - rate)))
            fuse, rest = self._fitted()
            named["fuse"].copy_(fuse)
            named["slots"].copy_(rest.expand_as(named["slots"]))
            for name, each in named.items():
                if name.removesuffix(".bias").endswith((".o", ".look_o", ".down")):
                    each.zero_()

    def _fitted(self) -> tuple[Tensor, Tensor]:
        """Return `fuse` and what is added to it, so that the norm says nearly what Whisper's does.

        That is ridge regression from what fires at equal weights to the hidden states in between.
        """
        named, size = self.module.named(), self.network.config.hidden_size
        read = named["fuse"].shape[1]
        gram, seen = torch.zeros(read + 1, read + 1), torch.zeros(read + 1, size)
        for text in self.texts:
            rows = torch.from_numpy(self._source.of(text)) * named["scale"]
            x = functional.pad(self._fires(text, torch.ones(len(rows)), rows)[0], (0, 1), value=1.0)
            at = np.flatnonzero(self._places[text.tokens[text.prompt_length :]] >= 0)
            kept = self._windows.read(text, "features")[at + text.prompt_length - 1, -size:]
            states = (torch.from_numpy(kept) - named["norm.bias"]) / named["norm"]
            gram, seen = gram + x.T @ x, seen + x.T @ states
        ridge = torch.full((read + 1,), RIDGE * float(gram.trace()) / read)
        ridge[-1] = 0.0
        found = torch.linalg.solve(gram + ridge.diag(), seen)
        return found[:-1].T, found[-1]

    def losses(self, texts: Sequence[Text], step: int) -> Iterator[tuple[Tensor, float]]:
        # Named by the step, so that a run which resumes draws the same.
        generator = torch.Generator().manual_seed(
            int(np.random.default_rng((self.recipe.seed, step)).integers(1 << 62))
        )
        loss = torch.stack([self._nats(self.passes(each, generator)) for each in texts]).mean()
        yield loss, float(loss.detach())

    @torch.no_grad()
    def judge(self) -> Judged:
        losses: list[float] = []
        found = Hits(0, np.zeros(DEPTH, dtype=np.int64))
        parameters, ids = self.parameters(), self.vocabulary.ids
        for text in self.held_out:
            losses.append(float(self._nats(self.passes(text))))
            emitted = torch.from_numpy(fired(parameters, self._source.of(text)))
            said = self._decoded(text, emitted).argmax(-1)
            found += followed(ids[said].tolist(), ids[self._words(text)].tolist(), 0)
        return Judged(float(np.mean(losses)), found)

    def passes(self, text: Text, generator: torch.Generator | None = None) -> Passes:
        """Run the decoder over a text; without a generator once, and nothing is shown."""
        right, named = self._words(text), self.module.named()
        rows = np.pad(self._source.of(text), ((1, 1), (0, 0)))
        here, odds = weighed(named, torch.from_numpy(rows))
        fires, off = self._fires(text, odds.sigmoid(), here)
        shown = torch.zeros(right.shape, dtype=torch.bool)
        if generator is not None:
            with torch.no_grad():
                wrong = (self._decoded(text, fires).argmax(-1) != right).sum()
            counts = (RATIO * wrong[None]).floor()
            shown = some(torch.ones_like(shown)[None], counts, generator)[0]
            answers = torch.from_numpy(self.vocabulary.ids)[right]
            ops = self.ops(AtAnchors(right, right))
            told = ops.norm(ops.embed(answers), "embed_norm")
            fires = torch.where(shown[:, None], told, fires)
        return Passes(right, self._decoded(text, fires), shown, off)

    def _fires(self, text: Text, weights: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        # What fires of rows, as often as there are tokens, and how far their weights are from that.
        fires, off = [rows[:0]], rows.new_zeros(())
        for begin, end, tokens in segments(text, self._times):
            count = len(self._drafted(tokens))
            at = slice(min(begin, len(weights) - 1), max(end, begin + bool(count)))
            fires.append(shares(weights[at], count) @ rows[at])
            off = off + (weights[at].sum() - count).abs()
        return torch.cat(fires), off

    def _words(self, text: Text) -> Tensor:
        return self._drafted(text.tokens[text.prompt_length :])

    def _drafted(self, tokens: IntArray) -> Tensor:
        # Draft indices of those that may be drafted.
        found = self._places[torch.from_numpy(tokens)]
        return found[found >= 0]

    def _decoded(self, text: Text, emitted: Tensor) -> Tensor:
        # In blocks, whose first row comes again in front where the last is shorter.
        width, count = self.network.width, len(emitted)
        if not count:
            return emitted @ self.module.get_buffer("head").T
        at = torch.arange(-(-count // width) * width).reshape(-1, width)
        short = width - count % width if count % width else 0
        at[-1] = (at[-1] - short).clamp_min(int(at[-1, 0]))
        looked_at = torch.from_numpy(self._windows.read(text, "looked_at"))[None]
        ops = self.ops(AtAnchors(at, looked_at))
        states = self.network.fill(ops, emitted[at][None])[0]
        kept = torch.cat([*states[:-1], states[-1, short:]])
        logits: Tensor = self.network.logits(ops, kept, 0)
        return logits

    def _nats(self, found: Passes) -> Tensor:
        right = found.right.masked_fill(found.shown, -1)
        nats = functional.cross_entropy(found.logits, right, ignore_index=-1, reduction="sum")
        return nats / (right >= 0).sum().clamp_min(1) + found.off / max(1, len(right))
