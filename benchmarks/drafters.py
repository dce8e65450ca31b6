"""What drafting costs as history grows: time per token and memory of every model-free drafter.

    python benchmarks/drafters.py --tokens 1000,10000,100000,1000000

Two kinds of history: one sequence's own text ("own"), and the outputs of sequences that ended
("ended"), which drafters keep only up to their capacity. A datastore has its "index", whose making
is not counted. The text is synthetic: Zipf-distributed tokens between copies of earlier passages.
Times are CPU times; every row is measured in a process of its own, so that memory can be told
apart. No model is run: rejected nodes get random logits.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import process_time

import numpy as np

from paceline.core.expressions import parse
from paceline.core.target import Output
from paceline.core.types import Budget, Capabilities, SamplingParams, TokenTree, Verdict
from paceline.drafters.base import Drafter, DrafterContext
from paceline.drafters.suffix.datastore import build
from paceline.errors import InvalidOption, PacelineError
from paceline.registry import table as registry
from paceline.registry.assembly import make_drafter
from paceline.sampling.sequence import Sequence

VOCABULARY = 49_152
BUDGET = Budget(24, 8)
ENDED = 1000
"""Length of an ended sequence."""


def text(length: int, seed: int = 0) -> list[int]:
    """Tokens with the repetitions of language: a seventh of the pieces are copies."""
    generator, draws = random.Random(seed), np.random.default_rng(seed)
    fresh = iter(np.minimum(draws.zipf(1.2, length), VOCABULARY - 1).tolist())
    out = [next(fresh) for _ in range(min(length, 64))]
    while len(out) < length:
        if generator.random() < 0.15:
            begin = generator.randrange(len(out) - 20)
            out += out[begin : begin + 1 + int(generator.expovariate(1 / 12))]
        else:
            out += [next(fresh) for _ in range(4)]
    return out[:length]


def context() -> DrafterContext:
    """What a drafter without a model needs to know."""

    def no_model() -> object:
        raise InvalidOption("this benchmark has no models")

    capabilities = Capabilities(
        "none", "cpu", "fp32", VOCABULARY, 1 << 30, 1, False, False, "masked"
    )
    return DrafterContext(capabilities, no_model)  # type: ignore[arg-type]  # never returns


def make(name: str) -> Drafter | None:
    """The drafter, or None if it needs a model or hidden states."""
    try:
        drafter = make_drafter(parse(name, "drafter"), context())
    except PacelineError:
        return None
    return None if drafter.needs.hidden else drafter


def memory() -> int:
    """Resident bytes of this process that are its own."""
    gc.collect()
    resident, shared = Path("/proc/self/statm").read_text().split()[1:3]
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


class Clock:
    """CPU seconds by what they were spent on."""

    def __init__(self) -> None:
        self.spent = {"learn": 0.0, "propose": 0.0, "observe": 0.0}

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        begin = process_time()
        yield
        self.spent[what] += process_time() - begin


LOGITS = np.random.default_rng(1).normal(size=(1 + BUDGET.nodes, VOCABULARY)).astype(np.float32)


def decode(drafter: Drafter, sequence: Sequence, output: list[int], clock: Clock) -> int:
    """Draft and commit a known output; the number of steps."""
    steps = done = 0
    while done < len(output):
        with clock("propose"):
            [draft] = drafter.propose([sequence], [BUDGET])
        path = accepted(draft, output[done:-1])
        run = output[done : done + len(path) + 1]
        sequence.tokens += run
        outputs = [Output(LOGITS[: 1 + len(draft)])]
        verdicts = [Verdict(tuple(path), run[-1])]
        with clock("observe"):
            drafter.observe([sequence], [draft], verdicts, outputs)
        done += len(run)
        steps += 1
    return steps


def accepted(draft: TokenTree, output: list[int]) -> list[int]:
    """The path of a draft that an output takes."""
    children = {
        edge: node
        for node, edge in enumerate(zip(draft.parents.tolist(), draft.tokens.tolist(), strict=True))
    }
    path: list[int] = []
    node = -1
    for token in output:
        if (node, token) not in children:
            break
        node = children[node, token]
        path.append(node)
    return path


def measure(name: str, where: str, tokens: int, steps: int) -> dict[str, object]:
    """One row of the table."""
    whole = text(tokens + steps)
    history, output = whole[:tokens], whole[tokens:]
    with tempfile.TemporaryDirectory() as folder:
        if where == "index":
            build(np.array(history, np.int32), Path(folder) / "index", VOCABULARY, "benchmark")
            name = f"{name}:index={Path(folder) / 'index'}"
        drafter = make(name)
        assert drafter is not None
        params = SamplingParams(max_new_tokens=1 << 30)
        prompt = history if where == "own" else history[-100:]
        sequence = Sequence.start(-1, prompt, params)
        before, clock = memory(), Clock()
        if where == "ended":
            for begin in range(0, tokens, ENDED):
                part = history[begin : begin + ENDED]
                ended = Sequence.start(begin, part[:1], params)
                with clock("learn"):
                    drafter.open(ended)
                    ended.tokens += part[1:]
                    drafter.close(ended)
        with clock("learn"):  # some read when a draft is first asked for
            drafter.open(sequence)
            decode(drafter, sequence, output[:1], Clock())
        grown = memory() - before
        count = decode(drafter, sequence, output[1:], clock)
    return {
        "drafter": name.partition(":")[0],
        "history": where,
        "tokens": tokens,
        "learn_us_per_token": 1e6 * clock.spent["learn"] / tokens,
        "propose_us_per_step": 1e6 * clock.spent["propose"] / count,
        "observe_us_per_step": 1e6 * clock.spent["observe"] / count,
        "bytes_per_token": max(0, grown) / tokens,
        "tokens_per_forward": (len(output) - 1) / count,
    }


def main() -> None:
    """Measure every drafter at every length and print a table or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--drafters", help="names, separated by commas; default: all without a model"
    )
    parser.add_argument("--tokens", default="1000,10000,100000,1000000", help="lengths of history")
    parser.add_argument("--history", default="own,ended", help="own, ended or both")
    parser.add_argument("--steps", type=int, default=500, help="tokens decoded behind the history")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", nargs=3, metavar=("DRAFTER", "HISTORY", "TOKENS"), help="one row")
    chosen = parser.parse_args()
    if chosen.one:
        name, where, tokens = chosen.one
        print(json.dumps(measure(name, where, int(tokens), chosen.steps)))
        return
    names = chosen.drafters.split(",") if chosen.drafters else registry.names("drafter")
    rows = []
    for name in names:
        if name == "none" or (name != "datastore" and make(name) is None):
            continue
        kinds = ["index"] if name == "datastore" else chosen.history.split(",")
        for where in kinds:
            for tokens in chosen.tokens.split(","):
                command = [sys.executable, __file__, "--steps", str(chosen.steps)]
                command += ["--one", name, where, tokens]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    sys.exit(f"{name}, {where}, {tokens}: {done.stderr.strip()}")
                rows.append(json.loads(done.stdout))
                if not chosen.json:
                    show(rows[-1], heading=len(rows) == 1)
    if chosen.json:
        print(json.dumps(rows, indent=1))


def show(row: dict[str, object], heading: bool) -> None:
    """Print a row as soon as it is there."""
    if heading:
        print(
            f"{'drafter':18}{'history':>8}{'tokens':>9}{'learn':>9}{'propose':>9}{'observe':>9}"
            f"{'memory':>9}\n{'':35}{'us/token':>9}{'us/step':>9}{'us/step':>9}{'B/token':>9}"
        )
    print(
        f"{row['drafter']:18}{row['history']:>8}{row['tokens']:9}{row['learn_us_per_token']:9.2f}"
        f"{row['propose_us_per_step']:9.1f}{row['observe_us_per_step']:9.1f}"
        f"{row['bytes_per_token']:9.0f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
