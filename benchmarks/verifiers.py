"""What verification costs: milliseconds per node of every rule, and its share of a real step.

    python benchmarks/verifiers.py
    python benchmarks/verifiers.py --real

A *node* here is one at which the rule decides: the root, and every accepted token. The column
`law_ms` is the time of the target's processed distribution at a node (softmax and truncation of its
logits), which plain decoding computes too; `rule_ms` is everything else. It is time of the
verifying thread, which other load on the machine does not stretch. With --real, drafts come from an
early exit of the default model, and a step is the forward of the draft, as the cost model knows it,
plus verification.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Mapping
from time import thread_time
from typing import Any, TypeVar

import numpy as np

from paceline.core.target import Output
from paceline.core.types import Budget, Distribution, SamplingParams, TokenTree, Verdict
from paceline.drafters.draft_model import DraftModel
from paceline.engine.engine import Engine
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.measure.prompts import BUILT_IN
from paceline.models.pull import DEFAULT_MODEL
from paceline.policy.controller import Fixed
from paceline.registry import table as registry
from paceline.registry.loading import load_draft, load_model
from paceline.sampling.randomness import KeyedRandomness, Randomness
from paceline.sampling.sampler import Sampler, TreeDistributions
from paceline.trees.base import DistributionRequest, TreeExpansion, run_batched
from paceline.trees.deterministic import SharedNoise
from paceline.trees.drawn import Branching, Iid, Paths, TopAndOne
from paceline.verifiers.base import TargetDistributions, Verifier

SETTINGS = {"full": 1.0, "top-p 0.9": 0.9}
VOCABULARIES = (49_152, 151_936)
HIDDEN = 576
BUDGET = Budget(nodes=12, depth=4)

T = TypeVar("T")


def expansion_for(rule: Verifier) -> TreeExpansion:
    """Drafts of the kind that the rule is made for."""
    if rule.shape == "chain":
        return SharedNoise([1]) if None in rule.accepts else Iid([1])
    if None in rule.accepts:
        return SharedNoise([3, 2, 1])
    if "iid" in rule.accepts:
        return Iid([3, 2, 1])
    if "without_replacement" in rule.accepts:
        return Branching([3, 2, 1])
    return TopAndOne([3, 2, 1]) if "top_and_one" in rule.accepts else Paths(3)


def rules(names: str) -> Iterator[Verifier]:
    """The registered verifiers, or those named."""
    for name in names.split(",") if names else registry.names("verifier"):
        yield registry.find("verifier", name).load()()


class Logits:
    """Rows shaped like a language model's: a few likely tokens over a long tail.

    The drafter's row at a node is the target's with noise.
    """

    def __init__(self, vocabulary: int) -> None:
        generator = np.random.default_rng(0)
        ranks = np.arange(1, vocabulary + 1)
        self.target = np.stack(
            [generator.permutation(-1.6 * np.log(ranks)) for _ in range(8)]
        ).astype(np.float32)
        noise = generator.normal(size=self.target.shape, scale=0.7)
        self.draft = (self.target + noise).astype(np.float32)
        self.vocabulary = vocabulary

    def pick(self, node: int, trial: int) -> int:
        """Which row stands at a node."""
        return (5 * node + trial) % len(self.target)


def draft(
    growth: TreeExpansion, rows: Logits, sampler: Sampler, trial: int, randomness: Randomness
) -> TokenTree:
    """One draft over those rows."""

    def answer(asks: Mapping[int, DistributionRequest]) -> dict[int, list[Any]]:
        return {
            index: [
                sampler.distribution(rows.draft[rows.pick(node + 1, trial)]) for node in ask.nodes
            ]
            for index, ask in asks.items()
        }

    [tree] = run_batched([growth.grow(BUDGET, randomness, 1)], answer)
    return tree


def per_node(rule: Verifier, rows: Logits, top_p: float, trials: int) -> dict[str, float]:
    """Median milliseconds per node, by part."""
    sampler = Sampler(SamplingParams(temperature=1, top_p=top_p), [0])
    figures: list[tuple[float, float, int]] = []
    for trial in range(trials):
        randomness = KeyedRandomness(trial)
        tree = draft(expansion_for(rule), rows, sampler, trial, randomness)
        shown = rule.extend(tree)
        picked = [rows.pick(node, trial) for node in range(len(shown) + 1)]
        hidden = np.ones((len(shown) + 1, HIDDEN), dtype=np.float32)
        output = Output(rows.target[picked], hidden)

        def verify(
            distributions: TargetDistributions, tree: TokenTree = shown, r: Randomness = randomness
        ) -> Verdict:
            return rule.verify(tree, distributions, r)

        distributions = TreeDistributions(sampler, shown, output, 1, rule.name)
        both, verdict = timed(lambda v=verify, distributions=distributions: v(distributions))
        alone, _ = timed(
            lambda v=verify, distributions=distributions: v(distributions)
        )  # all distributions it asks for are known now
        figures.append((both - alone, alone, len(verdict.path) + 1))
    return {
        "law_ms": 1000
        * statistics.median(distribution / nodes for distribution, _, nodes in figures),
        "rule_ms": 1000 * statistics.median(alone / nodes for _, alone, nodes in figures),
        "nodes": statistics.fmean(nodes for _, _, nodes in figures),
    }


def timed(call: Callable[[], T]) -> tuple[float, T]:
    """Seconds of this thread, and the result."""
    begin = thread_time()
    verdict = call()
    return thread_time() - begin, verdict


class Distributions:
    """The target's distributions, with the time that it takes to compute them."""

    def __init__(self, distributions: TargetDistributions) -> None:
        self.distributions = distributions
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.distributions, name)

    def distribution(self, node: int) -> Distribution:
        seconds, distribution = timed(lambda: self.distributions.distribution(node))
        self.seconds += seconds
        return distribution


