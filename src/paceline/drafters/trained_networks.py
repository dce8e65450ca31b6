"""Trained drafters by name; `TrainedDrafter` holds their shared code."""

from __future__ import annotations

from typing import ClassVar

from paceline.drafters.trained import TrainedDrafter
from paceline.networks.runner import Runner
from paceline.types import Needs


class MedusaDrafter(TrainedDrafter):
    name: ClassVar[str] = "medusa"


class HydraDrafter(TrainedDrafter):
    name: ClassVar[str] = "hydra"


class CloverDrafter(TrainedDrafter):
    name: ClassVar[str] = "clover"


class EagleDrafter(TrainedDrafter):
    """EAGLE-1 and EAGLE-2."""

    name: ClassVar[str] = "eagle"


class Eagle3Drafter(TrainedDrafter):
    """EAGLE-3."""

    name: ClassVar[str] = "eagle3"


class ChimeraDrafter(TrainedDrafter):
    """Chimera's trigrams and layer."""

    name: ClassVar[str] = "chimera"


class FalconDrafter(TrainedDrafter):
    """Falcon: a block of tokens per step."""

    name: ClassVar[str] = "falcon"


class CTCDrafter(TrainedDrafter):
    """CTC drafter: slots that may stay blank."""

    name: ClassVar[str] = "ctc"


class SpecFormerDrafter(TrainedDrafter):
    """SpecFormer's slots."""

    name: ClassVar[str] = "specformer"


class BlockParallelDrafter(TrainedDrafter):
    """A block of tokens in one pass."""

    name: ClassVar[str] = "block-parallel"


class S2DDrafter(TrainedDrafter):
    """Nested drafts; option `layers` cuts the network at a shallower exit."""

    name: ClassVar[str] = "s2d"
    sizes: ClassVar[tuple[str, ...]] = ("layers",)


class LongSpecDrafter(TrainedDrafter):
    """A drafter whose cache does not grow."""

    name: ClassVar[str] = "longspec"
    needs: Needs = Needs(features=True)


class HiddenTransferDrafter(TrainedDrafter):
    """Slots carried through the target's last layers."""

    name: ClassVar[str] = "hidden-transfer"


class DraftLMDrafter(TrainedDrafter):
    """Small language model of its own."""

    name: ClassVar[str] = "draft-lm"
    needs: Needs = Needs()


class KangarooDrafter(TrainedDrafter):
    """Kangaroo: the target's first layers and an adapter; `stop` defaults to the paper's."""

    name: ClassVar[str] = "kangaroo"
    needs: Needs = Needs()

    def __init__(self, runner: Runner, *, stop: float = 0.6, rivals: bool = True) -> None:
        super().__init__(runner, stop=stop, rivals=rivals)
