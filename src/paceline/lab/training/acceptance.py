"""Acceptance-prediction head, trained on mixed tokens (SpecDec++, arXiv:2405.19715, section 3.3).

Token mixing: a share of the fed tokens is the drafter's own. Only drafted tokens after true context
teach. Chains are greedy, so the label is whether the target's text has the same token.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.core.options import require
from paceline.core.types import BoolArray, IntArray, LogitArray, ProbArray
from paceline.drafters.network.stopping_head import AcceptanceHead, log_odds
from paceline.errors import InvalidOption
from paceline.lab.training.batches import Batch, FeatureSource, order
from paceline.lab.training.classifier_metrics import auc, calibration_error
from paceline.lab.training.data import Text
from paceline.lab.training.losses import log_probs, weighted_mean
from paceline.lab.training.module import DraftModule, ahead
from paceline.lab.training.objective import wanted
from paceline.lab.training.optimisers import Rated
from paceline.lab.training.recipe import HeadRecipe
from paceline.lab.training.run import TrainingTask


def mix_tokens(
    text: IntArray, drafted: IntArray, share: float, generator: np.random.Generator
) -> tuple[IntArray, BoolArray]:
    """Replace a share of a text by the drafter's tokens; return tokens and a mask of the replaced.

    Args:
        text: int64 `[n]`, written by the target.
        drafted: int64 `[n]`, the drafter's token at each position given the text before it.
        share: replacement probability in [0, 1], else InvalidOption; 0.15 in the paper.
    """
    require(0 <= share <= 1, "share of drafted tokens", share, "in [0, 1]")
    chosen = generator.random(len(text)) < share
    return np.where(chosen, drafted, text), chosen


def acceptance_labels(target: Tensor, drafter: Tensor, tokens: Tensor) -> Tensor:
    """Return min(1, p(x) / q(x)), the acceptance probability of rejection sampling; no gradient.

    Args:
        target: `[n, v]` logits of p before each token.
        drafter: `[n, v]` logits of q.
        tokens: int64 `[n]`.
    """
    with torch.no_grad():
        ratio = log_probs(target) - log_probs(drafter)
        return ratio.gather(1, tokens[:, None])[:, 0].clamp_max(0).exp()


def acceptance_loss(
    scores: Tensor, labels: Tensor, drafted: Tensor, rejection: float = 6.0
) -> Tensor:
    """Return the mean of -y log s - w (1 - y) log(1 - s) over drafted tokens, s = sigmoid(score).

    False acceptance costs more than false rejection, hence w > 1; InvalidOption if w <= 0. The
    optimal s is then below y; `stopping_head.unweighted` inverts that.

    Args:
        scores: `[n]` logits; of a head with two outputs, their difference.
        labels: `[n]` in [0, 1], from `acceptance_labels`.
        drafted: bool `[n]`, tokens that count; the loss is 0 without any.
        rejection: w; 6 in the paper.
    """
    require(rejection > 0, "rejection weight", rejection, "above 0")
    accepted = labels * functional.softplus(-scores)
    rejected = rejection * (1 - labels) * functional.softplus(scores)
    return weighted_mean(accepted + rejected, drafted)


_EPSILON = 1e-6
_STEP_ROWS = 512


@dataclass(frozen=True, slots=True)
class HeadQuality:
    """Held-out quality of a head: AUC and calibration, against the network's own probabilities.

    Attributes:
        accepted: share of the examples that the target wrote.
        error: expected calibration error.
        own_auc: AUC of the network's own probabilities.
        own_error: expected calibration error of the network's own probabilities.
    """

    examples: int
    accepted: float
    auc: float
    own_auc: float
    error: float
    own_error: float


class AcceptanceModule(nn.Module):
    """`AcceptanceHead` in PyTorch, initialised to the network's own probability.

    `scale` is float32 `[width]`, the inverse spread of each axis of the states.
    """

    def __init__(self, scale: Tensor, recipe: HeadRecipe, generator: torch.Generator) -> None:
        super().__init__()

        def drawn(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(shape, generator=generator) / math.sqrt(shape[-1]))

        inner = recipe.inner
        self.register_buffer("scale", scale)
        self.enter = drawn(inner, len(scale))
        self.blocks = nn.ParameterList([drawn(inner, inner) for _ in range(recipe.blocks)])
        self.biases = nn.ParameterList(
            [nn.Parameter(torch.zeros(inner)) for _ in range(recipe.blocks)]
        )
        self.leave = nn.Parameter(torch.zeros(inner))
        self.own = nn.Parameter(torch.ones(1))
        # The loss is least at log-odds lower by that: see `acceptance_loss`.
        self.bias = nn.Parameter(torch.full((1,), -math.log(recipe.rejection)))

    def forward(self, states: Tensor, odds: Tensor) -> Tensor:
        """Return scores `[n]` from `[n, width]` states and the network's own log-odds `[n]`."""
        x = functional.linear(states * self.get_buffer("scale"), self.enter)
        for block, bias in zip(self.blocks, self.biases, strict=True):
            x = x + functional.silu(functional.linear(x, block, bias))
        return x @ self.leave + self.own * odds + self.bias

    def named(self) -> dict[str, LogitArray]:
        scale = self.get_buffer("scale")
        named = {"scale": scale, "in": self.enter, "out": self.leave}
        named |= {"own": self.own, "bias": self.bias}
        for index, (block, bias) in enumerate(zip(self.blocks, self.biases, strict=True)):
            named |= {f"block.{index}": block, f"block.{index}.bias": bias}
        return {name: each.detach().numpy().copy() for name, each in named.items()}


