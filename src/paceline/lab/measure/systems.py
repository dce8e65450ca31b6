"""The one table of all systems: what papers claim, what is measured here, and if that is of today.

Rows are in result files whose first columns are those of `COMMON`; a line without rows of its own
names the result that has its figures.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from paceline.lab.measure import digests
from paceline.lab.measure.claims import NO_CLAIM, CanvasClaim, Claim, TableLine, every_line, told
from paceline.lab.measure.prompts import BUILT_IN, digest
from paceline.models.pull import DEFAULT_MODEL

COLUMNS = (
    "system",
    "configuration",
    "here",
    "the paper's claim",
    "its source",
    "what differs",
    "measured",
)
COMMON = ("system", "configuration")
STATE = ("measured", "timed", "seconds", "digest")
"""Last columns of rows: date and commit, date of the speeds, how long it took, its digest."""

SPEEDS = ("speed-up", "sized here", "in a batch", "other temperature", "c(n)")
"""Columns that a busy machine spoils."""

NOT_RUN, OLD, NEVER = "not run", "before the last change", "never"

_DEPTHS = "accepted at depth 1, 2, .."
_HIDDEN = ("mode", "guarantee", "c(n)", "note", *STATE)
_INTERVAL = re.compile(r"\[([\d.]+), ([\d.]+)\]")

Row = Mapping[str, Any]


class Found(NamedTuple):
    """A line's row and the result that it is in; `state` is empty, OLD, NOT_RUN or NEVER."""

    state: str
    row: Row
    name: str = ""
    model: str = ""


def is_lines(result: Row) -> bool:
    return tuple(result["columns"][:2]) == COMMON


def rows_of(result: Row) -> dict[str, Row]:
    """Return the rows by system; none for a result of another kind."""
    if not is_lines(result):
        return {}
    return {row[0]: dict(zip(result["columns"], row, strict=True)) for row in result["rows"]}


def made_from(line: TableLine, configuration: str, given: str) -> str:
    """Return the digest of a line's code, settings, prompts and weights.

    given: what else it was measured with; of drafters it begins with model and fingerprint.
    """
    methods = list(line.methods())
    texts = [configuration, given]
    model = fingerprint = ""
    if isinstance(line, Claim):
        texts += [line.mode, *(told()["prompts"][line.work] if line.work else _MIX)]
        fingerprint = given.replace(",", " ").split()[1]
    elif isinstance(line, CanvasClaim):
        texts, model = [*texts, line.mode], line.model
    code = digests.code(methods, line.code, *texts)
    return f"{code} {digests.weights(methods, model, fingerprint)}".strip()


_MIX = [digest("\n".join(turn for prompt in BUILT_IN for turn in prompt.turns))]


def is_old(line: TableLine, row: Row, given: str) -> bool:
    """Return if the configuration, the code or the weights are others today.

    Weights that are not installed are not compared.
    """
    configuration = row["configuration"].strip("`")
    if not _is_todays(line, configuration):
        return True
    then, now = (f"{each} ".split(" ") for each in (row["digest"] or "", ""))
    now = f"{made_from(line, configuration, given)} ".split(" ")
    return then[0] != now[0] or ("" not in (then[1], now[1]) and then[1] != now[1])


def _is_todays(line: TableLine, configuration: str) -> bool:
    """Return if a configuration is the line's, but for the run's own files."""
    bare = re.sub(r":(weights|index|head)=[^ `+>]*", "", configuration)
    return bare in (line.shown(True), line.shown(False))


def state(line: TableLine, row: Row | None, given: str) -> str:
    """Return NEVER, NOT_RUN, OLD, or nothing for a row of today."""
    if row is None:
        return NEVER
    if row["note"].startswith(NOT_RUN):
        return NOT_RUN
    return OLD if is_old(line, row, given) else ""


def find(line: TableLine, results: Mapping[str, Row]) -> Found:
    """Return a line's row: of those that ran, one of today, and of the first result."""
    if line.result is not None and (result := results.get(line.result)):
        now = set(made_from(line, line.shown(False), "").split())
        told = {"measured": result["date"], "note": "", **result.get("figures", {})}
        return Found("" if now <= {*result.get("digest", "").split()} else OLD, told, line.result)
    found = [Found(NEVER, {})]
    for name, result in results.items():
        given, row = result.get("with", ""), rows_of(result).get(line.system)
        found.append(Found(state(line, row, given), row or {}, name, given.partition(" ")[0]))
    return min(found, key=lambda each: ("", OLD, NOT_RUN, NEVER).index(each.state))