class Timed(Verifier):
    """A rule that books the time it takes, and apart from it that of the target's distributions."""

    def __init__(self, rule: Verifier) -> None:
        self.rule = rule
        self.name, self.lossless, self.accepts = rule.name, rule.lossless, rule.accepts  # type: ignore[misc]
        self.needs = rule.needs  # type: ignore[misc]
        self.law_seconds: list[float] = []
        self.rule_seconds: list[float] = []
        self.rows: list[int] = []

    def extend(self, tree: TokenTree) -> TokenTree:
        return self.rule.extend(tree)

    def verify(
        self, tree: TokenTree, target: TargetDistributions, randomness: Randomness
    ) -> Verdict:
        distributions: Any = Distributions(target)
        seconds, verdict = timed(lambda: self.rule.verify(tree, distributions, randomness))
        self.law_seconds.append(distributions.seconds)
        self.rule_seconds.append(seconds - distributions.seconds)
        self.rows.append(len(tree) + 1)
        return verdict


def real(names: str) -> list[dict[str, Any]]:
    """Share of verification in a step on the default model."""
    target = load_model()
    early = load_draft(target, DEFAULT_MODEL, layers=28)
    capabilities = target.target.capabilities
    out = []
    for rule in rules(names):
        for setting, top_p in SETTINGS.items():
            watch = Timed(rule)
            decoder = AutoregressiveDecoder(
                target.target,
                DraftModel(early.target, capabilities.vocab_size, expansion_for(rule)),
                watch,
                Fixed(BUDGET.nodes, BUDGET.depth),
                StopRules(target.tokenizer.eos_token_ids, capabilities.max_context),
            )
            engine = Engine(decoder, target.tokenizer, max_batch=1)
            params = SamplingParams(
                temperature=0 if rule.greedy_only else 1, top_p=top_p, max_new_tokens=16
            )
            for prompt in BUILT_IN[::6]:
                engine.generate(prompt.turns[0], params)
            forward = [target.measured_costs.time(rows) for rows in watch.rows]
            distributions, alone = sum(watch.law_seconds), sum(watch.rule_seconds)
            step = sum(forward) + distributions + alone
            out.append(
                {
                    "verifier": rule.name,
                    "laws": setting,
                    "law_ms": 1000 * statistics.median(watch.law_seconds),
                    "rule_ms": 1000 * statistics.median(watch.rule_seconds),
                    "forward_ms": 1000 * statistics.median(forward),
                    "law_share": distributions / step,
                    "rule_share": alone / step,
                }
            )
    return out


def main() -> None:
    """Run one of the two and print a table or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--real", action="store_true", help="share of a step on the default model")
    parser.add_argument("--verifiers", default="", help="comma-separated; default all")
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found: list[dict[str, Any]] = []
    if arguments.real:
        found = real(arguments.verifiers)
    else:
        for vocabulary in VOCABULARIES:
            rows = Logits(vocabulary)
            for rule in rules(arguments.verifiers):
                for setting, top_p in SETTINGS.items():
                    row = per_node(rule, rows, top_p, arguments.trials)
                    found.append(
                        {"verifier": rule.name, "vocabulary": vocabulary, "laws": setting, **row}
                    )
    if arguments.json:
        print(json.dumps(found, indent=1))
        return
    print("  ".join(found[0]))
    for each in found:
        print("  ".join(f"{v:.3f}" if isinstance(v, float) else str(v) for v in each.values()))


if __name__ == "__main__":
    main()
