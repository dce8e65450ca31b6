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

Kind = Literal["drafter", "growth", "verifier", "controller", "decoder", "runtime"]

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
        "stand",
        "drafter",
        _LOSSLESS,
        "logits of rejected nodes; draws for verifier 'recursive-distinct'",
        "STAND, Song et al. 2025, arXiv:2506.04708",
        "paceline.drafters.stand:Stand",
    ),
    Method(
        "aded",
        "drafter",
        _LOSSLESS,
        "logits of rejected nodes",
        "ADED, Liu et al. 2024, arXiv:2407.12021",
        "paceline.drafters.aded:Aded",
    ),
    Method(
        "cacheback",
        "drafter",
        _LOSSLESS,
        "-",
        "Ma et al. 2025, arXiv:2511.21699",
        "paceline.drafters.cacheback:Cacheback",
    ),
    Method(
        "lookahead",
        "drafter",
        _LOSSLESS,
        "logits of rejected nodes; fixed sizes (--nodes), for its window",
        "Fu et al. 2024, arXiv:2402.02057",
        "paceline.drafters.lookahead:Lookahead",
    ),
    Method(
        "forced",
        "drafter",
        _LOSSLESS,
        "forced tokens in the request, or a template (in Python)",
        "-",
        "paceline.drafters.forced:Forced",
    ),
    Method(
        "suffix-automaton",
        "drafter",
        _LOSSLESS,
        "-",
        "SAM-Decoding, Hu et al. 2024, arXiv:2411.10666",
        "paceline.drafters.suffix_automaton:SuffixAutomaton",
    ),
    Method(
        "suffix-decoding",
        "drafter",
        _LOSSLESS,
        "-",
        "Oliaro et al. 2024, arXiv:2411.04975",
        "paceline.drafters.suffix_decoding:SuffixDecoding",
    ),
    Method(
        "datastore",
        "drafter",
        _LOSSLESS,
        "an index (paceline index): datastore:index=DIR",
        "REST, He et al. 2023, arXiv:2311.08252; RASD, Quan et al. 2025, arXiv:2503.03434",
        "paceline.drafters.datastore:Datastore",
    ),
    Method(
        "input-guided",
        "drafter",
        _LOSSLESS,
        "a prompt that the output repeats",
        "IAD, Sun et al. 2021, arXiv:2106.04970; Ge et al. 2022, arXiv:2205.10350",
        "paceline.drafters.input_guided:InputGuided",
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
        "cascade",
        "drafter",
        _LOSSLESS,
        "a model with the same vocabulary (--draft-model); more levels from Python",
        "Globerson et al. 2025, arXiv:2510.19705",
        "paceline.drafters.cascade:Cascade",
    ),
    Method(
        "jacobi",
        "drafter",
        _LOSSLESS,
        "logits of rejected nodes",
        "Teng et al. 2024, arXiv:2410.01699",
        "paceline.drafters.jacobi:Jacobi",
    ),
    Method(
        "iid",
        "growth",
        "independent siblings",
        "-",
        "SpecInfer, Miao et al. 2023, arXiv:2305.09781",
        "paceline.growth.iid:Iid",
    ),
    Method(
        "paths",
        "growth",
        "independent paths",
        "-",
        "SpecTr, Sun et al. 2023, arXiv:2310.15141",
        "paceline.growth.paths:Paths",
    ),
    Method(
        "branching",
        "growth",
        "siblings without replacement",
        "-",
        "RSD-C, Jeon et al. 2024, arXiv:2402.14160",
        "paceline.growth.branching:Branching",
    ),
    Method(
        "stochastic-beam",
        "growth",
        "siblings without replacement",
        "-",
        "RSD-S, Jeon et al. 2024, arXiv:2402.14160",
        "paceline.growth.stochastic_beam:StochasticBeam",
    ),
    Method(
        "dynamic",
        "growth",
        "siblings without replacement",
        "-",
        "DySpec, Xiong et al. 2024, arXiv:2410.11744",
        "paceline.growth.dynamic:Dynamic",
    ),
    Method(
        "threshold",
        "growth",
        "siblings without replacement",
        "-",
        "DySpec, Xiong et al. 2024, arXiv:2410.11744",
        "paceline.growth.threshold:Threshold",
    ),
    Method(
        "top-and-one",
        "growth",
        "the likeliest siblings, and one drawn",
        "-",
        "Hu et al. 2025, arXiv:2502.18779",
        "paceline.growth.top_and_one:TopAndOne",
    ),
    Method(
        "shared-noise",
        "growth",
        "deterministic, given the target's noise",
        "-",
        "Gumbel coupling, Daliri et al. 2025, arXiv:2408.07978",
        "paceline.growth.shared_noise:SharedNoise",
    ),
    Method(
        "expand-rerank",
        "growth",
        "deterministic",
        "-",
        "EAGLE-2, Li et al. 2024, arXiv:2406.16858",
        "paceline.growth.expand_rerank:ExpandRerank",
    ),
    Method(
        "static",
        "growth",
        "deterministic",
        "a published shape, or rank accuracies",
        "Medusa, Cai et al. 2024, arXiv:2401.10774",
        "paceline.growth.static:Static",
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
        "block",
        "verifier",
        _LOSSLESS,
        "chains drawn from a draft model",
        "Sun et al. 2024, arXiv:2403.10444",
        "paceline.verifiers.block:Block",
    ),
    Method(
        "multipath-block",
        "verifier",
        _LOSSLESS,
        "independent paths drawn from a draft model",
        "after Thomas and Pal 2026, arXiv:2602.16961",
        "paceline.verifiers.multipath_block:MultipathBlock",
    ),
    Method(
        "recursive",
        "verifier",
        _LOSSLESS,
        "siblings drawn independently (iid trees, merged paths)",
        "SpecInfer, Miao et al. 2023, arXiv:2305.09781",
        "paceline.verifiers.recursive:Recursive",
    ),
    Method(
        "recursive-distinct",
        "verifier",
        _LOSSLESS,
        "siblings drawn without replacement",
        "RSD, Jeon et al. 2024, arXiv:2402.14160; Sequoia, Chen et al. 2024, arXiv:2402.12374",
        "paceline.verifiers.recursive_distinct:RecursiveDistinct",
    ),
    Method(
        "k-seq",
        "verifier",
        _LOSSLESS,
        "siblings drawn independently (iid trees, merged paths)",
        "SpecTr, Sun et al. 2023, arXiv:2310.15141",
        "paceline.verifiers.k_seq:KSeq",
    ),
    Method(
        "top-and-one",
        "verifier",
        _LOSSLESS,
        "the likeliest children, and one drawn from the rest",
        "Hu et al. 2025, arXiv:2502.18779",
        "paceline.verifiers.top_and_one:TopAndOne",
    ),
    Method(
        "typical",
        "verifier",
        "lossy: accepts typical tokens; greedy requests stay exact",
        "any draft",
        "Medusa, Cai et al. 2024, arXiv:2401.10774",
        "paceline.verifiers.typical:Typical",
    ),
    Method(
        "top-gap",
        "verifier",
        "lossy: accepts near-best tokens",
        "any draft",
        "GAD++, Xia et al. 2022, arXiv:2203.16487",
        "paceline.verifiers.top_gap:TopGap",
    ),
    Method(
        "fly",
        "verifier",
        "lossy: pardons a mismatch that the target goes along with",
        "any draft; long chains",
        "FLy, AMD 2025",
        "paceline.verifiers.fly:Fly",
    ),
    Method(
        "judge",
        "verifier",
        "lossy: pardons what a trained head finds acceptable",
        "hidden states; a head for the model (paceline train judge)",
        "Bachmann et al. 2025, arXiv:2501.19309",
        "paceline.verifiers.judge:Judge",
    ),
    Method(
        "pivot",
        "verifier",
        "lossy: pardons what a trained head finds harmless",
        "hidden states; a head for the model (paceline train pivot)",
        "PAD, pivot-aware decoding",
        "paceline.verifiers.pivot:Pivot",
    ),
    Method(
        "reflective",
        "verifier",
        "lossy: fuses the law with a second look at the draft",
        "any draft",
        "Reflective verification",
        "paceline.verifiers.reflective:Reflective",
    ),
    Method(
        "relaxed",
        "verifier",
        "lossy: accepts with r times p/q; greedy requests stay exact",
        "deterministic drafts, or chains drawn from a draft model",
        "lenience, Leviathan et al. 2023, arXiv:2211.17192",
        "paceline.verifiers.relaxed:Relaxed",
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
        "confidence",
        "controller",
        "keeps every guarantee",
        "a drafter with estimates, best",
        "Kangaroo, Liu et al. 2024, arXiv:2404.18911; SpecDec++, Huang et al. 2024, "
        "arXiv:2405.19715",
        "paceline.controllers.confidence:Confidence",
    ),
    Method(
        "adaptive",
        "controller",
        "keeps every guarantee",
        "-",
        "DiffuSpec, Li et al. 2025, arXiv:2510.02358",
        "paceline.controllers.adaptive:Adaptive",
    ),
    Method(
        "bandit",
        "controller",
        "keeps every guarantee",
        "-",
        "discounted Thompson sampling, Qi et al. 2023, arXiv:2305.10718",
        "paceline.controllers.bandit:Bandit",
    ),
    Method(
        "autoregressive",
        "decoder",
        "that of its verifier",
        "-",
        "-",
        "paceline.decode.autoregressive:AutoregressiveDecoder",
    ),
    Method(
        "first-finish",
        "decoder",
        "lossy: of several samples the first to end, so short texts are favoured",
        "paceline generate --first-of N",
        "First Finish Search, Agarwal et al. 2025, arXiv:2505.18149",
        "paceline.search:first_finish",
    ),
    Method(
        "superposed",
        "decoder",
        "lossy: several continuations from one pass per token",
        "paceline suggest; runtime torch",
        "Shen et al. 2024, arXiv:2405.18400",
        "paceline.decode.superposed:superpose",
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
