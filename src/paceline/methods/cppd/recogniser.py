"""CPPD: all characters of a word in one pass over its picture (Du et al. 2023, arXiv:2307.12270).

Queries and the picture's rows pass through two branches side by side. One counts, for each
character, how often it stands in the word; the other tells which places are filled. Places then
look at the rows of the first, and say their characters. Where a word is read, the queries that
count are left out: no row sees them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.core.options import require
from paceline.errors import ModelError
from paceline.networks.weights import read_tensors, write_tensors

CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
CLASSES = 1 + len(CHARACTERS)  # the first is the end
LONGEST = 25
HEIGHT, WIDTH = 32, 128
COLUMN = 4  # pixels wide, a row of the tower each
_HEAD = 32

Pictures = npt.NDArray[np.uint8]
"""Grey, `[n, HEIGHT, WIDTH]`."""


@dataclass(frozen=True, slots=True)
class CPPDShape:
    """Sizes: of the tower's layers and of those of a branch, which are as wide."""

    width: int = 128
    tower: int = 3
    layers: int = 2

    def __post_init__(self) -> None:
        require(self.width % _HEAD == 0, "width", self.width, f"a multiple of {_HEAD}")


class PostNormLayer(nn.Module):
    """Attention and feed-forward block, each with its norm behind."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.kv, self.o = (nn.Linear(width, n * width) for n in (1, 2, 1))
        self.norm, self.last = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, seen: Tensor, causal: bool = False) -> Tensor:
        """Return rows `[n, rows, width]`, which look at those that are `seen`."""
        parts = [self.q(x), *self.kv(seen).chunk(2, dim=-1)]
        q, k, v = (each.unflatten(-1, (-1, _HEAD)).transpose(1, 2) for each in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        x = self.norm(x + self.o(mixed.transpose(1, 2).flatten(2)))
        out: Tensor = self.last(x + self.mlp(x))
        return out


class PictureRows(nn.Module):
    """The tower: rows of columns of pixels, which see one another."""

    def __init__(self, shape: CPPDShape) -> None:
        super().__init__()
        width, half = shape.width, shape.width // 2
        self.stem = nn.Sequential(
            nn.Conv2d(1, half, 3, 2, 1),
            nn.GELU(),
            nn.Conv2d(half, half, 3, 2, 1),
            nn.GELU(),
            nn.Conv2d(half, half, 3, (2, 1), 1),
            nn.GELU(),
            nn.Conv2d(half, width, (HEIGHT // 8, 3), 1, (0, 1)),
        )
        self.places = nn.Parameter(0.3 * torch.randn(WIDTH // COLUMN, width))
        self.layers = nn.ModuleList(PostNormLayer(width) for _ in range(shape.tower))

    def forward(self, pictures: Tensor) -> Tensor:
        """Return rows `[n, rows, width]` of grey pictures in [0, 255]."""
        x: Tensor = self.stem(pictures[:, None] / 127.5 - 1).flatten(2).transpose(1, 2)
        x = x + self.places
        for layer in self.layers:
            x = layer(x, x)
        return x


class CPPDLogits(NamedTuple):
    """Of counts `[n, CLASSES, LONGEST]`; of places being filled `[n, LONGEST + 1]` and of their
    characters `[n, LONGEST + 1, CLASSES]`; of places and characters of the tower's rows."""

    counts: Tensor
    filled: Tensor
    characters: Tensor
    row_places: Tensor
    row_characters: Tensor


class CPPD(nn.Module):
    """The recogniser."""

    paper: ClassVar[str] = "after CPPD, Du et al. 2023, arXiv:2307.12270"

    def __init__(self, shape: CPPDShape) -> None:
        super().__init__()
        self.shape, width = shape, shape.width
        self.tower = PictureRows(shape)
        self.characters = nn.Parameter(torch.randn(CLASSES, width))
        self.places = nn.Parameter(torch.randn(LONGEST + 1, width))
        self.counting, self.ordering = (
            nn.ModuleList(PostNormLayer(width) for _ in range(shape.layers)) for _ in range(2)
        )
        self.count, self.says = nn.Linear(width, LONGEST), nn.Linear(width, CLASSES)
        self.fills = nn.Parameter(torch.zeros(LONGEST + 1, width + 1))
        self.reading = PostNormLayer(width)

    def forward(self, pictures: Tensor) -> CPPDLogits:
        """Pass over pictures `[n, HEIGHT, WIDTH]` as in training."""
        rows = self.tower(pictures)
        counts, seen = _branch(self.counting, self.characters, rows)
        places, _ = _branch(self.ordering, self.places, rows)
        filled = (places * self.fills[:, :-1]).sum(-1) + self.fills[:, -1]
        said = self.says(self.reading(places, seen))
        where = rows @ self.places.T / self.shape.width**0.5
        return CPPDLogits(self.count(counts), filled, said, where, self.says(rows))

    @torch.no_grad()
    def read(self, pictures: Pictures) -> list[str]:
        """Return the words of pictures, in one pass whatever their lengths."""
        rows = self.tower(torch.from_numpy(pictures).float())
        _, seen = _branch(self.counting, self.characters[:0], rows)
        places, _ = _branch(self.ordering, self.places, rows)
        said = self.says(self.reading(places, seen)).argmax(-1)
        return [spelt(each) for each in said.tolist()]


def _branch(layers: nn.ModuleList, queries: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    # Queries and rows after layers in which both look at the rows.
    x = torch.cat([queries.expand(len(rows), -1, -1), rows], dim=1)
    for layer in layers:
        x = layer(x, x[:, len(queries) :])
    return x[:, : len(queries)], x[:, len(queries) :]


def spelt(classes: Sequence[int]) -> str:
    """Return what stands before the end."""
    end = classes.index(0) if 0 in classes else len(classes)
    return "".join(CHARACTERS[each - 1] for each in classes[:end])


def save_recogniser(path: Path, model: CPPD) -> None:
    """Write weights; raises InvalidOption if they cannot be written."""
    tensors = {name: each.numpy() for name, each in model.state_dict().items()}
    write_tensors(path, tensors, {"cppd": json.dumps(asdict(model.shape))})


def load_recogniser(path: Path) -> CPPD:
    """Read a file of `paceline train cppd`; InvalidOption, ModelError if it is none."""
    tensors, metadata = read_tensors(path, "trained weights")
    try:
        model = CPPD(CPPDShape(**json.loads(metadata["cppd"])))
        model.load_state_dict({name: torch.from_numpy(each) for name, each in tensors.items()})
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ModelError(f"{path} holds no CPPD: train one by paceline train cppd") from error
    return model
