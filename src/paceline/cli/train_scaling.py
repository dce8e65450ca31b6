"""`paceline train scaling`: how acceptance grows with training tokens and with a drafter's size."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import options as o
from paceline.cli.output import training_bar
from paceline.core.expressions import split_lists
from paceline.errors import InvalidOption
from paceline.registry.options import Options

if TYPE_CHECKING:
    from paceline.training.scaling import PlannedRun, RunResult
    from paceline.training.setup import TrainingSetup

_NETWORKS = [
    "hydra:steps=3,hidden=144,ffn_size=384",
    "hydra:steps=3,hidden=288,ffn_size=768",
    "hydra:steps=3",
]


@o.spread_options
def scaling(
    *,
    data: o.Folders = o.DATA,
    out: Annotated[Path, typer.Option(help="Folder of results, report and figures.")] = Path(
        "scaling"
    ),
    tokens: Annotated[
        str, typer.Option(help="Tokens to train on, run by run; k and M may stand behind.")
    ] = "60k,120k,240k,480k",
    networks: Annotated[
        list[str] | None,
        typer.Option(
            help="Network, with sizes: hydra:steps=3,hidden=288; repeatable. Default: hydra in "
            "three sizes."
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(help="Runs of each kind, with seeds from --seed on; more say more.")
    ] = 1,
    keep_features: o.KeepFeatures = None,
    teaching: o.TrainingOptions,
    asked: Annotated[Options, o.Takes(*o.COMPUTE)],
    as_json: o.AsJson = False,
) -> None:
    """Train networks on more and more tokens, and fit how acceptance grows.

    Every network is trained on every number of tokens, each time anew with a learning-rate
    schedule of its own, and judged on texts that are held out. Block efficiency and first-token
    acceptance are fitted by a + b log N: over training tokens for each network (three numbers or
    more), and over parameters for networks of one kind (three sizes or more). The folder gets
    scaling.md, scaling.json and figures.

    Finished runs are kept in the folder and not done again; Ctrl-C saves the one at hand, and the
    same command goes on. Larger studies take up the runs of smaller ones: add to --tokens,
    --networks or --seeds. With --keep-features the target reads each text once for all runs.
    """
    names = split_lists(networks or _NETWORKS, "--networks")

    from paceline.cli.output import print_json, remark
    from paceline.training.batches import hold_out
    from paceline.training.scaling import Point, Results, RunResult, Study, plan, write_report
    from paceline.training.setup import TrainingSetup
    from paceline.training.trainer import parse_count

    budgets = sorted({parse_count(each, "--tokens") for each in tokens.split(",")})
    if seeds < 1:
        raise InvalidOption(f"--seeds must be 1 or more, not {seeds}")
    teaching.recipe(budgets[0])  # bad options end here, before the model is loaded
    results = Results(out / "runs")
    setup = TrainingSetup(
        data,
        replace(asked, model=teaching.model),
        vocabulary=teaching.vocabulary,
        keep_features=keep_features,
    )
    trained_on, held_out = hold_out(setup.texts)
    shared = _shared(setup, teaching)
    built = {name: setup.network(name) for name in names}
    runs = plan(built, budgets, range(teaching.seed, teaching.seed + seeds), shared)
    outcomes = {run.stem: results.read(run) for run in runs}
    with training_bar() as bar:
        bar.expect(f"{len(runs)} runs", sum(run.tokens for run in runs))
        for number, run in enumerate(runs, 1):
            found = outcomes[run.stem]
            if found is None and not bar.interrupt:
                recipe = teaching.recipe(run.tokens, run.seed)
                place = results.checkpoint(run)
                trainer = setup.trainer(built[run.network], recipe, checkpoint_at=place)
                if bar.train(trainer, f"{run.network}, {run.tokens:,} tokens"):
                    found = outcomes[run.stem] = RunResult.of(trainer)
                    results.keep(run, found)
                    remark(f"{number} of {len(runs)}: {_line(run, found)}")
            if found is not None:
                bar.passed(run.tokens)
    points = [Point(run, done) for run in runs if (done := outcomes[run.stem]) is not None]
    study = Study(
        f"paceline train scaling --data DATA --tokens {','.join(map(str, budgets))} "
        f"{' '.join(f'--networks {name}' for name in names)} --seeds {seeds} {teaching.words}",
        setup.source.name,
        shared,
        sum(len(text.tokens) for text in trained_on),
        len(held_out),
        len(runs),
        points,
    )
    content = write_report(out, study)
    if as_json:
        print_json(content)
    else:
        _print(out / "scaling.md", content)
    if not study.complete:
        remark(f"{len(points)} of {len(runs)} runs are finished: the same command goes on")
        raise typer.Exit(130)


def _shared(setup: TrainingSetup, teaching: o.TrainingOptions) -> dict[str, Any]:
    """What the results of all runs depend on, as plain values."""
    recipe = asdict(teaching.recipe(1))
    return {
        "model": setup.source.fingerprint,
        "computed": setup.computed,
        "data": setup.data,
        "texts": len(setup.texts),
        "vocabulary": len(setup.kept.ids),
        "recipe": {key: recipe[key] for key in recipe.keys() - {"tokens", "seed"}},
    }


def _line(run: PlannedRun, outcome: RunResult) -> str:
    return (
        f"{run.network} on {outcome.tokens} tokens in {outcome.seconds:.0f} s: block efficiency "
        f"{outcome.block_efficiency:.3f}, first token accepted {outcome.acceptance[0]:.1%}"
    )


def _print(report: Path, content: dict[str, Any]) -> None:
    for law in content["laws"]:
        slope = law["per_tenfold"]
        typer.echo(
            f"{law['of']}: ten times the {law['over']}, {law['value']} {slope['value']:+.3f} "
            f"({slope['low']:+.3f} to {slope['high']:+.3f})"
        )
    typer.echo(f"{report}: {len(content['runs'])} runs, {len(content['laws'])} laws")
