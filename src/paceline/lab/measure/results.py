"""Result tables: JSON files written by benchmarks, and the Markdown pages generated from them."""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import math
import re
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.core.cache import write_atomically
from paceline.errors import InvalidOption
from paceline.lab.measure import systems
from paceline.lab.measure.claims import TableLine, every_line
from paceline.lab.measure.machine import machine

TOPICS = {
    "speed-default": "The default drafter",
    "methods": "Every method beside its paper's claim",
    "drafters": "Drafters",
    "agents": "Agents",
    "batching": "Batches and the server",
    "peers": "Other engines",
    "training": "Trained drafters",
    "verifiers-lossy": "Verifiers and lossy rules",
    "exactness-fidelity": "Exactness and fidelity",
    "canvas": "Canvas decoding",
    "kernels": "Native kernels",
    "long-context": "Long context",
    "tokens": "Languages and tokens",
    "speech": "Speech",
}
"""Title by topic, in the order of the overview. A topic is a page."""

TABLE, ALL = "methods", "All systems"
"""Topic whose page has the one table, and its title."""

FIELDS = ("title", "topic", "date", "commit", "machine", "command", "columns", "rows")
OPTIONAL = ("figures", "note", "since", "with", "digest")
MAX_FIGURES = 4
SINCE = "**Since this was measured**"
WORTH = 70
"""Characters of a sentence that is said once for several tables; shorter ones are repeated."""

_BLOCK = re.compile(r"<!-- results:([\w-]+) -->\n(.*?)<!-- /results -->", re.DOTALL)
_INTERVAL = re.compile(r" \[([\d.]+), ([\d.]+)\]")
_RANGE = re.compile(r"(?<![\d.-])([\d.,]+%?) to ([\d.,]+%?)(?=\)?$)")
_MARKER = re.compile(r"<!-- (?:results:|/results)")

Cell = str | int | float | None
Result = dict[str, Any]


def record(
    path: Path,
    title: str,
    topic: str,
    command: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    note: str | None = None,
    figures: Mapping[str, Cell] | None = None,
    given: str | None = None,
) -> None:
    """Write a result file with today's date, the current commit and this machine.

    Where lines of the table have their figures from there, it keeps what each was made from.

    Args:
        path: `docs/results/data/NAME.json`; NAME is the name of a block in other pages.
        figures: at most four numbers for the overview, by label.
        given: what rows of `systems.COMMON` were measured with.

    Raises:
        InvalidOption: the result is malformed.
    """
    about = machine()
    memory = f", {about['memory_gib']:g} GiB" if about["memory_gib"] else ""
    result: Result = {
        "title": title,
        "topic": topic,
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "machine": f"{about['cpu']}, {about['cores']} cores{memory}",
        "command": command,
        "columns": list(columns),
        "rows": [list(row) for row in rows],
    }
    made = [systems.made_from(each, each.shown(False), "") for each in _lines_of(path.stem)]
    extra = {
        "figures": dict(figures) if figures else None,
        "note": note,
        "with": given,
        "digest": " ".join(made) or None,
    }
    result |= {key: value for key, value in extra.items() if value is not None}
    validate(path.stem, result)
    write_atomically(path, dump(result))


def validate(name: str, result: Result) -> None:
    """Raise InvalidOption unless the result has the common shape."""
    keys, figures = result.keys(), result.get("figures", {})
    if keys - set(OPTIONAL) != set(FIELDS):
        raise InvalidOption(f"result {name}: needs {FIELDS}, may have {OPTIONAL}, has {list(keys)}")
    columns, rows, date = result["columns"], result["rows"], result["date"]
    cells = [cell for row in [columns, *rows, figures.values()] for cell in row]
    texts = [
        result.get(key, "")
        for key in ("title", "machine", "command", "note", "since", "with", "digest")
    ] + list(columns)
    faults = {
        f"unknown topic {result['topic']!r}": result["topic"] not in TOPICS,
        "a title, machine, command, note, since, with, digest or column is not text": not _are(
            str, *texts
        ),
        "the commit is neither text nor null": not _are(str | None, result["commit"]),
        "the date is not ISO": date is not None and not re.fullmatch(r"\d{4}-\d\d-\d\d", date),
        "a row is not as long as the columns": {len(row) for row in rows} != {len(columns)},
        "there are more than four figures": len(figures) > MAX_FIGURES,
        "a cell is not text, a finite number or null": not _are(str | int | float | None, *cells)
        or any(isinstance(cell, float) and not math.isfinite(cell) for cell in cells),
    }
    for fault, found in faults.items():
        if found:
            raise InvalidOption(f"result {name}: {fault}")


