"""Recipes: how fast, how long and from which seed things are trained; help and bounds at the field.

Commands take their options from here; checkpoints and cards hold what was chosen.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Annotated, Literal, get_args

from paceline.core.options import Allowed, among, at_least, check_fields, require
from paceline.errors import InvalidOption

RATE = Allowed(lambda value: 0 < value < math.inf, "more than 0")
WEIGHT = Allowed(lambda value: 0 <= value < math.inf, "0 or more")
SHARE = Allowed(lambda value: 0 <= value <= 1, "in [0, 1]")

Steps = Annotated[int, "Updates.", at_least(1)]
Tokens = Annotated[int, "Tokens to train on, repeats counted.", at_least(1)]
LossName = Annotated[str, "cross-entropy, forward-kl, reverse-kl, jsd, tvd or tvd++."]
Precision = Annotated[str, "fp32 or bf16.", among("fp32", "bf16")]
Decay = Annotated[float, "Weight of a place relative to the one before it.", WEIGHT]
Width = Annotated[int, "Hidden size, a multiple of 32.", at_least(1)]
Layers = Annotated[int, "Layers.", at_least(1)]
HeadWidth = Annotated[int, "Width of an attention head.", at_least(1)]
MatrixRate = Annotated[float, "Peak learning rate of matrices.", RATE]
VectorRate = Annotated[float, "Peak learning rate of the rest.", RATE]


def cosine(step: int, *, peak: float, steps: int, warm: int = 0, floor: float = 0.0) -> float:
    """Return the learning rate of cosine decay (SGDR, arXiv:1608.03983) from `peak` to `floor`.

    `steps` includes the `warm` steps of linear warm-up, the last of which has the peak rate.

    Raises:
        InvalidOption: the warm-up fills the run, or the floor is above the peak.
    """
    require(0 <= warm < steps, "warm-up", warm, f"0 to {steps - 1} of {steps} steps")
    require(0 <= floor <= peak, "floor", floor, f"0 to the peak of {peak}")
    if step < warm:
        return peak * ((step + 1) / warm)
    first = max(0, warm - 1)  # the step that has the full rate
    done = min(1.0, (step - first) / max(1, steps - 1 - first))
    return floor + (peak - floor) * 0.5 * (1 + math.cos(math.pi * done))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What every training has; tasks add rates and sizes of their own.

    Raises:
        InvalidOption: a field is out of its bounds.
    """

    warm_up: Annotated[float, "Share of the updates in which rates rise.", SHARE] = 0.05
    clip: Annotated[float | None, "Limit of the gradients' norm.", RATE] = 1.0
    seed: Annotated[int, "Keys all randomness.", at_least(0)] = 0

    def __post_init__(self) -> None:
        check_fields(self)

    def scheduled(self, peak: float, step: int, steps: int) -> float:
        """Return the learning rate of a step: warm-up, then cosine decay to 2% of the peak.

        It depends on the step alone, so that a resumed run is identical.
        """
        warm = round(self.warm_up * steps) if steps > 1 else 0
        return cosine(step, peak=peak, steps=steps, warm=warm, floor=0.02 * peak)

    def words(self, *names: str) -> str:
        """Return fields as on a command line."""
        values = asdict(self)
        return " ".join(f"--{name.replace('_', '-')} {values[name]}" for name in names)


