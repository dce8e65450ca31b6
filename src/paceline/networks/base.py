"""The contract of a drafter network: what it computes, apart from what it runs on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, ClassVar, Self

from paceline.errors import InvalidOption
from paceline.models.config import ModelConfig
from paceline.networks.ops import Ops, Rows
from paceline.options import require

Shapes = dict[str, tuple[int, ...]]

_MOST = 64
"""Steps, and tokens of one step, that a network may have: weights may come from anywhere."""

_TARGET_LAYER = {
    "norm": "attention_norm",
    "qkv": "qkv",
    "o.residual": "o",
    "ffn_norm": "ffn_norm",
    "gate_up": "gate_up",
    "down.residual": "down",
}
"""Parameters of `llama_layers.stack`, and what `openvino_weights.prepare` calls the target's."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """What a network takes over from its target.

    Attributes:
        width: of hidden states; features are four times as wide.
        heads: query heads.
        kv_heads: key and value heads.
        head_dim: width of a head.
        ffn_size: width of a feed-forward layer.
        rope_base: base of the rotary frequencies.
        norm_eps: epsilon of RMS norms.
        vocab_size: of the target.
        target_layers: decoder layers of the target, for networks that run its last ones; 0 where it
            is not known.
    """

    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_size: int
    rope_base: float
    norm_eps: float
    vocab_size: int
    target_layers: int = 0

    @classmethod
    def of(cls, config: ModelConfig) -> Self:
        """That of a target."""
        return cls(
            config.hidden_size,
            config.heads,
            config.kv_heads,
            config.head_dim,
            config.ffn_size,
            config.rope_base,
            config.norm_eps,
            config.vocab_size,
            config.layers,
        )


class Network(ABC):
    """Drafts `steps * width` tokens behind a context row.

    Token j of step k is the draft at depth `k * width + j + 1` below the root, which is the token
    of the context row. `start` leads to the first step's state, `logits` reads a state, `advance`
    leads to the next state, knowing the tokens that were drafted in this step.
    """

    name: ClassVar[str]
    layers: ClassVar[int] = 0
    """Attention layers, each with a cache of context rows."""
    window: ClassVar[int] = 1
    """Tokens that a context row has: its own, and those of the rows before it; 0 where none is."""
    blank: ClassVar[bool] = False
    """Whether slots may stay blank: see `networks.ctc`. Logits then have a column more, the last,
    and slots are not tied to depths: what they say is read by `collapse`."""
    reads_features: ClassVar[bool] = True
    """Whether the target's features matter. A network that reads tokens alone has a row for the
    text's first token, too, which no features stand before, and drafts one token per step; what it
    drafts behind a token is the same whether that was drafted or committed."""
    reach: int = 0
    """Rows that attention sees, the newest, its own included; 0 for all."""
    exit: int = 0
    """The target's first layers that the network runs with the target's weights: `borrowed`."""
    above: int = 0
    """Instead of those, the target's last layers that it runs."""
    reads_target: bool = False
    """Whether it attends to the target's own keys and values, those of the first layer that it
    borrows of: `Ops.attend_target`."""
    glances: bool = False
    """Whether it is trained with some states put right (`training.glancing`): they must be foretold
    hidden states, and nothing else."""
    tokens: int = 0
    """Tokens that slots which may stay blank are trained to say together."""

    def __init__(self, geometry: Geometry, *, steps: int = 4, width: int = 1) -> None:
        """Size the network.

        Args:
            geometry: of the target.
            steps: most steps of one draft.
            width: tokens per step.

        Raises:
            InvalidOption: a size is out of range.
        """
        require(1 <= steps <= _MOST, "steps", steps, f"1 to {_MOST}")
        require(1 <= width <= _MOST, "width", width, f"1 to {_MOST}")
        self.geometry = geometry
        self.steps = steps
        self.width = width

    @property
    def depth(self) -> int:
        """Most tokens of one draft."""
        return self.steps * self.width

    @property
    def runs(self) -> range:
        """Which of the target's layers the network runs."""
        most = self.geometry.target_layers
        return range(most - self.above, most) if self.above else range(self.exit)

    def settings(self) -> dict[str, Any]:
        """Arguments, beside the geometry, that make the same network again."""
        return {"steps": self.steps}

    @abstractmethod
    def shapes(self) -> Shapes:
        """Name and shape of every parameter.

        Those of one axis are norms, and start as ones, but for three: "scale" starts as the inverse
        of what features measure, axis by axis, which differ by a factor of hundreds,
        "hidden_scale" as that of the last hidden state alone, and "high_spread" as what enters the
        high layer measures. Names that end in "residual" start as zeros, so that what they feed
        starts as nothing.
        """

    def borrowed(self) -> dict[str, str]:
        """Frozen tensors of the target that the network reads, beside embedding and LM head.

        Its own name of each, and what `openvino_weights.prepare` calls it.
        """
        return {
            f"target.{index}.{mine}": f"layers.{layer}.{theirs}"
            for index, layer in enumerate(self.runs)
            for mine, theirs in _TARGET_LAYER.items()
        }

    @abstractmethod
    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        """Take in context rows and return the state of the first step, as draft rows.

        Args:
            ops: the backend.
            features: `[..., 4 * width]`; of any width if the network does not read them.
            tokens: `[...]`, what follows each position; `[..., window]`, oldest first, if `window`
                is above 1.
        """

    @abstractmethod
    def logits(self, ops: Ops, state: Rows, step: int) -> Rows:
        """`[..., width, draft vocabulary]`, the logits of a step; with `blank`, a column more."""

    def advance(self, ops: Ops, state: Rows, tokens: Rows, step: int) -> Rows:
        """The state of step `step`, 1 or more, from that before and its tokens `[..., width]`."""
        raise NotImplementedError(f"{self.name} drafts in one step")

    def features_of(self, ops: Ops, state: Rows) -> Rows | None:
        """The target's last hidden states that a state foretells, for a loss of their own.

        `[..., width, hidden width]`, in the target's units: the draft at depth d stands beside the
        hidden state d positions behind the context row. None if the network foretells none.
        """
        return None

    def exits(self, ops: Ops, state: Rows, step: int) -> list[Rows]:
        """Like `logits`, of the network's shallower exits, which are trained beside the deepest."""
        return []


def describe(network: Network) -> dict[str, Any]:
    """A network as plain values, for metadata."""
    geometry = asdict(network.geometry)
    if not network.above:
        del geometry["target_layers"]  # so that files and checkpoints do not hang on it
    return {
        "network": network.name,
        "geometry": geometry,
        "settings": network.settings(),
    }


def geometry_from(entry: Mapping[str, Any]) -> Geometry:
    """A geometry from plain values.

    Raises:
        InvalidOption: it is incomplete, or an entry is no positive number.
    """
    known = [each for each in fields(Geometry) if each.name in entry or each.default is MISSING]
    try:
        found = {each.name: entry[each.name] for each in known}
    except KeyError as error:
        raise InvalidOption(f"the geometry of a network lacks {error}") from error
    for each in known:
        value = found[each.name]
        number = isinstance(value, int) or (each.type == "float" and isinstance(value, float))
        require(number and value > 0, f"{each.name} of a geometry", value, "a positive number")
    return Geometry(**found)
