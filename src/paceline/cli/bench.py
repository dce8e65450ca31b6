"""`paceline bench`: drafters against plain decoding, measured in one run."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import option_groups as blocks
from paceline.cli import options as o
from paceline.core.types import SamplingParams
from paceline.errors import InvalidOption, PromptError
from paceline.measure.prompts import BUILT_IN, NOISE_TEXT, read_prompts, spread
from paceline.version import __version__

if TYPE_CHECKING:
    from paceline.cli.output import Interrupt
    from paceline.engine.engine import Engine
    from paceline.measure.report import Store
    from paceline.measure.run import Record, Workload
    from paceline.registry.loaded import Loaded


_DRAFTERS = "none,suffix-automaton,prompt-lookup,recycling"


@blocks.spread_options
def bench(
    *,
    workload: Annotated[
        str, typer.Option(help="prompts; or agentic: plan, workers, refinement on eight tasks.")
    ] = "prompts",
    prompts: Annotated[
        Path | None,
        typer.Option(help="Spec-Bench JSONL: question_id, category, turns. Default: built-in mix."),
    ] = None,
    drafters: Annotated[
        list[str] | None,
        typer.Option(
            help="Comma-separated, or one each time; options may follow, as in "
            f"aded:search=puct,iterations=9. none is always measured too. Default: {_DRAFTERS}."
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="So many prompts, spread over categories; or tasks.")
    ] = None,
    turns: Annotated[
        str, typer.Option(help="first: first turns alone; all: whole dialogues.")
    ] = "first",
    max_new_tokens: Annotated[
        int | None,
        typer.Option(help="Most tokens to generate. Default: 128; for agentic 512."),
    ] = None,
    place: blocks.ModelOptions,
    rules: blocks.SpeculationOptions,
    room: blocks.ResourceOptions,
    temperature: o.Temperature = 0.0,
    seed: o.Seed = 0,
    ignore_eos: o.IgnoreEos = False,
    stop_loops: Annotated[
        bool | None,
        typer.Option(
            "--stop-loops/--no-stop-loops",
            help="End texts that have come to repeat themselves. Default: for agentic.",
        ),
    ] = None,
    batch: Annotated[int, typer.Option(help="Prompts decoded together.")] = 1,
    cold: Annotated[
        bool, typer.Option("--cold", help="Drafters forget before every prompt.")
    ] = False,
    fidelity: Annotated[
        bool, typer.Option("--fidelity", help="Also compare the precision with fp32.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Directory for results; resumes what was interrupted.")
    ] = None,
    as_json: o.AsJson = False,
) -> None:
    """Measure drafters against plain decoding on the same prompts, runs interleaved.

    Of each prompt the first turn is used, unless --turns all plays the whole dialogue. Ctrl-C
    ends the run with what there is; with --out, the same command takes it up again, and
    results.json, results.md and report.html tell the outcome.
    """
    # The baseline first.
    names = list(dict.fromkeys(["none", *o.drafter_names(drafters or [_DRAFTERS], "--drafters")]))
    checked = blocks.runtime_options(place, room)
    blocks.check_names(place, rules, *names)
    for name, value in (("limit", limit), ("batch", batch)):
        if value is not None and value < 1:
            raise InvalidOption(f"--{name} must be 1 or more, not {value}")
    work = _workload(workload, prompts, limit, turns, batch)
    params = SamplingParams(
        temperature=temperature,
        seed=seed,
        max_new_tokens=work.max_new_tokens if max_new_tokens is None else max_new_tokens,
        ignore_eos=ignore_eos,
        stop_loops=work.stop_loops if stop_loops is None else stop_loops,
    )
    if out is not None and out.exists() and not out.is_dir():
        raise InvalidOption(f"--out {out} is a file: give a directory")

    from paceline.cli.output import interruptible
    from paceline.engine.memory import keep_apart
    from paceline.measure.doctor import noise_floor
    from paceline.measure.machine import machine
    from paceline.measure.report import Store
    from paceline.measure.run import read_alike, warm_up
    from paceline.registry import loading

    loaded = loading.load_model(place.model, runtime=place.runtime, options=checked)
    keep_apart(loaded.target)
    engines = {
        name: loading.make_engine(
            loaded,
            drafter=name,
            **asdict(rules),
            max_batch=batch,
        )
        for name in names
    }
    read_alike(engines.values(), loaded.costs)
    if turns == "all" and loaded.tokenizer.chat_template is None:
        raise PromptError("the model has no chat template: use --turns first")
    work.check(engines["none"], params)
    capabilities = loaded.target.capabilities
    here = machine()
    settings = {
        "version": __version__,
        "cpu": here["cpu"],
        "cores": here["cores"],
        "model": loaded.source.name,
        "fingerprint": loaded.source.fingerprint,
        "runtime": capabilities.runtime,
        "device": capabilities.device,
        "precision": capabilities.precision,
        "layout": capabilities.layout,
        "kv_precision": capabilities.kv_precision,
        "kv_lossy": capabilities.kv_lossy,
        "max_context": capabilities.max_context,
        "threads": room.threads,
        "drafters": names,
        "verifier": engines["none"].config["verifier"],
        "controller": rules.controller,
        "nodes": rules.nodes,
        "depth": rules.depth,
        "draft_model": rules.draft_model,
        "workload": work.name,
        "prompts": "built-in" if prompts is None else prompts.name,
        "prompts_sha256": _digest(work.content),
        "limit": limit,
        "turns": turns,
        "max_new_tokens": params.max_new_tokens,
        "temperature": temperature,
        "seed": seed,
        "ignore_eos": ignore_eos,
        "stop_loops": params.stop_loops,
        "batch": batch,
        "cold": cold,
    }
    store = None if out is None else Store(out, settings)
    results: dict[str, Any] = {
        "c_n": loaded.costs.curve(),
        "rows": [],
        "settings": settings,
        "machine": here,
        "bit_exact": capabilities.bit_exact,
        "noise_floor": noise_floor(loaded.target, loaded.tokenizer.encode(NOISE_TEXT)),
        "fidelity": _fidelity(loaded, place.model) if fidelity else None,
    }
    records = {} if store is None else {each.index: each for each in store.records}
    wanted = sum(map(len, work.groups))
    with interruptible() as interrupt:
        if len(records) < wanted:
            warm_up(engines, work.opening)
        for finished in _run(engines, work, params, cold, records, interrupt):
            if store is not None:
                store.append(finished)
            records.update((each.index, each) for each in finished)
    results["resumed_after"] = [] if store is None else store.resumed_after
    ordered = [records[index] for index in sorted(records)]
    _report(results, ordered, engines, wanted, store, as_json)
    if interrupt:
        raise typer.Exit(130)


def _workload(
    workload: str, prompts: Path | None, limit: int | None, turns: str, batch: int
) -> Workload:
    """What the options ask to decode.

    Raises:
        InvalidOption: an unknown name, or options that do not go together.
        PromptError: the prompts cannot be read.
    """
    from paceline.measure.agent import TASKS, AgentLoop, Dialogues

    if turns not in ("first", "all"):
        raise InvalidOption(f"--turns {turns!r} is unknown: use first or all")
    if workload == Dialogues.name:
        chosen = spread(BUILT_IN if prompts is None else read_prompts(prompts), limit)
        return Dialogues(chosen, batch, turns == "all")
    if workload != AgentLoop.name:
        raise InvalidOption(f"--workload {workload!r} is unknown: use prompts or agentic")
    if prompts is not None or turns != "first":
        raise InvalidOption("--workload agentic has tasks of its own: leave out --prompts, --turns")
    return AgentLoop(TASKS[:limit])


def _digest(content: str) -> str:
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


def _fidelity(loaded: Loaded, model: str) -> dict[str, Any] | None:
    """The loaded precision against fp32; None if it is fp32."""
    from paceline.measure.doctor import fidelity
    from paceline.registry import loading

    capabilities = loaded.target.capabilities
    if capabilities.precision == "fp32":
        return None
    options = replace(loaded.options, precision="fp32", kv_precision=None)
    reference = loading.load_model(model, runtime=capabilities.runtime, options=options)
    return fidelity(reference.target, loaded.target, loaded.tokenizer).as_dict()


def _run(
    engines: Mapping[str, Engine],
    work: Workload,
    params: SamplingParams,
    cold: bool,
    records: Mapping[int, Record],
    interrupt: Interrupt,
) -> Iterator[list[Record]]:
    """Run what is left, with a progress bar."""
    from paceline.measure.run import run

    done = frozenset(records)
    left = sum(not done.issuperset(group) for group in work.groups)
    with _progress(left * work.races * len(engines)) as tick:
        yield from run(
            engines,
            work,
            params,
            cold=cold,
            done=done,
            stop=lambda: interrupt.requested,
            tick=tick,
        )


@contextmanager
def _progress(total: int) -> Iterator[Any]:
    """A bar on standard error if that is a terminal; yields what advances it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = ("[progress.description]bench", BarColumn(), MofNCompleteColumn())
    hidden = not sys.stderr.isatty()
    with Progress(
        *columns, TimeRemainingColumn(), console=Console(stderr=True), disable=hidden
    ) as bar:
        task = bar.add_task("bench", total=total)
        yield lambda: bar.advance(task)


