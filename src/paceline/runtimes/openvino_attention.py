"""What a way to attend on the CPU consists of: there is the plugin's, and our own along paths."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import openvino as ov

from paceline.models.config import ModelConfig
from paceline.runtimes.block_pool import BlockPool
from paceline.runtimes.openvino_batch import Batch, Shape
from paceline.runtimes.openvino_layers import Layers
from paceline.runtimes.openvino_nodes import Tensors
from paceline.runtimes.paged_cache import PagedCache


class Attention(ABC):
    """Keeps keys and values, and says how rows of a pass find theirs."""

    name: str
    """"paths" (our own) or "plugin"."""
    fixed: tuple[Shape, ...]
    """Shapes that a compiled instance may be fixed to."""

    @abstractmethod
    def pool(self, config: ModelConfig, blocks: int, keep: int) -> BlockPool:
        """Memory for so many blocks, of which `keep` may outlive their sequences."""

    @abstractmethod
    def graphs(self, config: ModelConfig, tensors: Tensors, layers: Layers) -> Graphs:
        """The model as graphs."""

    @abstractmethod
    def bind(self, request: ov.InferRequest, pool: BlockPool) -> None:
        """Let a compiled graph read and write the memory."""

    @abstractmethod
    def batch(self) -> Batch:
        """The inputs of a forward, to be filled."""

    @abstractmethod
    def keep(self, cache: PagedCache, pending: int, path: Sequence[int]) -> None:
        """Commit the pending tokens and a path of the last forward's draft."""


class Graphs(ABC):
    """A model's graph, for any number of rows or for a fixed one."""

    @abstractmethod
    def of(self, shape: Shape | None) -> ov.Model:
        """The graph to compile for that shape, or for all."""


def fix(graph: ov.Model, sizes: dict[str, int]) -> ov.Model:
    """A copy of `graph` whose inputs of these names, vectors, have these lengths."""
    fixed = graph.clone()
    shapes: dict[str, Any] = {
        port.get_any_name(): port.get_partial_shape() for port in fixed.inputs
    }
    shapes |= {name: ov.PartialShape([size]) for name, size in sizes.items()}
    fixed.reshape(shapes)
    return fixed