def dump(result: Result) -> str:
    """Serialize with one line per field and per row."""
    lines = [f'  "{key}": {_json(value)}' for key, value in result.items() if key != "rows"]
    rows = ",\n    ".join(map(_json, result["rows"]))
    lines.append(f'  "rows": [\n    {rows}\n  ]')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def load(data_dir: Path) -> dict[str, Result]:
    """Read and validate every result, by name."""
    results = {}
    for path in sorted(data_dir.glob("*.json"), key=lambda path: path.stem):
        try:
            results[path.stem] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InvalidOption(f"result {path.stem}: not JSON ({error})") from error
        validate(path.stem, results[path.stem])
    return results


def table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Format a Markdown table; numbers of a column get the same number of decimals."""
    decimals = [
        max((_decimals(cell) for cell in column), default=0) for column in zip(*rows, strict=True)
    ]
    lines = [columns, *([_text(*cell) for cell in zip(row, decimals, strict=True)] for row in rows)]
    head, *body = ("| " + " | ".join(line) + " |\n" for line in lines)
    return "".join([head, "|---" * len(columns) + "|\n", *body])


def render(data_dir: Path) -> dict[str, str]:
    """Generate the overview and one page per topic that has results, by file name."""
    results = load(data_dir)
    overview, pages = [], {}
    for topic, heading in TOPICS.items():
        chosen = {name: each for name, each in results.items() if each["topic"] == topic}
        if chosen:
            page, told = _page(heading, chosen), [*map(_overview, chosen.values())]
            if topic == TABLE:
                head, line, rest = page.partition("[All results](index.md).\n")
                page, told = head + line + _table(results) + rest, [_counted(results), *told]
            pages[f"{topic}.md"] = page
            overview.append(f"## {heading}\n\n" + "".join(told))
    pages["index.md"] = (
        "# Results\n\nOne line a table, with its main figures. Each says its name, date, commit, "
        "machine and command, and what has changed since. Tables up to 2026-11-24 are of the first "
        "CPU engine, with int8 weights. Before 2026-11-27 `auto` measured all costs at the first "
        "start and asked its drafters in a fixed order; today it learns both while decoding. "
        "What did not help is in the [journal](../journal.md). Pages are generated from "
        "`docs/results/data` by `python -m paceline.lab.measure.results`.\n\n" + "\n".join(overview)
    )
    return pages


def fill(text: str, results: Mapping[str, Result]) -> str:
    """Insert tables between `<!-- results:NAME -->` and `<!-- /results -->`."""

    def block(match: re.Match[str]) -> str:
        name = match[1]
        if name not in results:
            raise InvalidOption(f"no result named {name}: the blocks are {', '.join(results)}")
        body = table(results[name]["columns"], results[name]["rows"])
        return f"<!-- results:{name} -->\n{body}<!-- /results -->"

    if len(_MARKER.findall(text)) != 2 * len(_BLOCK.findall(text)):
        raise InvalidOption("a results block is not closed, or its marker is malformed")
    return _BLOCK.sub(block, text)


def expected(folder: Path, files: Sequence[Path]) -> dict[Path, str]:
    """Compute what every generated page and every file with blocks shall contain."""
    results = load(folder / "data")
    texts = {folder / name: text for name, text in render(folder / "data").items()}
    for path in files:
        try:
            texts[path] = fill(path.read_text(encoding="utf-8"), results)
        except InvalidOption as error:
            raise InvalidOption(f"{path}: {error}") from error
    return texts


def stale(folder: Path, files: Sequence[Path]) -> list[Path]:
    """List files that differ from what is expected, and pages of topics without results."""
    texts = expected(folder, files)
    old = [path for path in folder.glob("*.md") if path not in texts]
    differ = (p for p, text in texts.items() if not p.exists() or p.read_text("utf-8") != text)
    return sorted([*old, *differ])


def main(arguments: Sequence[str] | None = None) -> int:
    """Write all pages, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("--root", type=Path, default=Path(), help="the repository")
    given = parser.parse_args(arguments)
    folder, files = given.root / "docs" / "results", [given.root / "README.md"]
    files += sorted((given.root / "docs").glob("*.md"))
    if given.check:
        for path in (differing := stale(folder, files)):
            print(f"{path}: stale; run python -m paceline.lab.measure.results")
        return int(bool(differing))
    for path, text in expected(folder, files).items():
        path.write_text(text, encoding="utf-8")
    return 0


def _page(heading: str, chosen: Mapping[str, Result]) -> str:
    """Say once what several tables share: sentences of notes, commands, and papers' claims."""
    notes = {name: _sentences(each.get("note")) for name, each in chosen.items()}
    since = {name: _sentences(each.get("since")) for name, each in chosen.items()}
    most, _ = Counter(each["machine"] for each in chosen.values()).most_common(1)[0]
    parts = [f"# {heading}\n\nOn {most}, where no machine is named. [All results](index.md).\n"]
    parts += [f"Of {each}\n" for each in _shared(notes)]
    parts += [f"{SINCE} of {each}\n" for each in _shared(since)]
    first = dict[str, str]()
    for name, each in chosen.items():
        same = first.setdefault(each["command"], name)
        told = each | {"note": " ".join(notes[name]), "since": " ".join(since[name])}
        machine = "" if each["machine"] == most else each["machine"]
        parts.append(_section(name, told, machine, same if each["command"] else name))
    return "\n".join(parts)


