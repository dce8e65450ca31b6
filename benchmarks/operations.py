"""A forward with the CPU runtime's own operations beside the plugin's, by turns in one process.

python benchmarks/operations.py --contexts 256,800 --rounds 5
"""

from __future__ import annotations

import argparse
from time import perf_counter

import numpy as np

from paceline.core import tree as trees
from paceline.core.target import Pass
from paceline.core.types import TokenTree
from paceline.measure.machine import dumps
from paceline.models.source import resolve
from paceline.runtimes.cpu.target import OpenVinoTarget
from paceline.runtimes.weights import load_prepared

ROWS = (1, 2, 4, 8, 16)
BRANCHING = TokenTree(np.arange(11), np.array([-1, -1, -1, 0, 0, 1, 3, 3, 4, 6, 8]))
STEADY = 6
"""Forwards of a size that count, after two that do not."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--precision", default="int8", choices=("int8", "fp32"))
    parser.add_argument("--contexts", default="256,800", help="tokens, separated by commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    source = resolve(given.model)
    tensors = load_prepared(source, given.precision)
    targets, ready = {}, {}
    for name in ("plugin", "paths"):
        begin = perf_counter()
        targets[name] = OpenVinoTarget(source.config, tensors, given.precision, attention=name)
        targets[name].warm_up()
        ready[name] = round(perf_counter() - begin, 2)
    drafts = {f"{rows} rows": trees.chain([7] * (rows - 1)) for rows in ROWS}
    drafts["tree of 12"] = BRANCHING
    tokens = np.random.default_rng(0).integers(0, source.config.vocab_size, 8192).tolist()
    found = []
    for context in map(int, given.contexts.split(",")):
        caches = {name: target.open() for name, target in targets.items()}
        for name, target in targets.items():
            target.prefill(caches[name], tokens[:context])
        for label, draft in drafts.items():
            times: dict[str, list[float]] = {name: [] for name in targets}
            for _ in range(given.rounds):
                for name, target in targets.items():
                    steps = []
                    for _ in range(2 + STEADY):
                        target.forward([Pass(caches[name], [5], draft)])
                        steps.append(target.inference_seconds)
                    times[name].append(float(np.median(steps[2:])))
            ratios = np.array(times["plugin"]) / np.array(times["paths"])
            medians = {name: round(1e3 * float(np.median(each)), 2) for name, each in times.items()}
            found.append(
                {
                    **{"context": context, "forward": label, "plugin_ms": medians["plugin"]},
                    **{"own_ms": medians["paths"], "faster": round(float(np.median(ratios)), 2)},
                    **{"least": round(float(ratios.min()), 2)},
                    **{"most": round(float(ratios.max()), 2)},
                }
            )
        for name, target in targets.items():
            target.release(caches[name])
    if given.json:
        print(dumps({"ready_seconds": ready, "forwards": found}))
        return
    print(f"ready after {ready['plugin']} s with the plugin's, {ready['paths']} s with our own\n")
    print("| context | forward | plugin's, ms | our own, ms | faster | least to most |")
    print("|---|---|---|---|---|---|")
    for row in found:
        print(
            f"| {row['context']} | {row['forward']} | {row['plugin_ms']} | {row['own_ms']} | "
            f"{row['faster']} | {row['least']} to {row['most']} |"
        )


if __name__ == "__main__":
    main()
