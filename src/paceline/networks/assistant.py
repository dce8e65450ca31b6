"""Assistants of Gemma 4 as published (Google 2026): layers over the keys and values of the target.

What they read of a token is its embedding and the state before it: the target's last one for the
root, later the assistant's own, projected. All tokens of a draft stand where the root does, and see
the text before it, so an assistant has no cache. Some bring clusters of tokens, which spare reading
their whole LM head: chains draft the tokens of the best ones. Trees read all of it, and so does
what runs without native kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from paceline.core.types import LogitArray
from paceline.errors import InvalidOption, ModelError
from paceline.models.config import FINAL, ModelConfig
from paceline.models.families import gguf_config, hf_config
from paceline.models.families.gemma4 import GEMMA4, layer_over
from paceline.models.gguf import GGUFFile
from paceline.models.ops import KV, Ops, Rows
from paceline.models.safetensors import SafetensorsFiles
from paceline.models.weights import FileWeights, Weights
from paceline.networks.base import Network, Shapes
from paceline.networks.head_preview import CENTROIDS, Clusters
from paceline.networks.weights import LazyTensors, Trained

KIND = "Gemma 4 assistant"
ARCHITECTURE = "gemma4-assistant"  # of GGUF files
_STEPS = 4
# Matrices around the layers, and their names in files.
_AROUND = {"before": "pre_projection", "behind": "post_projection"}
_CLUSTERS = "masked_embedding"


class Assistant(Network):
    """Draft one token per pass of the layers; a state is theirs, normed."""

    name: ClassVar[str] = "assistant"
    reads_target = True

    def __init__(self, config: ModelConfig, target: ModelConfig, *, steps: int = _STEPS) -> None:
        """Set the shape: of the layers, and of a `target` that `lenders` has layers for."""
        super().__init__(config, steps=steps)
        self.target = target
        self.lent = lenders(config, target)

    @property
    def feature_width(self) -> int:
        return self.target.hidden_size

    def shapes(self) -> Shapes:
        config, width, states = self.config, self.config.hidden_size, self.target.hidden_size
        out: Shapes = {"before": (width, 2 * states), "behind": (states, width), "norm": (width,)}
        for index in range(config.layers):
            _, head = config.kv_shape(index)
            norms = ("attention_norm", "post_attention_norm", "ffn_norm", "post_ffn_norm")
            parts: Shapes = {
                **{"q": (config.heads * head, width), "o": (width, config.heads * head)},
                **{"gate": (config.ffn_size, width), "up": (config.ffn_size, width)},
                **{"down": (width, config.ffn_size), "q_norm": (head,), "scale": (1,)},
                **dict.fromkeys(norms, (width,)),
            }
            out |= {f"layers.{index}.{part}": shape for part, shape in parts.items()}
        return out

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        return self._layers(ops, ops.last(self._embed(ops, tokens)), ops.last(features))

    def logits(self, ops: Ops, state: Rows, step: int) -> Rows:
        return ops.head(state)

    def advance(self, ops: Ops, state: Rows, tokens: Rows, step: int) -> Rows:
        return self._layers(ops, self._embed(ops, tokens), ops.linear(state, ["behind"]))

    def _embed(self, ops: Ops, tokens: Rows) -> Rows:
        return ops.embed(tokens, self.target.embedding_scale)

    def _layers(self, ops: Ops, embedded: Rows, state: Rows) -> Rows:
        x = ops.linear(ops.concat([embedded, state]), ["before"])
        for index, layer in enumerate(self.lent):
            x = layer_over(ops, self.config, index, x, KV(layer, target=True))
        return ops.norm(x, "norm")


def lenders(config: ModelConfig, target: ModelConfig) -> list[int]:
    """Return which of a target's stored keys and values each layer reads, by place in its cache.

    They are of the last layer that sees as much. Raises ValueError if there is none of that shape.
    """
    last = {bool(target.windows[index]): at for at, index in enumerate(target.attention_layers)}
    places = [last[bool(window)] for window in config.windows]
    for index, place in enumerate(places):
        heads, width = config.kv_shape(index)
        if target.kv_shapes[place] != (heads, width):
            raise ValueError(f"{heads} heads of keys and values of width {width}")
    return places


@dataclass(frozen=True, slots=True)
class AssistantWiring:
    """What others ask of `wirings.Wiring`; assistants are all put together alike.

    Attributes:
        width: of the target's states, which are read behind its final norm.
        clusters: how many it brings, and how many of them are read.
    """

    width: int
    clusters: tuple[int, int]
    kind: ClassVar[str] = KIND
    drafter: ClassVar[str] = Assistant.name
    boundaries: ClassVar[tuple[int, ...]] = (FINAL,)
    doubts: ClassVar[tuple[str, ...]] = ()

    def said(self) -> dict[str, Any]:
        """Return what a reader of its card wants to know, as words and values."""
        count, best = self.clusters
        return {"cache": "the target's", "clusters": f"{best} of {count}" if count else "none"}


@dataclass(frozen=True, slots=True)
class PublishedAssistant:
    """An assistant's files, opened.

    Attributes:
        path: file or directory.
        layout: whose names its tensors have.
        config: of its layers.
        width: of the target's states.
        clusters: how many there are, and how many of them are read.
    """

    path: Path
    layout: str
    config: ModelConfig
    width: int
    tensors: SafetensorsFiles | GGUFFile
    clusters: tuple[int, int] = (0, 0)
    made_for: ClassVar[str] = ""  # which their files do not say
    names: ClassVar[tuple[str, ...]] = ("head",)  # what it has in place of the target's

    @property
    def _stored(self) -> Sequence[str]:
        known = self.tensors
        return list(known.tensors if isinstance(known, GGUFFile) else known.index())

    @property
    def bytes(self) -> int:
        return sum(self.tensors.stored(name)[1].nbytes for name in self._stored)

    @property
    def draft_vocabulary(self) -> int:
        """Return how many tokens it may draft."""
        return self.config.vocab_size

    @property
    def wiring(self) -> AssistantWiring:
        """Return what it reads."""
        return AssistantWiring(self.width, self.clusters)

    def boundaries(self, layers: int) -> tuple[int, ...]:
        """Return the boundaries that it reads of a target with so many layers."""
        return self.wiring.boundaries

    def changed(self, changes: object, layers: int) -> PublishedAssistant:
        """Raise InvalidOption: there is nothing to change."""
        raise InvalidOption(
            f"{self.path} is a {KIND}, which has one wiring: leave out its options, or --model"
        )

    def fit(self, target: ModelConfig, weights: Weights, model: str) -> Trained:
        """Return it as a network for a target, whose fingerprint is `model`.

        Raises InvalidOption: it was made for another model, or lacks a tensor.
        """
        config, kind = self.config, target.family
        if kind != GEMMA4.hf:
            raise self._other(f"keys and values of Gemma 4, and the model is of family {kind}")
        for what, mine, theirs in (
            ("hidden states of width", self.width, target.hidden_size),
            ("a vocabulary of", config.vocab_size, target.vocab_size),
        ):
            if mine != theirs:
                raise self._other(f"{what} {mine}, and the model has {theirs}")
        try:
            network = Assistant(config, target)
        except ValueError as error:
            raise self._other(f"{error}, which the model lacks") from error
        gguf = self.layout == "GGUF"
        own = FileWeights(self.tensors, config, self.path, gguf=gguf, whole=False)
        before = "nextn." if self.layout == "GGUF" else ""
        around = {name: f"{before}{theirs}.weight" for name, theirs in _AROUND.items()}
        wanted = {**network.shapes(), "head": (config.vocab_size, config.hidden_size)}
        clusters = self._clusters()
        if clusters is not None:
            around[CENTROIDS] = f"{_CLUSTERS}.centroids.weight"
            wanted[CENTROIDS] = len(clusters.tokens), config.hidden_size
        read: dict[str, Callable[[], LogitArray]] = {}
        for name, shape in wanted.items():
            at, tied = around.get(name), "embed" if name == "head" else name
            try:
                if at is not None:
                    found = self.tensors.shape(at)
                else:
                    found = own.stored(tied).shape if len(shape) == 2 else own[tied].shape
            except (KeyError, ModelError) as error:
                raise self._damaged(f"it has no tensor for {name}") from error
            if found != shape:
                raise self._damaged(f"{name} is {found} and not {shape}")
            whole = partial(own.__getitem__, tied)
            read[name] = whole if at is None else partial(self.tensors.read, at)
        ids, told = np.arange(config.vocab_size), {"model": model, "published": self.layout}
        return Trained(network, LazyTensors(read), ids, told, clusters=clusters)

    def _clusters(self) -> Clusters | None:
        (count, best), size = self.clusters, self.config.vocab_size
        if not count:
            return None
        if size % count or not 0 < best <= count:
            raise self._damaged(f"it reads {best} of {count} clusters of {size} tokens")
        try:
            kind, raw = self.tensors.stored(f"{_CLUSTERS}.token_ordering")
        except KeyError as error:
            raise self._damaged("it has no tensor for the tokens of its clusters") from error
        ids = raw.reshape(-1).view("<i4" if kind == "I32" else "<i8").astype(np.int64)
        if not np.array_equal(np.sort(ids), np.arange(size)):
            raise self._damaged("a token is in no cluster, or in two")
        return Clusters(ids.reshape(count, -1), best)

    def _other(self, why: str) -> InvalidOption:
        return InvalidOption(
            f"{self.path} was made for another model: it reads {why}: use the assistant of the "
            "model, or leave out --draft-model"
        )

    def _damaged(self, why: str) -> InvalidOption:
        return InvalidOption(f"{self.path} is no whole {KIND} ({why}): download it again")


def assistant_in(path: Path, config: Mapping[str, Any]) -> PublishedAssistant:
    """Open the assistant of a directory, or of a file there, from its `config.json`.

    Raises:
        InvalidOption: the config is not whole.
        ModelError: its files cannot be read.
    """
    try:
        text = {**config["text_config"], "model_type": GEMMA4.hf, "num_kv_shared_layers": 0}
        own, width = hf_config(text), int(config["backbone_hidden_size"])
        clusters = 0, 0
        if config.get("use_ordered_embeddings"):
            clusters = int(config["num_centroids"]), int(config["centroid_intermediate_top_k"])
    except (KeyError, TypeError, ValueError, ModelError) as error:
        raise InvalidOption(
            f"{path} is no whole {KIND} (config.json: {error}): download it again"
        ) from error
    files = SafetensorsFiles(path)
    return PublishedAssistant(path, "transformers", own, width, files, clusters)


def assistant_of(file: GGUFFile) -> PublishedAssistant:
    """Open an assistant as a GGUF file; raises InvalidOption if its metadata are not whole."""
    plain = GEMMA4.gguf
    said = {
        key.replace(f"{ARCHITECTURE}.", f"{plain}.", 1): value
        for key, value in file.metadata.items()
        if not key.endswith(("shared_kv_layers", "nextn_predict_layers", "embedding_length_out"))
    }
    shapes = {name: info.shape for name, info in file.tensors.items()}
    name = "rope_freqs.weight"
    try:
        divisors = {name: file.read(name).tolist()} if name in file else {}
        own = gguf_config({**said, "general.architecture": plain}, shapes, divisors)
        width = int(file.metadata[f"{ARCHITECTURE}.embedding_length_out"])
    except (KeyError, TypeError, ValueError, ModelError) as error:
        raise InvalidOption(
            f"{file.path} is no whole {KIND} ({error}): download it again"
        ) from error
    return PublishedAssistant(file.path, "GGUF", own, width, file)
