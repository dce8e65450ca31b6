"""Registry of methods: the built-in table, and entry points in group `paceline.methods`."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Literal

from paceline.errors import InvalidOption

__all__ = ["BUILT_IN", "GROUP", "Kind", "Method", "find", "methods", "names"]

# Registry entry of a method.

Kind = Literal[
    "drafter",
    "growth",
    "verifier",
    "controller",
    "decoder",
    "runtime",
    "learner",
    "sampler",
    "cache",
]


LOSSLESS = "lossless"


@dataclass(frozen=True, slots=True)
class Method:
    """A registered drafter, tree expansion, verifier, controller, decoder or runtime.

    `guarantee` is a few words; lossy methods start with "lossy". `factory` is "module:attribute",
    imported only when the method is used. So is `proof`, of a `paceline.proof.cases.Proof`: what
    `paceline audit inside` runs for the method.
    """

    name: str
    kind: Kind
    guarantee: str
    needs: str
    paper: str
    factory: str
    proof: str | None = None

    def load(self) -> Any:
        return _load(self.factory)

    def load_proof(self) -> Any:
        """Return the proof, or None; InvalidOption if it cannot be loaded."""
        try:
            return self.proof and _load(self.proof)
        except Exception as error:
            raise InvalidOption(
                f"the proof of {self.kind} '{self.name}' cannot be loaded ({error}): mend or "
                "uninstall its package"
            ) from error


def _load(place: str) -> Any:
    module, attribute = place.split(":")
    return getattr(importlib.import_module(module), attribute)


# Trainer of drafters that learn while serving (option `online`).
LEARNER = Method(
    "online",
    "learner",
    LOSSLESS,
    "pip install 'paceline[torch]'",
    "Liu et al. 2024, arXiv:2310.07177",
    "paceline.training.online:OnlineLearner",
)


# Table of the built-in methods, with guarantee and paper.

BUILT_IN: tuple[Method, ...] = (
    Method("none", "drafter", "plain decoding", "-", "-", "paceline.drafters.base:NoDrafter"),
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
        "after EAGLE-3, Li et al. 2025, arXiv:2503.01840",
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
        "eagle",
        "drafter",
        LOSSLESS,
        "features; weights for the model (paceline train drafter)",
        "after EAGLE, Li et al. 2024, arXiv:2401.15077",
        "paceline.drafters.network.drafter:eagle",
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
        "paceline.drafters.suffix.history:SuffixAutomaton",
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
        "a smaller model (--draft-model); of another vocabulary: string-level",
        "Leviathan et al. 2023, arXiv:2211.17192",
        "paceline.drafters.string_level:ByVocabulary",
    ),
    Method(
        "string-level",
        "drafter",
        LOSSLESS,
        "a smaller model of any vocabulary (--draft-model)",
        "after SLEM, Timor et al. 2025, arXiv:2502.05202",
        "paceline.drafters.string_level:StringLevel",
    ),
    Method(
        "omnidraft",
        "drafter",
        LOSSLESS,
        "a smaller model of any vocabulary (--draft-model)",
        "after OmniDraft, Ramakrishnan et al. 2025, arXiv:2507.02659",
        "paceline.drafters.omnidraft:OmniDraft",
    ),
    Method(
        "quantised",
        "drafter",
        LOSSLESS,
        "a target at fp32 on runtime cpu; its weights once more, at int8",
        "after QuantSpec, Tiwari et al. 2025, arXiv:2502.10424",
        "paceline.drafters.draft_model:Quantised",
    ),
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
        "autoregressive",
        "decoder",
        "that of its verifier",
        "-",
        "-",
        "paceline.engine.loop:AutoregressiveDecoder",
    ),
    Method(
        "counts",
        "sampler",
        "the sequential denoiser at one place a step",
        "a denoiser",
        "LLaDA, Nie et al. 2025, arXiv:2502.09992; Dream, Ye et al. 2025, arXiv:2508.15487",
        "paceline.denoising.samplers.counts:Counts",
    ),
    Method(
        "threshold",
        "sampler",
        "measured only",
        "a denoiser",
        "Fast-dLLM, Wu et al. 2025, arXiv:2505.22618; SDAR, Cheng et al. 2025, arXiv:2510.06303",
        "paceline.denoising.samplers.threshold:Threshold",
    ),
    Method(
        "dream",
        "sampler",
        "measured only",
        "a denoiser",
        "Dream, Ye et al. 2025, arXiv:2508.15487",
        "paceline.denoising.samplers.dream:Dream",
    ),
    Method(
        "factor",
        "sampler",
        "measured only",
        "a denoiser",
        "Fast-dLLM, Wu et al. 2025, arXiv:2505.22618",
        "paceline.denoising.samplers.factor:Factor",
    ),
    Method(
        "entropy-bound",
        "sampler",
        "measured only",
        "a denoiser",
        "EB-Sampler, Ben-Hamu et al. 2025, arXiv:2505.24857",
        "paceline.denoising.samplers.entropy_bound:EntropyBound",
    ),
    Method(
        "entropy",
        "sampler",
        "measured only",
        "a denoiser",
        "dParallel's decoding, Chen et al. 2025, arXiv:2509.26488; WeDLM's rule, Liu et al. 2025, "
        "arXiv:2512.22737",
        "paceline.denoising.samplers.entropy:Entropy",
    ),
    Method(
        "hierarchical",
        "sampler",
        "measured only",
        "a denoiser",
        "dInfer, Ma et al. 2025, arXiv:2510.08666",
        "paceline.denoising.samplers.hierarchical:Hierarchical",
    ),
    Method(
        "local-leap",
        "sampler",
        "measured only",
        "a denoiser",
        "LocalLeap, Kong et al. 2025, arXiv:2510.07081",
        "paceline.denoising.samplers.local_leap:LocalLeap",
    ),
    Method(
        "filter",
        "sampler",
        "measured only",
        "a denoiser; weights trained for it, those of lists-mdm by default",
        "after Learn2PD, Bao et al. 2025, arXiv:2509.25188",
        "paceline.denoising.samplers.learned_filter:Filter",
    ),
    Method(
        "credit",
        "sampler",
        "measured only",
        "a rule: credit>threshold",
        "CreditDecoding, Wang et al. 2025, arXiv:2510.06133",
        "paceline.denoising.samplers.credit:Credit",
    ),
    Method(
        "prophet",
        "sampler",
        "measured only",
        "a rule: prophet>counts",
        "after Prophet, Li et al. 2025, arXiv:2508.19982",
        "paceline.denoising.samplers.prophet:Prophet",
    ),
    Method(
        "revise",
        "sampler",
        "measured only",
        "a rule: revise>counts; a denoiser that was trained to read wrong tokens",
        "after ReDiff, Ji et al. 2025, arXiv:2510.19871",
        "paceline.denoising.samplers.revise:Revise",
    ),
    Method(
        "guided",
        "sampler",
        "measured only",
        "a denoiser whose clean rows predict the next token",
        "after FlashDLM, Hu et al. 2025, arXiv:2505.21467",
        "paceline.denoising.samplers.guided:Guided",
    ),
    Method(
        "genmol",
        "sampler",
        "measured only",
        "a denoiser",
        "GenMol, Lee et al. 2025, arXiv:2501.06158",
        "paceline.denoising.samplers.genmol:GenMol",
    ),
    Method(
        "remask",
        "sampler",
        "measured only",
        "a rule: remask>genmol; a denoiser with full attention",
        "after GenMol, Lee et al. 2025, arXiv:2501.06158",
        "paceline.denoising.samplers.genmol:Remask",
    ),
    Method(
        "wedlm",
        "sampler",
        "measured only",
        "a rule: wedlm>entropy:tau=0.4,penalty=0.02; a denoiser of attention order",
        "WeDLM, Liu et al. 2025, arXiv:2512.22737",
        "paceline.denoising.samplers.wedlm:WeDLM",
    ),
    Method(
        "freedave",
        "sampler",
        "text of the inner rule, seed for seed",
        "a denoiser",
        "FreeDave, Wu and Zhang 2025, arXiv:2510.00294",
        "paceline.denoising.samplers.freedave:FreeDave",
    ),
    Method(
        "speculative",
        "sampler",
        "distribution of the inner rule",
        "a denoiser",
        "after Leviathan et al. 2023, arXiv:2211.17192",
        "paceline.denoising.samplers.speculative:Speculative",
    ),
    Method(
        "assd",
        "sampler",
        "lossless: the joint distribution of an any-subset model",
        "a denoiser of attention 'order'",
        "ASSD, Guo and Ermon 2025, arXiv:2504.20456",
        "paceline.denoising.samplers.any_subset:AnySubset",
    ),
    Method(
        "tidar",
        "sampler",
        "lossless: the model's own autoregressive decoding",
        "a denoiser whose clean rows predict the next token",
        "after TiDAR, Liu et al. 2025, arXiv:2511.08923",
        "paceline.denoising.samplers.self_verified:Tidar",
    ),
    Method(
        "linear-spec",
        "sampler",
        "lossless: the model's own autoregressive decoding",
        "a denoiser whose clean rows predict the next token",
        "after Nemotron-Labs-Diffusion, Fu et al. 2026, github.com/sgl-project/sglang",
        "paceline.denoising.samplers.self_verified:LinearSpec",
    ),
    Method(
        "lexical-units",
        "sampler",
        "lossy: tokens that masks are sure of are not verified",
        "a denoiser whose clean rows predict the next token",
        "after LUD, Sun et al. 2024, arXiv:2405.15208",
        "paceline.denoising.samplers.lexical_units:LexicalUnits",
    ),
    Method("none", "cache", "exact", "-", "-", "paceline.denoising.caches:CachePlan"),
    Method(
        "exact",
        "cache",
        "exact",
        "a block-causal denoiser",
        "Block Diffusion, Arriola et al. 2025, arXiv:2503.09573",
        "paceline.denoising.caches:Exact",
    ),
    Method(
        "prefix",
        "cache",
        "exact for a block-causal denoiser; else measured only",
        "a denoiser",
        "Fast-dLLM, Wu et al. 2025, arXiv:2505.22618",
        "paceline.denoising.approximate_caches:Prefix",
    ),
    Method(
        "dual",
        "cache",
        "measured only",
        "a denoiser with full attention",
        "Fast-dLLM, Wu et al. 2025, arXiv:2505.22618",
        "paceline.denoising.approximate_caches:Dual",
    ),
    Method(
        "freecache",
        "cache",
        "exact for a block-causal denoiser; else measured only",
        "a denoiser",
        "FlashDLM, Hu et al. 2025, arXiv:2505.21467",
        "paceline.denoising.approximate_caches:FreeCache",
    ),
    Method(
        "vicinity",
        "cache",
        "measured only",
        "a denoiser with full attention",
        "after dInfer, Ma et al. 2025, arXiv:2510.08666",
        "paceline.denoising.approximate_caches:Vicinity",
    ),
    Method(
        "window",
        "cache",
        "measured only",
        "an unshifted denoiser with full attention",
        "Window-Diffusion, Zuo et al. 2026, arXiv:2601.20332",
        "paceline.denoising.approximate_caches:Window",
    ),
    Method("cpu", "runtime", "bit-exact", "-", "-", "paceline.runtimes.cpu.target:CpuTarget"),
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
    Method(
        "reference",
        "runtime",
        "bit-exact",
        "patience: NumPy",
        "-",
        "paceline.runtimes.reference.target:ReferenceTarget",
    ),
)


GROUP = "paceline.methods"


@cache
def methods() -> tuple[Method, ...]:
    """Return built-in methods and those of plugins; InvalidOption if a plugin is unusable.

    An entry point names a `Method` or a sequence of them.
    """
    found = {(method.kind, method.name): method for method in BUILT_IN}
    for point in entry_points(group=GROUP):
        try:
            loaded = point.load()
        except Exception as error:
            raise InvalidOption(
                f"plugin {point.value} cannot be loaded ({error}): mend or uninstall it"
            ) from error
        for method in loaded if isinstance(loaded, Sequence) else (loaded,):
            if not isinstance(method, Method):
                raise InvalidOption(f"plugin {point.value} is not a paceline.registry.table.Method")
            if (method.kind, method.name) in found:
                raise InvalidOption(
                    f"plugin {point.value} reuses the {method.kind} '{method.name}'"
                )
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
