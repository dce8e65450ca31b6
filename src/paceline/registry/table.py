"""Registry of methods: the built-in table, and entry points in group `paceline.methods`."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Literal

from paceline.errors import InvalidOption

__all__ = ["BUILT_IN", "GROUP", "Kind", "Method", "find", "methods", "names"]

# Registry entry of a method.

Kind = Literal["drafter", "growth", "verifier", "controller", "decoder", "runtime", "learner"]


LOSSLESS = "lossless"


@dataclass(frozen=True, slots=True)
class Method:
    """A registered drafter, tree expansion, verifier, controller, decoder or runtime.

    `guarantee` is a few words; lossy methods start with "lossy". `factory` is "module:attribute",
    imported only when the method is used.
    """

    name: str
    kind: Kind
    guarantee: str
    needs: str
    paper: str
    factory: str

    def load(self) -> Any:
        module, attribute = self.factory.split(":")
        return getattr(importlib.import_module(module), attribute)


# Table of the built-in drafters, with guarantee and paper.

DRAFTERS: tuple[Method, ...] = (
    Method(
        "none",
        "drafter",
        "plain decoding",
        "-",
        "-",
        "paceline.drafters.base:NoDrafter",
    ),
    Method(
        "prompt-lookup",
        "drafter",
        LOSSLESS,
        "-",
        "Prompt Lookup Decoding, Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding",
        "paceline.drafters.ngram.prompt_lookup:PromptLookup",
    ),
    Method(
        "recycling",
        "drafter",
        LOSSLESS,
        "logits of rejected nodes",
        "after Token Recycling, Luo et al. 2024, arXiv:2408.08696",
        "paceline.drafters.statistics.recycling:Recycling",
    ),
    Method(
        "stand",
        "drafter",
        LOSSLESS,
        "logits of rejected nodes; draws for verifier 'recursive-distinct'",
        "after STAND, Song et al. 2025, arXiv:2506.04708",
        "paceline.drafters.statistics.stand:Stand",
    ),
    Method(
        "aded",
        "drafter",
        LOSSLESS,
        "logits of rejected nodes",
        "after ADED, Liu et al. 2024, arXiv:2407.12021",
        "paceline.drafters.statistics.aded:Aded",
    ),
    Method(
        "cacheback",
        "drafter",
        LOSSLESS,
        "-",
        "after Cacheback, Ma et al. 2025, arXiv:2511.21699",
        "paceline.zoo.cacheback:Cacheback",
    ),
    Method(
        "medusa",
        "drafter",
        LOSSLESS,
        "features; weights for the model (paceline train drafter)",
        "after Medusa, Cai et al. 2024, arXiv:2401.10774",
        "paceline.drafters.network.drafter:medusa",
    ),
    Method(
        "hydra",
        "drafter",
        LOSSLESS,
        "features; weights for the model (paceline train drafter)",
        "after Hydra++, Ankner et al. 2024, arXiv:2402.05109",
        "paceline.drafters.network.drafter:hydra",
    ),
    Method(
        "eagle3",
        "drafter",
        LOSSLESS,
        "features; weights for the model (paceline train drafter)",
        "EAGLE-3, Li et al. 2025, arXiv:2503.01840",
        "paceline.drafters.network.drafter:eagle3",
    ),
    Method(
        "block-parallel",
        "drafter",
        LOSSLESS,
        "features; weights for the model (paceline train drafter)",
        "after DFlash, Chen et al. 2026, arXiv:2602.06036",
        "paceline.drafters.network.drafter:block_parallel",
    ),
    Method(
        "clover",
        "drafter",
        LOSSLESS,
        "features; weights for the model (paceline train drafter)",
        "after Clover, Xiao et al. 2024, arXiv:2405.00263",
        "paceline.drafters.network.drafter:clover",
    ),
    Method(
        "eagle",
        "drafter",
        LOSSLESS,
        "features; weights for the model (paceline train drafter)",
        "after EAGLE, Li et al. 2024, arXiv:2401.15077",
        "paceline.drafters.network.drafter:eagle",
    ),
    Method(
        "chimera",
        "drafter",
        LOSSLESS,
        "features; weights for the model (paceline train drafter)",
        "after Chimera, Zeng et al. 2024, arXiv:2402.15758",
        "paceline.drafters.network.drafter:chimera",
    ),
    Method(
        "falcon",
        "drafter",
        LOSSLESS,
        "features; weights for the model (paceline train drafter)",
        "after Falcon, Gao et al. 2024, arXiv:2412.12639",
        "paceline.drafters.network.drafter:falcon",
    ),
    Method(
        "ctc",
        "drafter",
        LOSSLESS,
        "features; weights for the model (paceline train drafter)",
        "after CTC-drafter, Wen et al. 2024, arXiv:2412.00061",
        "paceline.drafters.network.drafter:ctc",
    ),
    Method(
        "specformer",
        "drafter",
        LOSSLESS,
        "features; weights for the model (paceline train drafter)",
        "after SpecFormer, Shi et al. 2025, arXiv:2511.20340",
        "paceline.drafters.network.drafter:specformer",
    ),
    Method(
        "s2d",
        "drafter",
        LOSSLESS,
        "features; weights for the model (paceline train drafter)",
        "after S2D, Kavehzadeh et al. 2024, arXiv:2407.01955",
        "paceline.drafters.network.drafter:s2d",
    ),
    Method(
        "longspec",
        "drafter",
        LOSSLESS,
        "features; weights for the model (paceline train drafter)",
        "after LongSpec, Yang et al. 2025, arXiv:2502.17421",
        "paceline.drafters.network.drafter:longspec",
    ),
    Method(
        "draft-lm",
        "drafter",
        LOSSLESS,
        "weights for the model (paceline train drafter)",
        "after FastDraft, Zafrir et al. 2024, arXiv:2411.11055",
        "paceline.drafters.network.drafter:draft_lm",
    ),
    Method(
        "kangaroo",
        "drafter",
        LOSSLESS,
        "weights for the model (paceline train drafter)",
        "after Kangaroo, Liu et al. 2024, arXiv:2404.18911",
        "paceline.drafters.network.drafter:kangaroo",
    ),
    Method(
        "hidden-transfer",
        "drafter",
        LOSSLESS,
        "features; weights for the model (paceline train drafter)",
        "after Hidden Transfer, Wu et al. 2024, arXiv:2404.12022",
        "paceline.drafters.network.drafter:hidden_transfer",
    ),
    Method(
        "ppd",
        "drafter",
        LOSSLESS,
        "logits of rejected nodes; prompt tokens for the model (paceline train prompt-tokens)",
        "after PPD, Chen et al. 2024, arXiv:2405.18628",
        "paceline.zoo.ppd.drafter:PPD",
    ),
    Method(
        "lookahead",
        "drafter",
        LOSSLESS,
        "logits of rejected nodes; fixed sizes (--nodes), for its window",
        "after Lookahead Decoding, Fu et al. 2024, arXiv:2402.02057",
        "paceline.drafters.ngram.lookahead:Lookahead",
    ),
    Method(
        "forced",
        "drafter",
        LOSSLESS,
        "forced tokens in the request, or a template (in Python)",
        "-",
        "paceline.drafters.ngram.forced:Forced",
    ),
    Method(
        "suffix-automaton",
        "drafter",
        LOSSLESS,
        "-",
        "after SAM-Decoding, Hu et al. 2024, arXiv:2411.10666",
        "paceline.drafters.suffix.suffix_automaton:SuffixAutomaton",
    ),
    Method(
        "suffix-decoding",
        "drafter",
        LOSSLESS,
        "-",
        "after SuffixDecoding, Oliaro et al. 2024, arXiv:2411.04975",
        "paceline.drafters.suffix.suffix_decoding:SuffixDecoding",
    ),
    Method(
        "datastore",
        "drafter",
        LOSSLESS,
        "an index (paceline index): datastore:index=DIR",
        "after REST, He et al. 2023, arXiv:2311.08252",
        "paceline.drafters.suffix.datastore:Datastore",
    ),
    Method(
        "input-guided",
        "drafter",
        LOSSLESS,
        "a prompt that the output repeats",
        "after IAD, Sun et al. 2021, arXiv:2106.04970; Ge et al. 2022, arXiv:2205.10350",
        "paceline.drafters.ngram.input_guided:InputGuided",
    ),
    Method(
        "draft-model",
        "drafter",
        LOSSLESS,
        "a model with the same vocabulary (--draft-model)",
        "Leviathan et al. 2023, arXiv:2211.17192",
        "paceline.drafters.draft_model:DraftModel",
    ),
    Method(
        "quantised",
        "drafter",
        LOSSLESS,
        "a target at fp32 on openvino; its weights once more, at int8",
        "after QuantSpec, Tiwari et al. 2025, arXiv:2502.10424",
        "paceline.drafters.draft_model:Quantised",
    ),
    Method(
        "cascade",
        "drafter",
        LOSSLESS,
        "a model with the same vocabulary (--draft-model); more levels from Python",
        "after HSD, Mohri et al. 2025, arXiv:2510.19705; SpecMQuant, Zhang et al. 2025, "
        "arXiv:2505.22179",
        "paceline.zoo.cascade:Cascade",
    ),
    Method(
        "jacobi",
        "drafter",
        LOSSLESS,
        "logits of rejected nodes",
        "after SJD, Teng et al. 2024, arXiv:2410.01699",
        "paceline.zoo.jacobi:Jacobi",
    ),
)


# Table of the built-in methods, with guarantee and paper.

BUILT_IN: tuple[Method, ...] = (
    *DRAFTERS,
    Method(
        "iid",
        "growth",
        "independent siblings",
        "-",
        "SpecInfer, Miao et al. 2023, arXiv:2305.09781",
        "paceline.trees.drawn:Iid",
    ),
    Method(
        "paths",
        "growth",
        "independent paths",
        "-",
        "SpecTr, Sun et al. 2023, arXiv:2310.15141",
        "paceline.trees.drawn:Paths",
    ),
    Method(
        "branching",
        "growth",
        "siblings without replacement",
        "-",
        "RSD-C, Jeon et al. 2024, arXiv:2402.14160",
        "paceline.trees.drawn:Branching",
    ),
    Method(
        "stochastic-beam",
        "growth",
        "siblings without replacement",
        "-",
        "RSD-S, Jeon et al. 2024, arXiv:2402.14160",
        "paceline.trees.drawn:StochasticBeam",
    ),
    Method(
        "dynamic",
        "growth",
        "siblings without replacement",
        "-",
        "DySpec, Xiong et al. 2024, arXiv:2410.11744",
        "paceline.trees.dyspec:Dynamic",
    ),
    Method(
        "threshold",
        "growth",
        "siblings without replacement",
        "-",
        "DySpec, Xiong et al. 2024, arXiv:2410.11744",
        "paceline.trees.dyspec:Threshold",
    ),
    Method(
        "top-and-one",
        "growth",
        "the most probable siblings, and one drawn",
        "-",
        "Hu et al. 2025, arXiv:2502.18779",
        "paceline.trees.drawn:TopAndOne",
    ),
    Method(
        "shared-noise",
        "growth",
        "deterministic, given the target's noise",
        "-",
        "Gumbel coupling, Daliri et al. 2025, arXiv:2408.07978",
        "paceline.trees.deterministic:SharedNoise",
    ),
    Method(
        "expand-rerank",
        "growth",
        "deterministic",
        "-",
        "EAGLE-2, Li et al. 2024, arXiv:2406.16858",
        "paceline.trees.deterministic:ExpandRerank",
    ),
    Method(
        "static",
        "growth",
        "deterministic",
        "a published shape, or rank accuracies",
        "Medusa, Cai et al. 2024, arXiv:2401.10774",
        "paceline.trees.deterministic:Static",
    ),
    Method(
        "greedy",
        "verifier",
        "lossless at temperature 0",
        "temperature 0",
        "Blockwise Parallel Decoding, Stern et al. 2018, arXiv:1811.03115",
        "paceline.verifiers.matching:Greedy",
    ),
    Method(
        "sample-match",
        "verifier",
        LOSSLESS,
        "any draft",
        "SpecInfer, Miao et al. 2023, arXiv:2305.09781",
        "paceline.verifiers.matching:SampleMatch",
    ),
    Method(
        "coupled",
        "verifier",
        "lossless, seed-exact",
        "any draft",
        "Gumbel coupling, Daliri et al. 2025, arXiv:2408.07978",
        "paceline.verifiers.matching:Coupled",
    ),
    Method(
        "rejection",
        "verifier",
        LOSSLESS,
        "chains drawn from a draft model",
        "Leviathan et al. 2023, arXiv:2211.17192; Chen et al. 2023, arXiv:2302.01318",
        "paceline.verifiers.rejection:Rejection",
    ),
    Method(
        "block",
        "verifier",
        LOSSLESS,
        "chains drawn from a draft model",
        "Sun et al. 2024, arXiv:2403.10444",
        "paceline.verifiers.block:Block",
    ),
    Method(
        "multipath-block",
        "verifier",
        LOSSLESS,
        "independent paths drawn from a draft model",
        "after GBV, Thomas and Pal 2026, arXiv:2602.16961",
        "paceline.verifiers.multipath_block:MultipathBlock",
    ),
    Method(
        "recursive",
        "verifier",
        LOSSLESS,
        "siblings drawn independently (iid trees, merged paths)",
        "SpecInfer, Miao et al. 2023, arXiv:2305.09781",
        "paceline.verifiers.recursive:Recursive",
    ),
    Method(
        "recursive-distinct",
        "verifier",
        LOSSLESS,
        "siblings drawn without replacement",
        "RSD, Jeon et al. 2024, arXiv:2402.14160; Sequoia, Chen et al. 2024, arXiv:2402.12374",
        "paceline.verifiers.recursive:RecursiveDistinct",
    ),
    Method(
        "k-seq",
        "verifier",
        LOSSLESS,
        "siblings drawn independently (iid trees, merged paths)",
        "SpecTr, Sun et al. 2023, arXiv:2310.15141",
        "paceline.verifiers.k_seq:KSeq",
    ),
    Method(
        "top-and-one",
        "verifier",
        LOSSLESS,
        "the most probable children, and one drawn from the rest",
        "Hu et al. 2025, arXiv:2502.18779",
        "paceline.verifiers.top_and_one:TopAndOne",
    ),
    Method(
        "typical",
        "verifier",
        "lossy: accepts typical tokens; greedy requests stay exact",
        "any draft",
        "Medusa, Cai et al. 2024, arXiv:2401.10774",
        "paceline.zoo.typical:Typical",
    ),
    Method(
        "top-gap",
        "verifier",
        "lossy: accepts near-best tokens",
        "any draft",
        "after GAD++, Xia et al. 2022, arXiv:2203.16487",
        "paceline.zoo.top_gap:TopGap",
    ),
    Method(
        "fly",
        "verifier",
        "lossy: accepts a mismatch that the target continues as drafted",
        "any draft; at least 7 deep with the paper's window of 6 tokens",
        "FLy, Li et al. 2025, arXiv:2511.22972",
        "paceline.zoo.fly:Fly",
    ),
    Method(
        "judge",
        "verifier",
        "lossy: accepts what a trained head finds acceptable",
        "hidden states; a head for the model (paceline train judge): judge:head=FILE",
        "after Judge Decoding, Bachmann et al. 2025, arXiv:2501.19309",
        "paceline.zoo.heads.verifiers:Judge",
    ),
    Method(
        "pivot",
        "verifier",
        "lossy: accepts what a trained head finds harmless",
        "hidden states; a head for the model (paceline train pivot): pivot:head=FILE",
        "after PAD, Ziashahabi et al. 2025, arXiv:2511.00351",
        "paceline.zoo.heads.verifiers:Pivot",
    ),
    Method(
        "reflective",
        "verifier",
        "lossy: fuses the distribution with that of a second look at the draft",
        "any draft",
        "after Reflective Verification, Wang et al. 2025, arXiv:2505.18629",
        "paceline.zoo.reflective:Reflective",
    ),
    Method(
        "relaxed",
        "verifier",
        "lossy: accepts with r times p/q; greedy requests stay exact",
        "deterministic drafts, or chains drawn from a draft model",
        "lenience, Leviathan et al. 2023, arXiv:2211.17192",
        "paceline.zoo.relaxed:Relaxed",
    ),
    Method(
        "fixed",
        "controller",
        "keeps every guarantee",
        "--nodes or --depth",
        "-",
        "paceline.policy.controller:Fixed",
    ),
    Method(
        "cost-model",
        "controller",
        "keeps every guarantee",
        "c(n), measured at load",
        "-",
        "paceline.policy.cost_model:CostModelController",
    ),
    Method(
        "confidence",
        "controller",
        "keeps every guarantee",
        "a drafter with estimates, best",
        "after Kangaroo, Liu et al. 2024, arXiv:2404.18911; SpecDec++, Huang et al. 2024, "
        "arXiv:2405.19715",
        "paceline.zoo.confidence:Confidence",
    ),
    Method(
        "adaptive",
        "controller",
        "keeps every guarantee",
        "-",
        "after DiffuSpec, Li et al. 2025, arXiv:2510.02358",
        "paceline.zoo.adaptive:Adaptive",
    ),
    Method(
        "bandit",
        "controller",
        "keeps every guarantee",
        "-",
        "discounted Thompson sampling, Qi et al. 2023, arXiv:2305.10718",
        "paceline.zoo.bandit:Bandit",
    ),
    Method(
        "autoregressive",
        "decoder",
        "that of its verifier",
        "-",
        "-",
        "paceline.engine.loop:AutoregressiveDecoder",
    ),
    Method(
        "first-finish",
        "decoder",
        "lossy: of several samples the first to end, so short texts are favoured",
        "paceline generate --first-of N",
        "First Finish Search, Agarwal et al. 2025, arXiv:2505.18149",
        "paceline.zoo.first_finish:first_finish",
    ),
    Method(
        "superposed",
        "decoder",
        "lossy: several continuations from one pass per token",
        "paceline suggest; runtime torch",
        "after Superposed Decoding, Shen et al. 2024, arXiv:2405.18400",
        "paceline.zoo.superposed:superpose",
    ),
    Method(
        "openvino",
        "runtime",
        "bit-exact (layout exact)",
        "pip install 'paceline[openvino]'",
        "-",
        "paceline.runtimes.cpu.target:OpenVinoTarget",
    ),
    Method(
        "torch",
        "runtime",
        "exact up to near-ties",
        "pip install 'paceline[torch]'",
        "-",
        "paceline.runtimes.torch.target:TorchTarget",
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


# Trainer of drafters that learn while serving (option `online`).
LEARNER = Method(
    "online",
    "learner",
    LOSSLESS,
    "pip install 'paceline[torch]'",
    "Liu et al. 2024, arXiv:2310.07177",
    "paceline.training.online:OnlineLearner",
)


GROUP = "paceline.methods"


@cache
def methods() -> tuple[Method, ...]:
    """Return built-in methods and those of plugins; InvalidOption if a plugin is unusable."""
    found = {(method.kind, method.name): method for method in BUILT_IN}
    for point in entry_points(group=GROUP):
        try:
            method = point.load()
        except Exception as error:
            raise InvalidOption(
                f"plugin {point.value} cannot be loaded ({error}): mend or uninstall it"
            ) from error
        if not isinstance(method, Method):
            raise InvalidOption(f"plugin {point.value} is not a paceline.registry.table.Method")
        if (method.kind, method.name) in found:
            raise InvalidOption(f"plugin {point.value} reuses the {method.kind} '{method.name}'")
        found[method.kind, method.name] = method
    return tuple(found.values())


def names(kind: Kind) -> tuple[str, ...]:
    return tuple(method.name for method in methods() if method.kind == kind)


def find(kind: Kind, name: str) -> Method:
    """Return the method of that kind and name; InvalidOption if there is none."""
    for method in _of(kind):
        if method.name == name:
            return method
    raise InvalidOption(f"{kind} {name!r} is unknown: use {', '.join(names(kind))}")


def _of(kind: Kind) -> Iterator[Method]:
    return (method for method in methods() if method.kind == kind)
