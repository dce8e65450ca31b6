"""Trains the head that predicts acceptance (SpecDec++, arXiv:2405.19715, section 3.3).

The drafter runs over text of the target. Behind every position a part of the tokens that it is fed
are its own, the others the text's ("token mixing"); those of its own that follow true ones alone
teach, since nothing below a rejected token is ever looked at. Chains are of the likeliest tokens,
which the verifier accepts where the target says the same: so the label is whether the text does,
greedy or sampled, as it was written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.drafters.acceptance import AcceptanceHead, log_odds
from paceline.errors import InvalidOption
from paceline.training.acceptance_head import acceptance_loss, mix_tokens
from paceline.training.batches import Batch, FeatureSource, order
from paceline.training.calibration import Reliability, reliability
from paceline.training.data.writing import Text
from paceline.training.module import DraftModule
from paceline.training.objective import wanted
from paceline.training.quality import auc
from paceline.types import BoolArray, IntArray, LogitArray, ProbArray

_EPSILON = 1e-6
_STEP_ROWS = 512


@dataclass(frozen=True, slots=True)
class HeadRecipe:
    """How a head is trained.

    Attributes:
        tokens: of text to run over, counting each time that one is seen.
        batch_tokens: tokens of a batch, padding included.
        inner: width inside the head; the paper's is that of the state, for thousands of texts.
        blocks: residual blocks; the paper's 3.
        share: of tokens that are the drafter's own; the paper, with one draft per text, takes 0.15.
        rejection: weight of tokens that were wrongly trusted; the paper's 6.
        rate: learning rate of AdamW, falling to nothing in equal parts.
        seed: of first weights, order and mixing.
    """

    tokens: int
    batch_tokens: int = 2048
    inner: int = 32
    blocks: int = 3
    share: float = 0.5
    rejection: float = 6.0
    rate: float = 5e-4
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Judged:
    """A head on drafted tokens of texts that were held out.

    Attributes:
        examples: how many tokens.
        accepted: share of them that the target wrote.
        auc: chance that an accepted one is predicted higher than a rejected one.
        own_auc: the same for the network's own probabilities.
        reliability: predictions against what happened.
        own_error: calibration error of the network's own probabilities.
    """

    examples: int
    accepted: float
    auc: float
    own_auc: float
    reliability: Reliability
    own_error: float


class AcceptanceModule(nn.Module):
    """The head in PyTorch: see `AcceptanceHead`."""

    def __init__(self, scale: Tensor, recipe: HeadRecipe) -> None:
        """Begin with what the network's own law says.

        Args:
            scale: float32 `[width]`, inverse of what the states' axes measure.
            recipe: sizes, seed and rejection weight.
        """
        super().__init__()
        generator = torch.Generator().manual_seed(recipe.seed)

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
        """Scores `[n]` of `[n, width]` states, and log-odds `[n]` in the network's law."""
        x = functional.linear(states * self.get_buffer("scale"), self.enter)
        for block, bias in zip(self.blocks, self.biases, strict=True):
            x = x + functional.silu(functional.linear(x, block, bias))
        return x @ self.leave + self.own * odds + self.bias

    def named(self) -> dict[str, LogitArray]:
        """Parameters as `AcceptanceHead` has them."""
        scale = self.get_buffer("scale")
        named = {"scale": scale, "in": self.enter, "out": self.leave}
        named |= {"own": self.own, "bias": self.bias}
        for index, (block, bias) in enumerate(zip(self.blocks, self.biases, strict=True)):
            named |= {f"block.{index}": block, f"block.{index}.bias": bias}
        return {name: each.detach().numpy().copy() for name, each in named.items()}


@dataclass(frozen=True, slots=True)
class DraftedTokens:
    """Tokens that a drafter wrote behind true ones.

    Attributes:
        states: float32 `[n, width]`, the network's behind each.
        own: float64 `[n]`, probability of each in the network's law before it.
        stood: float32 `[n]` of 0 and 1, whether the target wrote it.
    """

    states: Tensor
    own: ProbArray
    stood: Tensor


