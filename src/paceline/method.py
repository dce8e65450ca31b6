"""Registry entry of a method."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["drafter", "growth", "verifier", "controller", "decoder", "runtime"]


LOSSLESS = "lossless"


@dataclass(frozen=True, slots=True)
class Method:
    """A registered drafter, tree expansion, verifier, controller, decoder or runtime.

    `guarantee` is a few words; lossy methods start with "lossy". `factory` is "module:attribute",
    imported only when the method is used.
    """

    name: str
    kind: Kind
    guarantee: str
    needs: str
    paper: str
    factory: str

    def load(self) -> Any:
        module, attribute = self.factory.split(":")
        return getattr(importlib.import_module(module), attribute)
