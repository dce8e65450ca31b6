"""`paceline tune`: what is fastest here becomes the default of drafter "auto"."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import options as o
from paceline.cli.output import end, interruptible, print_json, progress_bar
from paceline.core.types import SamplingParams
from paceline.errors import InvalidOption, RuntimeUnavailable
from paceline.lab.measure.prompts import BUILT_IN, digest, read_prompts
from paceline.registry import tuned_choice as tuned
from paceline.registry.options import Options
from paceline.registry.tuned_choice import TEMPERATURE_KINDS, Kind
from paceline.version import __version__

if TYPE_CHECKING:
    from paceline.drafters.resources import Loaded
    from paceline.lab.tuning.tuner import Outcome

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def tune(
    *,
    prompts: o.Prompts = None,
    time_limit: Annotated[str, "Seconds, or as in 90s, 5m, 1h, without loading."] = "5m",
    explain: Annotated[bool, "Print why the saved choice was made, no more."] = False,
    forget: Annotated[bool, "Drop the saved choice and what was measured."] = False,
    decoding: Annotated[
        str, "What to tune for: greedy, sampled, or both within the time limit."
    ] = "both",
    temperature: Annotated[float, "Of sampled decoding."] = 1.0,
    max_new_tokens: o.MaxNewTokens = 48,
    asked: Annotated[Options, o.Takes(*o.MODEL, "threads", "max_context")],
    seed: o.Seed = 0,
    as_json: o.AsJson = False,
) -> None:
    """Find the fastest drafter and sizes for this machine, model and prompts, and keep them.

    Greedy and sampled requests get a choice each. Ctrl-C ends the search with what there is, and
    the same command goes on. What is saved was faster than plain decoding on prompts that took no
    part in the search; if nothing was, plain decoding is saved.
    """
    seconds = _seconds(time_limit)
    if explain and forget:
        raise InvalidOption("--explain and --forget do not go together: give one of them")
    kinds = _kinds(decoding, temperature)
    asked.check()
    params = {
        kind: SamplingParams(
            temperature=temperature if kind == "sampled" else 0.0,
            seed=seed,
            max_new_tokens=max_new_tokens,
        )
        for kind in kinds
    }
    chosen = BUILT_IN if prompts is None else read_prompts(prompts)

    from paceline.registry import loading

    loaded = loading.load_model(asked)
    journal = tuned.path_of(loaded.place).with_suffix(".journal")
    if forget:
        _forget(loaded, journal)
        return
    if explain:
        _explain(loaded, kinds, as_json)
        return
    if find_spec("optuna") is None:
        raise RuntimeUnavailable("tuning needs optuna: pip install 'paceline[tune]'")

    from paceline.lab.tuning.search import Search
    from paceline.lab.tuning.space import ModelTrack, Space
    from paceline.lab.tuning.tuner import TuningTask, tune_kinds

    space = Space.of(loaded)

    def task(kind: Kind) -> TuningTask:
        track = ModelTrack(loaded, chosen, params[kind])
        settings = {
            "prompts": "built-in" if prompts is None else prompts.name,
            "prompts_sha256": digest(track.work.content),
            "max_new_tokens": max_new_tokens,
            "temperature": params[kind].temperature,
            "seed": seed,
            "max_context": asked.max_context,
        }
        # A study goes on only where all that its figures depend on is the same.
        weights = (list(space.everything), space.weights)
        study = digest(repr((__version__, loaded.place, settings, weights)))
        return TuningTask(
            Search(journal, study, len(track.searching), seed, space), track, settings
        )

    tasks = {kind: task(kind) for kind in kinds}
    with interruptible() as interrupt, _progress(seconds) as watch:
        outcomes = tune_kinds(
            loaded, tasks, seconds, interrupted=lambda: interrupt.requested, watch=watch
        )
    _report(outcomes, as_json)
    end(not interrupt)


def _kinds(decoding: str, temperature: float) -> tuple[Kind, ...]:
    found = tuple(kind for kind in TEMPERATURE_KINDS if decoding in (kind, "both"))
    if not found:
        raise InvalidOption(f"--decoding {decoding!r} is unknown: use greedy, sampled or both")
    if temperature == 0:
        raise InvalidOption("--temperature is of sampled decoding: for 0 use --decoding greedy")
    return found


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)([smh]?)", text.strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 0 < seconds < math.inf:
        raise InvalidOption(f"--time-limit {text!r} is no time: write it as in 90, 90s, 5m, 1h")
    return seconds


def _explain(loaded: Loaded, kinds: Sequence[Kind], as_json: bool) -> None:
    from paceline.lab.tuning.tuner import explanation

    saved = tuned.read(loaded.place)
    found = {kind: saved[kind] for kind in kinds if kind in saved}
    if not found:
        raise InvalidOption(
            f"nothing is tuned for {loaded.source.name} at "
            f"{loaded.target.capabilities.precision} on this machine: run paceline tune first"
        )
    if as_json:
        print_json({**{kind: asdict(choice) for kind, choice in found.items()}, "saved": None})
        return
    texts = ["\n".join(explanation(kind, choice)) for kind, choice in found.items()]
    typer.echo("\n\n".join(texts))


def _report(outcomes: Mapping[Kind, Outcome], as_json: bool) -> None:
    from paceline.lab.tuning.tuner import kept, table

    path = next((each.path for each in outcomes.values() if each.path is not None), None)
    if as_json:
        told = {
            kind: {"configuration": None, "search": kept(each.tuner.searched())}
            if each.choice is None
            else asdict(each.choice)
            for kind, each in outcomes.items()
        }
        print_json({**told, "saved": None if path is None else str(path)})
        return
    for kind, each in outcomes.items():
        typer.echo(f"{kind}:")
        if each.choice is not None:
            typer.echo(table(each.choice.evidence["finals"]))
            typer.echo(f"why: {each.choice.evidence['why']}")
            typer.echo(f"drafter auto is now {each.choice.configuration.name}, saved in {path}")
            continue
        rows = kept(each.tuner.searched())
        if rows:
            typer.echo(table(rows, each.tuner.pruned))
        typer.echo(
            "too little was measured to choose by, and nothing was saved: what there is was kept, "
            "and the same command goes on"
        )


def _forget(loaded: Loaded, journal: Path) -> None:
    found = [path for path in (tuned.path_of(loaded.place), journal) if path.exists()]
    for path in found:
        path.unlink()
    typer.echo("forgotten" if found else "there was nothing to forget")


@contextmanager
def _progress(seconds: float) -> Iterator[Callable[[float, str], None]]:
    with progress_bar("") as bar:
        task = bar.add_task("", total=seconds)

        def watch(elapsed: float, text: str) -> None:
            bar.update(task, completed=min(elapsed, seconds), description=f"tune: {text}")

        yield watch
