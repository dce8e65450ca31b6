"""`paceline bench`: drafters against plain decoding, measured in one run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import options as o
from paceline.cli.output import Interrupt, end, interruptible, print_json, progress_bar, remark
from paceline.core.expressions import split_lists
from paceline.core.types import SamplingParams
from paceline.errors import InvalidOption, PromptError
from paceline.lab.measure.prompts import BUILT_IN, NOISE_TEXT, digest, read_prompts, spread
from paceline.registry.options import Options
from paceline.version import __version__

if TYPE_CHECKING:
    from paceline.engine.engine import Engine
    from paceline.lab.measure.run import Record, Workload


# Capabilities among the settings of a bench.
_CAPABILITIES = ("runtime", "device", "precision", "kv_precision", "max_context")
_DRAFTERS = "none,suffix-automaton,prompt-lookup,recycling"


def bench(
    context: typer.Context,
    *,
    workload: Annotated[
        str, "prompts; or agentic: plan, workers, refinement on eight tasks."
    ] = "prompts",
    prompts: o.Prompts = None,
    drafters: Annotated[
        list[str] | None,
        "Comma-separated, or one each time; options may follow, as in "
        f"aded-mcts:trials=9,seed=1. none is always measured too. Default: {_DRAFTERS}.",
    ] = None,
    limit: Annotated[int | None, "So many prompts, spread over categories; or tasks."] = None,
    turns: Annotated[str, "first: first turns alone; all: whole dialogues."] = "first",
    max_new_tokens: Annotated[
        int | None, "Most tokens to generate. Default: 128; for agentic 512."
    ] = None,
    asked: Annotated[Options, o.Takes(*o.MODEL, *o.VERIFICATION, *o.LIMITS)],
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
    batch: Annotated[int, "Prompts decoded together."] = 1,
    cold: Annotated[bool, "Drafters forget before every prompt."] = False,
    fidelity: Annotated[bool, "Also compare the precision with fp32."] = False,
    out: o.Results = None,
    as_json: o.AsJson = False,
) -> None:
    """Measure drafters against plain decoding on the same prompts, runs interleaved.

    Ctrl-C ends with what there is; with --out the same command goes on, and results.json,
    results.md and report.html tell the outcome.
    """
    if context.invoked_subcommand is not None:
        return
    # The baseline first.
    names = list(dict.fromkeys(["none", *split_lists(drafters or [_DRAFTERS], "--drafters")]))
    asked.check(*names)
    o.check_at_least_one(limit=limit, batch=batch)
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

    from paceline.engine.memory import keep_apart
    from paceline.lab.measure import report
    from paceline.lab.measure.doctor import fidelity_to_fp32, noise_floor
    from paceline.lab.measure.machine import machine
    from paceline.lab.measure.page import HINT, can_plot
    from paceline.lab.measure.run import read_alike, warm_up
    from paceline.registry import loading

    loaded = loading.load_model(asked)
    keep_apart(loaded.target)
    costs = loaded.measured_costs
    engines = {
        name: loading.make_engine(loaded, asked, drafter=name, max_batch=batch, spare_draft=True)
        for name in names
    }
    if asked.draft_model and not any(each.config["draft_model"] for each in engines.values()):
        raise InvalidOption(
            f"none of {', '.join(names)} uses --draft-model {asked.draft_model}: add draft-model "
            "to --drafters or leave it out"
        )
    read_alike(engines.values(), costs)
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
        **{key: getattr(capabilities, key) for key in _CAPABILITIES},
        "threads": asked.threads,
        "drafters": names,
        **{name: getattr(asked, name) for name in o.VERIFICATION},
        "verifier": engines["none"].config["verifier"],
        "workload": work.name,
        "prompts": "built-in" if prompts is None else prompts.name,
        "prompts_sha256": digest(work.content),
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
    store = report.Store(out, settings)
    results: dict[str, Any] = {
        "c_n": costs.curve(),
        "rows": [],
        "settings": settings,
        "machine": here,
        "bit_exact": capabilities.bit_exact,
        "noise_floor": noise_floor(loaded.target, loaded.tokenizer.prompt(NOISE_TEXT, raw=True)),
        "fidelity": fidelity_to_fp32(loaded, asked.model) if fidelity else None,
    }
    wanted = sum(map(len, work.groups))
    with store, interruptible() as interrupt:
        if len(store.records) < wanted:
            warm_up(engines, work.opening)
        for finished in _run(engines, work, params, cold, store.records, interrupt):
            store.add(finished)
        lossless = {name: bool(engine.config["lossless"]) for name, engine in engines.items()}
        results |= store.outcome(results, lossless, wanted)
        if out is not None:
            store.finish(results, report.results_page(results), report.page(results))
            if not can_plot():
                remark(HINT)
        if as_json:
            print_json(results)
        else:
            typer.echo(report.plain(results))
    end(not interrupt, kept=out is not None)


def _workload(
    workload: str, prompts: Path | None, limit: int | None, turns: str, batch: int
) -> Workload:
    from paceline.lab.measure.agent import TASKS, AgentLoop, Dialogues

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


def _run(
    engines: Mapping[str, Engine],
    work: Workload,
    params: SamplingParams,
    cold: bool,
    records: Mapping[int, Record],
    interrupt: Interrupt,
) -> Iterator[list[Record]]:
    from paceline.lab.measure.run import run

    done = frozenset(records)
    left = sum(not done.issuperset(group) for group in work.groups)
    with progress_bar("{task.completed:.0f}/{task.total:.0f}") as bar:
        task = bar.add_task("bench", total=left * work.races * len(engines))
        yield from run(
            engines,
            work,
            params,
            cold=cold,
            done=done,
            stop=lambda: interrupt.requested,
            tick=lambda: bar.advance(task),
        )
