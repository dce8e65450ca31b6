"""Registry of methods: an index of those built in, and entry points in group `paceline.methods`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pkgutil import resolve_name
from typing import Any, Literal, get_args

from paceline.core.expressions import Expression, parse
from paceline.errors import InvalidOption

__all__ = ["BUILT_IN", "GROUP", "Index", "Kind", "Method", "find", "methods", "names", "read"]

GROUP = "paceline.methods"

Kind = Literal[
    "drafter",
    "growth",
    "verifier",
    "controller",
    "decoder",
    "stream",
    "sampler",
    "cache",
    "runtime",
]

# Of each kind the names, and where each is: "module:attribute".
Index = Mapping[Kind, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Method:
    """A registered drafter, tree expansion, verifier, or method of another kind.

    `factory` is "module:attribute", imported only when the method is used, or asked what it says
    of itself (`paceline.core.types.Described`).
    """

    name: str
    kind: Kind
    factory: str

    def load(self) -> Any:
        return resolve_name(self.factory)

    @property
    def guarantee(self) -> str:
        return self._told("guarantee")

    @property
    def needs(self) -> str:
        return self._told("requires")

    @property
    def paper(self) -> str:
        return self._told("paper")

    def _told(self, what: str) -> str:
        try:
            return str(getattr(self.load(), what, "-"))
        except Exception as error:
            raise InvalidOption(
                f"{self.kind} '{self.name}' cannot be loaded ({error}): mend or uninstall its "
                "package"
            ) from error

    def load_proof(self) -> Any:
        """Return the proof, or None; InvalidOption if it cannot be loaded."""
        try:
            proof = getattr(self.load(), "proof", None)
            return proof and resolve_name(proof)
        except Exception as error:
            raise InvalidOption(
                f"the proof of {self.kind} '{self.name}' cannot be loaded ({error}): mend or "
                "uninstall its package"
            ) from error


BUILT_IN: Index = {
    "drafter": {
        "none": "paceline.drafters.base:NoDrafter",
        "recycling": "paceline.drafters.recycling:Recycling",
        "eagle3": "paceline.drafters.network.drafter:Eagle3Drafter",
        "eagle": "paceline.drafters.network.drafter:EagleDrafter",
        "medusa": "paceline.drafters.network.drafter:MedusaDrafter",
        "mlp-speculator": "paceline.drafters.network.drafter:MlpSpeculatorDrafter",
        "mtp": "paceline.drafters.network.drafter:MtpDrafter",
        "assistant": "paceline.drafters.network.drafter:AssistantDrafter",
        "dflash": "paceline.drafters.network.drafter:DFlashDrafter",
        "dspark": "paceline.drafters.network.drafter:DSparkDrafter",
        "suffix-automaton": "paceline.drafters.suffix.history:SuffixAutomaton",
        "draft-model": "paceline.drafters.string_level:ByVocabulary",
        "string-level": "paceline.drafters.string_level:StringLevel",
        "quantised": "paceline.drafters.draft_model:Quantised",
    },
    "growth": {
        "iid": "paceline.trees.drawn:Iid",
        "paths": "paceline.trees.drawn:Paths",
        "branching": "paceline.trees.drawn:Branching",
        "stochastic-beam": "paceline.trees.drawn:StochasticBeam",
        "dynamic": "paceline.trees.dyspec:Dynamic",
        "threshold": "paceline.trees.dyspec:Threshold",
        "top-and-one": "paceline.trees.drawn:TopAndOne",
        "shared-noise": "paceline.trees.deterministic:SharedNoise",
        "expand-rerank": "paceline.trees.deterministic:ExpandRerank",
        "static": "paceline.trees.deterministic:Static",
    },
    "verifier": {
        "greedy": "paceline.verifiers.matching:Greedy",
        "sample-match": "paceline.verifiers.matching:SampleMatch",
        "coupled": "paceline.verifiers.matching:Coupled",
        "rejection": "paceline.verifiers.rejection:Rejection",
        "block": "paceline.verifiers.block:Block",
        "multipath-block": "paceline.verifiers.multipath_block:MultipathBlock",
        "recursive": "paceline.verifiers.recursive:Recursive",
        "recursive-distinct": "paceline.verifiers.recursive:RecursiveDistinct",
        "k-seq": "paceline.verifiers.k_seq:KSeq",
        "top-and-one": "paceline.verifiers.top_and_one:TopAndOne",
    },
    "controller": {
        "fixed": "paceline.policy.controller:Fixed",
        "cost-model": "paceline.policy.cost_model:CostModelController",
    },
    "decoder": {
        "autoregressive": "paceline.engine.loop:AutoregressiveDecoder",
    },
    "sampler": {
        "counts": "paceline.denoising.counts:Counts",
        "assd": "paceline.denoising.any_subset:AnySubset",
        "tidar": "paceline.denoising.self_verified:Tidar",
        "linear-spec": "paceline.denoising.self_verified:LinearSpec",
    },
    "cache": {
        "none": "paceline.denoising.caches:CachePlan",
        "exact": "paceline.denoising.caches:Exact",
    },
    "runtime": {
        "cpu": "paceline.runtimes.cpu.target:CpuTarget",
        "torch": "paceline.runtimes:Torch",
        "transformers": "paceline.runtimes:Transformers",
        "reference": "paceline.runtimes.reference.target:ReferenceTarget",
    },
}


@cache
def methods() -> tuple[Method, ...]:
    """Return built-in methods and those of plugins; InvalidOption if a plugin is unusable.

    An entry point names an `Index`.
    """
    found = {(method.kind, method.name): method for method in _listed(BUILT_IN)}
    for point in entry_points(group=GROUP):
        try:
            index = point.load()
        except Exception as error:
            raise InvalidOption(
                f"plugin {point.value} cannot be loaded ({error}): mend or uninstall it"
            ) from error
        if not _is_index(index):
            raise InvalidOption(f"plugin {point.value} is not a paceline.registry.table.Index")
        for method in _listed(index):
            if (method.kind, method.name) in found:
                raise InvalidOption(
                    f"plugin {point.value} reuses the {method.kind} '{method.name}'"
                )
            found[method.kind, method.name] = method
    kinds = get_args(Kind)
    return tuple(sorted(found.values(), key=lambda method: kinds.index(method.kind)))


def _is_index(given: object) -> bool:
    return isinstance(given, Mapping) and all(
        kind in get_args(Kind) and isinstance(places, Mapping) for kind, places in given.items()
    )


def _listed(index: Index) -> Iterator[Method]:
    for kind, places in index.items():
        for name, place in places.items():
            yield Method(name, kind, place)


def names(kind: Kind) -> tuple[str, ...]:
    return tuple(method.name for method in methods() if method.kind == kind)


def find(kind: Kind, name: str) -> Method:
    """Return the method of that kind and name; InvalidOption if there is none."""
    for method in methods():
        if (method.kind, method.name) == (kind, name):
            return method
    raise InvalidOption(f"{kind} {name!r} is unknown: use {', '.join(names(kind))}")


def read(kind: Kind, text: str) -> tuple[Expression, dict[str, Any]]:
    """Read what a user has written of a kind: the expression, and what makes each of its methods.

    InvalidOption if it is malformed, or a method is unknown.
    """
    expression = parse(text, kind)
    found = [find(kind, name) for name in expression.names]  # all, before one is imported
    return expression, {method.name: method.load() for method in found}


# Trainer of drafters that learn while serving (option `online`).
_LEARNER = "paceline.lab.training.online:OnlineLearner"


def online_learner() -> Any:
    """Import the class that trains drafters while they serve."""
    return resolve_name(_LEARNER)
