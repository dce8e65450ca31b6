"""Cache plans: which places a forward asks, and which of its keys are kept.

A plan is one sentence: what is dropped, what is asked, what stays. Keys carry their rotation, so
the order in the cache is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from paceline.core.types import Attention, Described
from paceline.denoising.canvas import Canvas


class ForwardPlaces(NamedTuple):
    """A forward's places.

    Attributes:
        ask: places whose rows are computed.
        keep: places, of those asked and in their order, whose keys stay.
        drop: number of cached keys to go on with, from the first; None for all.
        active: masked places that may be filled; None for all of the block.
    """

    ask: Sequence[int]
    keep: Sequence[int] = ()
    drop: int | None = None
    active: Sequence[int] | None = None


class CachePlan(Described):
    """A plan of all places and nothing kept: the model's own forward.

    `exact`: keys that are kept are those that a forward over everything would compute.
    `serves`: attentions of models that it is for. `shifts`: it serves models whose rows speak of
    the next place.
    """

    name: ClassVar[str] = "none"
    guarantee = "exact"
    exact: bool = True
    shifts: ClassVar[bool] = True
    serves: tuple[Attention, ...] = ("full", "block", "order")

    def plan(self, canvas: Canvas, held: Sequence[int], fresh: bool) -> ForwardPlaces:
        """Return the next forward's plan.

        Args:
            canvas: what is filled.
            held: places in the cache, in its order.
            fresh: it is the first forward of its block.
        """
        return ForwardPlaces(range(len(canvas.tokens)))


class Exact(CachePlan):
    """Keep what is filled in finished blocks; the block itself is asked again.

    Exact for block-causal models, whose finished blocks see nothing later. Clean rows of a finished
    block ride in the next block's first forward. Processes in the order of filling keep what is
    filled without a gap.
    """

    name = "exact"
    requires = "a block-causal denoiser"
    paper = "Block Diffusion, Arriola et al. 2025, arXiv:2503.09573"
    serves = ("block", "order", "causal")

    def plan(self, canvas: Canvas, held: Sequence[int], fresh: bool) -> ForwardPlaces:
        clean = range(len(held), canvas.span.start)
        return ForwardPlaces(range(len(held), canvas.span.stop), clean)
