"""After Dovetail (Zhang et al. 2024, arXiv:2412.18934): the draft model on another device.

Drafts go over before a forward, and the target waits for them: few tokens, since every row that
a processor verifies costs.
"""

from __future__ import annotations

from typing import ClassVar

from paceline.methods.schedules.drafting import Scheduled


class Dovetail(Scheduled):
    """Draft elsewhere, wait, then verify here: the order alone is the paper's."""

    name: ClassVar[str] = "dovetail"
    requires = "a model with the same vocabulary (--draft-model)"
    paper = "after Dovetail, Zhang et al. 2024, arXiv:2412.18934"
