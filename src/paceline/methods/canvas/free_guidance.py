"""Logits led away from those without the prompt: classifier-free guidance of masked denoisers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from paceline.core.options import within
from paceline.core.types import LogitArray
from paceline.denoising.canvas import Ask
from paceline.denoising.process import Context, Terms
from paceline.denoising.unmasking import Rule, Unmasking, Wrapper
from paceline.errors import InvalidOption


class FreeGuidance(Wrapper):
    """Fill by logits c + scale (c - u): c as usual, u those where the prompt is masks.

    Two forwards a step, of all places; `scale` 0 is the rule alone.
    """

    name: ClassVar[str] = "cfg"
    requires = "a rule: cfg>counts"
    paper = "Nie et al. 2024, arXiv:2410.18514; LLaDA, Nie et al. 2025, arXiv:2502.09992"
    standard = False

    def __init__(self, inner: Rule, scale: float = 1.0) -> None:
        super().__init__(inner)
        within("scale", scale, 0, 1e6, "0 for no guidance")
        self.scale = scale

    def check(self, terms: Terms) -> None:
        super().check(terms)
        if self.scale and terms.plan.name != "none":
            raise InvalidOption(
                f"sampler 'cfg' asks all places twice, and cache '{terms.plan.name}' keeps keys of "
                "the prompt: use cache none"
            )

    def process(self, context: Context) -> Unmasking:
        return _Guidance(context, self)


class _Guidance(Unmasking):
    rule: FreeGuidance

    def restart(self) -> None:
        self._unled: LogitArray | None = None  # without the prompt, of this step
        super().restart()

    def ask(self) -> Ask:
        ask = super().ask()
        if not self._unleads:
            return ask
        tokens = ask.tokens.copy()
        tokens[ask.places < self.canvas.begin] = self.canvas.mask
        return ask._replace(tokens=tokens)

    @property
    def _unleads(self) -> bool:
        # Whether the next forward is the one without the prompt.
        return self.rule.scale > 0 and self._unled is None and len(self._open()) > 0

    def take(self, logits: LogitArray) -> Sequence[int]:
        if self._unleads:
            self._unled = logits.copy()
            return ()
        unled, self._unled = self._unled, None
        if unled is not None:  # what either excludes is as usual
            gap: LogitArray = np.zeros_like(logits)
            both = np.isfinite(logits) & np.isfinite(unled)
            np.subtract(logits, unled, out=gap, where=both)
            logits = (logits + self.rule.scale * gap).astype(np.float32)
        return super().take(logits)
