"""A small denoiser over the tokens of an autoregressive target, to draft for it, after DEER
(arXiv:2512.15176): text that the target wrote is cut at random places and what follows is masked,
and masks near the cut weigh more.

Embedding and head are the target's, and stay. Its own layers begin as those of an autoregressive
draft model (`draft-lm`, FastDraft), as Dream began as Qwen, or else as some of the target's. Clean
rows are causal and say the next token; a group of masks sees the text before it and itself, and
each of its rows says the token behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.core.options import require
from paceline.core.types import IntArray, LogitArray
from paceline.errors import InvalidOption
from paceline.lab.training.batches import hold_out
from paceline.lab.training.card import Judged, TaughtTask
from paceline.lab.training.chains import Chains, Read, place
from paceline.lab.training.data import Text
from paceline.lab.training.denoisers.files import as_json, write_folder
from paceline.lab.training.losses import CrossEntropy
from paceline.lab.training.model import TrainableModel
from paceline.lab.training.objective import Hits
from paceline.lab.training.optimisers import Rated, optimisers
from paceline.lab.training.recipe import TextDenoiserRecipe
from paceline.models.config import ModelConfig
from paceline.models.families.base import HF_PARTS
from paceline.models.source import ModelSource
from paceline.models.weights import Weights
from paceline.networks.weights import load_network

_PARTS = {  # of a layer of a draft-lm
    "attention_norm": "norm",
    "o": "o.residual",
    "ffn_norm": "ffn_norm",
    "down": "down.residual",
}
_NAMES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}


def trunk(config: ModelConfig, weights: Weights, start: Mapping[str, LogitArray]) -> TrainableModel:
    """Return trainable layers between the embedding and the head of a target.

    They begin as `start`, of `of_target` or `of_draft_lm`. InvalidOption for other families.
    """
    if config.family not in _NAMES or config.rope_divisors is not None:
        known = " or ".join(_NAMES)
        raise InvalidOption(f"{config.family} has no small denoiser here: use {known}")
    layers = sum(name.endswith(".gate") for name in start)
    config = replace(config, layers=layers, ffn_size=len(start["layers.0.gate"]))
    return TrainableModel(config, {k: torch.from_numpy(v) for k, v in start.items()}, weights)


def of_target(config: ModelConfig, weights: Weights, layers: int) -> dict[str, LogitArray]:
    """Return layers of the target, spread from the first to the last, and its norm.

    Raises InvalidOption if it has fewer.
    """
    require(layers <= config.layers, "layers", layers, f"{config.layers} or fewer")
    begin = {"norm": weights["norm"]}
    for index, theirs in enumerate(np.linspace(0, config.layers - 1, layers).round()):
        for part in (*HF_PARTS, *(f"{part}.bias" for part in HF_PARTS)):
            if (name := f"layers.{int(theirs)}.{part}") in weights:
                begin[f"layers.{index}.{part}"] = weights[name]
    return begin


def of_draft_lm(path: Path, model: str) -> dict[str, LogitArray]:
    """Return layers and norm of a trained `draft-lm`.

    Raises InvalidOption unless the file holds one for the target of this fingerprint.
    """
    trained = load_network(path)
    network, given = trained.network, trained.parameters
    if network.name != "draft-lm" or trained.metadata.get("model") != model:
        raise InvalidOption(f"{path} is no draft-lm of this model: train one, or leave out --from")
    shape = network.config
    wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    begin = {"norm": given["norm"]}
    for index in range(network.layers):
        mine = {part: given[f"layer.{index}.{theirs}"] for part, theirs in _PARTS.items()}
        qkv = np.split(given[f"layer.{index}.qkv"], [wide, wide + narrow])
        halves = np.split(given[f"layer.{index}.gate_up"], 2)
        mine |= dict(zip(("q", "k", "v", "gate", "up"), (*qkv, *halves), strict=True))
        begin |= {f"layers.{index}.{part}": each for part, each in mine.items()}
    return begin


class TextDenoiserTask(TaughtTask[TextDenoiserRecipe]):
    """A denoiser for a target; `judge` counts greedy drafts on held-out texts.

    Raises:
        InvalidOption: texts are too few, or hold the mask.
    """

    name = "denoiser"
    taught = "whose text it was trained on and whose layers it began as"
    conditions = "greedy drafts of full depth against texts as they stand, at random places"

    def __init__(
        self, model: TrainableModel, texts: Sequence[Text], recipe: TextDenoiserRecipe, target: str
    ) -> None:
        """Train a `trunk`; `target` is what `resolve` takes."""
        need = recipe.depth + 2
        fitting = [each for each in texts if len(each.tokens) >= each.prompt_length + need]
        if any((each.tokens == recipe.mask).any() for each in fitting):
            raise InvalidOption(f"token {recipe.mask} is in the texts: choose another mask")
        super().__init__(recipe, *hold_out(fitting))
        self.model, self.module, self.steps = model, model.module, recipe.steps
        self._target = target

    def optimisers(self) -> list[Rated]:
        rates = self.recipe.matrix_rate, self.recipe.vector_rate
        return optimisers(self.model.own, *rates, betas=(0.9, 0.999))

    def passing(self, number: int) -> list[list[Text]]:
        order = np.random.default_rng((self.recipe.seed, number)).permutation(len(self.texts))
        parts = np.split(order, range(self.recipe.batch, len(order), self.recipe.batch))
        return [[self.texts[i] for i in part] for part in parts]

    def losses(self, texts: Sequence[Text], step: int) -> Iterator[tuple[Tensor, float]]:
        # Groups of every size are drafted with.
        draws = np.random.default_rng((self.recipe.seed, step, 1))
        loss = self._loss(*self._said(texts, int(draws.integers(1, self.recipe.depth + 1)), draws))
        yield loss, float(loss.detach())

    @torch.no_grad()
    def judge(self) -> Judged:
        losses, found = [], Hits(0, np.zeros(1 + self.recipe.depth, dtype=np.int64))
        for text in self.held_out:
            logits, labels = self._said([text], self.recipe.depth, np.random.default_rng(0))
            losses.append(float(self._loss(logits, labels)))
            right = np.cumprod(logits.argmax(-1).numpy() == labels, axis=1)
            found += Hits(len(right), right.sum(axis=0))
        return Judged(float(np.mean(losses)), found)

    def _loss(self, logits: Tensor, labels: IntArray) -> Tensor:
        weights = self.recipe.decay ** torch.arange(labels.shape[1], dtype=torch.float32)
        flat, told = logits.flatten(0, 1), torch.from_numpy(labels.ravel())
        return CrossEntropy()(flat, flat.detach(), told, weights.repeat(len(labels)))

    def _said(
        self, texts: Sequence[Text], depth: int, draws: np.random.Generator
    ) -> tuple[Tensor, IntArray]:
        # Logits `[groups, 1 + depth, vocabulary]` of the last clean row and the masks behind it,
        # and labels `[groups, 1 + depth]`.
        batch: list[Chains] = [place(each, self.recipe.groups, depth, draws) for each in texts]
        half = self.recipe.training_precision == "bf16"
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            read = Read(self.model, batch)
            masks = self.model.embed(torch.tensor([self.recipe.mask])).expand(depth, -1)
            behind = read.chains(self.model, masks, causal=False)
            clean = read.hidden[read.rows(0, first=0)]
            both = torch.cat([clean[:, None], behind.view(len(clean), depth, -1)], dim=1)
            logits = self.model.logits(both)
        return logits.float(), np.concatenate([each.labels(depth, first=0) for each in batch])

    def save(self, out: Path, metadata: dict[str, str]) -> Path:
        """Write a model directory that borrows embedding, head and tokenizer of its target."""
        config = config_json(self.model.config, self.recipe.mask)
        config["embedding_of"] = {"model": self._target, "fingerprint": metadata["model"]}
        texts = {"config.json": as_json(config)}
        return write_folder(out, texts, self.model.hf_tensors(), metadata)


def free_token(source: ModelSource) -> int:
    """Return the last special token that neither ends texts nor is in the target's template."""
    tokenizer = source.tokenizer()
    template = tokenizer.chat_template or ""
    found = [
        index
        for text, index in tokenizer.special_ids.items()
        if text not in template and index not in tokenizer.eos_token_ids
    ]
    if not found:
        raise InvalidOption(f"{source.name} has no special token to spare: name one with --mask")
    return max(found)


def config_json(config: ModelConfig, mask: int) -> dict[str, Any]:
    """Return the config of a trunk, all but whose embedding it has."""
    return {
        "architectures": [_NAMES[config.family]],
        "model_type": config.family,
        **config.hf_sizes(),
        "rope_theta": config.rope_base,
        "max_position_embeddings": config.max_context,
        "tie_word_embeddings": config.tied_embeddings,
        "eos_token_id": list(config.eos_token_ids),
        "torch_dtype": "float16",
        "denoiser": {
            "mask_token_id": mask,
            "attention": "causal",
            "shift": True,
            "block_size": None,
            "autoregressive": True,
        },
    }
