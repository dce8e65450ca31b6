"""SpecVLM: the way to make a picture smaller is chosen by the question (arXiv:2509.11815).

Huang et al. 2025. Four ways make `keep` rows of a picture: those least like their mean, means of
neighbours, a matrix over neighbours, and what learned queries find. A gate reads the mean row and
what is asked, the mean hidden state of the end of the prompt, and the best way is taken; while it
learns by Gumbel noise. Beside the target's logits its last hidden state is learnt.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from paceline.core.options import require
from paceline.core.types import LogitArray
from paceline.methods.seeing.drafter import SeeingDrafter
from paceline.methods.seeing.sight import SeeingNetwork, Stood, Weigh
from paceline.methods.seeing.vispec import look, look_shapes
from paceline.models.config import ModelConfig
from paceline.models.ops import Ops, Rows
from paceline.networks.base import Shapes

WAYS = ("prune", "pool", "convolve", "resample")


def pruned(rows: LogitArray, keep: int) -> LogitArray:
    """Return the `keep` rows that are longest and least like their mean, in order."""
    mean = rows.mean(0)
    lengths = np.sqrt((rows * rows).sum(-1))
    alike = rows @ mean / (lengths * np.sqrt(mean @ mean) + 1e-6)
    return rows[np.sort(np.argsort(-lengths * (1 - alike), kind="stable")[:keep])]


class SpecVlm(SeeingNetwork):
    """EAGLE-3's layer over `keep` rows of a picture, a divisor of all; the state is as there."""

    name: ClassVar[str] = "specvlm"

    def __init__(
        self,
        config: ModelConfig,
        *,
        steps: int = 5,
        ffn_size: int = 0,
        picture: int = 64,
        keep: int = 16,
    ) -> None:
        super().__init__(config, steps=steps, ffn_size=ffn_size, picture=picture)
        require(1 <= picture <= 4096, "picture", picture, "1 to 4096")
        fits = 1 <= keep <= picture and picture % keep == 0
        require(fits, "keep", keep, f"a divisor of {picture}")
        self.keep = keep

    @property
    def kept(self) -> int:
        return self.keep

    def shapes(self) -> Shapes:
        width, group = self.config.hidden_size, self.picture // self.keep
        return {
            **super().shapes(),
            **look_shapes(self.config, self.keep + self.picture),
            "look.convolve": (width, group * width),
            "look.gate_norm": (2 * width,),
            "look.gate": (len(WAYS), 2 * width),
        }

    def given(self, rows: LogitArray, question: LogitArray) -> LogitArray:
        queries = np.zeros((self.keep, rows.shape[1]), np.float32)
        pooled = rows.reshape(self.keep, -1, rows.shape[1]).mean(1)
        asked = rows.mean(0), question
        return np.concatenate([queries, rows, pruned(rows, self.keep), pooled, asked])

    def digest(self, ops: Ops, rows: Rows) -> Rows:
        width, keep = self.config.hidden_size, self.keep
        few, many = keep * width, self.picture * width
        own, ready, asked = ops.split(ops.slots(rows, 1), (few + many, 2 * few, 2 * width))
        picture = ops.slots(ops.split(own, (few, many))[1], keep)
        convolved = ops.slots(ops.linear(picture, ["look.convolve"]), 1)
        found = ops.slots(look(ops, self.config, ops.slots(own, keep + self.picture)), 1)
        gate = ops.linear(asked, ["look.gate"], norm="look.gate_norm")
        return ops.concat([ready, convolved, ops.split(found, (few, many))[0], gate])

    def stood(self, said: Any, weigh: Weigh) -> Stood:
        width = self.config.hidden_size
        ways = said[..., : -len(WAYS)].reshape(*said.shape[:-1], len(WAYS), self.keep, width)
        shares = weigh(said[..., -len(WAYS) :])
        return Stood((shares[..., None, None] * ways).sum(-3), 0 * said[..., :width])

    def features_of(self, ops: Ops, state: Rows) -> Rows:
        return ops.norm(state, "norm")


class SpecVlmDrafter(SeeingDrafter):
    name: ClassVar[str] = "specvlm"
    paper = "after SpecVLM, Huang et al. 2025, arXiv:2509.11815"
