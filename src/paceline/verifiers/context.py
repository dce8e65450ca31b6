"""Verifier inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from paceline.types import Capabilities


@dataclass(frozen=True, slots=True)
class VerifierContext:
    """Inputs for building a verifier.

    Attributes:
        target: capabilities of the target whose drafts it verifies.
        model: fingerprint of the target's weights, for rules with trained heads.
        encode: text to token ids, for rules with prompts of their own.
        options: what the user set, as text.
    """

    target: Capabilities
    model: str
    encode: Callable[[str], list[int]]
    options: Mapping[str, str] = field(default_factory=dict)
