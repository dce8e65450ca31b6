"""What verification costs: milliseconds per node of every rule, and its share of a real step.

    python benchmarks/verifiers.py
    python benchmarks/verifiers.py --real

A *node* here is one at which the rule decides: the root, and every accepted token. The law column
is the target's processed law at a node (softmax and truncation of its logits), which plain decoding
computes too; the rule column is everything else. Time is that of the verifying thread, which other
load on the machine does not stretch. With --real, drafts come from an early exit of the default
model, and a step is the forward of the draft, as the cost model knows it, plus verification.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Mapping
from time import thread_time
from typing import Any, TypeVar

import numpy as np

from paceline import registry
from paceline.bench.builtin import BUILT_IN
from paceline.controllers.fixed import Fixed
from paceline.decode.autoregressive import AutoregressiveDecoder
from paceline.drafters.draft_model import DraftModel
from paceline.engine import Engine
from paceline.growth.base import Ask, Growth, drive
from paceline.growth.branching import Branching
from paceline.growth.iid import Iid
from paceline.growth.paths import Paths
from paceline.growth.shared_noise import SharedNoise
from paceline.growth.top_and_one import TopAndOne
from paceline.loading import load_draft, load_model
from paceline.models.pull import DEFAULT_MODEL
from paceline.randomness import KeyedRandomness, Randomness
from paceline.sampling import NodeLaws, Sampler
from paceline.stopping import StopRules
from paceline.target import Output
from paceline.types import Budget, Law, SamplingParams, TokenTree, Verdict
from paceline.verifiers.base import TargetLaws, Verifier

SETTINGS = {"full": 1.0, "top-p 0.9": 0.9}
VOCABULARIES = (49_152, 151_936)
HIDDEN = 576
BUDGET = Budget(nodes=12, depth=4)

T = TypeVar("T")


def growth_for(rule: Verifier) -> Growth:
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
    growth: Growth, rows: Logits, sampler: Sampler, trial: int, randomness: Randomness
) -> TokenTree:
    """One draft over those rows."""

    def answer(asks: Mapping[int, Ask]) -> dict[int, list[Any]]:
        return {
            index: [sampler.law(rows.draft[rows.pick(node + 1, trial)]) for node in ask.nodes]
            for index, ask in asks.items()
        }

    [tree] = drive([growth.grow(BUDGET, randomness, 1)], answer)
    return tree


def per_node(rule: Verifier, rows: Logits, top_p: float, trials: int) -> dict[str, float]:
    """Median milliseconds per node, by part."""
    sampler = Sampler(SamplingParams(temperature=1, top_p=top_p), [0])
    figures: list[tuple[float, float, int]] = []
    for trial in range(trials):
        randomness = KeyedRandomness(trial)
        tree = draft(growth_for(rule), rows, sampler, trial, randomness)
        shown = rule.extend(tree)
        picked = [rows.pick(node, trial) for node in range(len(shown) + 1)]
        hidden = np.ones((len(shown) + 1, HIDDEN), dtype=np.float32)
        output = Output(rows.target[picked], hidden)

        def verify(
            laws: TargetLaws, tree: TokenTree = shown, r: Randomness = randomness
        ) -> Verdict:
            return rule.verify(tree, laws, r)

        laws = NodeLaws(sampler, shown, output, 1, rule.name)
        both, verdict = timed(lambda v=verify, laws=laws: v(laws))
        alone, _ = timed(lambda v=verify, laws=laws: v(laws))  # all laws it asks for are known now
        figures.append((both - alone, alone, len(verdict.path) + 1))
    return {
        "law_ms": 1000 * statistics.median(law / nodes for law, _, nodes in figures),
        "rule_ms": 1000 * statistics.median(alone / nodes for _, alone, nodes in figures),
        "nodes": statistics.fmean(nodes for _, _, nodes in figures),
    }


def timed(call: Callable[[], T]) -> tuple[float, T]:
    """Seconds of this thread, and the result."""
    begin = thread_time()
    verdict = call()
    return thread_time() - begin, verdict


class Laws:
    """The target's laws, with the time that it takes to compute them."""

    def __init__(self, laws: TargetLaws) -> None:
        self.laws = laws
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.laws, name)

    def law(self, node: int) -> Law:
        seconds, law = timed(lambda: self.laws.law(node))
        self.seconds += seconds
        return law


class Timed(Verifier):
    """A rule that books the time it takes, and apart from it that of the target's laws."""

    def __init__(self, rule: Verifier) -> None:
        self.rule = rule
        self.name, self.lossless, self.accepts = rule.name, rule.lossless, rule.accepts  # type: ignore[misc]
        self.needs = rule.needs  # type: ignore[misc]
        self.law_seconds: list[float] = []
        self.rule_seconds: list[float] = []
        self.rows: list[int] = []

    def extend(self, tree: TokenTree) -> TokenTree:
        return self.rule.extend(tree)

    def verify(self, tree: TokenTree, target: TargetLaws, randomness: Randomness) -> Verdict:
        laws: Any = Laws(target)
        seconds, verdict = timed(lambda: self.rule.verify(tree, laws, randomness))
        self.law_seconds.append(laws.seconds)
        self.rule_seconds.append(seconds - laws.seconds)
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
                DraftModel(early.target, capabilities.vocab_size, growth_for(rule)),
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
            forward = [target.costs.time(rows) for rows in watch.rows]
            laws, alone = sum(watch.law_seconds), sum(watch.rule_seconds)
            step = sum(forward) + laws + alone
            out.append(
                {
                    "verifier": rule.name,
                    "laws": setting,
                    "law_ms": 1000 * statistics.median(watch.law_seconds),
                    "rule_ms": 1000 * statistics.median(watch.rule_seconds),
                    "forward_ms": 1000 * statistics.median(forward),
                    "law_share": laws / step,
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
