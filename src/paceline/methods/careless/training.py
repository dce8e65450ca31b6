"""Training of LoRA factors for a Whisper whose encoder sees no later chunk.

One pass of the encoder serves all texts of a sound: what is heard by the end of a chunk is its rows
up to there. The label of such a moment are the words that have ended, then the end of the text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from paceline.audio.mel import MelStream
from paceline.core import processor
from paceline.core.cache import make_dir, write_atomically, written_file
from paceline.core.types import IntArray
from paceline.lab.training.card import card_of, page, table
from paceline.lab.training.data import Text
from paceline.lab.training.optimisers import Rated, adam
from paceline.lab.training.run import TrainingRun, TrainingTask
from paceline.methods.careless.captions import ROW, chunk_ends
from paceline.methods.careless.recipe import CausalRecipe
from paceline.methods.careless.spoken import Spoken, played
from paceline.models.config import ModelConfig
from paceline.models.families import base, family_of
from paceline.models.families.whisper import neighbours_of
from paceline.models.ops import KV, Heads, Sight
from paceline.models.weights import Weights
from paceline.native.blocks import GROUP
from paceline.networks.torch_ops import Attention, Qkv, TorchOps

_SLOWER = 1.15  # and as much faster: sounds are played at drawn speeds, which makes other voices

Memory = dict[int, tuple[Tensor, Tensor]]
"""Keys and values by layer of the decoder, `[sounds, heads, rows, width]`."""


def adapted(config: ModelConfig) -> list[str]:
    """Return the matrices that have factors: of attention, in encoder and decoder."""
    shape = config.encoder
    assert shape is not None
    own = [f"encoder.layers.{layer}.{part}" for layer in range(shape.layers) for part in "qkvo"]
    parts = [*"qkvo", *(f"look_{part}" for part in "qkvo")]
    return own + [f"layers.{layer}.{part}" for layer in range(config.layers) for part in parts]


class FactoredTensors:
    """Weights of a model in float32 with factors beside them; `networks.torch_ops.Tensors`."""

    def __init__(self, weights: Weights, factors: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        self._weights, self._factors = weights, factors
        self._known: dict[str, Tensor] = {}

    def tensor(self, name: str) -> Tensor:
        if name not in self._known:
            stored = "embed" if name == "head" and name not in self._weights else name
            self._known[name] = torch.from_numpy(np.array(self._weights[stored], np.float32))
        return self._known[name]

    def rows(self, name: str, ids: Tensor) -> Tensor:
        return functional.embedding(ids, self.tensor(name))

    def bias(self, name: str) -> Tensor | None:
        return self.tensor(f"{name}.bias") if f"{name}.bias" in self._weights else None

    def linear(self, x: Tensor, name: str) -> Tensor:
        out = functional.linear(x, self.tensor(name), self.bias(name))
        if name not in self._factors:
            return out
        down, up = self._factors[name]
        return out + functional.linear(functional.linear(x, down), up)


class MaskedRows(Attention):
    """Whole sounds, whose rows see what a mask says, or whole texts of them."""

    def __init__(
        self, sees: Tensor | None, memory: Memory | None = None, heard: Tensor | None = None
    ) -> None:
        """Bind bool masks of `scaled_dot_product_attention`; None for a text.

        `heard` is that of the memory, each sound of which several texts may look at.
        """
        self._sees, self._memory, self._heard = sees, memory or {}, heard

    def places(self, kv: int | KV, x: Tensor, heads: Heads, sees: Sight) -> Tensor:
        return torch.arange(x.shape[1])

    def attend(self, kv: int | KV, qkv: Qkv, heads: Heads, sees: Sight) -> Tensor:
        queries, mask = qkv.queries.transpose(1, 2), self._sees
        if isinstance(kv, KV):
            keys, values = self._memory[kv.layer]
            each = len(queries) // len(keys)
            keys, values = (part.repeat_interleave(each, 0) for part in (keys, values))
            mask = self._heard
        else:
            keys, values = qkv.keys.transpose(1, 2), qkv.values.transpose(1, 2)
        out = functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=mask is None, scale=heads.scale
        )
        return out.transpose(1, 2)

    def convolve(self, layer: int, x: Tensor, weights: Tensor) -> Tensor:
        before = functional.pad(x.transpose(1, 2), (weights.shape[1] - 1, 0))
        return functional.conv1d(before, weights[:, None], groups=len(weights)).transpose(1, 2)


class _HearingOps(TorchOps):
    # Sounds `[batch, frames, mels]`; `sees` is that of `HearsOn.hear`.

    def __init__(
        self,
        weights: FactoredTensors,
        eps: float,
        memory: Memory,
        sees: IntArray | None = None,
        heard: Tensor | None = None,
    ) -> None:
        self._neighbours, mask = {}, None
        if sees is not None:
            self._neighbours = neighbours_of(sees, 0)
            mask = torch.from_numpy(np.arange(len(sees)) < sees[:, None])
        super().__init__(weights, eps, MaskedRows(mask, memory, heard))
        self._memory = memory

    def placed(self, x: Tensor, table: str) -> Tensor:
        return x + self._weights.rows(table, torch.arange(x.shape[1]))

    def neighbours(self, x: Tensor, stride: int = 1) -> Tensor:
        read = torch.from_numpy(self._neighbours[stride])
        return functional.pad(x, (0, 0, 0, 1))[:, read].flatten(-2)

    def store(self, layer: int, kv: Tensor, heads: Heads) -> None:
        parted = kv.reshape(*kv.shape[:2], -1, heads.width).transpose(1, 2)
        self._memory[layer] = parted[:, : heads.kv_heads], parted[:, heads.kv_heads :]


class CausalWhisper:
    """A Whisper in torch, whose rows see their chunk and those before."""

    def __init__(
        self, config: ModelConfig, weights: Weights, factors: Mapping[str, tuple[Tensor, Tensor]]
    ) -> None:
        assert config.encoder is not None
        self.config, self.shape = config, config.encoder
        self._weights = FactoredTensors(weights, factors)

    def hear(self, frames: Tensor, sees: IntArray) -> Memory:
        """Return the memory of float32 `[sounds, 2 * rows, mels]`; `sees` is as of `HearsOn`."""
        memory: Memory = {}
        encoder = family_of(self.config).encoder
        assert encoder is not None
        wide = functional.pad(frames, (0, -self.shape.mels % GROUP))
        ops = _HearingOps(self._weights, self.config.norm_eps, memory, sees)
        encoder(ops, self.config, self.shape, wide, True)
        return memory

    def logits(self, tokens: Tensor, memory: Memory, heard: Tensor) -> Tensor:
        """Return logits of int64 `[texts, length]`, of which as many in a row look at each sound.

        `heard` is int64 `[texts]`, how many of its rows.
        """
        rows = memory[0][0].shape[2]
        seen = torch.arange(rows) < heard[:, None]
        ops = _HearingOps(self._weights, self.config.norm_eps, memory, heard=seen[:, None, None, :])
        halves = family_of(self.config).halves
        assert halves is not None
        x = base.forward(ops, self.config, halves, base.embed(ops, self.config, tokens))
        out: Tensor = base.head(ops, self.config, x)
        return out


class CausalLoss(NamedTuple):
    """Mean loss per token of what is held out, and the share of tokens that are its best."""

    loss: float
    right: float


class CausalTask(TrainingTask[CausalRecipe, CausalLoss]):
    """LoRA factors, on sounds whose words are known."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        spoken: Sequence[Spoken],
        held_out: Sequence[Spoken],
        prompt: Sequence[int],
        end: int,
        recipe: CausalRecipe,
    ) -> None:
        """Draw the factors; `prompt` stands before each text and `end` behind it."""
        texts, apart = (
            [Text(at, np.array(each.tokens), 0) for at, each in enumerate(part)]
            for part in (spoken, held_out)
        )
        super().__init__(recipe, texts, apart)
        self._spoken, self._apart = spoken, held_out
        self._prompt, self._end, self.steps = list(prompt), end, recipe.steps
        factors: dict[str, tuple[Tensor, Tensor]] = {}
        for name in adapted(config):
            out, inner = weights.stored(name).shape
            down = torch.randn(recipe.rank, inner, generator=self.generator) / math.sqrt(inner)
            factors[name] = nn.Parameter(down), nn.Parameter(torch.zeros(out, recipe.rank))
        self.factors = factors
        self.module = nn.ParameterDict(
            {
                f"{name}.{part}".replace(".", "/"): each
                for name, pair in factors.items()
                for part, each in zip("AB", pair, strict=True)
            }
        )
        self._whisper = CausalWhisper(config, weights, factors)

    def optimisers(self) -> list[Rated]:
        return [adam(self.module.parameters(), self.recipe.rate)]

    def passing(self, number: int) -> list[list[Text]]:
        order = np.random.default_rng((self.recipe.seed, number)).permutation(len(self.texts))
        size = self.recipe.batch
        groups = [order[at : at + size] for at in range(0, len(order), size)]
        return [[self.texts[each] for each in group] for group in groups]

    def losses(self, texts: Sequence[Text], step: int) -> Iterator[tuple[Tensor, float]]:
        # Named by the step, so that a run which resumes draws the same.
        draws = np.random.default_rng((self.recipe.seed, 1, step))
        chunk = int(draws.choice(self.recipe.lengths))
        speeds = _SLOWER ** draws.uniform(-1, 1, len(texts))
        logits, right = self._told([self._spoken[t.index] for t in texts], chunk, speeds, draws)
        loss = functional.cross_entropy(logits.flatten(0, 1), right.flatten(), ignore_index=-1)
        yield loss, float(loss.detach())

    @torch.no_grad()
    def judge(self) -> CausalLoss:
        loss, hits, count = 0.0, 0, 0
        for at, each in enumerate(self._apart):
            draws = np.random.default_rng((self.recipe.seed, 2, at))
            logits, right = self._told([each], self.recipe.lengths[0], np.ones(1), draws)
            known = right >= 0
            nats = functional.cross_entropy(logits[known], right[known], reduction="sum")
            loss, count = loss + float(nats), count + int(known.sum())
            hits += int((logits.argmax(-1) == right)[known].sum())
        return CausalLoss(loss / max(1, count), hits / max(1, count))

    def _told(
        self,
        spoken: Sequence[Spoken],
        chunk: int,
        speeds: np.ndarray[Any, np.dtype[np.float64]],
        draws: np.random.Generator,
    ) -> tuple[Tensor, Tensor]:
        # Logits of texts at some moments of each sound, and what is right; -1 for no token.
        frames, moments, texts = [], [], []
        for each, speed in zip(spoken, speeds, strict=True):
            stream = MelStream(2 * chunk, self._whisper.shape.mels)
            found = played(each.path, speed, stream)
            found = np.pad(found, ((0, -len(found) % (2 * chunk)), (0, 0)), mode="edge")
            chunks = len(found) // (2 * chunk)
            ends = [chunks, *draws.integers(1, chunks + 1, self.recipe.moments - 1)]
            frames.append(found)
            for end in ends:
                moments.append(end * chunk)
                ended = each.ends / speed <= end * chunk * ROW
                said = each.tokens[: int(ended.sum())] if end < chunks else each.tokens
                texts.append([*self._prompt, *said, self._end])
        longest = max(map(len, frames))
        padded = np.stack([np.pad(each, ((0, longest - len(each)), (0, 0))) for each in frames])
        width = max(map(len, texts))
        tokens = np.full((len(texts), width), self._end)
        for row, text in zip(tokens, texts, strict=True):
            row[: len(text)] = text
        right = np.where(np.arange(width) < np.array([*map(len, texts)])[:, None], tokens, -1)
        right = np.pad(right, ((0, 0), (0, 1)), constant_values=-1)[:, 1:]
        right[:, : len(self._prompt) - 1] = -1
        sees = chunk_ends(0, longest // 2, chunk)
        with torch.autocast("cpu", torch.bfloat16, processor.multiplies_bf16()):
            memory = self._whisper.hear(torch.from_numpy(padded), sees)
            heard = torch.tensor(moments)
            logits = self._whisper.logits(torch.from_numpy(tokens), memory, heard)
        return logits.float(), torch.from_numpy(right)


def save_adapter(task: CausalTask, config: ModelConfig, name: str, out: Path) -> None:
    """Write the factors as PEFT's folder, for `--adapter`; InvalidOption if that cannot be."""
    family, tensors = family_of(config), {}
    for matrix, pair in task.factors.items():
        side, _, rest = matrix.rpartition("layers.")
        layer, part = rest.split(".")
        layers = family.hf_encoder if side else family.hf_layers
        theirs = f"base_model.model.{layers}.{layer}.{family.hf_parts[part]}"
        for kind, each in zip("AB", pair, strict=True):
            tensors[f"{theirs}.lora_{kind}.weight"] = each.detach().half().contiguous()
    rank = task.recipe.rank
    about = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "base_model_name_or_path": name}
    make_dir(out)
    with written_file(out / "adapter_model.safetensors", "give another --out") as part_of:
        save_file(tensors, part_of)
    write_atomically(out / "adapter_config.json", json.dumps(about, indent=1) + "\n")


def publish(
    run: TrainingRun[CausalTask], out: Path, config: ModelConfig, name: str, command: str
) -> tuple[dict[str, Any], str]:
    """Judge a run, write factors and their card; return its figures and a line for people."""
    found = run.task.judge()
    run.course.held_out(run.step, found.loss)
    save_adapter(run.task, config, name, out)
    sounds = len(run.task.texts), len(run.task.held_out)
    held_out = {"sounds": sounds[1], "loss": found.loss, "right": found.right}
    card = card_of(run, command, "as the base model's and the sounds'", held_out, target=name)
    write_atomically(out / "card.json", json.dumps(card, indent=1) + "\n")
    size = f" for {name}; {sounds[0]} sounds"
    middle = ["## Held out", table(("", ""), held_out.items())]
    write_atomically(out / "README.md", page(card, "Causal Whisper", size, middle))
    figures = {"weights": str(out), "held_out": held_out, "seconds": run.course.seconds}
    return figures, f"{out}: loss {found.loss:.3f}, {100 * found.right:.1f}% of tokens, held out"
