"""A drafter network as a PyTorch module: its parameters, and what it drafts behind every token."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.networks.base import Network
from paceline.networks.torch_ops import TorchOps

Step: TypeAlias = tuple[TorchOps, Tensor, int]
"""What `Network.logits` takes."""

Feed: TypeAlias = Callable[[int], Tensor]
"""Given a step, 1 or more: int64 `[batch, time, width]`, the tokens drafted in the step before."""

Reveal: TypeAlias = Callable[[TorchOps, Tensor, int], Tensor]
"""Of what `Network.logits` takes, a state of the same shape."""


@dataclass(frozen=True, slots=True)
class Drafts:
    """Drafts behind every position of a batch.

    Attributes:
        logits: per depth, `[batch, time, columns]`.
        exits: the same for every shallower exit of the network.
        features: per depth, `[batch, time, width]` foretold hidden states, in the target's units;
            empty if the network foretells none.
    """

    logits: list[Tensor]
    exits: list[list[Tensor]]
    features: list[Tensor]


class DraftModule(nn.Module):
    """Trainable parameters of a network, and frozen matrices of its target."""

    def __init__(
        self,
        network: Network,
        embedding: Tensor,
        head: Tensor,
        generator: torch.Generator,
        borrowed: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> None:
        """Draw the first parameters.

        Args:
            network: what to train.
            embedding: float32 `[vocabulary, width]` of the target; frozen.
            head: float32 `[draft vocabulary, width]`, rows of the target's LM head; frozen.
            generator: of the draws.
            borrowed: float32, what the network borrows of the target, by its own names; frozen.
        """
        super().__init__()
        self.network = network
        self.parameters_by_name = nn.ParameterDict(
            {
                name.replace(".", "/"): nn.Parameter(_first(name, shape, generator))
                for name, shape in network.shapes().items()
            }
        )
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("head", head, persistent=False)
        for name in network.borrowed():
            self.register_buffer(name.replace(".", "/"), borrowed[name], persistent=False)

    def named(self) -> dict[str, Tensor]:
        """Parameters by the network's own names."""
        return {name.replace("/", "."): each for name, each in self.parameters_by_name.items()}

    def borrowed(self) -> dict[str, Tensor]:
        """What is borrowed of the target, by the network's own names."""
        names = self.network.borrowed()
        return {name: self.get_buffer(name.replace(".", "/")) for name in names}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over parameters by the network's own names."""
        with torch.no_grad():
            for name, parameter in self.named().items():
                parameter.copy_(tensors[name])

    def fit_scale(self, features: Tensor) -> None:
        """Set the network's scales, if it has any, by float32 `[rows, 4 * width]` features."""
        spread = features.square().mean(0).sqrt().clamp_min(1e-3)
        width = self.network.geometry.width
        with torch.no_grad():
            for name, each in self.named().items():
                if name == "scale":
                    each.copy_(1 / spread[: len(each)])
                elif name == "hidden_scale":
                    each.copy_(1 / spread[-width:])
                elif name == "high_spread":
                    each.copy_(spread[2 * width : 3 * width])

    def teacher(self, features: Tensor) -> Tensor:
        """The target's own logits over the draft vocabulary, `[..., draft vocabulary]`."""
        return features[..., -self.network.geometry.width :] @ self.get_buffer("head").T

    def forward(self, features: Tensor, tokens: Tensor) -> list[Tensor]:
        """Logits of every depth of the drafts behind every position, given the true tokens.

        Position t reads features up to t and the root t + 1; the draft at depth d is for token
        t + 1 + d. Tokens beyond the end count as token 0, and what is drafted there is void.

        Args:
            features: float32 `[batch, time, 4 * width]`.
            tokens: int64 `[batch, time]`.

        Returns:
            `depth` tensors `[batch, time, columns]`: the draft vocabulary, and blank if there is.
        """
        return self._logits(self._steps(features, tokens))

    def draft(self, features: Tensor, tokens: Tensor, reveal: Reveal | None = None) -> Drafts:
        """Like `forward`, with all that a network may be trained on."""
        network, steps = self.network, list(self._steps(features, tokens, reveal))
        exits = [network.exits(*each) for each in steps]
        foretold = [network.features_of(ops, state) for ops, state, _ in steps]
        return Drafts(
            self._logits(steps),
            [_slots(parts) for parts in zip(*exits, strict=True)],
            _slots([each for each in foretold if each is not None]),
        )

    def _logits(self, steps: Iterable[Step]) -> list[Tensor]:
        """Per depth, of all steps."""
        network = self.network
        out = _slots([network.logits(*each) for each in steps])
        if not network.reads_features:  # the one step's, further on, are those of all others
            out = [_ahead(out[0], depth) for depth in range(network.depth)]
        return out

    def unroll(
        self, features: Tensor, tokens: Tensor, feed: Feed, reveal: Reveal | None = None
    ) -> Iterator[Step]:
        """The state of every step behind every position, whatever tokens are drafted.

        Args:
            features: as for `forward`.
            tokens: as for `forward`.
            feed: asked before each step but the first, when that before it has been looked at.
            reveal: puts a state right before the next step starts from it.
        """
        network = self.network
        reads = network.reads_features
        embedding, head = self.get_buffer("embedding"), self.get_buffer("head")
        tensors = {**self.named(), **self.borrowed()}
        ops = TorchOps(network.geometry, tensors, embedding, head, network.reach)
        state = network.start(ops, features, _context(tokens, network.window) if reads else tokens)
        for step in range(network.steps):
            if step:
                drafted = feed(step)
                state = state if reveal is None else reveal(ops, state, step - 1)
                state = network.advance(ops, state, drafted if reads else _behind(drafted), step)
            # Networks that read tokens alone have a row more, that of the text's first token.
            yield ops, state if reads else _ahead(state, 1), step

    def _steps(
        self, features: Tensor, tokens: Tensor, reveal: Reveal | None = None
    ) -> Iterator[Step]:
        """The state of every step over true tokens; of the first alone if no others are needed."""
        network = self.network

        def feed(step: int) -> Tensor:
            first = 2 + (step - 1) * network.width
            drafted = [_ahead(tokens, first + slot) for slot in range(network.width)]
            return torch.stack(drafted, dim=-1)

        steps = self.unroll(features, tokens, feed, reveal)
        return steps if network.reads_features else islice(steps, 1)


def _slots(steps: Iterable[Tensor]) -> list[Tensor]:
    """`[batch, time, columns]` per depth from `[batch, time, width, columns]` per step."""
    return [each for step in steps for each in step.unbind(-2)]


def _context(tokens: Tensor, window: int) -> Tensor:
    """What follows each position; with a window, also what follows those before it."""
    following = _ahead(tokens, 1)
    if window == 1:
        return following
    padded = functional.pad(following, (window - 1, 0))
    return padded.unfold(1, window, 1)


def _ahead(rows: Tensor, count: int) -> Tensor:
    """`[batch, time, ...]` rows `count` places on; zeros where there is none."""
    return torch.cat([rows[:, count:], torch.zeros_like(rows[:, :count])], dim=1)


def _behind(rows: Tensor) -> Tensor:
    """`[batch, time, ...]` rows one place back; zeros in the first."""
    return torch.cat([torch.zeros_like(rows[:, :1]), rows[:, :-1]], dim=1)


def _first(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if len(shape) == 1:
        return torch.ones(shape)
    if name.endswith("residual"):
        return torch.zeros(shape)
    return torch.randn(shape, generator=generator) / math.sqrt(shape[-1])
