"""`paceline bench parallel`: samplers of a canvas, over tasks with known answers."""

from __future__ import annotations

from itertools import product
from typing import Annotated, Any

from paceline.cli import options as o
from paceline.cli.output import end, interruptible, progress_bar, remark, report
from paceline.errors import InvalidOption
from paceline.registry.options import AUTOREGRESSIVE, Options

SAMPLERS = "autoregressive;counts;counts:per_step=2;counts:per_step=4;threshold:tau=0.9"


def parallel(
    *,
    asked: Annotated[Options, o.Takes("model", *o.COMPUTE, model="lists-bd")],
    samplers: Annotated[
        str, "Separated by semicolons; autoregressive is the model's own stream, if it has one."
    ] = SAMPLERS,
    blocks: Annotated[str, "Blocks, separated by commas; 0 is the model's."] = "0",
    caches: Annotated[str, "Cache plans, separated by semicolons; auto is the model's."] = "auto",
    tasks: Annotated[str | None, "Separated by commas. Default: all."] = None,
    templates: Annotated[str, "Of the prompts, separated by commas."] = "0,1,2",
    seeds: Annotated[int, "Draws of cases."] = 5,
    cases: Annotated[int, "Cases of a task, template and seed."] = 8,
    batches: Annotated[str, "Canvases decoded together, by commas."] = "1",
    temperature: o.Temperature = 0.0,
    room: Annotated[int, "Places of an answer."] = 20,
    out: o.Results = None,
    as_json: o.AsJson = False,
) -> None:
    """Measure samplers of a canvas: accuracy, KL, forwards, positions and time.

    At temperature 1 with a model that also decodes from left to right, the KL divergence of each
    sampler to that stream is measured on its own samples. Ctrl-C ends with what there is; with
    --out the same command goes on.
    """
    o.check_at_least_one(seeds=seeds, cases=cases, room=room)
    from paceline.lab.measure import parallel as bench
    from paceline.lab.measure.kept import Kept
    from paceline.lab.measure.machine import machine
    from paceline.lab.measure.parallel_page import page, results_page
    from paceline.lab.measure.parallel_tasks import TASKS, find_task
    from paceline.registry import loading

    names = list(TASKS) if tasks is None else [each.strip() for each in tasks.split(",")]
    for name in names:
        find_task(name)
    settings = [
        bench.Setting(sampler, block or None, None if cache == "auto" else cache)
        for sampler, block, cache in product(
            _split(samplers, ";", "--samplers"),
            dict.fromkeys(o.numbers("--blocks", blocks, int, 0)),
            _split(caches, ";", "--caches"),
        )
        if sampler != bench.AUTOREGRESSIVE
    ]
    if bench.AUTOREGRESSIVE in _split(samplers, ";", "--samplers"):
        settings.insert(0, bench.Setting(bench.AUTOREGRESSIVE))
    sizes = list(dict.fromkeys(o.numbers("--batches", batches, int, 1)))
    forms = dict.fromkeys(o.numbers("--templates", templates, int, 0))
    cells = [bench.Cell(*each) for each in product(names, forms, range(seeds), sizes)]
    loaded = loading.load_model(asked)
    facts = loaded.target.capabilities.denoises
    if facts is None:
        raise InvalidOption(f"{loaded.source.name} fills no canvas: use a model such as lists-bd")
    canvas = loading.make_engine(loaded, max_batch=max(sizes))
    stream = None
    if facts.autoregressive:
        stream = loading.make_engine(
            loaded, sampler=AUTOREGRESSIVE, drafter="none", max_batch=max(sizes)
        )
    about: dict[str, Any] = {
        "model": loaded.source.name,
        "fingerprint": loaded.source.fingerprint,
        "runtime": loaded.target.capabilities.runtime,
        "settings": [each.label for each in settings],
        "tasks": names,
        "templates": templates,
        "seeds": seeds,
        "cases": cases,
        "batches": sizes,
        "temperature": temperature,
        "room": room,
        "machine": machine(),
    }
    run = bench.Bench(
        canvas, stream, settings, cells, cases=cases, room=room, temperature=temperature
    )
    with (
        Kept(out and out / "records.jsonl", about, bench.read_record) as kept,
        progress_bar("{task.completed:.0f}/{task.total:.0f}") as bar,
        interruptible() as interrupt,
    ):
        run.keep(kept)
        task = bar.add_task("parallel", total=run.left)
        for _ in run.run(lambda: bool(interrupt)):
            bar.advance(task)
    results = {"about": about, **run.results()}
    if out is not None:
        kept.finish(results, results_page(results), page(results))
        remark(f"results.json, results.md and report.html are in {out}")
    report(results, results_page(results), as_json=as_json)
    end(not interrupt, kept=out is not None)


def _split(text: str, by: str, option: str) -> list[str]:
    found = [each.strip() for each in text.split(by)]
    if not all(found):
        raise InvalidOption(f"{option} {text!r} has an empty name: separate names by one {by}")
    return list(dict.fromkeys(found))
