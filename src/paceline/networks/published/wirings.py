"""What kinds of published drafters are read, and how one is put together where its kind differs.

That of EAGLE-3 heads stands beside what they compute, in `eagle3`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

from paceline.models.config import FINAL, ModelConfig
from paceline.networks import assistant
from paceline.networks.base import Network
from paceline.networks.dflash import DSpark, MaskedBlock, PublishedDFlash
from paceline.networks.last_state import MlpSpeculator, PublishedEagle, PublishedMedusa

DRAFTERS = {
    "EAGLE-3": "eagle3",
    "P-EAGLE": "eagle3",
    "DFlash": "dflash",
    "DSpark": "dspark",
    "EAGLE-1": "eagle",
    "Medusa": "medusa",
    "MLP speculator": "mlp-speculator",
    assistant.KIND: assistant.Assistant.name,
}
"""Kinds that are read, and the drafters that run them."""
ALONE = ("dspark", "mlp-speculator", assistant.Assistant.name)
"""Drafters for which nothing is trained here."""
STEPS = 7
"""Tokens of a draft at most, where the config names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring(ABC):
    """How a drafter is put together, where those of its kind differ.

    Attributes:
        width: of the target's hidden states.
        boundaries: those that it reads; empty for the usual three.
        doubts: what its config does not say, or says in a way that is read in two.
    """

    width: int
    boundaries: tuple[int, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    @abstractmethod
    def kind(self) -> str:
        """What its publishers call it, of `DRAFTERS`."""

    @property
    def drafter(self) -> str:
        """The drafter that runs it."""
        return DRAFTERS[self.kind]

    @abstractmethod
    def network(
        self, config: ModelConfig, read: int, present: frozenset[str], steps: int, drafted: int
    ) -> Network:
        """Build the network of layers of this shape.

        Args:
            config: of its layers.
            read: numbers of a row of features.
            present: its tensors.
            steps: most tokens of a draft, if nothing else says so.
            drafted: size of the draft vocabulary.
        """

    @abstractmethod
    def said(self) -> dict[str, Any]:
        """Return what a reader of its card wants to know, as words and values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockWiring(Wiring):
    """That of DFlash and DSpark drafters."""

    block: MaskedBlock

    @property
    def kind(self) -> str:
        return "DSpark" if self.block.rank else "DFlash"

    def network(
        self, config: ModelConfig, read: int, present: frozenset[str], steps: int, drafted: int
    ) -> Network:
        if self.block.rank:
            return DSpark(config, self.block, read, present, drafted)
        return PublishedDFlash(config, self.block, read, present)

    def said(self) -> dict[str, Any]:
        block = self.block
        count = block.slots - (not block.anchored)
        table = f"of rank {block.rank}" + ", gated by the hidden state" * block.gated
        return {
            "block": f"{block.slots} slots, of which {count} foretell a token, mask {block.mask}",
            "causal_layers": sorted(block.causal) or "none",
            "token_before": table if block.rank else "not read",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StateWiring(Wiring):
    """That of heads that read the last hidden state.

    Attributes:
        heads: of Medusa, each of so many `blocks`.
        inner: width of an MLP speculator's states; the first is `normed`, steps are `tied`.
    """

    boundaries: tuple[int, ...] = (FINAL,)
    heads: int = 0
    blocks: int = 0
    inner: int = 0
    tied: bool = False
    normed: bool = False

    @property
    def kind(self) -> str:
        return "Medusa" if self.heads else "MLP speculator" if self.inner else "EAGLE-1"

    def network(
        self, config: ModelConfig, read: int, present: frozenset[str], steps: int, drafted: int
    ) -> Network:
        if self.heads:
            return PublishedMedusa(config, self.heads, self.blocks, "heads.0" in present)
        if self.inner:
            return MlpSpeculator(config, self.inner, self.tied, self.normed, steps)
        return PublishedEagle(config, present, steps)

    def said(self) -> dict[str, Any]:
        many = {"foretells": f"{self.heads} in one pass", "blocks_of_a_head": self.blocks}
        return many if self.heads else {"foretells": "one in a pass"}


@dataclass(frozen=True, slots=True)
class WiringChanges:
    """Settings of a head other than it says; `boundaries` are as "3.17.30", `shift` counts on."""

    boundaries: str = ""
    shift: int = 0
    norm_output: Literal["auto", "true", "false"] = "auto"


def fitting(block: MaskedBlock, tokens: int) -> MaskedBlock:
    """Return the block; raises ValueError unless it fits a vocabulary of so many `tokens`."""
    if not 0 <= block.mask < tokens or block.slots < 3:
        raise ValueError(f"{block.slots} slots with mask {block.mask} of {tokens} tokens")
    return block
