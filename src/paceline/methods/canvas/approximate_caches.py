"""Cache plans that keep stale keys: Fast-dLLM, FreeCache, dInfer, Window-Diffusion.

Keys of a model with full attention change with every filled place; these plans look away.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core.options import within
from paceline.denoising.caches import CachePlan, ForwardPlaces
from paceline.denoising.canvas import Canvas

# Places and steps, at most.
MOST = 65536


class Prefix(CachePlan):
    """At a block's first forward ask everything, keep what is before the block; then ask the rest.

    Exact for block-causal models if blocks are whole. Fast-dLLM (arXiv:2505.22618).
    """

    name = "prefix"
    guarantee = "exact for a block-causal denoiser; else measured only"
    requires = "a denoiser"
    paper = "Fast-dLLM, Wu et al. 2025, arXiv:2505.22618"
    exact = False
    serves = ("full", "block")
    _span: int | None = None

    def plan(self, canvas: Canvas, held: Sequence[int], fresh: bool) -> ForwardPlaces:
        start, known = canvas.block.start, len(held)
        if fresh:
            known = 0 if self._span is None else max(0, min(known, start - self._span))
        ask = range(known, len(canvas.tokens))
        return ForwardPlaces(
            ask, range(known, max(known, start)), known if known < len(held) else None
        )


class FreeCache(Prefix):
    """Keep keys from when their block was first clean; FlashDLM (arXiv:2505.21467)."""

    name = "freecache"
    paper = "FlashDLM, Hu et al. 2025, arXiv:2505.21467"

    def __init__(self, span: int = 0) -> None:
        """Set how many places before a block are asked again at its first forward."""
        within("span", span, 0, MOST, "0 to keep all for good")
        self._span = span


class Dual(CachePlan):
    """At a block's first forward keep all but the block; then ask the block alone.

    Fast-dLLM's dual cache (arXiv:2505.22618).
    """

    name = "dual"
    guarantee = "measured only"
    requires = "a denoiser with full attention"
    paper = "Fast-dLLM, Wu et al. 2025, arXiv:2505.22618"
    exact = False
    serves = ("full",)

    def __init__(self, every: int = 0, radius: int = 0, warm: int = 1) -> None:
        """Set what is asked again.

        Args:
            every: steps between forwards that ask everything; 0 does so for blocks alone.
            radius: places around the block that are asked with it.
            warm: first forwards of a block, which ask everything.
        """
        within("every", every, 0, MOST, "0 for new blocks alone")
        within("radius", radius, 0, MOST)
        within("warm", warm, 1, MOST)
        self._every, self._radius, self._warm = every, radius, warm

    def plan(self, canvas: Canvas, held: Sequence[int], fresh: bool) -> ForwardPlaces:
        everything, block = range(len(canvas.tokens)), canvas.block
        near = range(
            max(0, block.start - self._radius), min(len(everything), block.stop + self._radius)
        )
        done = {fill.step for fill in canvas.trace if fill.place in block}
        due = self._every and canvas.step % self._every == 0
        if fresh or due or len(done) < self._warm:
            keep = [place for place in everything if place not in near]
            return ForwardPlaces(everything, keep, 0)
        return ForwardPlaces(near)


class Vicinity(Dual):
    """The dual cache with places around the block; dInfer (arXiv:2510.08666)."""

    name = "vicinity"
    paper = "after dInfer, Ma et al. 2025, arXiv:2510.08666"

    def __init__(self, radius: int = 16, warm: int = 4, every: int = 0) -> None:
        super().__init__(every, radius, warm)


class Window(CachePlan):
    """Places far right are not in the text yet; of the near masks, the first few are asked.

    A phase begins with a forward over what is filled and the first `width` masks. Later forwards of
    it ask the first `active` masks and what was filled since; Window-Diffusion (arXiv:2601.20332).
    """

    name = "window"
    guarantee = "measured only"
    requires = "an unshifted denoiser with full attention"
    paper = "Window-Diffusion, Zuo et al. 2026, arXiv:2601.20332"
    exact = False
    shifts = False
    serves = ("full",)

    def __init__(self, width: int = 64, active: int = 16, cycle: int = 32) -> None:
        """Set the masks of a phase, those that may be filled, and the forwards of a phase."""
        within("width", width, 1, MOST)
        within("active", active, 1, width, "which is width")
        within("cycle", cycle, 1, MOST)
        self._width, self._active, self._cycle = width, active, cycle

    def plan(self, canvas: Canvas, held: Sequence[int], fresh: bool) -> ForwardPlaces:
        masked = canvas.masked().tolist()
        active = masked[: self._active]
        filled = [p for p, token in enumerate(canvas.tokens) if token != canvas.mask]
        if fresh or canvas.step % self._cycle == 0:
            # The nearest last: they are dropped as they become active.
            buffer = masked[len(active) : self._width][::-1]
            return ForwardPlaces([*filled, *buffer, *active], [*filled, *buffer], 0, active)
        known = set(held)
        since = [place for place in filled if place not in known]
        kept = len(held) - sum(place in known for place in active)
        return ForwardPlaces([*since, *active], (), kept, active)
