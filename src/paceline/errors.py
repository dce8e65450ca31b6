"""Exception tree. Every message names the fault and the fix."""

from __future__ import annotations


class PacelineError(Exception):
    """Base of all errors raised on purpose; the message is one line. The command exits with 2."""


class InvalidOption(PacelineError):
    """An option, parameter or combination is unknown or out of range."""


class ModelError(PacelineError):
    """A model cannot be found, read or downloaded, or its family is not supported."""


class RuntimeUnavailable(PacelineError):
    """A runtime's packages are missing, or it lacks a needed capability."""


class PromptError(PacelineError):
    """A prompt is empty or malformed."""


class ContextExceeded(PromptError):
    """A prompt is longer than the model's context or the whole key-value cache: it never fits."""


class OutOfMemory(PacelineError):
    """The key-value cache cannot hold another sequence or token beside those that it has."""


class RequestFailed(PacelineError):
    """A request met an unexpected error, its `__cause__`. Other requests go on."""


class IncompatibleDraft(PacelineError):
    """A verifier's rule does not hold for the way the draft was sampled."""


class BadLogits(PacelineError):
    """Logits at a node are not numbers, or exclude every token."""


class EngineFailed(PacelineError):
    """An engine cannot be reached, died, or gave a malformed answer."""
