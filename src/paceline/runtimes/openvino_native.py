"""Our own operations in the graph, once their library is loaded."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from openvino.utils.node_factory import NodeFactory

from paceline.runtimes.native.build import library
from paceline.runtimes.openvino_core import core


@functools.cache
def operations() -> Operations | None:
    """What makes them, or None where their library cannot be had."""
    path = library()
    if path is None:
        return None
    core().add_extension(str(path))
    factory = NodeFactory()
    factory.add_extension(str(path))
    return Operations(factory, bool(ctypes.CDLL(str(path)).paceline_has_products()))


class Operations:
    """Makes nodes of our own."""

    def __init__(self, factory: NodeFactory, products: bool) -> None:
        """Take what OpenVINO makes nodes with.

        Args:
            factory: knows the operations.
            products: whether this processor has the instructions that products need.
        """
        self._factory = factory
        self.products = products

    def node(self, kind: str, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
        """An operation of that kind, "PathAttention" or "Product" (`native/extension.cpp`)."""
        return self._factory.create(kind, [each.output(0) for each in inputs], dict(attributes))