def check_loss(name: str) -> None:
    from paceline.lab.training.losses import find_loss

    find_loss(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterRecipe(Recipe):
    """Of a drafter network; vectors (norms, scales, slots) learn a tenth as fast as matrices."""

    tokens: Tokens = 1_000_000
    loss: LossName = "forward-kl"
    batch_tokens: Annotated[int, "Tokens per update.", at_least(1)] = 2048
    rate: Annotated[float, "Highest learning rate of matrices (Muon).", RATE] = 0.02
    prompt_weight: Annotated[
        float, "Weight of prompt tokens, which the target did not write.", WEIGHT
    ] = 0.1
    on_policy: Annotated[
        float, "Share of batches that teach on the drafter's own drafts.", SHARE
    ] = 0.0
    training_precision: Precision = "bf16"
    decay: Decay = 0.8
    feature_weight: Annotated[float, "Of the loss on hidden states.", WEIGHT] = 1.0

    def __post_init__(self) -> None:
        Recipe.__post_init__(self)
        check_loss(self.loss)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadRecipe(Recipe):
    """Of an acceptance head; the rate decays linearly to 0."""

    tokens: Tokens = 200_000
    batch_tokens: Annotated[int, "Tokens per batch.", at_least(1)] = 2048
    rejection: Annotated[
        float, "Weight of tokens that were wrongly trusted.", WEIGHT  # 6 in the paper
    ] = 6.0
    rate: Annotated[float, "Highest learning rate.", RATE] = 5e-4
    inner: Annotated[int, "Hidden width.", at_least(1)] = 32
    blocks: Annotated[int, "Residual blocks.", at_least(1)] = 3  # as in the paper
    # The paper mixes in 0.15, and has one draft per text.
    share: Annotated[float, "Of drafter tokens that are mixed in.", SHARE] = 0.5
    clip: Annotated[float | None, "Limit of the gradients' norm.", RATE] = None

    def scheduled(self, peak: float, step: int, steps: int) -> float:
        return peak * (1 - step / steps)


DenoiserKind = Literal["full", "block", "order"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DenoiserRecipe(Recipe):
    """Shape and hyperparameters of a denoiser of tasks; a shipped card holds all fields.

    Attributes:
        kind: what its rows see.
        own: so many answers that the starting weights write, greedily, are learned from in place of
            those of the tasks; 0 for the latter.
    """

    kind: Annotated[DenoiserKind, "full, block or order.", among(*get_args(DenoiserKind))] = "full"
    steps: Annotated[int, "Updates.", at_least(2)] = 3000
    batch: Annotated[int, "Examples per update.", at_least(1)] = 64
    width: Width = 160
    layers: Layers = 4
    head: HeadWidth = 32
    ffn: Annotated[int, "Inner size of feed-forward blocks.", at_least(1)] = 448
    matrix_rate: MatrixRate = 0.02
    vector_rate: VectorRate = 3e-3
    certainty: Annotated[
        float, "Weight of the entropy of masks that are right (dParallel).", WEIGHT
    ] = 0.0
    own: Annotated[
        int, "Learn from so many answers of the model itself, with --from.", at_least(0)
    ] = 0
    corrupt: Annotated[
        float, "Of full: share of visible tokens that are wrong (ReDiff).", SHARE
    ] = 0.0
    stages: Annotated[
        int,
        "Of full: mask as if blocks of so many places were filled in turn (dParallel).",
        at_least(0),
    ] = 0
    guesses: Annotated[
        float, "Of full: share of masks that hold the model's own guesses (ReDiff).", SHARE
    ] = 0.0
    causal_weight: Annotated[float, "Of the loss on next tokens, of block.", WEIGHT] = 1.0

    def __post_init__(self) -> None:
        Recipe.__post_init__(self)
        require(self.width % self.head == 0, "width", self.width, f"a multiple of {self.head}")
        if self.kind != "full" and (self.corrupt or self.stages or self.guesses):
            raise InvalidOption(
                f"corrupt, stages and guesses are of full, not of {self.kind}: leave them out"
            )
        if self.corrupt and self.stages:
            raise InvalidOption("stages say what is masked, without corrupt: leave out one")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDenoiserRecipe(Recipe):
    """Of a denoiser for a target; `mask` is the id of its mask token."""

    mask: Annotated[int, "Id of the mask token.", at_least(0)] = 0
    steps: Steps = 3000
    batch: Annotated[int, "Texts per update.", at_least(1)] = 4
    layers: Annotated[int, "Layers of its own.", at_least(1)] = 2
    depth: Annotated[int, "Of text: masks of a group, at most.", at_least(1)] = 4
    groups: Annotated[int, "Of text: groups of masks in a text.", at_least(1)] = 24
    matrix_rate: MatrixRate = 0.01
    vector_rate: VectorRate = 1e-3
    decay: Decay = 0.8
    training_precision: Precision = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterRecipe(Recipe):
    """Of the filter of a denoiser's picks; the rate is constant."""

    block: Annotated[int, "Places of a block.", at_least(1)] = 20
    room: Annotated[int, "Places of an answer, whole blocks.", at_least(1)] = 20
    cases: Annotated[int, "Cases to replay, of all tasks by turns.", at_least(1)] = 600
    steps: Steps = 8000
    hidden: Annotated[int, "Inner width; 0 is the block.", at_least(0)] = 0
    rate: Annotated[float, "Learning rate.", RATE] = 3e-3
    clip: Annotated[float | None, "Limit of the gradients' norm.", RATE] = None

    def scheduled(self, peak: float, step: int, steps: int) -> float:
        return peak


ExpertKind = Literal["top-k", "blockffn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertRecipe(Recipe):
    """Shape and hyperparameters of a small mixture of experts."""

    kind: Annotated[ExpertKind, "top-k or blockffn.", among(*get_args(ExpertKind))] = "blockffn"
    steps: Annotated[int, "Updates.", at_least(2)] = 2400
    batch: Annotated[int, "Texts per update.", at_least(1)] = 64
    width: Width = 128
    layers: Layers = 4
    head: HeadWidth = 32
    experts: Annotated[int, "Experts of a layer.", at_least(1)] = 16
    inner: Annotated[int, "Size of an expert, a multiple of 32.", at_least(1)] = 32
    used: Annotated[int, "Experts of a row, of top-k.", at_least(1)] = 2
    locality: Annotated[
        float, "Of blockffn: weight of the loss on experts that change.", WEIGHT
    ] = 0.1
    chunk: Annotated[
        float, "Of blockffn: weight of the loss on experts of 8 tokens together.", WEIGHT
    ] = 0.3
    balance: Annotated[
        float, "Of top-k: weight of the loss on experts used unevenly.", WEIGHT  # Fedus et al. 2022
    ] = 0.01
    matrix_rate: MatrixRate = 0.02
    vector_rate: VectorRate = 3e-3

    def __post_init__(self) -> None:
        Recipe.__post_init__(self)
        require(self.width % self.head == 0, "width", self.width, f"a multiple of {self.head}")
        require(self.inner % 32 == 0, "inner", self.inner, "a multiple of 32")
        require(self.used <= self.experts, "used", self.used, f"1 to {self.experts}")
