"""Likelihood of a canvas's text under its sampler, exact and free.

If a rule looks at laws alone, the text says which places were filled at each step. The probability
of a text is then the product of its tokens' at their steps.
"""

from __future__ import annotations

from math import fsum

from paceline.denoising.unmasking import Unmasking
from paceline.errors import InvalidOption


def log_likelihood(process: Unmasking) -> float:
    """Return log q, in nats, of what was filled, at the request's temperature.

    It is a sum over `Canvas.trace`; places behind a cut are part of it. For random orders it is
    that of the text given the seed's order.

    Raises:
        InvalidOption: the rule looks at what was drawn, or the request was greedy.
    """
    rule = process.rule
    if not rule.law_only:
        raise InvalidOption(
            f"sampler '{rule.name}' looks at what was drawn, so its texts have no likelihood that "
            "the trace tells: use a rule that looks at laws"
        )
    if process.context.laws.greedy:
        raise InvalidOption("a greedy text has no likelihood: use a temperature above 0")
    return fsum(fill.logprob for fill in process.canvas.trace)
