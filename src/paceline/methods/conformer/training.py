"""Training of a conformer on letters of spoken words (CTC), at several lengths of a chunk."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from paceline.audio.mel import MelStream
from paceline.audio.read import read_sound
from paceline.core.cache import written_file
from paceline.core.options import require
from paceline.core.types import LogitArray
from paceline.lab.training.data import Text
from paceline.lab.training.optimisers import Rated, optimisers
from paceline.lab.training.run import TrainingRun, TrainingTask
from paceline.listening.agreement import edits_to
from paceline.methods.careless.spoken import played, with_texts
from paceline.methods.careless.training import MaskedRows
from paceline.methods.conformer.encoder import (
    BLANK,
    EPS,
    LETTERS,
    STACKED,
    ConformerShape,
    Numbers,
    ReferenceConformer,
    encoder,
    sight,
)
from paceline.methods.conformer.recipe import ConformerRecipe
from paceline.methods.conformer.stream import ConformerStream, stacked
from paceline.networks.torch_ops import NetworkTensors, TorchOps

_HELD_OUT = 20  # of so many sounds the last is held out


class SpokenLetters(NamedTuple):
    """A sound and the letters of its text."""

    path: Path
    letters: tuple[int, ...]


def read_letters(folder: Path) -> list[SpokenLetters]:
    """Return the sounds of a folder, see `with_texts`; InvalidOption if they are too few."""
    found = []
    for path, text in with_texts(folder):
        known = "".join(each if each in LETTERS else " " for each in text.casefold()).split()
        found.append(SpokenLetters(path, tuple(map(LETTERS.index, " ".join(known)))))
    require(len(found) >= _HELD_OUT, "sounds", len(found), f"{_HELD_OUT} or more")
    return found


class ConformerQuality(NamedTuple):
    """Letters that are wrong, of a hundred, by the length of a chunk; mean over lengths too."""

    wrong: dict[int, float]

    @property
    def mean(self) -> float:
        return sum(self.wrong.values()) / len(self.wrong)


class ConformerTask(TrainingTask[ConformerRecipe, ConformerQuality]):
    """A conformer; each update draws a length of its chunks."""

    def __init__(
        self, shape: ConformerShape, sounds: Sequence[SpokenLetters], recipe: ConformerRecipe
    ) -> None:
        texts = [Text(at, np.array(each.letters), 0) for at, each in enumerate(sounds)]
        apart = texts[_HELD_OUT - 1 :: _HELD_OUT]
        held = {each.index for each in apart}
        super().__init__(recipe, [each for each in texts if each.index not in held], apart)
        self.shape, self._sounds, self.steps = shape, sounds, recipe.steps
        drawn = {}
        for name, size in shape.tensors().items():
            if len(size) == 1:
                each = torch.full(size, 0.0 if name.endswith(".bias") else 1.0)
            else:
                each = torch.randn(size, generator=self.generator) / math.sqrt(size[1])
            drawn[name.replace(".", "/")] = nn.Parameter(each)
        self.module, self._drawn = nn.ParameterDict(drawn), drawn

    @property
    def settings(self) -> dict[str, Any]:
        return {**super().settings, **asdict(self.shape)}

    @property
    def named(self) -> dict[str, Tensor]:
        return {name.replace("/", "."): each for name, each in self._drawn.items()}

    def optimisers(self) -> list[Rated]:
        return optimisers(self.named, self.recipe.matrix_rate, self.recipe.vector_rate)

    def passing(self, number: int) -> list[list[Text]]:
        order = np.random.default_rng((self.recipe.seed, number)).permutation(len(self.texts))
        size = self.recipe.batch
        return [
            [self.texts[each] for each in order[at : at + size]]
            for at in range(0, len(order) - size + 1, size)
        ]

    def losses(self, texts: Sequence[Text], step: int) -> Iterator[tuple[Tensor, float]]:
        # Named by the step, so that a run which resumes draws the same.
        draws = np.random.default_rng((self.recipe.seed, 1, step))
        chunk = int(draws.choice(self.recipe.lengths))
        rows = [self._rows(each, chunk, float(draws.uniform(0.9, 1.1))) for each in texts]
        logits = self.logits(rows, chunk)
        sizes = torch.tensor([*map(len, rows)]), torch.tensor([len(each.tokens) for each in texts])
        right = torch.from_numpy(np.concatenate([each.tokens for each in texts]))
        chances = logits[..., : BLANK + 1].log_softmax(-1).transpose(0, 1)
        loss = functional.ctc_loss(chances, right, *sizes, blank=BLANK, zero_infinity=True)
        yield loss, float(loss.detach())

    def logits(self, rows: Sequence[LogitArray], chunk: int) -> Tensor:
        """Return logits `[sounds, longest, classes]` of some sounds."""
        longest = max(map(len, rows))
        padded = np.stack([np.pad(each, ((0, longest - len(each)), (0, 0))) for each in rows])
        known = np.arange(longest) < np.array([*map(len, rows)])[:, None, None]
        sees = sight(0, longest, chunk, self.shape.left) & known | np.eye(longest, dtype=np.bool_)
        named = self.named
        tensors = NetworkTensors(named, named["head"], named["head"])
        ops = TorchOps(tensors, EPS, MaskedRows(torch.from_numpy(sees)[:, None]))
        out: Tensor = encoder(ops, self.shape, torch.from_numpy(padded))
        return out

    def judge(self) -> ConformerQuality:
        model = ReferenceConformer(self.shape, self.numbers())
        wrong = {}
        for chunk in self.recipe.lengths:
            edits = letters = 0
            for text in self.held_out:
                stream = ConformerStream(model, chunk)
                stream.push(read_sound(self._sounds[text.index].path))
                stream.end()
                right = "".join(LETTERS[each] for each in text.tokens)
                edits, letters = edits + edits_to(stream.text, right)[-1], letters + len(right)
            wrong[chunk] = 100 * edits / max(1, letters)
        return ConformerQuality(wrong)

    def numbers(self) -> Numbers:
        return Numbers({name: each.detach().numpy() for name, each in self.named.items()})

    def _rows(self, text: Text, chunk: int, speed: float) -> LogitArray:
        stream = MelStream(STACKED * chunk, self.shape.mels)
        return stacked(played(self._sounds[text.index].path, speed, stream))


def publish(run: TrainingRun[ConformerTask], out: Path) -> tuple[dict[str, Any], str]:
    """Judge a run and write its weights; return its figures and a line for people."""
    task, found = run.task, run.task.judge()
    told = {name: str(each) for name, each in asdict(task.shape).items()}
    tensors = {name: each.detach().contiguous() for name, each in task.named.items()}
    with written_file(out, "give another --out") as part:
        save_file(tensors, part, told)
    held_out = {"sounds": len(task.held_out), "wrong": found.wrong}
    figures = {"weights": str(out), "held_out": held_out, "seconds": run.course.seconds}
    shares = ", ".join(f"{each:.1f}% in chunks of {chunk}" for chunk, each in found.wrong.items())
    return figures, f"{out}: wrong letters of what is held out: {shares}"
