"""Every method in its paper's mode, beside its paper's claim: `paceline bench methods`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from paceline.core.expressions import parse
from paceline.core.types import SamplingParams
from paceline.drafters.resources import Loaded
from paceline.engine.memory import keep_apart
from paceline.errors import InvalidOption, PacelineError
from paceline.lab.measure import report
from paceline.lab.measure.agent import Dialogues
from paceline.lab.measure.claims import Claim, told
from paceline.lab.measure.prompts import BUILT_IN, BenchPrompt, spread
from paceline.lab.measure.run import Record, read_alike, run, warm_up
from paceline.lab.measure.systems import NOT_RUN
from paceline.networks.weights import read_metadata, shipped_file
from paceline.registry import loading

PAPER, HERE = "paper", "here"
"""Draft sizes: those of the paper, or those that the cost model finds to pay."""

TITLES = (
    "system",
    "configuration",
    "guarantee",
    "mode",
    "tokens/forward",
    "accepted at depth 1, 2, ..",
    "rows/forward",
    "c(n)",
    "speed-up",
    "sized here",
    "in a batch",
    "other temperature",
    "identical",
    "note",
)
"""Columns of a line's figures; *note* says why it did not run, or how long its weights learned."""


def with_options(of: Sequence[Claim], texts: Sequence[str]) -> list[Claim]:
    """Return lines whose methods have options: `NAME:weights=FILE` stands where NAME alone stood.

    Raises InvalidOption for a text without options, or whose method no line has alone.
    """
    out = list(of)
    for text in texts:
        named = parse(text, "method")
        alone = re.compile(rf"(?<![\w=-]){re.escape(named.name)}(?![\w:-])")
        known = any(alone.search(f"{each.drafter} {each.verifier}") for each in out)
        if not known or not named.options:
            raise InvalidOption(
                f"--with {text!r}: name a drafter or verifier that a line has without options, "
                "as falcon:weights=FILE"
            )
        put = text.replace("\\", r"\\")
        out = [
            replace(
                each,
                drafter=alone.sub(put, each.drafter),
                verifier=alone.sub(put, each.verifier),
            )
            for each in out
        ]
    return out


class Measurement(NamedTuple):
    """One measurement of a line: `sizes` is PAPER or HERE.

    `turned` is at the other temperature: 1 for a greedy line, 0 for a sampled one.
    """

    system: str
    sizes: str
    batch: int
    turned: bool = False


def cells(of: Sequence[Claim], batches: Sequence[int]) -> list[Measurement]:
    """Return what is measured: the paper's sizes at the first batch, ours also at the others.

    The other temperature comes last, at the first batch, for rules that are for both.
    """
    out = []
    for line in of:
        if line.nodes or line.depth:
            out.append(Measurement(line.system, PAPER, batches[0]))
        out += [Measurement(line.system, HERE, batch) for batch in batches]
    both = [line for line in of if line.verifier != "greedy"]
    return out + [Measurement(line.system, HERE, batches[0], True) for line in both]


def prompts(line: Claim, limit: int) -> list[BenchPrompt]:
    """Return the prompts of a line, `limit` of them or fewer; samples of one stand together."""
    several = range(line.samples)
    if line.work is None:
        found = spread(BUILT_IN, limit)
    else:
        found = [
            BenchPrompt(f"{line.work}-{number}", line.work, (text,))
            for number, text in enumerate(told()["prompts"][line.work], 1)
        ]
    return [replace(each, sample=sample) for each, sample in product(found, several)][:limit]


def measure(
    loaded: Loaded,
    line: Claim,
    cell: Measurement,
    *,
    draft_model: str | None,
    limit: int,
    tokens: int,
    stop: Callable[[], object] = lambda: False,
) -> dict[str, Any] | None:
    """Decode a cell's prompts with and without the method by turns, and return its figures.

    Returns "error" if the method does not run here, with "failed" if it broke down on the way, and
    None if `stop` became true.
    """
    own = cell.sizes == PAPER
    rules: dict[str, dict[str, Any]] = {
        report.BASELINE: {},
        line.named(draft_model is not None): {
            "verifier": line.verifier,
            "controller": line.controller,
            "nodes": line.nodes if own else None,
            "depth": line.depth if own else None,
        },
    }
    costs = loaded.measured_costs
    try:
        engines = {
            name: loading.make_engine(
                loaded,
                drafter=name,
                **given,
                draft_model=draft_model,
                max_batch=cell.batch,
                progress=False,
                spare_draft=True,
            )
            for name, given in rules.items()
        }
    except PacelineError as error:
        return {"error": str(error)}
    name = line.named(draft_model is not None)
    keep_apart(loaded.target)
    try:
        read_alike(engines.values(), costs)
        work = Dialogues(prompts(line, max(limit, cell.batch)), cell.batch)
        most = line.tokens or tokens
        params = SamplingParams(temperature=_temperature(line, cell), max_new_tokens=most)
        warm_up(engines, work.opening)
        records: list[Record] = []
        for finished in run(engines, work, params, stop=stop):
            records += finished
    except Exception as error:  # a method that breaks down leaves the others theirs
        kind = "" if isinstance(error, PacelineError) else f"{type(error).__name__}: "
        return {"error": kind + " ".join(str(error).split()), "failed": True}
    if len(records) < len(work.prompts):
        return None
    # An engine survives errors of its drafter, and decodes plainly.
    faults = sum(each.runs[name].stats.drafter_errors for each in records)
    if faults:
        return {"error": f"the drafter failed in {faults} steps: see the log", "failed": True}
    exact = bool(engines[name].config["lossless"])
    row = report.rows(records, {report.BASELINE: True, name: exact})
    [mine] = [each for each in row if each["drafter"] == name and each["category"] == "all"]
    cost = loaded.measured_costs.c(round(mine["rows_per_forward"]))
    return {**mine, "cost": cost, "trained": trained_on(name, loaded.source.fingerprint)}


