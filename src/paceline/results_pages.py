"""Result tables: JSON files written by benchmarks, and the Markdown pages generated from them."""

from __future__ import annotations

import argparse
import datetime
import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.errors import InvalidOption
from paceline.measure.machine import machine

TOPICS = {
    "speed-default": "The default drafter",
    "drafters": "Drafters",
    "agents": "Agents",
    "batching": "Batches",
    "peers": "Other engines",
    "training": "Trained drafters",
    "verifiers-lossy": "Verifiers and lossy rules",
    "exactness-fidelity": "Exactness and fidelity",
    "kernels": "Native kernels",
    "long-context": "Long context",
}
"""Title by topic, in the order of the overview. A topic is a page."""

FIELDS = ("title", "topic", "date", "commit", "machine", "command", "columns", "rows")
OPTIONAL = ("figures", "note")
MAX_FIGURES = 4

_BLOCK = re.compile(r"<!-- results:([\w-]+) -->\n(.*?)<!-- /results -->", re.DOTALL)
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
) -> None:
    """Write a result file with today's date, the current commit and this machine.

    Args:
        path: `docs/results/data/NAME.json`; NAME is the name of a block in other pages.
        figures: at most four numbers for the overview, by label.

    Raises:
        InvalidOption: the result is malformed.
    """
    about = machine()
    memory = f", {about['memory_gib']:g} GiB" if about["memory_gib"] else ""
    values = (
        *(title, topic, datetime.date.today().isoformat(), _commit()),
        *(f"{about['cpu']}, {about['cores']} cores{memory}", command),
        *(list(columns), [list(row) for row in rows]),
    )
    extra = {"figures": dict(figures) if figures else None, "note": note}
    result: Result = dict(zip(FIELDS, values, strict=True))
    result |= {key: value for key, value in extra.items() if value is not None}
    validate(path.stem, result)
    path.write_text(dump(result), encoding="utf-8")


def validate(name: str, result: Result) -> None:
    """Raise InvalidOption unless the result has the common shape."""

    def require(condition: bool, fault: str) -> None:
        if not condition:
            raise InvalidOption(f"result {name}: {fault}")

    missing, unknown = set(FIELDS) - result.keys(), result.keys() - {*FIELDS, *OPTIONAL}
    require(not missing and not unknown, f"missing {sorted(missing)}, unknown {sorted(unknown)}")
    require(result["topic"] in TOPICS, f"unknown topic {result['topic']!r}")
    for key in ("title", "machine", "command", "note"):
        require(isinstance(result.get(key, ""), str), f"{key} is not text")
    require(result["commit"] is None or isinstance(result["commit"], str), "commit is not text")
    date = result["date"]
    require(date is None or bool(re.fullmatch(r"\d{4}-\d\d-\d\d", str(date))), "date is not ISO")
    columns, rows, figures = result["columns"], result["rows"], result.get("figures", {})
    require(bool(rows) and all(isinstance(column, str) for column in columns), "bad columns")
    require(all(len(row) == len(columns) for row in rows), "a row has another length than columns")
    require(isinstance(figures, dict) and len(figures) <= MAX_FIGURES, "more than four figures")
    cells = [cell for row in [*rows, list(figures.values())] for cell in row]
    require(all(c is None or isinstance(c, str | int | float) for c in cells), "a cell is no value")


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
    lines = [columns, ["---"] * len(columns)]
    lines += [[_text(*cell) for cell in zip(row, decimals, strict=True)] for row in rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def render(data_dir: Path) -> dict[str, str]:
    """Generate the overview and one page per topic that has results, by file name."""
    results = load(data_dir)
    overview, pages = [], {}
    for topic, heading in TOPICS.items():
        chosen = {name: each for name, each in results.items() if each["topic"] == topic}
        if chosen:
            parts = [_section(name, each) for name, each in chosen.items()]
            back = "Generated from [data](data). [All results](index.md)."
            pages[f"{topic}.md"] = "\n".join([f"# {heading}\n", f"{back}\n", *parts])
        overview += [_overview(heading, each) for each in chosen.values()]
    columns = ("topic", "what", "figures", "date", "commit", "machine", "command")
    pages["index.md"] = (
        "# Results\n\nGenerated from [data](data) by `python -m paceline.results_pages`. "
        "What was tried, and what did not help, is in the [journal](../journal.md).\n\n"
        + table(columns, overview)
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
            print(f"{path}: stale; run python -m paceline.results_pages")
        return int(bool(differing))
    for path, text in expected(folder, files).items():
        path.write_text(text, encoding="utf-8")
    return 0


def _section(name: str, result: Result) -> str:
    about = [result["date"] or "date unknown", result["machine"]]
    about += [f"commit {result['commit']}"] if result["commit"] else []
    parts = [f"## {result['title']}\n", f"{', '.join(about)}. Block name: `{name}`.\n"]
    parts += [f"    {line}" for line in result["command"].splitlines()]
    parts += ["", table(result["columns"], result["rows"])]
    return "\n".join(parts + ([f"{result['note'].strip()}\n"] if result.get("note") else []))


def _overview(heading: str, result: Result) -> list[Cell]:
    title = result["title"]
    anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
    figures = "; ".join(
        f"{k} {_text(v, _decimals(v))}" for k, v in result.get("figures", {}).items()
    )
    command = "`" + "` `".join(result["command"].splitlines()) + "`" if result["command"] else None
    return [
        *(heading, f"[{title}]({result['topic']}.md#{anchor})", figures),
        *(result[key] for key in ("date", "commit", "machine")),
        command,
    ]


def _decimals(cell: Cell) -> int:
    return len(str(cell).partition(".")[2]) if isinstance(cell, float) else 0


def _text(cell: Cell, decimals: int) -> str:
    if isinstance(cell, int | float):
        return f"{cell:,.{decimals}f}"
    return (cell or "").replace("|", "\\|")


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _commit() -> str | None:
    """Short hash of the checkout that this package runs from."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


if __name__ == "__main__":
    raise SystemExit(main())
