"""Recursive rejection without replacement (RSD: Jeon et al. 2024, arXiv:2402.14160; Sequoia: Chen
et al. 2024, arXiv:2402.12374): siblings are distinct, so each rejected token leaves q as well.
"""

from __future__ import annotations

from typing import ClassVar

from paceline.law import without
from paceline.types import Law, LawKind
from paceline.verifiers.recursive import Recursive


class RecursiveDistinct(Recursive):
    """Lossless for trees whose siblings were drawn without replacement, in node order."""

    name: ClassVar[str] = "recursive-distinct"
    accepts: ClassVar[frozenset[LawKind | None]] = frozenset({"without_replacement"})

    def _remaining(self, q: Law, token: int) -> Law | None:
        return without(q, token)
