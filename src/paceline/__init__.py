"""paceline: faster decoding of language models with the same output.

engine = paceline.load("smollm2-135m")
print(engine.generate("Why is the sky blue?").text)
"""

from paceline.engine import Completion, Engine, Event
from paceline.errors import (
    IncompatibleDraft,
    InvalidOption,
    ModelError,
    OutOfMemory,
    PacelineError,
    PromptError,
    RuntimeUnavailable,
)
from paceline.loading import load
from paceline.types import SamplingParams, TokenLogprob
from paceline.version import __version__

__all__ = [
    "Completion",
    "Engine",
    "Event",
    "IncompatibleDraft",
    "InvalidOption",
    "ModelError",
    "OutOfMemory",
    "PacelineError",
    "PromptError",
    "RuntimeUnavailable",
    "SamplingParams",
    "TokenLogprob",
    "__version__",
    "load",
]
