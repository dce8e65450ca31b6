"""EAGLE-3 and P-EAGLE heads as others publish them: how they are wired, and what they compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from paceline.core.types import LogitArray
from paceline.models.config import ModelConfig
from paceline.models.families.base import LayerNames
from paceline.models.ops import Ops, Rows, Sight
from paceline.networks.base import Network, Shapes
from paceline.networks.blocks import before, decoder_layer, family_shapes, with_biases
from paceline.networks.published.wirings import Wiring


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadWiring(Wiring):
    """That of EAGLE-3 and P-EAGLE heads.

    Attributes:
        slots: tokens that are foretold in one pass; 0 for one (EAGLE-3).
        mask: id that stands for those behind the root, where there are slots.
        norms: RMS norms before `fc`: over all it reads ("whole"), over each part, or none.
        norm_before_residual: the stream of the first layer begins after its norm.
        norm_output: what goes on to the next step is normed.
    """

    slots: int = 0
    mask: int = 0
    norms: str = ""
    norm_before_residual: bool = False
    norm_output: bool = False

    @property
    def kind(self) -> str:
        return "P-EAGLE" if self.slots else "EAGLE-3"

    def network(
        self, config: ModelConfig, read: int, present: frozenset[str], steps: int, drafted: int
    ) -> Network:
        kind = PublishedPEagle if self.slots else PublishedEagle3
        return kind(config, self, read // self.width, present, self.slots or steps)

    def said(self) -> dict[str, Any]:
        norms = {"whole": "all states as one", "parts": "each state"}.get(self.norms, "nothing")
        block = f"{self.slots} in one pass, mask {self.mask}" if self.slots else "one in a pass"
        return {
            "foretells": block,
            "norms_before_fc": norms,
            "norm_before_residual": self.norm_before_residual,
            "norm_output": self.norm_output,
        }


class PublishedEagle3(Network):
    """Draft one token per pass of the layers, whose shape is `config`'s; names are families'."""

    name: ClassVar[str] = "eagle3"

    def __init__(
        self,
        config: ModelConfig,
        wiring: HeadWiring,
        parts: int,
        present: frozenset[str],
        steps: int,
    ) -> None:
        """Set the shape; `parts` are read of a row of features, and `present` optional tensors."""
        super().__init__(config, steps=steps)
        self.wiring, self.parts, self.present = wiring, parts, present
        self.layers = config.layers  # type: ignore[misc]

    @property
    def feature_width(self) -> int:
        return self.parts * self.wiring.width

    def shapes(self) -> Shapes:
        width = self.config.hidden_size
        out: Shapes = {"fc": (width, self.feature_width), "norm": (width,)}
        if self.wiring.norms == "whole":
            out["input_norm"] = (self.feature_width,)
        elif self.wiring.norms:
            out |= {f"fc_norm.{part}": (self.wiring.width,) for part in range(self.parts)}
        out |= family_shapes(self.config, 2 * width) | {"layers.0.hidden_norm": (width,)}
        return with_biases(out, self.present)

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        return self._layers(ops, self._fused(ops, features), ops.embed(tokens), "last")

    def _fused(self, ops: Ops, features: Rows) -> Rows:
        if self.wiring.norms == "whole":
            features = ops.norm(features, "input_norm")
        elif self.wiring.norms:
            each = ops.split(features, (self.wiring.width,) * self.parts)
            features = ops.concat([ops.norm(x, f"fc_norm.{i}") for i, x in enumerate(each)])
        return ops.linear(features * ops.weight("scale"), ["fc"])

    def logits(self, ops: Ops, state: Rows, step: int) -> Rows:
        return ops.head(state, norm=None if self.wiring.norm_output else "norm")

    def advance(self, ops: Ops, state: Rows, tokens: Rows, step: int) -> Rows:
        return self._layers(ops, state, ops.embed(tokens), "draft")

    def _layers(self, ops: Ops, x: Rows, embedded: Rows, sees: Sight) -> Rows:
        normed = ops.norm(x, "layers.0.hidden_norm")
        read = ops.concat([ops.norm(embedded, "layers.0.attention_norm"), normed])
        x = normed if self.wiring.norm_before_residual else x
        for index in range(self.config.layers):
            here = sees if index + 1 == self.config.layers else before(sees)
            names = LayerNames.of(index)
            if not index:  # what it reads is normed
                names = names._replace(norm=None)
            x = decoder_layer(ops, self.config, names, x, here, index, read=None if index else read)
        return ops.norm(x, "norm") if self.wiring.norm_output else x


class PublishedPEagle(PublishedEagle3):
    """Draft `width` tokens in one pass (P-EAGLE): behind the root stand masks, which see it.

    Parameters "masks" and "mask_features" are embeddings and features of these, all alike,
    `[masks, ...]`; "no_root" and "no_features" are zeros, which take away those of the root.
    """

    def __init__(
        self,
        config: ModelConfig,
        wiring: HeadWiring,
        parts: int,
        present: frozenset[str],
        slots: int,
    ) -> None:
        super().__init__(config, wiring, parts, present, 1)
        self.width = slots

    @property
    def rows(self) -> int:
        return self.width - 1

    def shapes(self) -> Shapes:
        return super().shapes() | {"mask_hidden": (self.feature_width,)}

    @property
    def mask(self) -> int:
        return self.wiring.mask

    def constants(
        self, mask: LogitArray, read: Callable[[str], LogitArray]
    ) -> dict[str, LogitArray]:
        """Return parameters that no file holds, of a mask's embedding `[1, width]` and tensors."""
        features = read("mask_hidden").reshape(1, -1)
        return {
            "no_root": np.zeros_like(mask[0]),
            "no_features": np.zeros_like(features[0]),
            "masks": np.tile(mask, (self.rows, 1)),
            "mask_features": np.tile(features, (self.rows, 1)),
        }

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        first = super().start(ops, features, tokens)
        last, root = ops.last(features), ops.last(ops.embed(tokens))
        read = last * ops.weight("no_features") + ops.weight("mask_features")
        embedded = root * ops.weight("no_root") + ops.weight("masks")
        others = self._layers(ops, self._fused(ops, read), embedded, "draft")
        return ops.slots(ops.concat([first, ops.slots(others, 1)]), self.width)
