"""Towers that see, and what makes rows of a text model of what they saw, over `models.ops`.

Three towers are one function: SigLIP (Zhai et al. 2023, arXiv:2303.15343), CLIP (Radford et al.
2021, arXiv:2103.00020) and DINOv2 (Oquab et al. 2023, arXiv:2304.07193). A patch is a row of
pixels, so no convolution is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from paceline.errors import ModelError
from paceline.models.families.base import LayerNames
from paceline.models.ops import Heads, Ops, Rows
from paceline.native.blocks import GROUP

TowerKind = Literal["siglip", "clip", "dinov2"]
Projector = Literal["idefics3", "gemma3", "mlp"]
PROJECTORS: tuple[Projector, ...] = ("idefics3", "gemma3", "mlp")

# gelu: the tanh approximation. exact: by the error function. quick: x times sigmoid(1.702 x).
Curve = Literal["gelu", "exact", "quick"]

_HEAD = 16  # the width of a head is a multiple of it: others are filled up with zeros


@dataclass(frozen=True, slots=True)
class Tower:
    """Shape of a tower.

    Attributes:
        layers: that run.
        image: pixels of a side of the picture that it sees.
        patch: pixels of a side of a patch.
        ends_normed: a norm is behind the layers that run.
    """

    kind: TowerKind
    layers: int
    width: int
    heads: int
    ffn_size: int
    image: int
    patch: int
    eps: float
    curve: Curve
    ends_normed: bool

    def __post_init__(self) -> None:
        sizes = self.width, self.heads, self.ffn_size, self.image, self.patch
        if min(sizes) < 1 or self.width % GROUP or self.width % self.heads or self.layers < 0:
            raise ModelError(
                f"a tower of width {self.width} with {self.heads} heads and patches of "
                f"{self.patch} in {self.image} pixels does not run here: choose another model"
            )

    @property
    def grid(self) -> int:
        """Patches of a side."""
        return self.image // self.patch

    @property
    def class_row(self) -> bool:
        """A row of no patch is the first."""
        return self.kind != "siglip"

    @property
    def rows(self) -> int:
        return self.grid**2 + self.class_row

    @property
    def head_width(self) -> int:
        """As the file has it."""
        return self.width // self.heads

    @property
    def wide_head(self) -> int:
        """As it runs."""
        return -(-self.head_width // _HEAD) * _HEAD


@dataclass(frozen=True, slots=True)
class Vision:
    """The side of a model that reads pictures.

    Attributes:
        side: patches of a side of a square that becomes one row.
        width: of a row, that of the text model.
        mean, std: of red, green and blue from 0 to 1, which pixels are normalised by.
        filter: of pictures that are resized, a name of `models.pictures.FILTERS`.
        curve: between the matrices of projector "mlp".
        together: rows of a picture see one another in the text model.
        token: special one that stands for a row, where a directory names another than usual.
    """

    tower: Tower
    projector: Projector
    side: int
    width: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    filter: str
    curve: Curve = "exact"
    together: bool = False
    token: str | None = None

    def __post_init__(self) -> None:
        if self.side not in range(1, 9) or self.tower.grid % self.side:
            raise ModelError(
                f"{self.tower.grid} patches of a side are no squares of {self.side}: download the "
                "model again"
            )
        if (len(self.mean), len(self.std)) != (3, 3) or min(self.std) <= 0:
            raise ModelError(
                f"colours cannot be normalised by {self.mean} and {self.std}: download the model "
                "again"
            )

    @property
    def rows(self) -> int:
        """Rows of a picture."""
        return (self.tower.grid // self.side) ** 2


def look(ops: Ops, vision: Vision, patches: Rows) -> Rows:
    """Return the rows of a picture, `[vision.rows, vision.width]`.

    `patches` are float32 `[tower.rows, n]`: pixels of each patch, channel by channel, line by line
    (zeros for the row of no patch), filled up to whole groups. Rows all see one another.
    """
    tower = vision.tower
    x = ops.placed(ops.linear(patches, ["patch"]), "positions")
    x = ops.norm(x, "begin_norm") if tower.kind == "clip" else x
    scale = tower.head_width**-0.5
    heads = Heads(tower.heads, tower.heads, tower.wide_head, scale, None)
    for index in range(tower.layers):
        names = LayerNames.of(index)
        seen = ops.attend(0, ops.linear(x, names.qkv, norm=names.norm), heads)
        x = ops.linear(seen, [names.o], residual=x)
        _, up = names.gate_up
        inner = _curved(ops, ops.linear(x, [up], norm=names.ffn_norm), tower.curve)
        x = ops.linear(inner, [names.down], residual=x)
    return _projected(ops, vision, ops.norm(x, "norm") if tower.ends_normed else x)


def _projected(ops: Ops, vision: Vision, x: Rows) -> Rows:
    x = ops.squares(x, vision.tower.grid, vision.side)
    if vision.projector == "idefics3":
        return ops.linear(x, ["projector"])
    if vision.projector == "mlp":
        return ops.linear(_curved(ops, ops.linear(x, ["first"]), vision.curve), ["second"])
    count = vision.side**2
    first, *others = ops.split(x, [vision.tower.width] * count)
    for each in others:
        first = first + each
    return ops.linear(ops.norm(ops.times(first, 1 / count), "projector_norm"), ["projector"])


def _curved(ops: Ops, x: Rows, curve: Curve) -> Rows:
    if curve == "quick":
        return ops.gate(x, ops.times(x, 1.702))
    return ops.gelu(x, exact=curve == "exact")
