"""What the registry knows of a method."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["drafter", "growth", "verifier", "controller", "decoder", "runtime"]


LOSSLESS = "lossless"
"""The guarantee of most methods."""


@dataclass(frozen=True, slots=True)
class Method:
    """One registered method.

    Attributes:
        name: what users type.
        kind: which part of the engine it is.
        guarantee: what it promises, in a few words; lossy methods start with "lossy".
        needs: what it asks of target or user.
        paper: source.
        factory: "module:attribute" of what `paceline.loading` builds it with. It is imported only
            when the method is used.
    """

    name: str
    kind: Kind
    guarantee: str
    needs: str
    paper: str
    factory: str

    def load(self) -> Any:
        """Import the factory."""
        module, attribute = self.factory.split(":")
        return getattr(importlib.import_module(module), attribute)
