"""Acceptance of every verifier on a real drafter and target, beside the bound on any rule.

Chains are drafted, verified and committed as in use, so contexts are the target's own text. At the
root of every round acceptance follows from p and q without sampling (`measure.bounds`); the chain
gives that of rules that verify more than one token at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from statistics import fmean
from typing import Any

import numpy as np

from paceline.core.types import ROOT, SamplingParams, TokenTree, Verdict
from paceline.drafters.draft_model import DraftModel
from paceline.drafters.resources import Loaded
from paceline.engine.engine import Engine
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.errors import PromptError
from paceline.lab.measure.bounds import RULES, BoundedRule, by_token
from paceline.lab.measure.report import aligned
from paceline.policy.controller import Fixed
from paceline.policy.cost import CostModel
from paceline.sampling.randomness import Randomness
from paceline.trees.drawn import Iid
from paceline.verifiers.base import TargetDistributions
from paceline.verifiers.multipath_block import MeasuredChain, accepted
from paceline.verifiers.rejection import Rejection

# Paths that multi-path block verification is reported for.
PATHS = (2, 3)

_RESAMPLES = 2000

_ROUNDING = 1e-9

# Verifier, sampling of the drafts, and number of drafts (of a node) or paths (of a round).
Key = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class ChainFigures:
    """Figures of one drafted chain.

    Attributes:
        nodes: acceptance at the root and its bound, for rules that decide node by node.
        chains: expected accepted tokens, for rules that verify chains.
    """

    nodes: Mapping[Key, tuple[float, float]]
    chains: Mapping[Key, float]


class Watch(Rejection):
    """Token rejection that shows `see` what it verifies."""

    def __init__(self, see: Callable[[TokenTree, TargetDistributions], None]) -> None:
        self._see = see

    def verify(
        self, draft: TokenTree, target: TargetDistributions, randomness: Randomness
    ) -> Verdict:
        self._see(draft, target)
        return super().verify(draft, target, randomness)


def measure(
    target: Loaded,
    draft: Loaded,
    prompts: Sequence[str],
    params: SamplingParams,
    *,
    drafts: Sequence[int],
    depth: int,
) -> Iterator[list[ChainFigures]]:
    """Yield rounds of speculative decoding with a draft model, prompt by prompt.

    `drafts` are the numbers of drafts of a node to report; chains have length `depth`.
    """
    rounds: list[ChainFigures] = []

    def see(tree: TokenTree, distributions: TargetDistributions) -> None:
        if len(tree) == depth:  # where room ends, the last chains are shorter
            rounds.append(_round(tree, distributions, drafts))

    capabilities = target.target.capabilities
    decoder = AutoregressiveDecoder(
        target.target,
        DraftModel(draft.target, capabilities.vocab_size, Iid([1])),
        Watch(see),
        Fixed(depth, depth),
        StopRules(target.tokenizer.eos_token_ids, capabilities.max_context),
    )
    engine = Engine(decoder, target.tokenizer, max_batch=1)
    for prompt in prompts:
        rounds = []
        engine.generate(prompt, params)
        yield rounds


def report(
    target: Loaded,
    draft: Loaded,
    prompts: Sequence[str],
    settings: Sequence[SamplingParams],
    *,
    drafts: Sequence[int],
    depth: int,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Return acceptance, bounds and inequalities of theory under several settings.

    PromptError if no prompt leaves room for a chain. `say` is told what is measured.
    """
    found = []
    for params in settings:
        say(f"temperature {params.temperature:g}, top-p {params.top_p:g}")
        costs, small_costs = target.measured_costs, draft.measured_costs
        measured = list(measure(target, draft, prompts, params, drafts=drafts, depth=depth))
        if not any(measured):
            raise PromptError(
                f"no prompt leaves room for chains of {depth} tokens: shorten the prompts or lower "
                "--depth"
            )
        found.append(
            {
                "temperature": params.temperature,
                "top_p": params.top_p,
                "rounds": sum(map(len, measured)),
                "rows": rows(measured),
                "chains": chain_rows(measured, depth, costs, small_costs),
                "orderings": orderings(measured),
            }
        )
    return {
        "target": _describe(target),
        "draft": _describe(draft),
        "prompts": len(prompts),
        "settings": found,
    }


