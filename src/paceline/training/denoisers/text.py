"""A small denoiser over the tokens of an autoregressive target, to draft for it, after DEER
(arXiv:2512.15176): text that the target wrote is cut at random places and what follows is masked,
and masks near the cut weigh more.

Embedding and head are the target's, and stay. Its own layers begin as those of an autoregressive
draft model (`draft-lm`, FastDraft), as Dream began as Qwen, or else as some of the target's. Clean
rows are causal and say the next token; a group of masks sees the text before it and itself, and
each of its rows says the token behind it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from paceline.core.cache import whole_file, write_atomically
from paceline.core.options import check_counts, require
from paceline.core.types import IntArray, LogitArray
from paceline.errors import InvalidOption
from paceline.models.config import ModelConfig
from paceline.models.families.base import HF_ENDS, HF_PARTS
from paceline.models.source import ModelSource
from paceline.models.weights import Weights
from paceline.networks.draft_lm import DraftLM
from paceline.networks.weights import load_network
from paceline.runtimes.torch.model import TorchModel
from paceline.training.batches import hold_out
from paceline.training.chains import Chains, Read, place
from paceline.training.data import Text
from paceline.training.losses import CrossEntropy
from paceline.training.objective import Hits
from paceline.training.run import Muon, Rated, TrainingRun

_PARTS = {  # of a layer of a draft-lm
    "attention_norm": "norm",
    "o": "o.residual",
    "ffn_norm": "ffn_norm",
    "down": "down.residual",
}
_NAMES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}


@dataclass(frozen=True, slots=True)
class TextRecipe:
    """Hyperparameters of a denoiser for a target.

    Attributes:
        mask: id of the mask token.
        batch: texts per update.
        layers: of its own.
        depth: masks of a group, at most.
        groups: per text, at new places each time.
        matrix_rate: peak learning rate of matrices (Muon).
        vector_rate: peak learning rate of norms and biases (AdamW).
        decay: weight of a place relative to the one before it.
        precision: of matmuls, "fp32" or "bf16".
    """

    mask: int
    steps: int = 3000
    batch: int = 4
    layers: int = 2
    depth: int = 4
    groups: int = 24
    matrix_rate: float = 0.01
    vector_rate: float = 1e-3
    decay: float = 0.8
    warm_up: float = 0.05
    clip: float = 1.0
    precision: str = "bf16"
    seed: int = 0

    def __post_init__(self) -> None:
        check_counts(self)
        require(self.precision in ("fp32", "bf16"), "precision", self.precision, "fp32 or bf16")


class Trunk(TorchModel):
    """Trainable layers between the embedding and the head of a target."""

    def __init__(
        self, config: ModelConfig, weights: Weights, start: Mapping[str, LogitArray]
    ) -> None:
        """Begin with what `of_target` or `of_draft_lm` give; InvalidOption for other families."""
        if config.family not in _NAMES or config.rope_divisors is not None:
            known = " or ".join(_NAMES)
            raise InvalidOption(f"{config.family} has no small denoiser here: use {known}")
        layers = sum(name.endswith(".gate") for name in start)
        inner = len(start["layers.0.gate"])
        self.config = replace(config, layers=layers, ffn_size=inner)
        self._weights, self._known = weights, {}
        self._place = torch.device("cpu"), torch.float32
        self.own = {
            name: nn.Parameter(torch.from_numpy(each.copy())) for name, each in start.items()
        }
        self.module = nn.ParameterList(self.own.values())

    def tensor(self, name: str) -> Tensor:
        return self.own[name] if name in self.own else super().tensor(name)

    def bias(self, name: str) -> Tensor | None:
        return self.own.get(f"{name}.bias")


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
    if not isinstance(network, DraftLM) or trained.metadata.get("model") != model:
        raise InvalidOption(f"{path} is no draft-lm of this model: train one, or leave out --from")
    shape = network.geometry
    wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    begin = {"norm": given["norm"]}
    for index in range(network.layers):
        mine = {part: given[f"layer.{index}.{theirs}"] for part, theirs in _PARTS.items()}
        qkv = np.split(given[f"layer.{index}.qkv"], [wide, wide + narrow])
        halves = np.split(given[f"layer.{index}.gate_up"], 2)
        mine |= dict(zip(("q", "k", "v", "gate", "up"), (*qkv, *halves), strict=True))
        begin |= {f"layers.{index}.{part}": each for part, each in mine.items()}
    return begin


class TextTraining(TrainingRun[Hits]):
    """Resumable training of a denoiser; `judge` counts greedy drafts on held-out texts.

    Raises:
        InvalidOption: texts are too few, hold the mask, or the checkpoint has other settings.
        ModelError: the checkpoint is damaged.
    """

    def __init__(
        self,
        trunk: Trunk,
        texts: Sequence[Text],
        recipe: TextRecipe,
        *,
        checkpoint_at: Path | None = None,
    ) -> None:
        need = recipe.depth + 2
        fitting = [each for each in texts if len(each.tokens) >= each.prompt_length + need]
        if any((each.tokens == recipe.mask).any() for each in fitting):
            raise InvalidOption(f"token {recipe.mask} is in the texts: choose another mask")
        taught, held_out = hold_out(fitting)
        self.recipe, self.trunk = recipe, trunk
        self.warm_up, self.clip = recipe.warm_up, recipe.clip
        matrices = [each for each in trunk.own.values() if each.ndim == 2]
        others = [each for each in trunk.own.values() if each.ndim == 1]
        adam = torch.optim.AdamW(others, lr=recipe.vector_rate, weight_decay=0.0)
        rated: list[Rated] = [
            (Muon(matrices, recipe.matrix_rate), recipe.matrix_rate),
            (adam, recipe.vector_rate),
        ]
        super().__init__(
            trunk.module,
            rated,
            torch.Generator(),
            taught,
            held_out,
            steps=recipe.steps,
            batch_tokens=0,
            seed=recipe.seed,
            settings={**asdict(recipe), "texts": len(taught)},
            checkpoint_at=checkpoint_at,
        )

    def batches(self, epoch: int) -> list[list[Text]]:
        order = np.random.default_rng((self.recipe.seed, epoch)).permutation(len(self.texts))
        size = self.recipe.batch
        parts = [order[at : at + size] for at in range(0, len(order), size)]
        return [[self.texts[i] for i in part] for part in parts]

    def losses(self, texts: Sequence[Text]) -> Iterator[tuple[Tensor, float]]:
        # Groups of every size are drafted with.
        draws = np.random.default_rng((self.recipe.seed, self.step, 1))
        depth = int(draws.integers(1, self.recipe.depth + 1))
        logits, labels = self._said(texts, depth, draws)
        weights = self.recipe.decay ** torch.arange(1 + depth, dtype=torch.float32)
        flat, told = logits.flatten(0, 1), torch.from_numpy(labels.ravel())
        loss = CrossEntropy()(flat, flat.detach(), told, weights.repeat(len(labels)))
        yield loss, float(loss.detach())

    def judge(self) -> Hits:
        found = Hits(0, np.zeros(1 + self.recipe.depth, dtype=np.int64))
        for text in self.held_out:
            with torch.no_grad():
                logits, labels = self._said([text], self.recipe.depth, np.random.default_rng(0))
            right = np.cumprod(logits.argmax(-1).numpy() == labels, axis=1)
            found += Hits(len(right), right.sum(axis=0))
        return found

    def _said(
        self, texts: Sequence[Text], depth: int, draws: np.random.Generator
    ) -> tuple[Tensor, IntArray]:
        # Logits `[groups, 1 + depth, vocabulary]` of the last clean row and the masks behind it,
        # and labels `[groups, 1 + depth]`.
        batch: list[Chains] = [place(each, self.recipe.groups, depth, draws) for each in texts]
        half = self.recipe.precision == "bf16"
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            read = Read(self.trunk, batch)
            masks = self.trunk.embed(torch.tensor([self.recipe.mask])).expand(depth, -1)
            behind = read.chains(self.trunk, masks, causal=False)
            clean = read.hidden[read.rows(0, first=0)]
            both = torch.cat([clean[:, None], behind.view(len(clean), depth, -1)], dim=1)
            logits = self.trunk.logits(both)
        return logits.float(), np.concatenate([each.labels(depth, first=0) for each in batch])


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


def save_text_denoiser(
    out: Path, run: TextTraining, target: str, metadata: Mapping[str, str]
) -> None:
    """Write a model directory that borrows embedding, head and tokenizer of its target.

    Weights are float16, and come last. `target` is what `resolve` takes, `metadata` as of
    `training.setup.provenance`. Raises InvalidOption if it cannot be written.
    """
    halves = {
        _hf_name(name): each.detach().half().contiguous() for name, each in run.trunk.own.items()
    }
    config = config_json(run.trunk.config, run.recipe.mask)
    config["embedding_of"] = {"model": target, "fingerprint": metadata["model"]}
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(out / "config.json", json.dumps(config, indent=1) + "\n")
        with whole_file(out / "model.safetensors") as part:
            part.write_bytes(save(halves, {"format": "pt", **metadata}))
    except OSError as error:
        raise InvalidOption(
            f"cannot write {out} ({error.strerror or error}): free space or give another --out"
        ) from error


def config_json(config: ModelConfig, mask: int) -> dict[str, Any]:
    """Return the config of a trunk, all but whose embedding it has."""
    return {
        "architectures": [_NAMES[config.family]],
        "model_type": config.family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.ffn_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
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


def _hf_name(name: str) -> str:
    if name in HF_ENDS:
        return HF_ENDS[name]
    _, layer, part, *kind = name.split(".")
    return f"model.layers.{layer}.{HF_PARTS[part]}.{kind[0] if kind else 'weight'}"
