"""Base class of drafter networks: parameters, start, logits, advance; independent of a runtime."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from inspect import Parameter, signature
from typing import Any, ClassVar, Literal

from paceline.core.options import require
from paceline.errors import InvalidOption, ModelError
from paceline.models.config import ModelConfig
from paceline.models.ops import Ops, Rows

Shapes = dict[str, tuple[int, ...]]

# Limit on steps and on tokens per step, since weight files may come from anywhere.
_MOST = 64

_OPTION = Parameter.KEYWORD_ONLY

# Weights of a target's layer, by the names of families.
_LAYER = ("attention_norm", *"qkvo", "ffn_norm", "gate", "up", "down")


# Names that files of weights have for what a network takes of its target.
_NAMES = {
    "width": "hidden_size",
    "heads": "heads",
    "kv_heads": "kv_heads",
    "head_dim": "head_dim",
    "ffn_size": "ffn_size",
    "rope_base": "rope_base",
    "norm_eps": "norm_eps",
    "vocab_size": "vocab_size",
    "target_layers": "layers",
}


def drafter_config(target: ModelConfig) -> ModelConfig:
    """Return the config of a network's layers: a plain Llama's, with the sizes of a target.

    `layers` is the target's, for networks that run its last ones; 0 if unknown.
    """
    return _llama({name: getattr(target, name) for name in _NAMES.values()})


def _llama(sizes: Mapping[str, Any]) -> ModelConfig:
    return ModelConfig(family="llama", max_context=0, tied_embeddings=False, **sizes)


class Network(ABC):
    """Base class: drafts `steps * width` tokens after a context row.

    Token j of step k is the draft at depth `k * width + j + 1` below the root, which is the token
    of the context row. `start` computes the state of the first step, `logits` reads a state,
    `advance` computes the next state from the tokens drafted in this step.
    """

    name: ClassVar[str]
    trained_by: ClassVar[str] = "paceline train drafter"
    """The command that trains it, given its name."""
    # Attention layers, each with a KV cache of context rows.
    layers: ClassVar[int] = 0
    # Context rows before the new ones that are read again with them, for `Ops.last` of more rows.
    overlap: int = 0
    # Between hidden states and `features_of`, in training.
    feature_distance: ClassVar[Literal["smooth-l1", "cosine"]] = "smooth-l1"
    reads_features: ClassVar[bool] = True
    """Whether the network reads the target's features.

    If not, the text's first token gets a row too, a step drafts one token, and the draft after a
    token is the same whether that token was drafted or committed.
    """
    # Steps behind the first have the same weights.
    alike: bool = True
    # Early exit: number of the target's first layers that run with the target's weights.
    exit: int = 0
    # Number of the target's last layers that run instead.
    above: int = 0
    # Training moves texts, but for their first tokens, to positions of up to this; 0 leaves them.
    farthest: int = 0
    # Cross-attention to the KV cache of the target's last layer.
    reads_target: bool = False
    # Cross-attention to what the target's text looks at, the memory of a sound.
    looks: bool = False
    # Numbers of a row behind the target's features, zeros in a text: for what else it is shown.
    more: int = 0

    def __init__(self, config: ModelConfig, *, steps: int = 4, width: int = 1) -> None:
        """Set the shape of its layers, the most steps of one draft and the tokens per step.

        Raises:
            InvalidOption: a size is out of range.
        """
        require(1 <= steps <= _MOST, "steps", steps, f"1 to {_MOST}")
        require(1 <= width <= _MOST, "width", width, f"1 to {_MOST}")
        self.config = config
        self.steps = steps
        self.width = width

    @property
    def depth(self) -> int:
        return self.steps * self.width

    @property
    def rows(self) -> int:
        """Draft rows that the first step stores."""
        return self.width

    @property
    def reach(self) -> int:
        """Attention window in rows, the newest row included; 0 for all rows."""
        windows = set(self.config.windows)
        return windows.pop() if len(windows) == 1 else 0

    @property
    def runs(self) -> range:
        most = self.config.layers
        return range(most - self.above, most) if self.above else range(self.exit)

    @property
    def feature_width(self) -> int:
        """Numbers of a row of features that it reads."""
        return 4 * self.config.hidden_size + self.more if self.reads_features else 0

    def settings(self) -> dict[str, Any]:
        """Return the options of the constructor, which are attributes of the same names."""
        options = signature(type(self)).parameters.values()
        return {each.name: getattr(self, each.name) for each in options if each.kind is _OPTION}

    @abstractmethod
    def shapes(self) -> Shapes:
        """Return name and shape of every parameter; names select the initialisation.

        One axis: norm weights, ones. "scale", "hidden_scale": inverse magnitude per axis of
        features and of the last hidden state. "high_spread", "high_scale": magnitude of the high
        layer's input, and its inverse.
        Names in "residual": zeros, so that the branch starts at zero. "root": ones in its first
        row, zeros below.
        """

    def target_weights(self) -> list[str]:
        """Return the frozen target weights that it runs with, beside embedding and LM head.

        By the target's names: a name that no parameter has is the target's.
        """
        return [f"layers.{layer}.{part}" for layer in self.runs for part in _LAYER]

    @abstractmethod
    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        """Encode context rows and return the state of the first step, as draft rows.

        Features are `[..., 4 * width]`. Tokens are `[...]`, the token after each position.
        """

    def logits(self, ops: Ops, state: Rows, step: int) -> Rows:
        """Return the logits of a step, `[..., width, draft vocabulary]`: by default of "norm".

        Columns after those are of no token: -1 in a `Chain`.
        """
        return ops.head(state, norm="norm")

    def target_rows(self, ops: Ops, features: Rows) -> Rows:
        """Return what the target's last layer attends with, of context rows, `[..., qkv]`.

        For a network that `reads_target`, where no target runs beside it: in training.
        """
        raise NotImplementedError(f"{self.name} does not read keys of its target")

    def advance(self, ops: Ops, state: Rows, tokens: Rows, step: int) -> Rows:
        """Return the state of step `step` > 0 from the state before and tokens `[..., width]`."""
        raise NotImplementedError(f"{self.name} drafts in one step")

    def features_of(self, ops: Ops, state: Rows) -> Rows | None:
        """Return the hidden states that a state predicts, for a regression loss, or None.

        `[..., width, hidden width]` in the target's units; depth d pairs with the hidden state d
        positions after the context row.
        """
        return None

    def read_argmax(self, columns: Any, count: int) -> Any:
        """Return int64 `[..., depth]` draft indices of argmax columns of `count`; -2 for none."""
        return columns

    def digest(self, ops: Ops, rows: Rows) -> Rows:
        """Return what it makes of draft rows that stand apart from texts, as those of a picture.

        One slot of any width. A drafter asks for it once.
        """
        raise NotImplementedError(f"{self.name} reads nothing but texts")

    def arranged(self, batch: Any, texts: Sequence[Any]) -> Any:
        """Return a `Batch` of texts as the network reads them; by default as it is."""
        return batch

    def share_of_pictures(self, progress: float) -> float:
        """Return the share of batches that may show pictures, at `progress` (0 to 1) of a run."""
        return 1.0

    def reveal(self, batch: Any, places: Any, progress: float, seed: Sequence[int]) -> Any:
        """Return what changes context rows in training (`training.module.Reveal`), or None.

        `places` are draft indices of tokens, `progress` is 0 to 1 over a run.
        """
        return None

    def own_loss(self, logits: Any, batch: Any, places: Any, prompt_weight: float) -> Any:
        """Return a loss in place of `training.objective.total_loss`, whose arguments it gets."""
        return None

    def exits(self, ops: Ops, state: Rows, step: int) -> list[Rows]:
        """Return the logits of the shallower early exits, trained beside the deepest."""
        return []


def describe(network: Network) -> dict[str, Any]:
    """Return a network as plain values, for metadata."""
    geometry = {name: getattr(network.config, own) for name, own in _NAMES.items()}
    if not network.above:
        del geometry["target_layers"]  # so that files and checkpoints do not hang on it
    return {"network": network.name, "geometry": geometry, "settings": network.settings()}


def config_from(geometry: Mapping[str, Any]) -> ModelConfig:
    """Read a config from what `describe` says.

    Raises:
        InvalidOption: it is incomplete, an entry is no positive number, or heads do not fit.
    """
    sizes = {"layers": 0}
    for name, own in _NAMES.items():
        if name in geometry:
            kinds = (int, float) if own in ("rope_base", "norm_eps") else int
            value = sizes[own] = geometry[name]
            fits = isinstance(value, kinds) and value > 0
            require(fits, f"{name} of a geometry", value, "a positive number")
        elif own != "layers":
            raise InvalidOption(f"the geometry of a network lacks '{name}'")
    try:
        return _llama(sizes)
    except ModelError as error:
        raise InvalidOption(f"the geometry of a network is none: {error}") from error
