"""Small Llamas with mixtures of experts, and the losses that keep experts in use few.

Kind "blockffn" is BlockFFN's (Song et al. 2025, arXiv:2507.08771): small experts without gates,
weighted by RMSNorm(ReLU(router)), so that a row uses as many as it wants to. Kind "top-k" is
Mixtral's (Jiang et al. 2024): gated experts, weighted by a softmax of the largest scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from paceline.core.types import BoolArray
from paceline.lab.measure import parallel_tasks
from paceline.lab.training.card import card_of, table
from paceline.lab.training.data import Text
from paceline.lab.training.denoisers.decode import answered
from paceline.lab.training.denoisers.files import LICENCE, llama_json, save_model
from paceline.lab.training.denoisers.rows import EOS, PAD, text_of, vocabulary
from paceline.lab.training.denoisers.task import JUDGED, SHARES
from paceline.lab.training.model import TrainableModel, drawn
from paceline.lab.training.optimisers import Rated, optimisers
from paceline.lab.training.recipe import ExpertRecipe
from paceline.lab.training.run import TrainingRun, TrainingTask
from paceline.models.families import hf_config
from paceline.models.families.experts import BLOCKFFN, MIXTRAL

TASKS = tuple(parallel_tasks.TASKS)[:10]
"""Those about lists of names."""
UNIONS = (1, 8, 16, 32)
"""Tokens in a row whose experts are counted."""
_ANSWER = 12  # tokens at most
CHUNK = 8
"""Tokens in a row whose experts the chunk loss wants to be few."""
_SHARP = 4.0  # of sigmoids that say whether an expert is in use


class ExpertModel(TrainableModel):
    """A left-to-right Llama with experts, which lie one behind another in its parameters."""

    def __init__(self, recipe: ExpertRecipe, generator: torch.Generator) -> None:
        """Draw the weights."""
        width, inner, self._inner = recipe.width, recipe.experts * recipe.inner, recipe.inner
        config = hf_config(config_json(recipe), (EOS,))
        router = ("router", recipe.experts, width)
        parts = [router, ("up", inner, width), ("down", width, inner)]
        gated = recipe.kind == "top-k"
        begin = drawn(config, [*parts, ("gate", inner, width)] if gated else parts, generator)
        if not gated:
            ones = torch.ones(recipe.experts)
            begin |= {f"layers.{i}.router_norm": ones for i in range(config.layers)}
        super().__init__(config, begin)
        self._scores: list[Tensor] = []
        self._parts: dict[str, Tensor] = {}

    def scored(self, tokens: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return logits `[texts, rows, vocabulary]` and the scores of the routers by layer.

        Args:
            tokens: int64 `[texts, rows]`, padded on the right.
        """
        logits = self.packed(tokens, torch.arange(tokens.shape[1]).expand(tokens.shape))
        return logits, [each.view(*tokens.shape, -1) for each in self._scores]

    def packed(self, tokens: Tensor, positions: Tensor, sees: Tensor | None = None) -> Tensor:
        self._scores, self._parts = [], self._split()
        return super().packed(tokens, positions, sees)

    def linear(self, x: Tensor, name: str) -> Tensor:
        out = super().linear(x, name)
        if name.endswith(".router"):
            self._scores.append(out)
        return out

    def tensor(self, name: str) -> Tensor:
        return self._parts[name] if ".experts." in name else super().tensor(name)

    def stored(self) -> dict[str, Tensor]:
        own = super().stored()
        parts = {name: each.detach() for name, each in self._split().items()}
        return {name: each for name, each in own.items() if not _is_stacked(name)} | parts

    def _split(self) -> dict[str, Tensor]:
        found = {}
        for name, matrix in self.own.items():
            if _is_stacked(name):
                layer, _, part = name.rpartition(".")
                for expert, each in enumerate(
                    torch.split(matrix, self._inner, int(part == "down"))
                ):
                    found[f"{layer}.experts.{expert}.{part}"] = each
        return found


def _is_stacked(name: str) -> bool:
    return name.endswith((".gate", ".up", ".down"))


def in_use(scores: Tensor, recipe: ExpertRecipe) -> Tensor:
    """Return which experts rows use, bool like the scores."""
    if recipe.kind == "blockffn":
        return scores > 0
    best = scores.topk(recipe.used, -1).indices
    return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, best, True)


