"""Drafter network as a PyTorch module, with teacher-forced drafts after every position."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.core.options import require
from paceline.core.types import LogitArray
from paceline.errors import InvalidOption
from paceline.models.config import ModelConfig
from paceline.models.families.base import heads_of
from paceline.models.source import ModelSource
from paceline.models.weights import Weights
from paceline.networks.base import Network
from paceline.networks.torch_ops import NetworkTensors, TextAttention, TorchOps
from paceline.networks.weights import Trained

# Arguments of `Network.logits`.
Step: TypeAlias = tuple[TorchOps, Tensor, int]

# From a step (1 or more) to int64 `[batch, time, width]`, the tokens drafted in the step before.
Feed: TypeAlias = Callable[[int], Tensor]

# From a module and the features and tokens of a batch to those that `Network.start` reads instead.
Reveal: TypeAlias = Callable[["DraftModule", Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class Drafts:
    """Drafts after every position of a batch.

    Attributes:
        logits: per depth, `[batch, time, columns]`.
        exits: the same for every shallower exit of the network.
        features: per depth, `[batch, time, width]` predicted hidden states in the target's units;
            empty if the network predicts none.
    """

    logits: list[Tensor]
    exits: list[list[Tensor]]
    features: list[Tensor]


class DraftModule(nn.Module):
    """Trainable parameters of a network, with frozen matrices of its target."""

    def __init__(
        self,
        network: Network,
        embedding: Tensor,
        head: Tensor,
        generator: torch.Generator,
        target_weights: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> None:
        """Initialise parameters at random.

        Args:
            embedding: float32 `[vocabulary, width]` of the target; frozen.
            head: float32 `[draft vocabulary, width]`, rows of the target's LM head; frozen.
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
        for name in network.target_weights():
            self.register_buffer(name.replace(".", "/"), target_weights[name], persistent=False)

    def named(self) -> dict[str, Tensor]:
        """Return parameters by the network's own names."""
        return {name.replace("/", "."): each for name, each in self.parameters_by_name.items()}

    def target_weights(self) -> dict[str, Tensor]:
        names = self.network.target_weights()
        return {name: self.get_buffer(name.replace(".", "/")) for name in names}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self.named().items():
                parameter.copy_(tensors[name])

    def fit_scale(self, features: Tensor) -> None:
        """Set the network's scales, if it has any, from float32 `[rows, 4 * width]` features."""
        spread = features.square().mean(0).sqrt().clamp_min(1e-3)
        width = self.network.config.hidden_size
        with torch.no_grad():
            for name, each in self.named().items():
                if name == "scale":
                    each.copy_(1 / spread[: len(each)])
                elif name == "hidden_scale":
                    each.copy_(1 / spread[-width:])
                elif name == "high_scale":
                    each.copy_(1 / spread[2 * width : 3 * width])
                elif name == "high_spread":
                    each.copy_(spread[2 * width : 3 * width])

    def teacher(self, features: Tensor) -> Tensor:
        """Return the target's logits over the draft vocabulary, `[..., draft vocabulary]`."""
        return features[..., -self.network.config.hidden_size :] @ self.get_buffer("head").T

    def forward(self, features: Tensor, tokens: Tensor) -> list[Tensor]:
        """Return teacher-forced logits `[batch, time, columns]` per depth, after every position.

        Position t reads features up to t and root t + 1; depth d drafts token t + 1 + d. Drafts
        beyond the end are void. Columns: draft vocabulary, and blank if any.

        Args:
            features: float32 `[batch, time, 4 * width]`.
            tokens: int64 `[batch, time]`.
        """
        return self._logits(self._steps(features, tokens))

    def draft(self, features: Tensor, tokens: Tensor, reveal: Reveal | None = None) -> Drafts:
        """Like `forward`, with exits and predicted features."""
        network, steps = self.network, list(self._steps(features, tokens, reveal))
        exits = zip(*(network.exits(*each) for each in steps), strict=True)
        foretold = [network.features_of(ops, state) for ops, state, _ in steps]
        return Drafts(
            self._logits(steps),
            [self._by_depth(list(parts)) for parts in exits],
            _slots([each for each in foretold if each is not None]),
        )

    def _logits(self, steps: Iterable[Step]) -> list[Tensor]:
        return self._by_depth([self.network.logits(*each) for each in steps])

    def _by_depth(self, steps: Iterable[Tensor]) -> list[Tensor]:
        network, out = self.network, _slots(steps)
        if not network.reads_features:  # the one step's, further on, are those of all others
            out = [ahead(out[0], depth) for depth in range(network.depth)]
        return out

    def unroll(
        self, features: Tensor, tokens: Tensor, feed: Feed, reveal: Reveal | None = None
    ) -> Iterator[Step]:
        """Yield the state of every step after every position, over tokens that `feed` gives.

        `feed` is called before each step but the first, after its caller has seen the step before;
        `reveal` may change what the first step reads.
        """
        network = self.network
        reads = network.reads_features
        embedding, head = self.get_buffer("embedding"), self.get_buffer("head")
        tensors = {**self.named(), **self.target_weights()}
        # While it learns; a function of each text, so that a run may be resumed anywhere.
        most = network.farthest - tokens.shape[1] if torch.is_grad_enabled() else 0
        offset = tokens.sum(1) * 2654435761 % (max(most, 0) + 1)
        weights = NetworkTensors(tensors, embedding, head)
        ops = TorchOps(weights, network.config.norm_eps, TextAttention(offset))
        following = ahead(tokens, 1) if reads else tokens
        if reveal is not None:
            features, following = reveal(self, features, tokens)
        elif network.more:
            features = functional.pad(features, (0, network.more))
        if network.reads_target:  # where its texts stand; its keys are moved with the others
            plain = TorchOps(weights, network.config.norm_eps, TextAttention())
            ops.attend(-1, network.target_rows(plain, features), heads_of(network.config, -1))
        state = network.start(ops, features, following)
        for step in range(network.steps):
            if step:
                drafted = feed(step)
                state = network.advance(ops, state, drafted if reads else _behind(drafted), step)
            # Networks that read tokens alone have a row more, that of the text's first token.
            yield ops, state if reads else ahead(state, 1), step

    def _steps(
        self, features: Tensor, tokens: Tensor, reveal: Reveal | None = None
    ) -> Iterator[Step]:
        network = self.network

        def feed(step: int) -> Tensor:
            first = 2 + (step - 1) * network.width
            drafted = [ahead(tokens, first + slot) for slot in range(network.width)]
            return torch.stack(drafted, dim=-1)

        steps = self.unroll(features, tokens, feed, reveal)
        return steps if network.reads_features else islice(steps, 1)


