"""Training of a connector: it makes rows of a frozen text model of what a frozen tower saw.

As in LLaVA's first stage (Liu et al. 2023, arXiv:2304.08485) the loss is that of answers, through
the text model. First vectors are learned for words of a thing, with no picture: what the text model
reads best. Then the connector begins as what says these words, and learns from answers itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, groupby
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from benchmarks.pictures.scenes import COLOURS, KINDS, PLACES, SHAPES, Question, Scene, ask, draw
from torch import Tensor, nn
from torch.nn import functional

from paceline.core.options import at_least
from paceline.core.types import IntArray, LogitArray
from paceline.lab.training.checkpoint import digest
from paceline.lab.training.data import Text
from paceline.lab.training.optimisers import Rated, adam, optimisers, update
from paceline.lab.training.recipe import RATE, MatrixRate, Precision, Recipe, Steps, VectorRate
from paceline.lab.training.run import TrainingTask
from paceline.models.ops import Heads
from paceline.models.pictures import Pixels
from paceline.models.text import Tokenizer
from paceline.models.towers import Vision
from paceline.runtimes.torch.model import TorchModel

JUDGED = 64
"""Scenes of a set that a connector is judged by."""

_COVERED = 0.15  # share of a square's pixels, from which on it is of a shape
_NORMED = 320  # scenes that inputs are normed by
_NAMED = 1000  # scenes that it begins with
_NAMING = 500  # updates of its beginning
_TOGETHER = 8  # scenes of one
_WHOLE = 4  # of so many pictures one is described

_SAID = tuple(COLOURS), tuple(SHAPES), PLACES
"""Words for a thing."""

_ANSWERS, _NEW, _NEW_PAIRS = range(3)  # what scenes are drawn for


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorRecipe(Recipe):
    """Of a connector between a tower and a text model, which both stay."""

    steps: Steps = 560
    batch: Annotated[int, "Pictures per update.", at_least(1)] = 2
    word_steps: Annotated[int, "Updates before, of vectors for words alone.", at_least(0)] = 250
    questions: Annotated[int, "About a picture, at most.", at_least(1)] = 3
    pictures: Annotated[int, "Different ones.", at_least(1)] = 3000
    matrix_rate: MatrixRate = 0.01
    vector_rate: VectorRate = 1e-3
    word_rate: Annotated[float, "Peak learning rate of vectors for words.", RATE] = 3e-3
    training_precision: Precision = "bf16"


class Connector(nn.Module):
    """Two matrices with a curve between; numbers of squares are normed by what is usual."""

    def __init__(self, seen: int, width: int, generator: torch.Generator) -> None:
        """Draw the weights; it reads rows of width `seen`, and makes such of `width`."""
        super().__init__()
        for name, inputs in (("first", seen), ("second", width)):
            drawn = torch.randn((width, inputs), generator=generator) / inputs**0.5
            self.register_parameter(name, nn.Parameter(drawn))
            self.register_parameter(f"{name}_bias", nn.Parameter(torch.zeros(width)))
        self.register_buffer("mean", torch.zeros(seen))
        self.register_buffer("spread", torch.ones(seen))

    def forward(self, seen: Tensor) -> Tensor:
        """Return float32 `[..., width]` of float32 `[..., seen]`."""
        normed = (seen - self.get_buffer("mean")) / self.get_buffer("spread")
        part = self.get_parameter
        inner = functional.linear(normed, part("first"), part("first_bias"))
        return functional.linear(functional.gelu(inner), part("second"), part("second_bias"))

    @torch.no_grad()
    def folded(self) -> dict[str, Tensor]:
        """Return matrices and biases without the norm, by names of the projector."""
        first = self.get_parameter("first") / self.get_buffer("spread")
        bias = self.get_parameter("first_bias") - first @ self.get_buffer("mean")
        second = [self.get_parameter(each).detach() for each in ("second", "second_bias")]
        names = "first", "first.bias", "second", "second.bias"
        return dict(zip(names, (first, bias, *second), strict=True))

    @torch.no_grad()
    def unfold(self, folded: Mapping[str, Tensor]) -> None:
        """Take weights that `folded` returned; the norm stays as it is."""
        first = folded["first"].float() * self.get_buffer("spread")
        shift = folded["first"].float() @ self.get_buffer("mean")
        self.get_parameter("first").copy_(first)
        self.get_parameter("first_bias").copy_(folded["first.bias"] + shift)
        self.get_parameter("second").copy_(folded["second"])
        self.get_parameter("second_bias").copy_(folded["second.bias"])


class Words(nn.Module):
    """What rows say of a thing: the sum of a vector of its colour, one of its shape, its place.

    Each has four, by the parity of a row's line and column: in two of them the colour is loud, in
    two the shape, since a model of text finds a word best beside another. Rows of nothing have
    vectors of their own.
    """

    def __init__(self, words: Sequence[Tensor], rows: int) -> None:
        """Begin with embeddings.

        Args:
            words: float32 `[count, width]` of colours, of shapes, of places.
            rows: of a picture.
        """
        super().__init__()
        starts = np.cumsum([0, *map(len, words)])
        self._starts = [int(each) for each in starts[:-1]]
        loud = torch.repeat_interleave(
            torch.tensor([[1, 0.1, 0.25], [0.1, 1, 0.25], [0.1, 1, 0.25], [1, 0.1, 0.25]]),
            torch.tensor([len(each) for each in words]),
            dim=1,
        )
        self.words = nn.Parameter(loud[..., None] * torch.cat(list(words)))
        self.blank = nn.Parameter(torch.zeros(rows, words[0].shape[1]))

    def forward(self, said: IntArray) -> Tensor:
        """Return float32 `[rows, width]` of `[rows, 3]`: colour, shape and place; -1 of nothing."""
        side = round(len(said) ** 0.5)
        role = np.add.outer(2 * (np.arange(side) % 2), np.arange(side) % 2).ravel()
        some = np.nonzero(said[:, 0] >= 0)[0]
        vectors = sum(
            self.words[role[some], start + said[some, part]]
            for part, start in enumerate(self._starts)
        )
        return self.blank.index_add(0, torch.from_numpy(some), torch.as_tensor(vectors))


class ConnectorTask(TrainingTask[ConnectorRecipe, dict[str, dict[str, float]]]):
    """A connector, on questions about drawn scenes.

    `judge` returns the share of answers that are right to the last token, by set and kind: of new
    scenes, of scenes with pairs that no other has, and of new scenes behind rows of zeros.
    """

    def __init__(
        self,
        recipe: ConnectorRecipe,
        model: TorchModel,
        tokenizer: Tokenizer,
        vision: Vision,
        look: Callable[[Pixels], LogitArray],
        kept: Path,
        start: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Draw the weights.

        Args:
            model, tokenizer: the text model; its chats show pictures.
            look: returns what the tower saw of a picture, float32 `[rows, seen]`.
            kept: file that holds this of the scenes of the training, and is filled as they come.
            start: a connector (`Connector.folded`) to begin with, in place of words for shapes.
        """
        super().__init__(recipe)
        self._start = start
        self._first = recipe.word_steps if start is None else 0
        self.steps, self.vision = self._first + recipe.steps, vision
        self._model, self._tokenizer, self._look, self._kept = model, tokenizer, look, kept
        self._dtype = model.embed(torch.tensor([0])).dtype
        seen = vision.tower.width * vision.side**2
        self.connector = Connector(seen, model.config.hidden_size, self.generator)
        self.words = Words([self._embedded(each) for each in _SAID], vision.rows)
        self.module = nn.ModuleDict({"connector": self.connector, "words": self.words})

    @property
    def settings(self) -> dict[str, Any]:
        start = self._start
        return super().settings | ({} if start is None else {"start": digest(start, "")})

    def optimisers(self) -> list[Rated]:
        named = dict(self.connector.named_parameters())
        rated = optimisers(named, self.recipe.matrix_rate, self.recipe.vector_rate)
        return [*rated, adam(self.words.parameters(), self.recipe.word_rate)]

    def _embedded(self, texts: Iterable[str]) -> Tensor:
        # Of each text the sum of its tokens' embeddings, `[texts, width]`.
        ids = [torch.tensor(self._tokenizer.encode(f" {each}")) for each in texts]
        return torch.stack([self._model.embed(each).float().sum(0) for each in ids])

    def scene(self, number: int, purpose: int = _ANSWERS) -> Scene:
        """Return a scene, of the training or one that is held out."""
        rng = np.random.default_rng((self.recipe.seed, purpose, number))
        return draw(rng, self.vision.tower.image, held_out=purpose == _NEW_PAIRS)

    @cached_property
    def _seen(self) -> np.memmap[Any, np.dtype[np.float16]]:
        shape = self.recipe.pictures, self.vision.rows, self.connector.get_buffer("mean").numel()
        mode: Any = "r+" if self._kept.exists() else "w+"
        return np.lib.format.open_memmap(self._kept, mode, np.float16, shape)

    def _saw(self, number: int, purpose: int = _ANSWERS) -> Tensor:
        # Float32 `[rows, seen]` of a scene.
        if purpose != _ANSWERS:
            return torch.from_numpy(self._look(self.scene(number, purpose).pixels))
        if not self._seen[number].any():
            self._seen[number] = self._look(self.scene(number).pixels)
        return torch.from_numpy(self._seen[number].astype(np.float32))

    def begin(self) -> None:
        count = min(_NORMED, self.recipe.pictures)
        flat = torch.cat([self._saw(each) for each in range(count)])
        self.connector.get_buffer("mean").copy_(flat.mean(0))
        self.connector.get_buffer("spread").copy_(flat.std(0).clamp_min(1e-3))
        if self._start is not None:
            self.connector.unfold(self._start)
        elif not self._first:
            self._learn_words()

    def _learn_words(self) -> None:
        # Bring the connector to say what the words are.
        count = min(_NAMED, self.recipe.pictures)
        with torch.no_grad():
            told = torch.stack([self._said(each) for each in range(count)])
        rated, parameters = self.optimisers(), list(self.connector.parameters())
        for step in range(_NAMING):
            for optimiser, peak in rated:
                for group in optimiser.param_groups:
                    group["lr"] = self.recipe.scheduled(peak, step, _NAMING)
            some = self.rng.integers(count, size=_TOGETHER)
            saw = torch.stack([self._saw(int(each)) for each in some])
            away = functional.mse_loss(self.connector(saw), told[some])
            update(parameters, rated, away / told.var(), self.recipe.clip)

    def _said(self, number: int) -> Tensor:
        # What the words say of a scene of the training, `[rows, width]`.
        scene, grid = self.scene(number), self.vision.tower.grid // self.vision.side
        side = len(scene.pixels) // grid
        inked = (scene.pixels != scene.pixels[0, 0]).any(-1)
        covered = inked.reshape(grid, side, grid, side).mean((1, 3)) > _COVERED
        said = np.full((grid * grid, len(_SAID)), -1)
        for row, (r, c) in enumerate(np.ndindex(grid, grid)):
            here = int((r + 0.5) * 3 / grid) * 3 + int((c + 0.5) * 3 / grid)
            for each in scene.things:
                if covered[r, c] and each.place == here:
                    named = each.colour, each.shape, PLACES[here]
                    said[row] = [of.index(name) for of, name in zip(_SAID, named, strict=True)]
        return self.words(said)

    def batch(self, step: int) -> list[Text]:
        recipe, out = self.recipe, []
        for number in range(step * recipe.batch, (step + 1) * recipe.batch):
            turn, at = divmod(number, recipe.pictures)
            scene = self.scene(at)
            rng = np.random.default_rng((recipe.seed, len(KINDS), at, turn))
            whole = number % _WHOLE == 0
            some = _asked(rng, scene)[: recipe.questions - whole]
            if whole and (everything := ask(rng, scene, "describe")) is not None:
                some.append(everything)
            out += [self._text(at, each) for each in some]
        return out

    def _text(self, number: int, question: Question) -> Text:
        prompt = self._head + self._tail(question.asked)
        answer = self._tokenizer.encode(question.answer)
        ids = [*prompt, *answer, self._tokenizer.eos_token_ids[0]]
        return Text(number, np.array(ids), len(prompt))

    @cached_property
    def _parts(self) -> tuple[list[int], int]:
        # The head of prompts up to the last row of a picture, and the id of such a row.
        from paceline.models.pictures import Picture

        words = self._tokenizer.pictures
        assert words is not None
        row = self._tokenizer.special_ids[words.row]
        shown = {"type": "image", "image": Picture(np.zeros((1, 1, 3), np.uint8))}
        said = {"type": "text", "text": "?"}
        ids = self._tokenizer.chat([{"role": "user", "content": [shown, said]}])
        return ids[: len(ids) - ids[::-1].index(row)], row

    @property
    def _head(self) -> list[int]:
        return self._parts[0]

    def _tail(self, asked: str) -> list[int]:
        ids = self._tokenizer.chat([{"role": "user", "content": asked}])
        rows = self._head.count(self._parts[1])
        return ids[len(self._head) - rows :]

    def losses(self, texts: Sequence[Text], step: int) -> Iterator[tuple[Tensor, float]]:
        groups = [list(group) for _, group in groupby(texts, lambda text: text.index)]
        numbers = [group[0].index for group in groups]
        if step < self._first:
            rows = torch.stack([self._said(each) for each in numbers])
        else:
            if step == self._first > 0:
                self._learn_words()
            rows = self.connector(torch.stack([self._saw(each) for each in numbers]))
        # Of halves at once, since small products do not gain from threads of their own.
        middle = -(-len(groups) // 2)
        halves = [part for part in (groups[:middle], groups[middle:]) if part]
        given = [part.detach().requires_grad_() for part in rows.split(middle)]
        _ = self._before

        def learn(part: int) -> tuple[Tensor, float]:
            logits, labels, whose = self._answers(list(chain(*halves[part])), given[part])
            # A long answer counts no more than a word does, on which a short one hangs.
            share = torch.from_numpy(1 / (np.bincount(whose)[whose] * len(texts)))
            loss = share.float() @ functional.cross_entropy(logits, labels, reduction="none")
            (gradient,) = torch.autograd.grad(loss, given[part])
            return gradient, float(loss.detach())

        with ThreadPoolExecutor(len(halves)) as pool:
            found = list(pool.map(learn, range(len(halves))))
        gradients = torch.cat([gradient for gradient, _ in found])
        yield (rows * gradients).sum(), sum(value for _, value in found)

    def _answers(self, texts: Sequence[Text], rows: Tensor) -> tuple[Tensor, Tensor, IntArray]:
        # Logits of the tokens of all answers, these, and whose they are. Questions about a picture
        # stand side by side behind it, and none sees another.
        head, begin = len(self._head), len(self._head) - rows.shape[1]
        parts, places, sees, asked, labels, whose = [], [], [], [], [], []
        at = number = 0
        for line, (_, group) in enumerate(groupby(texts, lambda text: text.index)):
            some = list(group)
            own = [text.tokens[head:] for text in some]
            ids = torch.from_numpy(np.concatenate(own))
            parts += [rows[line].to(self._dtype), self._model.embed(ids)]
            places += [np.arange(begin, head), *(np.arange(head, len(t.tokens)) for t in some)]
            # Of columns, the first are those before the picture.
            seen = np.tril(np.ones((head - begin + len(ids), head + len(ids)), np.bool_), begin)
            end = head - begin
            for text, each in zip(some, own, strict=True):
                seen[end + len(each) :, begin + end : begin + end + len(each)] = False
                first = at + end + text.prompt_length - head - 1
                asked.append(np.arange(first, at + end + len(each) - 1))
                labels.append(text.tokens[text.prompt_length :])
                whose.append(np.full(len(labels[-1]), number))
                number, end = number + 1, end + len(each)
            sees.append(torch.from_numpy(seen))
            at += len(seen)
        attend = _SideBySide(self._before, sees)
        positions = torch.from_numpy(np.concatenate(places))
        hidden = self._model(torch.cat(parts), positions, attend)
        logits = self._model.logits(hidden[np.concatenate(asked)])
        told = torch.from_numpy(np.concatenate(labels))
        return logits.float(), told, np.concatenate(whose)

    @cached_property
    def _before(self) -> list[tuple[Tensor, Tensor]]:
        # Keys and values, by layer, of what stands before a picture.
        row = self._parts[1]
        ids = torch.tensor([each for each in self._head if each != row])
        kept: list[tuple[Tensor, Tensor]] = []

        def attend(_: int, heads: Heads, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            kept.append((k, v))
            return _attended(heads, q, k, v, torch.ones(len(q), len(k)).tril().bool())

        with torch.no_grad():
            self._model(self._model.embed(ids), torch.arange(len(ids)), attend)
        return kept

    @torch.no_grad()
    def judge(self) -> dict[str, dict[str, float]]:
        return {
            "new scenes": self._right(_NEW),
            "new pairs": self._right(_NEW_PAIRS),
            "rows of zeros": self._right(_NEW, blind=True),
        }

    def _right(self, purpose: int, blind: bool = False) -> dict[str, float]:
        hits: dict[str, list[bool]] = {kind: [] for kind in KINDS}
        for number in range(JUDGED):
            scene = self.scene(number, purpose)
            rng = np.random.default_rng((self.recipe.seed, purpose, number, 1))
            asked = [each for kind in KINDS if (each := ask(rng, scene, kind)) is not None]
            rows = self.connector(self._saw(number, purpose))[None]
            texts = [self._text(number, each) for each in asked]
            logits, labels, whose = self._answers(texts, rows * (not blind))
            good = (logits.argmax(-1) == labels).numpy()
            for index, each in enumerate(asked):
                hits[each.kind].append(bool(good[whose == index].all()))
        return {kind: float(np.mean(each)) for kind, each in hits.items()}


def _asked(rng: np.random.Generator, scene: Scene) -> list[Question]:
    # Different questions about a scene and each thing in it, in any order.
    found: dict[str, Question] = {}
    for kind in KINDS:
        times = {"describe": 0, "count": 1, "side": 1}.get(kind, 2 * len(scene.things))
        for _ in range(times):
            if (one := ask(rng, scene, kind)) is not None:
                found[one.asked] = one
    order = rng.permutation(len(found))
    return [list(found.values())[each] for each in order]


class _SideBySide:
    """Attention of flat rows of several pictures; each sees some of its own, and of those before.

    `sees` is bool `[rows, before + rows]`, by picture.
    """

    def __init__(self, before: Sequence[tuple[Tensor, Tensor]], sees: Sequence[Tensor]) -> None:
        self._before, self._sees = before, sees

    def __call__(self, layer: int, heads: Heads, *parts: Tensor) -> Tensor:
        sizes = [len(each) for each in self._sees]
        keys, values = self._before[layer]
        split = zip(*(each.split(sizes) for each in parts), self._sees, strict=True)
        return torch.cat(
            [
                _attended(heads, q, torch.cat([keys, k]), torch.cat([values, v]), seen)
                for q, k, v, seen in split
            ]
        )


def _attended(heads: Heads, q: Tensor, k: Tensor, v: Tensor, sees: Tensor) -> Tensor:
    q, k, v = (each.transpose(0, 1)[None] for each in (q, k, v))
    found = functional.scaled_dot_product_attention(
        q, k, v, attn_mask=sees, scale=heads.scale, enable_gqa=True
    )
    return found[0].transpose(0, 1)