def table(results: Mapping[str, Row]) -> dict[str, list[list[str]]]:
    """Return by group the rows of `COLUMNS`, one for every line.

    InvalidOption if a claim has no source.
    """
    out: dict[str, list[list[str]]] = {}
    for line in every_line():
        found = find(line, results)
        claim = NO_CLAIM.sub("", line.claim)
        configuration = found.row.get("configuration", "").strip("`") or line.shown(False)
        mode = getattr(line, "mode", "").removesuffix(", mix").replace(" = ", "=")
        mode = "" if mode in ("", "greedy") else f"({mode})"
        cells = [
            line.system,
            " ".join(filter(None, [f"`{configuration}`" if configuration else "", mode])),
            _here(line, found, results),
            claim,
            _short(line.source) if claim else "",
            "; ".join(filter(None, [_note(found.row), line.why.strip("-")])),
            _measured(found),
        ]
        out.setdefault(line.group, []).append(cells)
    return out


def counts(results: Mapping[str, Row]) -> dict[str, int]:
    """Return how many systems there are, and of which the figures are old or missing."""
    states = Counter(find(line, results).state for line in every_line())
    names = {"of today": "", OLD: OLD, NOT_RUN: NOT_RUN, "without a figure": NEVER}
    return {name: states[state] for name, state in names.items()}


def _here(line: TableLine, found: Found, results: Mapping[str, Row]) -> str:
    if found.state in (NOT_RUN, NEVER):
        return ""
    if line.result is not None:
        named = {k: v for k, v in found.row.items() if k not in ("measured", "note")}
        link = f"{results[found.name]['topic']}.md"
        shown = [f"{key} {value:,}" for key, value in named.items()]
        return "; ".join([*shown, f"[{found.name}]({link})"])
    row = found.row
    told, beside = [f"{row['tokens/forward']} tokens/forward"], "plain"
    if isinstance(line, CanvasClaim):
        beside = "as fast"
        told += [f"{row[key]} times {key}" for key in ("fewer forwards", "fewer rows")]
        told += [f"right {row['right']}, beside {row['right beside']}"]
    else:
        told += [f"on {found.model}"] if found.model not in ("", DEFAULT_MODEL) else []
    for key, words in (("speed-up", f"{{}} times {beside}"), ("sized here", "sized here {}")):
        if speed := row.get(key):
            bounds = _INTERVAL.search(speed)
            alone = bounds is None or bounds[1] == bounds[2]
            told.append(words.format(speed) + " (one run)" * alone)
    if row["identical"]:
        told.append(f"identical {row['identical']}")
    return "; ".join(told)


def _measured(found: Found) -> str:
    if found.state in (NOT_RUN, NEVER):
        return "never" if found.state == NEVER else "not run"
    date, timed = (str(found.row.get(key) or "")[:10] for key in ("measured", "timed"))
    told = [date, OLD if found.state == OLD else ""]
    if "timed" in found.row and timed != date:
        told.append(f"timed {timed}" if timed else "not timed: a busy machine")
    return ", ".join(filter(None, told))


def _note(row: Row) -> str:
    note = str(row.get("note") or "")
    return re.sub(r" for drafter .*| for this .*| and no .*", "", note)


def _short(paper: str) -> str:
    """Return the identifiers of papers, or all of a text that has none."""
    return ", ".join(re.findall(r"arXiv:[\d.]+\d", paper)) or paper.removeprefix("after ")


def details(result: Row) -> tuple[list[str], list[list[Any]]]:
    """Return columns and rows of a result, of lines without what `table` says of them.

    A configuration is said where it is not the line's own of today.
    """
    if not is_lines(result):
        return list(result["columns"]), [list(row) for row in result["rows"]]
    lines = {line.system: line for line in every_line()}
    kept = [key for key in result["columns"] if key not in _HIDDEN]
    out = []
    for system, row in rows_of(result).items():
        if row["note"].startswith(NOT_RUN):
            continue
        line, bare = lines.get(system), row["configuration"].strip("`")
        same = line is not None and bare in (line.shown(True), line.shown(False))
        named = {**row, "configuration": "" if same else row["configuration"]}
        if _DEPTHS in row:
            named[_DEPTHS] = (row[_DEPTHS] or "").replace(" ", "/")
        out.append([named[key] for key in kept])
    return kept, out
