"""Runtimes whose packages are extras: known without them, imported when a model is loaded."""

from __future__ import annotations

from typing import Any

from paceline.core.target import DEFAULT_OPTIONS, Runtime, RuntimeOptions, Target
from paceline.models.source import ModelSource


class Torch(Runtime):
    """PyTorch, on CPU and CUDA."""

    name = "torch"
    guarantee = "exact up to near-ties"
    requires = "pip install 'paceline[torch]'"
    changes = frozenset({"head"})

    @classmethod
    def load(
        cls, source: ModelSource, options: RuntimeOptions = DEFAULT_OPTIONS, **changes: Any
    ) -> Target:
        """Load a model; errors as of `TorchTarget.load`."""
        from paceline.runtimes.torch.target import TorchTarget

        return TorchTarget.load(source, options, **changes)


class Transformers(Runtime):
    """Any causal model of the library."""

    name = "transformers"
    guarantee = "exact up to near-ties"
    requires = "pip install 'paceline[transformers]'"

    @classmethod
    def load(cls, source: ModelSource, options: RuntimeOptions = DEFAULT_OPTIONS) -> Target:
        """Load a model; errors as of `TransformersTarget.load`."""
        from paceline.runtimes.transformers import TransformersTarget

        return TransformersTarget.load(source, options)