def _describe(loaded: Loaded) -> dict[str, Any]:
    has = loaded.target.capabilities
    return {"name": loaded.source.name, "runtime": has.runtime, "precision": has.precision}


def plain(results: Mapping[str, Any]) -> str:
    """Format a report as lines of text."""
    target, draft = results["target"], results["draft"]
    lines = [
        f"target {target['name']} ({target['precision']}), draft model {draft['name']} "
        f"({draft['precision']}), {results['prompts']} prompts"
    ]
    head = ["drafts of a node", "how", "verifier", "accepted", "interval", "range", "bound"]
    head.append("share of bound")
    ends = ["paths", "depth", "nodes", "verifier", "accepted tokens", "interval", "speed"]
    for each in results["settings"]:
        lines.append(
            f"\ntemperature {each['temperature']:g}, top-p {each['top_p']:g}: "
            f"{each['rounds']} rounds; 90% intervals over prompts, 80% ranges of nodes"
        )
        nodes = sorted(each["rows"], key=lambda row: (row["drafts"], row["draft_law"]))
        lines += [aligned([head, *map(_node, nodes)]), ""]
        lines.append(aligned([ends, *map(_chain, each["chains"])]))
        best = max(each["chains"], key=itemgetter("speed"))
        gain = f"{best['speed']:.2f} times plain decoding by both models' costs"
        lines.append(f"number of paths to draft: {best['paths']}, {gain}\n")
        lines += [
            f"{row['claim']}: {'holds' if row['holds'] else 'FAILS'} in {row['cases']} cases, "
            f"difference {row['least']:.0e} or more, {row['mean']:.4f} on average"
            for row in each["orderings"]
        ]
    return "\n".join(lines)


def _node(row: Mapping[str, Any]) -> list[str]:
    share = row["share_of_bound"]
    return [
        str(row["drafts"]),
        row["draft_law"],
        row["verifier"],
        f"{row['acceptance']:.3f}",
        f"{row['acceptance_low']:.3f} to {row['acceptance_high']:.3f}",
        f"{row['node_low']:.3f} to {row['node_high']:.3f}",
        f"{row['bound']:.3f}",
        "-" if share is None else f"{share:.1%}",
    ]


def _chain(row: Mapping[str, Any]) -> list[str]:
    return [
        *(str(row[key]) for key in ("paths", "depth", "nodes", "verifier")),
        f"{row['accepted']:.3f}",
        f"{row['accepted_low']:.3f} to {row['accepted_high']:.3f}",
        f"{row['speed']:.2f}",
    ]


def _round(
    tree: TokenTree, distributions: TargetDistributions, drafts: Sequence[int]
) -> ChainFigures:
    assert tree.sampling is not None
    p, q = distributions.distribution(ROOT), tree.sampling.rows[ROOT]
    bounds: dict[tuple[Any, int], float] = {}

    def bound(rule: BoundedRule, count: int) -> float:
        if (rule.bound, count) not in bounds:
            bounds[rule.bound, count] = rule.bound(p, q, count)
        return bounds[rule.bound, count]

    nodes = {
        (rule.verifier, rule.drafts, count): (rule.acceptance(p, q, count), bound(rule, count))
        for count in drafts
        for rule in RULES
        if rule.takes(count)
    }
    parents = range(-1, len(tree) - 1)
    chain = MeasuredChain(
        tree.tokens.tolist(),
        [tree.sampling.rows[parent] for parent in parents],
        [distributions.distribution(parent) for parent in parents],
    )
    chains = {("rejection", "one path", 1): by_token(chain)}
    chains["block", "one path", 1] = accepted(chain, 1)
    for count in PATHS:
        chains["multipath-block", "independent paths", count] = accepted(chain, count)
    return ChainFigures(nodes, chains)


