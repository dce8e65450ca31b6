"""Training of a small mixture of experts on lists, and its files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from paceline.core.types import BoolArray
from paceline.measure import parallel_tasks
from paceline.models.families.experts import BLOCKFFN, MIXTRAL
from paceline.training.data import Text
from paceline.training.denoisers.files import card_of_run, llama_json, page, save_model
from paceline.training.denoisers.rows import EOS, MASK, PAD, UNKNOWN, text_of, vocabulary
from paceline.training.denoisers.run import JUDGED, SHARES
from paceline.training.experts import (
    ExpertLayer,
    ExpertModule,
    ExpertRecipe,
    balance_loss,
    chunk_loss,
    locality_loss,
    union_share,
)
from paceline.training.run import TrainingRun

TASKS = tuple(parallel_tasks.TASKS)[:10]
"""Those about lists of names."""
UNIONS = (1, 8, 16, 32)
"""Tokens in a row whose experts are counted."""
_ANSWER = 12  # tokens at most


class Quality(NamedTuple):
    """Share of strictly right answers by task, and of experts in use by tokens in a row."""

    right: dict[str, float]
    experts: dict[str, float]


class ExpertTraining(TrainingRun[Quality]):
    """Resumable training on cases that are drawn as it goes."""

    def __init__(self, recipe: ExpertRecipe, *, checkpoint_at: Path | None = None) -> None:
        """Initialise the weights, or resume; errors as `TrainingRun`."""
        generator = torch.Generator().manual_seed(recipe.seed)
        self.recipe, self.ids = recipe, vocabulary()
        self.warm_up, self.clip = recipe.warm_up, recipe.clip
        self.module = ExpertModule(recipe, len(self.ids), generator)
        shares = np.array([SHARES.get(name, 1.0) for name in TASKS])
        self._shares = shares / shares.sum()
        super().__init__(
            self.module,
            self.module.rated(),
            generator,
            (),
            (),
            steps=recipe.steps,
            batch_tokens=0,
            seed=recipe.seed,
            settings=asdict(recipe) | {"vocabulary": list(self.ids), "shares": list(self._shares)},
            checkpoint_at=checkpoint_at,
        )

    def batches(self, epoch: int) -> list[list[Text]]:
        """Return the batch of step `epoch`, empty if it is done."""
        if epoch < self.step:
            return [[]]
        rng = np.random.default_rng((self.recipe.seed, epoch, 0))
        texts = []
        for index in range(self.recipe.batch):
            name = TASKS[rng.choice(len(TASKS), p=self._shares)]
            task = parallel_tasks.TASKS[name]
            case = parallel_tasks.draw(task, name, rng, False, int(rng.integers(3)))
            texts.append(text_of(case, self.ids, index))
        return [texts]

    def losses(self, texts: Sequence[Text]) -> Iterator[tuple[Tensor, float]]:
        tokens, valid = padded([np.append(text.tokens, EOS) for text in texts])
        logits, scores = self.module(tokens[:, :-1])
        begins = torch.tensor([text.prompt_length - 1 for text in texts])
        asked = valid[:, 1:] & (torch.arange(logits.shape[1]) >= begins[:, None])
        loss = functional.cross_entropy(logits[asked], tokens[:, 1:][asked])
        value = float(loss.detach())
        yield loss + self._extra(scores, valid[:, :-1]), value

    def _extra(self, scores: Sequence[Tensor], valid: Tensor) -> Tensor:
        recipe = self.recipe
        if recipe.kind == "top-k":
            found = [recipe.balance * balance_loss(each, valid, recipe.used) for each in scores]
            return torch.stack(found).mean()
        found = [
            recipe.locality * locality_loss(each, valid) + recipe.chunk * chunk_loss(each, valid)
            for each in scores
        ]
        # From nothing in the first third: experts must be of use before they are told to be few.
        return torch.stack(found).mean() * min(1.0, 3 * self.step / self.steps)

    def judge(self) -> Quality:
        right, written = {}, []
        words = {index: word for word, index in self.ids.items()}
        for name in TASKS:
            cases = list(parallel_tasks.cases(name, JUDGED, 0))
            texts = [text_of(case, self.ids) for case in cases]
            prompts = [text.tokens[: text.prompt_length] for text in texts]
            answers = decode(self.module, prompts)
            graded = [
                parallel_tasks.grade(case, " ".join(words[each] for each in answer)).strict
                for case, answer in zip(cases, answers, strict=True)
            ]
            right[name] = sum(graded) / len(graded)
            written += [np.append(p, a) for p, a in zip(prompts, answers, strict=True)]
        order = np.random.default_rng(0).permutation(len(written))
        used = experts_of(self.module, [written[each] for each in order])
        return Quality(right, {str(size): union_share(used, size) for size in UNIONS})


def padded(texts: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """Return tokens, int64 `[texts, longest]`, and where they are no padding."""
    tokens = np.full((len(texts), max(map(len, texts))), PAD)
    valid = np.zeros(tokens.shape, dtype=np.bool_)
    for row, known, text in zip(tokens, valid, texts, strict=True):
        row[: len(text)], known[: len(text)] = text, True
    return torch.from_numpy(tokens), torch.from_numpy(valid)


@torch.no_grad()
def decode(module: ExpertModule, prompts: Sequence[Any]) -> list[list[int]]:
    """Return greedy answers without their end tokens; every forward computes all rows anew."""
    texts = [list(map(int, prompt)) for prompt in prompts]
    open_ = list(range(len(texts)))
    for _ in range(_ANSWER):
        if not open_:
            break
        tokens, valid = padded([texts[i] for i in open_])
        last = module(tokens)[0][torch.arange(len(open_)), valid.sum(1) - 1]
        last[:, [PAD, MASK, UNKNOWN]] = -torch.inf
        for i, token in zip(open_, last.argmax(-1).tolist(), strict=True):
            texts[i].append(token)
        open_ = [i for i in open_ if texts[i][-1] != EOS]
    found = [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]
    return [answer[:-1] if answer and answer[-1] == EOS else answer for answer in found]


@torch.no_grad()
def experts_of(module: ExpertModule, texts: Sequence[Any]) -> list[BoolArray]:
    """Return the experts that rows use, bool `[rows, experts]` by layer, text behind text."""
    found: list[list[BoolArray]] = [[] for _ in module.layers]
    for begin in range(0, len(texts), JUDGED):
        tokens, valid = padded(texts[begin : begin + JUDGED])
        for layer, scores, to in zip(module.layers, module(tokens)[1], found, strict=True):
            assert isinstance(layer, ExpertLayer)
            to.append((module.weights(layer, scores)[valid] != 0).numpy())
    return [np.concatenate(each) for each in found]


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
    return own | llama_json(recipe.width, recipe.inner, recipe.layers, recipe.head)


def tensors(module: ExpertModule) -> dict[str, Tensor]:
    """Return the parameters, an expert's each for itself, by their names in checkpoints."""
    recipe = module.recipe
    family = MIXTRAL if recipe.kind == "top-k" else BLOCKFFN
    found = {}
    for name, parameter in module.named_parameters():
        each = parameter.detach()
        if not name.startswith("layers."):
            found[family.hf_ends["embed" if name == "embedding" else name]] = each
            continue
        _, layer, part = name.split(".")
        prefix = f"{family.hf_layers}.{layer}"
        if part not in ("gate", "up", "down"):
            found[f"{prefix}.{family.hf_parts[part]}.weight"] = each
            continue
        theirs = family.hf_parts[f"experts.{part}"]
        for expert, matrix in enumerate(torch.split(each, recipe.inner, int(part == "down"))):
            found[f"{prefix}.{theirs.format(expert)}.weight"] = matrix
    return found


def save_experts(out: Path, run: ExpertTraining, quality: Quality, command: str) -> None:
    """Write a model directory with its card, as `save_model`."""
    held = {"cases": JUDGED, "right": quality.right, "experts": quality.experts}
    card = card_of_run(run, held, command)
    save_model(out, config_json(run.recipe), tensors(run.module), card, markdown(card))


def markdown(card: Mapping[str, Any]) -> str:
    """Render a card."""
    held = card["held_out"]
    right = held["right"]
    lines = [
        "## Right answers",
        "",
        f"{held['cases']} held-out cases a task, greedy.",
        "",
        "| task | right |",
        "|---|---|",
        *(f"| {task} | {share:.0%} |" for task, share in right.items()),
        f"| all | {sum(right.values()) / len(right):.1%} |",
        "",
        "## Experts in use",
        "",
        "By some of so many tokens in a row, of prompts and answers one behind another.",
        "",
        "| tokens | share of experts |",
        "|---|---|",
        *(f"| {size} | {share:.1%} |" for size, share in held["experts"].items()),
    ]
    return page(card, f"A mixture of experts, {card['kind']}", lines)
