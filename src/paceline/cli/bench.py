"""`paceline bench`: drafters against plain decoding, measured in one run."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.bench.builtin import BUILT_IN, NOISE_TEXT
from paceline.bench.prompts import BenchPrompt, read_prompts, spread
from paceline.cli import options as o
from paceline.errors import InvalidOption, PromptError
from paceline.types import SamplingParams
from paceline.version import __version__

if TYPE_CHECKING:
    from paceline.bench.run import Record
    from paceline.cli.interrupt import Interrupt
    from paceline.engine import Engine
    from paceline.loading import Loaded


_UNSHOWN = ("cpu", "cores", "drafters", "prompts_sha256", "fingerprint")
"""Settings that results.md shows elsewhere or not at all."""


def bench(
    prompts: Annotated[
        Path | None,
        typer.Option(help="Spec-Bench JSONL: question_id, category, turns. Default: built-in mix."),
    ] = None,
    drafters: Annotated[
        str, typer.Option(help="Comma-separated; none is always measured too.")
    ] = "none,prompt-lookup,recycling",
    limit: Annotated[
        int | None, typer.Option(help="So many prompts, spread evenly over categories.")
    ] = None,
    turns: Annotated[
        str, typer.Option(help="first: first turns alone; all: whole dialogues.")
    ] = "first",
    max_new_tokens: o.MaxNewTokens = 128,
    model: o.Model = "smollm2-135m",
    runtime: o.Runtime = "auto",
    device: o.Device = None,
    precision: o.Precision = None,
    layout: o.TreeLayout = None,
    verifier: o.Verifier = "auto",
    controller: o.Controller = "auto",
    nodes: o.Nodes = None,
    depth: o.Depth = None,
    draft_model: o.DraftModel = None,
    threads: o.Threads = None,
    max_context: o.MaxContext = None,
    temperature: o.Temperature = 0.0,
    seed: o.Seed = 0,
    ignore_eos: o.IgnoreEos = False,
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
    ends the run with what there is; with --out, the same command takes it up again.
    """
    names = _drafters(drafters)
    checked = o.runtime_options(device, precision, layout, threads, max_context)
    o.check_names(runtime, verifier, controller, *names)
    params = SamplingParams(
        temperature=temperature, seed=seed, max_new_tokens=max_new_tokens, ignore_eos=ignore_eos
    )
    if turns not in ("first", "all"):
        raise InvalidOption(f"--turns {turns!r} is unknown: use first or all")
    for name, value in (("limit", limit), ("batch", batch)):
        if value is not None and value < 1:
            raise InvalidOption(f"--{name} must be 1 or more, not {value}")
    chosen = spread(BUILT_IN if prompts is None else read_prompts(prompts), limit)
    if out is not None and out.exists() and not out.is_dir():
        raise InvalidOption(f"--out {out} is a file: give a directory")

    from paceline import loading
    from paceline.bench.machine import machine
    from paceline.bench.noise import noise_floor
    from paceline.bench.run import check_fit, warm_up
    from paceline.bench.store import Store
    from paceline.cli.interrupt import interruptible

    loaded = loading.load_model(model, runtime=runtime, options=checked)
    engines = {
        name: loading.make_engine(
            loaded,
            drafter=name,
            verifier=verifier,
            controller=controller,
            nodes=nodes,
            depth=depth,
            draft_model=draft_model,
            max_batch=batch,
        )
        for name in names
    }
    if turns == "all" and loaded.tokenizer.chat_template is None:
        raise PromptError("the model has no chat template: use --turns first")
    check_fit(engines["none"], chosen)
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
        "max_context": capabilities.max_context,
        "threads": threads,
        "drafters": names,
        "verifier": engines["none"].config["verifier"],
        "controller": controller,
        "nodes": nodes,
        "depth": depth,
        "draft_model": draft_model,
        "prompts": "built-in" if prompts is None else prompts.name,
        "prompts_sha256": _digest(chosen),
        "limit": limit,
        "turns": turns,
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "seed": seed,
        "ignore_eos": ignore_eos,
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
        "fidelity": _fidelity(loaded, model) if fidelity else None,
    }
    records = {} if store is None else {each.index: each for each in store.records}
    with interruptible() as interrupt:
        if len(records) < len(chosen):
            warm_up(engines, chosen[0])
        for finished in _run(
            engines, chosen, params, batch, turns == "all", cold, records, interrupt
        ):
            if store is not None:
                store.append(finished)
            records.update((each.index, each) for each in finished)
    ordered = [records[index] for index in sorted(records)]
    _report(results, ordered, engines, len(chosen), store, as_json)
    if interrupt:
        raise typer.Exit(130)


