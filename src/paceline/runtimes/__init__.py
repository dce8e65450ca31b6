"""Runtimes whose packages are extras: known without them, imported when a model is loaded."""

from __future__ import annotations

from paceline.core.target import RuntimeOptions, Target
from paceline.core.types import Described
from paceline.models.source import ModelSource


class Torch(Described):
    """PyTorch, on CPU and CUDA."""

    name = "torch"
    guarantee = "exact up to near-ties"
    requires = "pip install 'paceline[torch]'"

    @staticmethod
    def load(source: ModelSource, options: RuntimeOptions) -> Target:
        """Load a model; errors as of `TorchTarget.load`."""
        from paceline.runtimes.torch.target import TorchTarget

        return TorchTarget.load(source, options)


class Transformers(Described):
    """Any causal model of the library."""

    name = "transformers"
    guarantee = "exact up to near-ties"
    requires = "pip install 'paceline[transformers]'"

    @staticmethod
    def load(source: ModelSource, options: RuntimeOptions) -> Target:
        """Load a model; errors as of `TransformersTarget.load`."""
        from paceline.runtimes.transformers import TransformersTarget

        return TransformersTarget.load(source, options)