@torch.no_grad()
def drafted_states(
    module: DraftModule, batch: Batch, ids: IntArray, share: float, rng: np.random.Generator
) -> DraftedTokens:
    """The drafter's own tokens in texts of the target.

    Args:
        module: drafts one token per step.
        batch: texts with features.
        ids: int64 `[draft vocabulary]`, token ids.
        share: of the tokens that are the drafter's own.
        rng: draws which.
    """
    network = module.network
    tokens, features = torch.from_numpy(batch.tokens), torch.from_numpy(batch.features)
    names = torch.from_numpy(ids)
    sure = torch.empty(0)
    best = fed = torch.empty(0, dtype=torch.int64)
    own = torch.empty(0, dtype=torch.bool)

    def feed(step: int) -> Tensor:
        nonlocal fed, own
        text = _ahead(batch.tokens, step + 1)
        mine = names[best].numpy()
        mixed, chosen = mix_tokens(text.ravel(), mine.ravel(), share, rng)
        fed = torch.from_numpy(mixed.reshape(text.shape))
        own = torch.from_numpy(chosen.reshape(text.shape))
        return fed[..., None]

    states, chances, stood = [], [], []
    true = torch.ones(tokens.shape, dtype=torch.bool)
    for ops, state, step in module.unroll(features, tokens, feed):
        if step:
            right = fed == torch.from_numpy(_ahead(batch.tokens, step + 1))
            rows = true & own & (wanted(batch, step, 0.0) > 0)
            states.append(state[rows].flatten(1).float())
            chances.append(sure[rows])
            stood.append(right[rows].float())
            true &= right
        if step + 1 < network.steps:
            sure, best = network.logits(ops, state, step)[..., 0, :].float().softmax(-1).max(-1)
    found: ProbArray = torch.cat(chances).double().numpy()
    return DraftedTokens(torch.cat(states), found, torch.cat(stood))


def train_acceptance_head(
    module: DraftModule,
    texts: Sequence[Text],
    held_out: Sequence[Text],
    source: FeatureSource,
    ids: IntArray,
    recipe: HeadRecipe,
    metadata: dict[str, str],
) -> tuple[AcceptanceHead, Judged]:
    """Train a head for a network that stays as it is, and judge it.

    Args:
        module: the network, which drafts one token per step.
        texts: to train on.
        held_out: to judge on.
        source: gives features.
        ids: int64 `[draft vocabulary]`, token ids.
        recipe: how.
        metadata: provenance to store with the head.

    Raises:
        InvalidOption: nothing is drafted in the texts, or the loss is no number.
    """
    rng = np.random.default_rng(recipe.seed)
    passes = -(-recipe.tokens // max(1, sum(len(text.tokens) for text in texts)))
    groups = [
        group
        for number in range(passes)
        for group in order(texts, recipe.batch_tokens, recipe.seed + number)
    ]
    count = max(1, round(len(groups) * recipe.tokens / _size(groups)))
    head: AcceptanceModule | None = None
    for index, group in enumerate(groups[:count]):
        drafted = drafted_states(module, source.batch(group), ids, recipe.share, rng)
        if head is None:
            spread = drafted.states.square().mean(0).sqrt().clamp_min(_EPSILON)
            head = AcceptanceModule(1 / spread, recipe)
            optimiser = torch.optim.AdamW(head.parameters(), lr=recipe.rate)
        for each in optimiser.param_groups:
            each["lr"] = recipe.rate * (1 - index / count)
        odds = torch.from_numpy(log_odds(drafted.own)).float()
        shuffled = torch.from_numpy(rng.permutation(len(odds)))
        for begin in range(0, len(shuffled), _STEP_ROWS):
            rows = shuffled[begin : begin + _STEP_ROWS]
            optimiser.zero_grad()
            every = torch.ones(len(rows))
            scores = head(drafted.states[rows], odds[rows])
            loss = acceptance_loss(scores, drafted.stood[rows], every, recipe.rejection)
            if not math.isfinite(float(loss.detach())):
                raise InvalidOption(f"the loss is {float(loss)}: train with a lower --rate")
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    if head is None:
        raise InvalidOption("there are no texts: write some with `paceline train data`")
    out = AcceptanceHead(head.named(), recipe.rejection, metadata)
    return out, _judge(out, module, held_out, source, ids, recipe, rng)


def _judge(
    head: AcceptanceHead,
    module: DraftModule,
    texts: Sequence[Text],
    source: FeatureSource,
    ids: IntArray,
    recipe: HeadRecipe,
    rng: np.random.Generator,
) -> Judged:
    """All tokens are the drafter's own, as they are in decoding."""
    parts = [
        drafted_states(module, source.batch(group), ids, 1.0, rng)
        for group in order(texts, recipe.batch_tokens, 0)
    ]
    labels = torch.cat([part.stood for part in parts]).double().numpy()
    if not len(labels):
        raise InvalidOption("nothing is drafted in the texts held out: write longer ones")
    own = np.concatenate([part.own for part in parts])
    said = head.chances(torch.cat([part.states for part in parts]).numpy(), own)
    right: BoolArray = labels > 0
    return Judged(
        len(labels),
        float(labels.mean()),
        auc(said, right),
        auc(own, right),
        reliability(said, labels),
        reliability(own, labels).error,
    )


def _ahead(tokens: IntArray, count: int) -> IntArray:
    """int64 `[texts, time]`, the tokens `count` places on; 0 behind the end."""
    out = np.zeros_like(tokens)
    known = tokens[:, count:]
    out[:, : known.shape[1]] = known
    return out


def _size(groups: Sequence[Sequence[Text]]) -> int:
    return sum(len(text.tokens) for group in groups for text in group)