def rows(prompts: Sequence[Sequence[ChainFigures]]) -> list[dict[str, Any]]:
    """Return acceptance at a node by verifier and number of drafts, with bound and spread.

    Intervals hold 90% of bootstrap means over prompts, ranges 80% of the nodes.
    """
    out = []
    for verifier, drafts, count in _first(prompts).nodes:
        key = verifier, drafts, count
        values = [np.array([r.nodes[key] for r in rounds]) for rounds in prompts if rounds]
        acceptance, bound = np.concatenate(values).mean(axis=0).tolist()
        low, high = interval([each[:, 0] for each in values])
        least, most = np.quantile(np.concatenate(values)[:, 0], [0.1, 0.9]).tolist()
        out.append(
            {
                "verifier": verifier,
                "draft_law": drafts,
                "drafts": count,
                "acceptance": acceptance,
                "acceptance_low": low,
                "acceptance_high": high,
                "node_low": least,
                "node_high": most,
                "bound": bound,
                "gap": bound - acceptance,
                "share_of_bound": acceptance / bound if bound else None,
            }
        )
    return out


def chain_rows(
    prompts: Sequence[Sequence[ChainFigures]], depth: int, target: CostModel, draft: CostModel
) -> list[dict[str, Any]]:
    """Return accepted tokens per round of verifiers of chains, with spread as in `rows`.

    "speed" is foretold from costs of target and draft model, in units of plain decoding: the number
    of paths with the highest is the one to draft.
    """
    out = []
    for verifier, drafts, count in _first(prompts).chains:
        key = verifier, drafts, count
        values = [np.array([r.chains[key] for r in rounds]) for rounds in prompts if rounds]
        mean = float(np.concatenate(values).mean())
        low, high = interval(values)
        out.append(
            {
                "verifier": verifier,
                "draft_law": drafts,
                "paths": count,
                "depth": depth,
                "nodes": depth * count,
                "speed": (1 + mean) * target.time(1) / _seconds(depth, count, target, draft),
                "accepted": mean,
                "accepted_low": low,
                "accepted_high": high,
            }
        )
    return out


def _seconds(depth: int, paths: int, target: CostModel, draft: CostModel) -> float:
    # Of a round: a forward of the draft model per level, then the target's.
    return depth * draft.time(paths) + target.time(1 + depth * paths)


def orderings(prompts: Sequence[Sequence[ChainFigures]]) -> list[dict[str, Any]]:
    """Check inequalities of theory: least and mean difference over all rounds."""
    rounds = [each for prompt in prompts for each in prompt]
    counts = sorted({count for _, _, count in rounds[0].nodes if count > 1})

    def entry(claim: str, differences: Sequence[float]) -> dict[str, Any]:
        return {
            "claim": claim,
            "cases": len(differences),
            "least": min(differences),
            "mean": fmean(differences),
            "holds": min(differences) > -_ROUNDING,
        }

    def pair(first: str, second: str, part: int) -> list[float]:
        return [
            above[part] - below[part]
            for each in rounds
            for (verifier, _, count), above in each.nodes.items()
            for (other, _, same), below in each.nodes.items()
            if (verifier, other) == (first, second) and count == same
        ]

    gaps = [
        bound - reached
        for each in rounds
        for (verifier, _, count), (reached, bound) in each.nodes.items()
        if verifier != "coupled" or count == 1  # an estimate errs on both sides
    ]
    chains = [
        each.chains["block", "one path", 1] - each.chains["rejection", "one path", 1]
        for each in rounds
    ]
    out = [
        entry("no rule exceeds its bound", gaps),
        entry("block accepts no less of a chain than rejection", chains),
    ]
    if counts:
        out += [
            entry(
                "recursive-distinct accepts no less than recursive",
                pair("recursive-distinct", "recursive", 0),
            ),
            entry(
                "the bound without replacement is no less than that with it",
                pair("recursive-distinct", "recursive", 1),
            ),
        ]
    return out


def _first(prompts: Sequence[Sequence[ChainFigures]]) -> ChainFigures:
    return next(each for rounds in prompts for each in rounds)


def interval(values: Sequence[np.ndarray]) -> tuple[float, float]:
    """Return the bootstrap 90% interval over prompts of the mean; `values` are per prompt."""
    sums = np.array([[each.sum(), len(each)] for each in values])
    picks = np.random.default_rng(0).integers(0, len(sums), (_RESAMPLES, len(sums)))
    total, count = sums[picks].sum(axis=1).T
    low, high = np.quantile(total / count, [0.05, 0.95])
    return float(low), float(high)
