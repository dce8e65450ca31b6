"""What papers claim, a line a system, and how it runs here: `claims.toml`."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from paceline.core.expressions import parse
from paceline.registry import table
from paceline.trees.choice import named_expansion

DRAFT = "{draft}"
"""In a drafter's name: the draft model, or a trained drafter where none is given."""

CLAIMED, WHY = ("system", "the paper's claim"), "what differs"
"""Columns that are told once for all tables of methods."""

_UNSAID = "A configuration left out is that of a table above, with `draft-model` for `eagle3`."
_NO_FIGURE = re.compile(r"no figure at hand[;,]? ?")
_NOT_RUN, _DEPTHS = "not run: ", "accepted at depth 1, 2, .."


@dataclass(frozen=True, slots=True)
class Claim:
    """A system: how it runs, what its paper claims, and why the figures differ."""

    system: str
    drafter: str
    claim: str
    why: str
    verifier: str = "auto"
    controller: str = "auto"
    temperature: float = 0.0
    nodes: int | None = None
    depth: int | None = None
    work: str | None = None

    def named(self, draft: bool) -> str:
        """Return the drafter as the command line writes it, with a draft model or without."""
        return self.drafter.replace(DRAFT, "draft-model" if draft else "eagle3")

    @property
    def configuration(self) -> str:
        """Return the options of `paceline bench` that the paper's sizes have."""
        sizes = {"verifier": self.verifier, "controller": self.controller}
        shown = [f"--{key} {value}" for key, value in sizes.items() if value != "auto"]
        shown += [f"--{key} {getattr(self, key)}" for key in ("nodes", "depth") if self.sized(key)]
        return " ".join([self.drafter, *shown])

    def shown(self, draft: bool) -> str:
        """Return `configuration` with the drafter that ran, with a draft model or without."""
        return self.configuration.replace(self.drafter, self.named(draft))

    def sized(self, key: str) -> bool:
        return getattr(self, key) is not None

    @property
    def guarantee(self) -> str:
        """Return what the registry says of the rule, and of the drafter where that is lossless."""
        name = parse("coupled" if self.verifier == "auto" else self.verifier, "verifier").name
        found = table.find("verifier", name).guarantee
        return "lossless" if found.startswith("lossless at") else found.split(":")[0]

    def methods(self) -> Iterator[tuple[table.Kind, str]]:
        """Yield kind and name of every method that the line uses."""
        for method in parse(self.named(True), "drafter").methods():
            yield "drafter", method.name
            if "growth" in method.options:
                yield "growth", named_expansion(method.options["growth"]).name
        if self.verifier != "auto":
            yield "verifier", parse(self.verifier, "verifier").name
        if self.controller != "auto":
            yield "controller", self.controller


@dataclass(frozen=True, slots=True)
class StreamClaim:
    """A system whose input is not finished yet, its method, the paper's claim, what differs."""

    system: str
    method: str
    claim: str
    why: str


def told() -> dict[str, Any]:
    """Return the file as it is."""
    text = files("paceline.lab.measure").joinpath("claims.toml").read_text("utf-8")
    return tomllib.loads(text)


def lines() -> list[Claim]:
    """Return all lines, in the order of the page."""
    return [Claim(**each) for each in told()["line"]]


def stream_lines() -> list[StreamClaim]:
    """Return the systems that no table of drafters has."""
    return [StreamClaim(**each) for each in told()["stream"]]


def changes(result: Mapping[str, Any]) -> str:
    """Say where a table of methods is older than the lines of today; empty if it is not."""
    if list(result["columns"][:2]) != ["system", "configuration"]:
        return ""
    # Options of weights are the run's own.
    rows = {row[0]: re.sub(r":weights=[^ `]*", "", row[1].strip("`")) for row in result["rows"]}
    now = {line.system: line for line in lines()}
    measured = {row[0]: any(row[4:-2]) for row in result["rows"]}
    out = []
    for system, then in rows.items():
        if system not in now:
            out.append(f"{system} (`{then}`) is no line any more.")
        elif measured[system] and then not in (
            today := {now[system].shown(draft) for draft in (True, False)}
        ):
            out.append(f"{system} was `{then}` and is `{min(today)}`.")
    missing = [system for system in now if system not in rows]
    if len(rows) > len(now) / 2:  # of all
        out += [f"Not in it: {', '.join(missing)}."] if missing else []
    return " ".join(out)


def claims(results: Iterable[Mapping[str, Any]]) -> list[list[Any]]:
    """Return system, claim and what differs, once for all tables of methods, then of streams."""
    rows: dict[str, list[Any]] = {}
    for result in results:
        if WHY in result["columns"]:
            for cells in result["rows"]:
                row = dict(zip(result["columns"], cells, strict=True))
                claimed = [_NO_FIGURE.sub("", row[key]) for key in CLAIMED]
                told = rows.setdefault(row["system"], [*claimed, ""])
                if not row[WHY].startswith(_NOT_RUN) and row[WHY] not in (told[-1], "-"):
                    told[-1] = "; ".join(filter(None, [told[-1], row[WHY]]))
    streams = [[each.system, each.claim, each.why] for each in stream_lines() if rows]
    streams = [[system, _NO_FIGURE.sub("", claim), why] for system, claim, why in streams]
    return [row for row in rows.values() if any(row[1:])] + streams


def unsaid(result: Mapping[str, Any], said: dict[str, str]) -> list[list[Any]]:
    """Return the rows without configurations that were said; eagle3 stands for a draft model."""
    columns, rows = result["columns"], [list(row) for row in result["rows"]]
    for row in rows if WHY in columns else []:
        configuration = row[1].replace("draft-model", "eagle3")
        if said.get(row[0]) == configuration:
            row[1] = ""
        elif not row[columns.index(WHY)].startswith(_NOT_RUN):
            said.setdefault(row[0], configuration)
    return rows


def without_claims(
    columns: Sequence[str], rows: Sequence[Sequence[Any]]
) -> tuple[list[str], list[list[Any]], list[str]]:
    """Return a table of methods without what `claims` has; and sentences on what is left out.

    The mode stands behind the configuration, where it is not that of most; systems that did not run
    are listed by the reason.
    """
    if WHY not in columns:
        return list(columns), [list(row) for row in rows], []
    named = [dict(zip(columns, row, strict=True)) for row in rows]
    most, _ = Counter(row["mode"] for row in named).most_common(1)[0]
    kept = [key for key in columns if key not in (*CLAIMED[1:], WHY, "mode", "guarantee", "c(n)")]
    idle: dict[str, list[str]] = {}
    out = []
    for row in named:
        if row[WHY].startswith(_NOT_RUN):
            about = re.sub(r" for drafter .*| for this .*| and no .*", "", row[WHY])
            why = re.sub(r"(drafter|verifier) '[\w-]+' ", "", about).split(": ")[1]
            idle.setdefault(why, []).append(row["system"])
            continue
        if row["mode"] != most:
            mode = row["mode"].removesuffix(", mix").replace(" = ", "=")
            row["configuration"] = f"{row['configuration']} ({mode})".strip()
        row[_DEPTHS] = (row[_DEPTHS] or "").replace(" ", "/")
        out.append([row[key] for key in kept])
    said = [f"{why} ({', '.join(systems)})" for why, systems in idle.items()]
    return (
        kept,
        out,
        [f"Mode: {most}, where no other is said."]
        + [_UNSAID] * any(row[1] == "" for row in rows)
        + ([f"Not run: {'; '.join(said)}."] if said else []),
    )