@dataclass(frozen=True, slots=True)
class DraftedTokens:
    """Tokens that a drafter wrote after true context.

    Attributes:
        states: float32 `[n, width]`, the network's state after each.
        own: float64 `[n]`, probability of each in the network's distribution.
        stood: float32 `[n]` of 0 and 1, whether the target wrote it.
    """

    states: Tensor
    own: ProbArray
    stood: Tensor


@torch.no_grad()
def drafted_states(
    module: DraftModule, batch: Batch, ids: IntArray, share: float, rng: np.random.Generator
) -> DraftedTokens:
    """Draft in texts of the target with token mixing; `module` must draft one token per step."""
    network = module.network
    tokens, features = torch.from_numpy(batch.tokens), torch.from_numpy(batch.features)
    names = torch.from_numpy(ids)
    sure = torch.empty(0)
    best = fed = torch.empty(0, dtype=torch.int64)
    own = torch.empty(0, dtype=torch.bool)

    def feed(step: int) -> Tensor:
        nonlocal fed, own
        text = ahead(tokens, step + 1).numpy()
        mine = names[best].numpy()
        mixed, chosen = mix_tokens(text.ravel(), mine.ravel(), share, rng)
        fed = torch.from_numpy(mixed.reshape(text.shape))
        own = torch.from_numpy(chosen.reshape(text.shape))
        return fed[..., None]

    states, chances, stood = [], [], []
    true = torch.ones(tokens.shape, dtype=torch.bool)
    for ops, state, step in module.unroll(features, tokens, feed):
        if step:
            right = fed == ahead(tokens, step + 1)
            rows = true & own & (wanted(batch, step, 0.0) > 0)
            states.append(state[rows].flatten(1).float())
            chances.append(sure[rows])
            stood.append(right[rows].float())
            true &= right
        if step + 1 < network.steps:
            sure, best = network.logits(ops, state, step)[..., 0, :].float().softmax(-1).max(-1)
    found: ProbArray = torch.cat(chances).double().numpy()
    return DraftedTokens(torch.cat(states), found, torch.cat(stood))


class AcceptanceTask(TrainingTask[HeadRecipe, HeadQuality]):
    """A head for a frozen network that drafts one token per step; InvalidOption without texts."""

    module: AcceptanceModule

    def __init__(
        self,
        network: DraftModule,
        texts: Sequence[Text],
        held_out: Sequence[Text],
        source: FeatureSource,
        ids: IntArray,
        recipe: HeadRecipe,
        metadata: dict[str, str],
    ) -> None:
        if not texts:
            raise InvalidOption("there are no texts: write some with `paceline train data`")
        super().__init__(recipe, texts, held_out)
        self._network, self._source, self._ids = network, source, ids
        self._metadata = metadata
        size = sum(len(text.tokens) for text in texts)
        passes = -(-recipe.tokens // size)
        groups = [group for number in range(passes) for group in self.passing(number)]
        ordered = sum(len(text.tokens) for group in groups for text in group)
        self.steps = max(1, round(len(groups) * recipe.tokens / ordered))
        self.module = AcceptanceModule(self._scale(groups[0]), recipe, self.generator)

    def passing(self, number: int) -> list[list[Text]]:
        return order(self.texts, self.recipe.batch_tokens, self.recipe.seed + number)

    @property
    def settings(self) -> dict[str, Any]:
        return {**super().settings, **self._metadata}

    def optimisers(self) -> list[Rated]:
        rate = self.recipe.rate
        return [(torch.optim.AdamW(self.module.parameters(), lr=rate), rate)]

    def losses(self, texts: Sequence[Text], step: int) -> Iterator[tuple[Tensor, float]]:
        drafted = self._drafted(texts, self.recipe.share, self.rng)
        odds = torch.from_numpy(log_odds(drafted.own)).float()
        shuffled = torch.from_numpy(self.rng.permutation(len(odds)))
        for rows in torch.split(shuffled, _STEP_ROWS):
            every = torch.ones(len(rows))
            scores = self.module(drafted.states[rows], odds[rows])
            loss = acceptance_loss(scores, drafted.stood[rows], every, self.recipe.rejection)
            yield loss, float(loss.detach())

    def result(self) -> AcceptanceHead:
        return AcceptanceHead(self.module.named(), self.recipe.rejection, self._metadata)

    def judge(self) -> HeadQuality:
        # Without mixing: all tokens are drafted, as in decoding.
        groups = order(self.held_out, self.recipe.batch_tokens, 0)
        parts = [self._drafted(group, 1.0, self.rng) for group in groups]
        labels = torch.cat([part.stood for part in parts]).double().numpy()
        if not len(labels):
            raise InvalidOption("nothing is drafted in the texts held out: write longer ones")
        own = np.concatenate([part.own for part in parts])
        said = self.result().chances(torch.cat([part.states for part in parts]).numpy(), own)
        right: BoolArray = labels > 0
        return HeadQuality(
            len(labels),
            float(labels.mean()),
            auc(said, right),
            auc(own, right),
            calibration_error(said, labels),
            calibration_error(own, labels),
        )

    def _drafted(
        self, texts: Sequence[Text], share: float, rng: np.random.Generator
    ) -> DraftedTokens:
        return drafted_states(self._network, self._source.batch(texts), self._ids, share, rng)

    def _scale(self, texts: Sequence[Text]) -> Tensor:
        # Drafts what the first update will draft again.
        rng = np.random.default_rng(self.recipe.seed)
        states = self._drafted(texts, self.recipe.share, rng).states
        return 1 / states.square().mean(0).sqrt().clamp_min(_EPSILON)
