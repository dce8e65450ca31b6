"""`paceline bounds`: what every verifier reaches on a drafter, and what none can exceed."""

from __future__ import annotations

import itertools
from typing import Annotated

from paceline.cli import options as o
from paceline.cli.output import remark, report
from paceline.core.types import SamplingParams
from paceline.errors import InvalidOption
from paceline.lab.measure.prompts import BUILT_IN, read_prompts, spread
from paceline.registry.options import Options
from paceline.version import __version__


def bounds(
    *,
    draft: Annotated[
        str,
        "layers:28 (the target's first layers), precision:int4 (the target again), or a "
        "model with the target's vocabulary.",
    ] = "layers:28",
    prompts: o.Prompts = None,
    limit: Annotated[int | None, "So many prompts, spread evenly over categories."] = None,
    temperatures: Annotated[str, "Comma-separated."] = "0.6,1.0",
    top_p: Annotated[str, "Comma-separated."] = "1.0",
    drafts: Annotated[str, "Drafts of a node, comma-separated, 1 to 8."] = "1,2,3,4",
    depth: Annotated[int, "Length of drafted chains."] = 4,
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

    from paceline.lab.measure import acceptance
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
    results = {
        "version": __version__,
        **acceptance.report(
            loaded,
            small,
            texts,
            settings,
            drafts=counts,
            depth=depth,
            say=(lambda _: None) if as_json else remark,
        ),
    }
    report(results, acceptance.plain(results), as_json=as_json)