def config_json(recipe: ExpertRecipe) -> dict[str, Any]:
    """Return the config: that of Mixtral, or of Llama with the experts of BlockFFN."""
    own: dict[str, Any] = {"model_type": BLOCKFFN.hf, "num_experts": recipe.experts}
    if recipe.kind == "top-k":
        own = {
            "architectures": ["MixtralForCausalLM"],
            "model_type": MIXTRAL.hf,
            "num_local_experts": recipe.experts,
            "num_experts_per_tok": recipe.used,
            "sliding_window": None,
        }
    return own | llama_json(recipe, recipe.inner)


def locality_loss(scores: Tensor, valid: Tensor) -> Tensor:
    """Return the cross-entropy between the experts of adjacent tokens, in nats (BlockFFN).

    Args:
        scores: `[texts, rows, experts]`.
        valid: bool `[texts, rows]`, False for padding.
    """
    sharp = _SHARP * scores
    each = functional.binary_cross_entropy_with_logits(
        sharp[:, :-1], sharp[:, 1:].sigmoid(), reduction="none"
    )
    return each[valid[:, 1:]].mean()


def chunk_loss(scores: Tensor, valid: Tensor) -> Tensor:
    """Return the share of experts that `CHUNK` tokens in a row use, made smooth (BlockFFN).

    Arguments as for `locality_loss`; the last chunk of a text may be shorter.
    """
    unused = functional.logsigmoid(-_SHARP * scores).masked_fill(~valid[..., None], 0.0)
    unused = functional.pad(unused, (0, 0, 0, -unused.shape[1] % CHUNK))
    together = unused.view(len(unused), -1, CHUNK, unused.shape[2]).sum(2)
    begun = functional.pad(valid, (0, -valid.shape[1] % CHUNK))[:, ::CHUNK]
    found: Tensor = (1 - together.exp())[begun].mean()
    return found


def balance_loss(scores: Tensor, valid: Tensor, used: int) -> Tensor:
    """Return 1 if all experts are used alike, and more else; arguments as for `locality_loss`."""
    shares = scores[valid].softmax(-1)
    taken = torch.zeros_like(shares).scatter(-1, shares.topk(used, -1).indices, 1 / used)
    return shares.shape[-1] * (taken.mean(0) * shares.mean(0)).sum()