def _slots(steps: Iterable[Tensor]) -> list[Tensor]:
    return [each for step in steps for each in step.unbind(-2)]


def ahead(rows: Tensor, count: int) -> Tensor:
    return torch.cat([rows[:, count:], torch.zeros_like(rows[:, :count])], dim=1)


def _behind(rows: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(rows[:, :1]), rows[:, :-1]], dim=1)


def _first(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if len(shape) == 1:
        return torch.ones(shape)
    if name.endswith("residual"):
        return torch.zeros(shape)
    if name == "root":  # in the first slot, alone
        return (torch.arange(shape[0]) == 0).float()[:, None].expand(shape).clone()
    return torch.randn(shape, generator=generator) / math.sqrt(shape[-1])


def share_target_weights(
    network: Network, config: ModelConfig, weights: Weights
) -> dict[str, LogitArray]:
    """Return the target weights that the drafter runs with, float32 by name.

    Raises:
        InvalidOption: the network takes all of the target's layers, or the target has layers that
            networks cannot compute: biased projections, normed queries, scaled rotary positions.
    """
    if not network.runs:
        return {}
    most = config.layers - 1
    require(network.exit <= most, f"exit of network '{network.name}'", network.exit, f"1 to {most}")
    if config.qkv_bias or config.qk_norm or config.rope_divisors is not None:
        raise InvalidOption(
            f"network '{network.name}' runs layers of its target, and not those of this "
            f"{config.family} model: train another network, such as draft-lm"
        )
    return {name: weights[name] for name in network.target_weights()}


def restore_module(trained: Trained, source: ModelSource) -> DraftModule:
    """Build the module of a trained network; ModelError if the target's weights are damaged."""
    config, weights = source.config, source.weights()
    embedding = weights["embed"]
    head = embedding if config.tied_embeddings else weights["head"]
    lent = share_target_weights(trained.network, config, weights)
    module = DraftModule(
        trained.network,
        torch.from_numpy(embedding),
        torch.from_numpy(np.ascontiguousarray(head[trained.draft_ids])),
        torch.Generator(),
        {name: torch.from_numpy(np.ascontiguousarray(each)) for name, each in lent.items()},
    )
    module.load({name: torch.tensor(each) for name, each in trained.parameters.items()})
    return module