def _report(
    results: dict[str, Any],
    records: Sequence[Record],
    engines: Mapping[str, Engine],
    wanted: int,
    store: Store | None,
    as_json: bool,
) -> None:
    """Print the results, and write them where a directory was given."""
    from paceline.cli.output import print_json, remark
    from paceline.measure import report, summary
    from paceline.measure.machine import dumps
    from paceline.measure.page import HINT, can_plot, page

    lossless = {name: bool(engine.config["lossless"]) for name, engine in engines.items()}
    table = report.rows(records, lossless)
    complete = len(records) == wanted
    interrupted = [] if complete else [f"interrupted after {len(records)} of {wanted} prompts"]
    notes = [
        *interrupted,
        *summary.resumption(results),
        *summary.cache(results),
        *summary.loops(records),
        *report.remarks(table),
    ]
    results |= {"rows": table, "complete": complete, "remarks": notes}
    if store is not None:
        files = {
            "results.json": dumps(results, indent=1) + "\n",
            "results.md": summary.markdown(results),
            "report.html": page(results),
        }
        store.finish(files)
        if not can_plot():
            remark(HINT)
    if as_json:
        print_json(results)
        return
    typer.echo(report.plain(table))
    for line in [*summary.facts(results), *notes]:
        typer.echo(line)