def _drafters(text: str) -> list[str]:
    """Names from the command line, the baseline first."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise InvalidOption(f"--drafters {text!r} has an empty name: separate names by one comma")
    for name in names:
        if names.count(name) > 1:
            raise InvalidOption(f"--drafters names {name} twice: name it once")
    return ["none", *(name for name in names if name != "none")]


def _digest(prompts: Sequence[BenchPrompt]) -> str:
    content = repr([(p.question_id, p.category, p.turns) for p in prompts])
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


def _fidelity(loaded: Loaded, model: str) -> dict[str, Any] | None:
    """The loaded precision against fp32; None if it is fp32."""
    from paceline import loading
    from paceline.bench.fidelity import fidelity

    capabilities = loaded.target.capabilities
    if capabilities.precision == "fp32":
        return None
    options = replace(loaded.options, precision="fp32")
    reference = loading.load_model(model, runtime=capabilities.runtime, options=options)
    return fidelity(reference.target, loaded.target, loaded.tokenizer).as_dict()


def _run(
    engines: Mapping[str, Engine],
    prompts: Sequence[BenchPrompt],
    params: SamplingParams,
    batch: int,
    all_turns: bool,
    cold: bool,
    records: Mapping[int, Record],
    interrupt: Interrupt,
) -> Iterator[list[Record]]:
    """Run what is left, with a progress bar."""
    from paceline.bench.run import groups, run

    done = frozenset(records)
    left = sum(not done.issuperset(group) for group in groups(prompts, batch))
    with _progress(left * len(engines)) as tick:
        yield from run(
            engines,
            prompts,
            params,
            batch=batch,
            all_turns=all_turns,
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
    store: Any,
    as_json: bool,
) -> None:
    """Print the results, and write them where a directory was given."""
    from paceline.bench import report
    from paceline.cli.output import print_json

    lossless = {name: bool(engine.config["lossless"]) for name, engine in engines.items()}
    table = report.rows(records, lossless)
    notes = report.remarks(table)
    if len(records) < wanted:
        notes.insert(0, f"interrupted after {len(records)} of {wanted} prompts")
    results |= {"rows": table, "complete": len(records) == wanted, "remarks": notes}
    if store is not None:
        store.finish(results, _page(results, report.markdown(table)))
    if as_json:
        print_json(results)
        return
    typer.echo(report.plain(table))
    for line in _facts(results):
        typer.echo(line)


def _facts(results: Mapping[str, Any]) -> list[str]:
    """Lines that belong under every table."""
    costs = ", ".join(f"c({n}) = {c:.2f}" for n, c in results["c_n"].items())
    noise = ", ".join(f"{kind} {value:.2g}" for kind, value in results["noise_floor"].items())
    lines = [f"cost of a forward: {costs}", f"largest logit difference to plain steps: {noise}"]
    if results["fidelity"]:
        figures = results["fidelity"]
        lines.append(
            f"against fp32: KL {figures['kl']:.4f} nats per token, same likeliest token at "
            f"{figures['top1_agreement']:.1%}, perplexity {figures['perplexity']:.3f} against "
            f"{figures['reference_perplexity']:.3f}"
        )
    return [*lines, *results["remarks"]]


def _page(results: Mapping[str, Any], table: str) -> str:
    settings = ", ".join(
        f"{key} {value}"
        for key, value in results["settings"].items()
        if value not in (None, False) and key not in _UNSHOWN
    )
    facts = "\n".join(f"- {line}" for line in _facts(results))
    machine = results["machine"]
    where = f"{machine['cpu']}, {machine['cores']} cores"
    return f"# Bench\n\n{settings}\n\n{where}\n\n{table}\n{facts}\n"