def union_share(used: Sequence[BoolArray], size: int) -> float:
    """Return the mean share of experts that some of `size` rows in a row use.

    Args:
        used: bool `[rows, experts]` by layer, with `size` rows or more.
    """
    shares = []
    for each in used:
        chunks = each[: len(each) // size * size].reshape(-1, size, each.shape[1])
        shares.append(float(chunks.any(1).mean()))
    return sum(shares) / len(shares)


class Quality(NamedTuple):
    """Share of strictly right answers by task, and of experts in use by tokens in a row."""

    right: dict[str, float]
    experts: dict[str, float]


class ExpertTask(TrainingTask[ExpertRecipe, Quality]):
    """A mixture of experts, on cases that are drawn as it goes."""

    def __init__(self, recipe: ExpertRecipe) -> None:
        """Draw the weights."""
        super().__init__(recipe)
        self.ids, self.steps = vocabulary(), recipe.steps
        self.model = ExpertModel(recipe, self.generator)
        self.module = self.model.module
        shares = np.array([SHARES.get(name, 1.0) for name in TASKS])
        self._shares = shares / shares.sum()

    @property
    def settings(self) -> dict[str, Any]:
        return {**super().settings, "vocabulary": list(self.ids), "shares": list(self._shares)}

    def optimisers(self) -> list[Rated]:
        return optimisers(self.model.own, self.recipe.matrix_rate, self.recipe.vector_rate)

    def batch(self, step: int) -> list[Text]:
        rng = np.random.default_rng((self.recipe.seed, step, 0))
        texts = []
        for index in range(self.recipe.batch):
            name = TASKS[rng.choice(len(TASKS), p=self._shares)]
            task = parallel_tasks.TASKS[name]
            case = parallel_tasks.draw(task, name, rng, False, int(rng.integers(3)))
            texts.append(text_of(case, self.ids, index))
        return texts

    def losses(self, texts: Sequence[Text], step: int) -> Iterator[tuple[Tensor, float]]:
        tokens, valid = padded([np.append(text.tokens, EOS) for text in texts])
        logits, scores = self.model.scored(tokens[:, :-1])
        begins = torch.tensor([text.prompt_length - 1 for text in texts])
        asked = valid[:, 1:] & (torch.arange(logits.shape[1]) >= begins[:, None])
        loss = functional.cross_entropy(logits[asked], tokens[:, 1:][asked])
        value = float(loss.detach())
        yield loss + self._extra(scores, valid[:, :-1], step), value

    def _extra(self, scores: Sequence[Tensor], valid: Tensor, step: int) -> Tensor:
        recipe = self.recipe
        if recipe.kind == "top-k":
            found = [recipe.balance * balance_loss(each, valid, recipe.used) for each in scores]
            return torch.stack(found).mean()
        found = [
            recipe.locality * locality_loss(each, valid) + recipe.chunk * chunk_loss(each, valid)
            for each in scores
        ]
        # From nothing in the first third: experts must be of use before they are told to be few.
        return torch.stack(found).mean() * min(1.0, 3 * step / self.steps)

    def judge(self) -> Quality:
        found = {
            name: answered(self.model, "causal", name, JUDGED, length=_ANSWER) for name in TASKS
        }
        written = [
            np.append(prompt, answer)
            for each in found.values()
            for prompt, answer in zip(each.prompts, each.answers, strict=True)
        ]
        order = np.random.default_rng(0).permutation(len(written))
        used = experts_of(self.model, [written[each] for each in order], self.recipe)
        shares = {str(size): union_share(used, size) for size in UNIONS}
        return Quality({name: each.right for name, each in found.items()}, shares)


def padded(texts: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """Return tokens, int64 `[texts, longest]`, and where they are no padding."""
    tokens = np.full((len(texts), max(map(len, texts))), PAD)
    valid = np.zeros(tokens.shape, dtype=np.bool_)
    for row, known, text in zip(tokens, valid, texts, strict=True):
        row[: len(text)], known[: len(text)] = text, True
    return torch.from_numpy(tokens), torch.from_numpy(valid)


@torch.no_grad()
def experts_of(model: ExpertModel, texts: Sequence[Any], recipe: ExpertRecipe) -> list[BoolArray]:
    """Return the experts that rows use, bool `[rows, experts]` by layer, text behind text."""
    found: list[list[BoolArray]] = [[] for _ in range(recipe.layers)]
    for begin in range(0, len(texts), JUDGED):
        tokens, valid = padded(texts[begin : begin + JUDGED])
        for scores, to in zip(model.scored(tokens)[1], found, strict=True):
            to.append(in_use(scores, recipe)[valid].numpy())
    return [np.concatenate(each) for each in found]


def publish(run: TrainingRun[ExpertTask], out: Path, command: str) -> tuple[dict[str, Any], str]:
    """Judge a run, write its model with a card, and return figures and a line for people.

    Raises InvalidOption if it cannot be written.
    """
    quality = run.task.judge()
    save_experts(out, run, quality, command)
    seconds, right = run.course.seconds, sum(quality.right.values()) / len(quality.right)
    few = " ".join(f"{share:.0%}" for share in quality.experts.values())
    line = (
        f"{out}: {run.step} updates in {seconds:.0f} s; {right:.1%} of held-out cases right; "
        f"experts in use by {', '.join(quality.experts)} tokens in a row: {few}"
    )
    return {"seconds": seconds, **quality._asdict()}, line


def save_experts(out: Path, run: TrainingRun[ExpertTask], quality: Quality, command: str) -> None:
    """Write a model directory with its card, as `save_model`."""
    task = run.task
    kind, right = task.recipe.kind, quality.right
    held_out = {"cases": JUDGED, "right": right, "experts": quality.experts}
    rows = [(name, f"{share:.0%}") for name, share in right.items()]
    middle = [
        "## Right answers",
        f"{JUDGED} held-out cases a task, greedy.",
        table(("task", "right"), [*rows, ("all", f"{sum(right.values()) / len(right):.1%}")]),
        "## Experts in use",
        "By some of so many tokens in a row, of prompts and answers one behind another.",
        table(
            ("tokens", "share of experts"),
            [(size, f"{share:.1%}") for size, share in quality.experts.items()],
        ),
    ]
    card = card_of(run, command, LICENCE, held_out, kind=kind)
    title = f"A mixture of experts, {kind}"
    save_model(out, config_json(task.recipe), task.model.hf_tensors(), card, title, middle)
