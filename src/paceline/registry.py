"""Every method by name: the built-in table, and entry points that plugins fill.

A plugin package declares entry points in the group `paceline.methods`, each loading to a `Method`.
Built-in methods are `Method` objects too; nothing else distinguishes them.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Literal

from paceline.errors import InvalidOption

Kind = Literal["drafter", "verifier", "controller", "runtime"]

GROUP = "paceline.methods"


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


_LOSSLESS = "lossless"

BUILT_IN: tuple[Method, ...] = (
    Method(
        "none",
        "drafter",
        "plain decoding",
        "-",
        "-",
        "paceline.drafters.none:NoDrafter",
    ),
    Method(
        "prompt-lookup",
        "drafter",
        _LOSSLESS,
        "-",
        "Saxena 2023",
        "paceline.drafters.prompt_lookup:PromptLookup",
    ),
    Method(
        "recycling",
        "drafter",
        _LOSSLESS,
        "logits of rejected nodes",
        "Luo et al. 2024, arXiv:2408.08696",
        "paceline.drafters.recycling:Recycling",
    ),
    Method(
        "draft-model",
        "drafter",
        _LOSSLESS,
        "a model with the same vocabulary (--draft-model)",
        "Leviathan et al. 2023, arXiv:2211.17192",
        "paceline.drafters.draft_model:DraftModel",
    ),
    Method(
        "greedy",
        "verifier",
        "lossless at temperature 0",
        "temperature 0",
        "Stern et al. 2018, arXiv:1811.03115",
        "paceline.verifiers.greedy:Greedy",
    ),
    Method(
        "sample-match",
        "verifier",
        _LOSSLESS,
        "any draft",
        "Miao et al. 2023, arXiv:2305.09781",
        "paceline.verifiers.sample_match:SampleMatch",
    ),
    Method(
        "coupled",
        "verifier",
        "lossless, seed-exact",
        "any draft",
        "Gumbel coupling, Daliri et al. 2025, arXiv:2408.07978",
        "paceline.verifiers.coupled:Coupled",
    ),
    Method(
        "rejection",
        "verifier",
        _LOSSLESS,
        "chains drawn from a draft model",
        "Leviathan et al. 2023; Chen et al. 2023, arXiv:2302.01318",
        "paceline.verifiers.rejection:Rejection",
    ),
    Method(
        "fixed",
        "controller",
        "keeps every guarantee",
        "--nodes or --depth",
        "-",
        "paceline.controllers.fixed:Fixed",
    ),
    Method(
        "cost-model",
        "controller",
        "keeps every guarantee",
        "c(n), measured at load",
        "-",
        "paceline.controllers.cost_model:CostModelController",
    ),
    Method(
        "openvino",
        "runtime",
        "bit-exact (layout exact)",
        "pip install 'paceline[openvino]'",
        "-",
        "paceline.runtimes.openvino:OpenVinoTarget",
    ),
    Method(
        "torch",
        "runtime",
        "exact up to near-ties",
        "pip install 'paceline[torch]'",
        "-",
        "paceline.runtimes.torch:TorchTarget",
    ),
    Method(
        "transformers",
        "runtime",
        "exact up to near-ties",
        "pip install 'paceline[transformers]'",
        "-",
        "paceline.runtimes.transformers:TransformersTarget",
    ),
)


@cache
def methods() -> tuple[Method, ...]:
    """Built-in methods and those of installed plugins, which may not reuse a name."""
    found = {(method.kind, method.name): method for method in BUILT_IN}
    for point in entry_points(group=GROUP):
        try:
            method = point.load()
        except Exception as error:
            raise InvalidOption(
                f"plugin {point.value} cannot be loaded ({error}): mend or uninstall it"
            ) from error
        if not isinstance(method, Method):
            raise InvalidOption(f"plugin {point.value} is not a paceline.registry.Method")
        if (method.kind, method.name) in found:
            raise InvalidOption(f"plugin {point.value} reuses the {method.kind} '{method.name}'")
        found[method.kind, method.name] = method
    return tuple(found.values())


def names(kind: Kind) -> tuple[str, ...]:
    """Names of all methods of a kind."""
    return tuple(method.name for method in methods() if method.kind == kind)


def find(kind: Kind, name: str) -> Method:
    """The method of that kind and name.

    Raises:
        InvalidOption: there is none; the message lists what there is.
    """
    for method in _of(kind):
        if method.name == name:
            return method
    raise InvalidOption(f"{kind} {name!r} is unknown: use {', '.join(names(kind))}")


def _of(kind: Kind) -> Iterator[Method]:
    return (method for method in methods() if method.kind == kind)