def _table(results: Mapping[str, Result]) -> str:
    groups = systems.table(results)
    parts = [
        f"\n## {ALL}\n\nA line a system. *Here*: in the mode and with the sizes of its paper, and, "
        "for drafts, with those that pay here; speeds by turns with plain decoding. A line knows "
        "what it was made from: where code, settings or weights are others now, it says so. No "
        "line is of a GPU. The tables below leave out what stands here. Made by `paceline bench "
        "methods --out docs/results/data`.\n"
    ]
    for group, rows in groups.items():
        parts.append(f"### {group}\n\n" + table(systems.COLUMNS, rows))
    return "\n".join(parts)


def _counted(results: Mapping[str, Result]) -> str:
    told = (f"{name} {count}" for name, count in systems.counts(results).items())
    return f"- [{ALL}]({TABLE}.md#{ALL.lower().replace(' ', '-')}): {'; '.join(told)}\n"


def _lines_of(name: str) -> list[TableLine]:
    return [line for line in every_line() if line.result == name]


def _shared(texts: dict[str, list[str]]) -> list[str]:
    """Take the sentences that several texts have out of them, and return these by their names."""
    shared: dict[tuple[str, ...], list[str]] = {}
    for sentence in dict.fromkeys(itertools.chain(*texts.values())):
        names = tuple(name for name, said in texts.items() if sentence in said)
        if len(names) > 1 and len(sentence) > WORTH:
            shared.setdefault(names, []).append(sentence)
    for names, said in shared.items():
        for name in names:
            texts[name] = [each for each in texts[name] if each not in said]
    return [f"`{'`, `'.join(names)}`: {' '.join(said)}" for names, said in shared.items()]


def _section(name: str, result: Result, machine: str, same: str) -> str:
    about = [f"`{name}`", result["date"] or "date unknown", machine]
    about += [f"commit {result['commit']}"] if result["commit"] else []
    about += [f"command of `{same}`"] if same != name else []
    parts = [f"## {result['title']}\n", f"{', '.join(filter(None, about))}.\n"]
    if same == name:
        parts += [*(f"    {line}" for line in result["command"].splitlines()), ""]
    columns, rows = systems.details(result)
    constant = [
        i
        for i, column in enumerate(zip(*rows, strict=True))
        if i and len(rows) > 2 and len(set(column)) == 1
    ]
    kept = [i for i in range(len(columns)) if i not in constant]
    parts.append(table([columns[i] for i in kept], [[row[i] for i in kept] for row in rows]))
    told = [(columns[i], rows[0][i]) for i in constant if rows[0][i] not in ("", None)]
    said = [f"{name} {_text(cell, _decimals(cell))}" for name, cell in told]
    left = f"In all rows: {'; '.join(said)}." if said else ""
    note = " ".join(filter(None, [left, result["note"]]))
    parts += [f"{note}\n"] if note else []
    parts += [f"{SINCE}: {result['since']}\n"] if result["since"] else []
    return "\n".join(parts)


def _overview(result: Result) -> str:
    title, figures = result["title"], result.get("figures", {})
    anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
    decimals = max(map(_decimals, figures.values()), default=0)
    shown = "; ".join(f"{label} {_text(value, decimals)}" for label, value in figures.items())
    return f"- [{title}]({result['topic']}.md#{anchor})" + (f": {shown}\n" if shown else "\n")


def _sentences(note: str | None) -> list[str]:
    return re.split(r"(?<=\.)\s+", note.strip()) if note else []


def _are(kind: Any, *values: object) -> bool:
    return all(isinstance(value, kind) for value in values)


def _decimals(cell: Cell) -> int:
    return len(f"{cell:.4f}".rstrip("0").partition(".")[2]) if isinstance(cell, float) else 0


def _text(cell: Cell, decimals: int) -> str:
    if isinstance(cell, int | float):
        return f"{cell:,.{decimals if isinstance(cell, float) else 0}f}"
    text = _RANGE.sub(r"\1-\2", (cell or "").replace("|", "\\|"))
    return _INTERVAL.sub(_short, text)


def _short(interval: re.Match[str]) -> str:
    """Return ` [a-b]`, and nothing for an interval without width."""
    return "" if interval[1] == interval[2] else f" [{interval[1]}-{interval[2]}]"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def commit() -> str | None:
    """Short hash of the checkout that this package runs from."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


if __name__ == "__main__":
    raise SystemExit(main())
