"""One exception tree: every error a user can cause names what is wrong and what to do about it."""

from __future__ import annotations


class PacelineError(Exception):
    """Base of all errors that paceline raises on purpose.

    The message is one line, names the offending thing and the fix. The command line prints it and
    exits with code 2; library users may catch this one class.
    """


class InvalidOption(PacelineError):
    """An option, parameter or combination of options is out of range or unknown."""


class ModelError(PacelineError):
    """A model cannot be found, read, downloaded, or is not of a supported family."""


class RuntimeUnavailable(PacelineError):
    """A runtime was asked for whose packages are missing, or that lacks a needed capability."""


class PromptError(PacelineError):
    """A prompt is empty, malformed or longer than the model's context."""


class OutOfMemory(PacelineError):
    """The key-value cache cannot hold another sequence or token."""


class IncompatibleDraft(PacelineError):
    """A draft reached a verifier whose rule does not hold for the way it was drawn."""


class BadLogits(PacelineError):
    """A model's logits at some node are not numbers, or leave no token possible."""


class EngineFailed(PacelineError):
    """Another engine cannot be reached, died, or gave an answer that is none."""
