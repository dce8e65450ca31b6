"""`paceline bounds`: what every verifier reaches on a drafter, and what none can exceed."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import options as o
from paceline.cli.output import print_json, remark
from paceline.core.types import SamplingParams
from paceline.errors import InvalidOption, PromptError
from paceline.measure.prompts import BUILT_IN, read_prompts, spread
from paceline.registry.options import Options
from paceline.version import __version__

if TYPE_CHECKING:
    from paceline.registry.loaded import Loaded


@o.spread_options
def bounds(
    *,
    draft: Annotated[
        str,
        typer.Option(
            help="layers:28 (the target's first layers), precision:int4 (the target again), or a "
            "model with the target's vocabulary."
        ),
    ] = "layers:28",
    prompts: o.Prompts = None,
    limit: Annotated[
        int | None, typer.Option(help="So many prompts, spread evenly over categories.")
    ] = None,
    temperatures: Annotated[str, typer.Option(help="Comma-separated.")] = "0.6,1.0",
    top_p: Annotated[str, typer.Option(help="Comma-separated.")] = "1.0",
    drafts: Annotated[
        str, typer.Option(help="Drafts of a node, comma-separated, 1 to 8.")
    ] = "1,2,3,4",
    depth: Annotated[int, typer.Option(help="Length of drafted chains.")] = 4,
    max_new_tokens: o.MaxNewTokens = 48,
    asked: Annotated[Options, o.Takes("model", *o.COMPUTE)],
    seed: o.Seed = 0,
    as_json: o.AsJson = False,
) -> None:
    """Say what every verifier accepts of a drafter on real prompts, and what none can exceed.

    The bound is the optimum over all lossless rules that see the same drafts of a node; chains and
    paths are verified as a whole, so their figures are accepted tokens per round.
    """
    asked.check()
    counts = o.numbers("--drafts", drafts, int)
    if not all(1 <= count <= 8 for count in counts):
        raise InvalidOption(f"--drafts must be between 1 and 8, not {drafts}")
    o.check_at_least_one(limit=limit, depth=depth)
    if max_new_tokens <= depth:
        raise InvalidOption(f"--max-new-tokens must be more than --depth, not {max_new_tokens}")
    settings = [
        SamplingParams(
            temperature=temperature, top_p=mass, seed=seed, max_new_tokens=max_new_tokens
        )
        for temperature, mass in itertools.product(
            o.numbers("--temperatures", temperatures, float), o.numbers("--top-p", top_p, float)
        )
    ]
    chosen = spread(BUILT_IN if prompts is None else read_prompts(prompts), limit)
    kind, _, which = draft.partition(":")
    if kind == "layers" and not which.isdecimal():
        raise InvalidOption(f"--draft {draft}: say how many layers, as in layers:28")

    from paceline.measure import acceptance
    from paceline.registry import loading

    loaded = loading.load_model(asked)
    if kind == "layers":
        small = loading.load_draft(
            loaded, asked.model, precision=asked.precision, layers=int(which)
        )
    elif kind == "precision":
        small = loading.load_draft(loaded, asked.model, precision=which)
    else:
        small = loading.load_draft(loaded, draft)
    texts = [prompt.turns[0] for prompt in chosen]
    results: dict[str, Any] = {
        "version": __version__,
        "target": _describe(loaded),
        "draft": _describe(small),
        "prompts": len(texts),
        "settings": [],
    }
    for params in settings:
        if not as_json:
            remark(f"temperature {params.temperature:g}, top-p {params.top_p:g}")
        costs, small_costs = loaded.measured_costs, small.measured_costs
        measured = list(
            acceptance.measure(loaded, small, texts, params, drafts=counts, depth=depth)
        )
        if not any(measured):
            raise PromptError(
                f"no prompt leaves room for chains of {depth} tokens: shorten the prompts or lower "
                "--depth"
            )
        results["settings"].append(
            {
                "temperature": params.temperature,
                "top_p": params.top_p,
                "rounds": sum(map(len, measured)),
                "rows": acceptance.rows(measured),
                "chains": acceptance.chain_rows(measured, depth, costs, small_costs),
                "orderings": acceptance.orderings(measured),
            }
        )
    if as_json:
        print_json(results)
    else:
        _print(results)


def _describe(loaded: Loaded) -> dict[str, Any]:
    capabilities = loaded.target.capabilities
    return {
        "name": loaded.source.name,
        "runtime": capabilities.runtime,
        "precision": capabilities.precision,
    }


def _print(results: Mapping[str, Any]) -> None:
    from paceline.measure.report import aligned

    target, draft = results["target"], results["draft"]
    typer.echo(
        f"target {target['name']} ({target['precision']}), draft model {draft['name']} "
        f"({draft['precision']}), {results['prompts']} prompts"
    )
    for each in results["settings"]:
        typer.echo(
            f"\ntemperature {each['temperature']:g}, top-p {each['top_p']:g}: "
            f"{each['rounds']} rounds; 90% intervals over prompts, 80% ranges of nodes"
        )
        head = ["drafts of a node", "how", "verifier", "accepted", "interval", "range", "bound"]
        lines = [[*head, "share of bound"]]
        for row in sorted(each["rows"], key=lambda row: (row["drafts"], row["draft_law"])):
            share = row["share_of_bound"]
            lines.append(
                [
                    str(row["drafts"]),
                    row["draft_law"],
                    row["verifier"],
                    f"{row['acceptance']:.3f}",
                    f"{row['acceptance_low']:.3f} to {row['acceptance_high']:.3f}",
                    f"{row['node_low']:.3f} to {row['node_high']:.3f}",
                    f"{row['bound']:.3f}",
                    "-" if share is None else f"{share:.1%}",
                ]
            )
        typer.echo(aligned(lines))
        lines = [["paths", "depth", "nodes", "verifier", "accepted tokens", "interval", "speed"]]
        for row in each["chains"]:
            lines.append(
                [
                    *(str(row[key]) for key in ("paths", "depth", "nodes", "verifier")),
                    f"{row['accepted']:.3f}",
                    f"{row['accepted_low']:.3f} to {row['accepted_high']:.3f}",
                    f"{row['speed']:.2f}",
                ]
            )
        typer.echo("\n" + aligned(lines))
        best = max(each["chains"], key=itemgetter("speed"))
        gain = f"{best['speed']:.2f} times plain decoding by both models' costs"
        typer.echo(f"number of paths to draft: {best['paths']}, {gain}\n")
        for row in each["orderings"]:
            typer.echo(
                f"{row['claim']}: {'holds' if row['holds'] else 'FAILS'} in {row['cases']} cases, "
                f"difference {row['least']:.0e} or more, {row['mean']:.4f} on average"
            )
