"""A sliding window in causal order, what is filled before what is not: WeDLM (arXiv:2512.22737)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from paceline.core.options import within
from paceline.core.types import LogitArray
from paceline.denoising.caches import Exact, ForwardPlaces
from paceline.denoising.canvas import Ask, tokens_at
from paceline.denoising.counts import MOST
from paceline.denoising.process import Context, Terms
from paceline.denoising.unmasking import Rule, Unmasking, Wrapper, goes
from paceline.errors import InvalidOption


class WeDLM(Wrapper):
    """Let the inner rule fill a window that moves with the text's first gap."""

    name: ClassVar[str] = "wedlm"
    requires = "a rule: wedlm>entropy:tau=0.4,penalty=0.02; a denoiser of attention order"
    paper = "WeDLM, Liu et al. 2025, arXiv:2512.22737"
    standard = False

    def __init__(self, inner: Rule, window: int = 6) -> None:
        super().__init__(inner)
        within("window", window, 1, MOST)
        goes(self.name, inner, inner.monotone, "changes what it has filled")
        goes(self.name, inner, not inner.scheduled, "plans the steps of a block")
        self.window = window
        self.needs = ("order",)

    def check(self, terms: Terms) -> None:
        super().check(terms)
        if terms.facts.shifted:
            raise InvalidOption(
                "sampler 'wedlm' needs masks that predict their own place, and this model's "
                "predict the next: use another sampler"
            )

    def process(self, context: Context) -> Unmasking:
        return _WeDLMProcess(context, self)


class _WeDLMProcess(Unmasking):
    """Filled rows come first, masks after them, each at its own rotary position.

    Under a causal mask a filled row without a gap before it sees the text before it and nothing
    else, so its keys are those of the finished text: they stay, and the window moves on.
    """

    rule: WeDLM

    def _to_block(self, start: int) -> None:
        self._window(start)
        self.state = self.rule.begin(self.canvas)

    def _window(self, start: int) -> None:
        # From `start` on, or where nothing is masked there from the first gap on.
        canvas = self.canvas
        for begin in (start, canvas.run()):
            canvas.block = range(begin, min(begin + self.rule.window, canvas.end))
            if len(canvas.masked()):
                break

    def ask(self) -> Ask:
        canvas = self.canvas
        rows = range(len(self.held), canvas.block.stop)
        masks = canvas.masked().tolist()
        filled = [place for place in rows if canvas.tokens[place] != canvas.mask]
        whole = range(len(self.held), canvas.final) if isinstance(self.plan, Exact) else ()
        self.planned = ForwardPlaces([*filled, *masks], whole, None, masks)
        places = np.asarray(self.planned.ask, dtype=np.int64)
        wanted = np.arange(len(filled), len(places))
        self._asked = places[wanted]
        sees = np.tri(len(places), dtype=np.bool_)
        return Ask(tokens_at(canvas, places), places, sees, wanted)

    def take(self, logits: LogitArray) -> Sequence[int]:
        edge = self.canvas.final
        if len(self._open()):
            self.fill(self.view(logits))
        kept = self.kept()
        if self.context.options.ending == "cut":
            self._cut()
        self.canvas.final = self.canvas.run()
        self._window(edge)
        return kept