def trained_on(drafter: str, model: str) -> int | None:
    """Return on how many tokens a drafter's weights were trained, if they say so.

    The weights that it names, or that ship for a target of that fingerprint.
    """
    for method in parse(drafter, "drafter").methods():
        named = method.options.get("weights")
        path = Path(named) if named else shipped_file(method.name, model)
        told = read_metadata(path).get("tokens", "") if path else ""
        if told.isdecimal():
            return int(told)
    return None


def rows(
    of: Sequence[Claim], found: Mapping[Measurement, dict[str, Any]], draft: bool
) -> list[list[str]]:
    """Return the rows, in the order of `TITLES`: one per line that was measured."""
    out = []
    for line in of:
        mine = {cell: each for cell, each in found.items() if cell.system == line.system}
        if not mine:
            continue
        here = {c: each for c, each in mine.items() if c.sizes == HERE and not c.turned}
        turned = next((each for cell, each in mine.items() if cell.turned), None)
        paper = next((each for cell, each in mine.items() if cell.sizes == PAPER), None)
        first = paper or next(iter(here.values()), None)
        if first is None:
            continue
        out.append(
            [
                line.system,
                f"`{folders(line.shown(draft))}`",
                line.guarantee,
                line.mode,
                *_figures(first),
                _speed(paper),
                *(_speed(each, cell.batch) for cell, each in here.items()),
                *[""] * (2 - len(here)),
                _at(_speed(turned), "greedy" if line.temperature else "T = 1"),
                _identical(line, mine),
                _note(first),
            ]
        )
    return out


def _figures(of: Mapping[str, Any]) -> list[str]:
    if "error" in of:
        return [""] * 4
    depths = " ".join(f"{share:.2f}" for share in of["acceptance_by_depth"][:4])
    return [
        f"{of['block_efficiency']:.2f}",
        depths,
        f"{of['rows_per_forward']:.1f}",
        "" if of["cost"] is None else f"{of['cost']:.2f}",
    ]


def _speed(of: Mapping[str, Any] | None, batch: int = 1) -> str:
    if of is None or "error" in of or of["speedup"] is None:
        return ""
    if batch > 1:  # prompts of a batch share their steps: they are no sample to draw from
        return _at(f"{of['speedup']:.2f}", f"batch {batch}")
    return f"{of['speedup']:.2f} [{of['speedup_low']:.2f}, {of['speedup_high']:.2f}]"


def _at(speed: str, where: str) -> str:
    return f"{speed}, {where}" if speed else ""


def _identical(line: Claim, of: Mapping[Measurement, Mapping[str, Any]]) -> str:
    shares = {cell: each["identical"] for cell, each in of.items() if "error" not in each}
    if line.guarantee.startswith("lossy"):
        return f"{min(shares.values()):.0%}" if shares else ""
    told = [share for cell, share in shares.items() if exact(line, cell)]
    same = [f"{min(told):.0%}"] if told else []
    if len(told) == len(shares):
        return "".join(same)
    return "; ".join(["distribution", *(f"greedy {each}" for each in same)])


def _note(of: Mapping[str, Any]) -> str:
    if "error" not in of:
        trained = of.get("trained")
        return "" if trained is None else f"trained on {trained:,} tokens"
    return f"{'failed' if 'failed' in of else NOT_RUN}: {of['error']}"


def exact(line: Claim, cell: Measurement) -> bool:
    """Return if the very text must be that of plain decoding, and not its distribution alone."""
    return not _temperature(line, cell) or line.verifier in ("auto", "coupled")


def verdict(of: Sequence[Claim], found: Mapping[Measurement, dict[str, Any]]) -> dict[str, Any]:
    """Return the cells, what differs from plain decoding that must not, and what failed."""
    systems = {line.system: line for line in of}
    differing = {
        cell.system
        for cell, each in found.items()
        if each.get("lossless") and each["identical"] < 1 and exact(systems[cell.system], cell)
    }
    return {
        "differing": sorted(differing),
        "failed": {cell.system: each["error"] for cell, each in found.items() if "failed" in each},
        "cells": [{**cell._asdict(), **each} for cell, each in found.items()],
    }


def _temperature(line: Claim, cell: Measurement) -> float:
    return float(not line.temperature) if cell.turned else line.temperature


def folders(text: str) -> str:
    """Return a text without the folders of the files that its options name."""
    return re.sub(r"=[^=,\s]*/", "=", text)


NOTE = (
    "Each system by turns with plain decoding. Tokens per forward, acceptance, rows and "
    "*speed-up* are with the draft sizes of its paper, where the configuration names them; *sized "
    "here*, *in a batch* and *other temperature* with those that the cost model finds to pay. "
    "Intervals are 90%, over prompts; those of "
    "a batch share their time and have none. "
    "*Identical* is the least share of texts that are those of plain decoding, over all these "
    "runs: 100% is required of lossless rules where they are greedy or `coupled`; *distribution* "
    "is said of rules that keep it and draw other texts, which `paceline audit inside` proves. A "
    "draft that costs more rows than it saves forwards is slower than none: that is what a GPU's "
    "sizes do on a processor."
)
"""Explanation below the table."""
