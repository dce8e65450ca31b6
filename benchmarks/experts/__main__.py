"""Mixtures of experts: how many experts tokens in a row share, and what knowing that is worth.

    python -m benchmarks.experts lists-blockffn

Models are those of `paceline train experts`. Held-out lists are read, each for itself, and the
experts of every row are noted: the share that some of 1 to 32 rows in a row use; the time of the
native mixture over large random weights with these experts; how many experts a table of tokens
foretells; and what rows cost between simulated devices. Then requests are answered with the table
watching, and without.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from benchmarks.experts import devices as d
from benchmarks.experts.foretelling import Foretelling, Watched, as_dict
from benchmarks.experts.reading import WAYS, Mixtures, times

from paceline.core.target import Pass
from paceline.core.tree import chain
from paceline.core.types import BoolArray, SamplingParams
from paceline.errors import InvalidOption, PacelineError
from paceline.measure import parallel_tasks
from paceline.measure.machine import dumps, machine
from paceline.measure.results import record
from paceline.registry.loaded import Loaded
from paceline.registry.loading import load_model, make_engine

UNIONS, SIZES, DEVICES = (1, 8, 16, 32), (8, 32), (2, 4, 8)
TASKS = tuple(parallel_tasks.TASKS)[:10]
DATA = Path(__file__).parents[2] / "docs" / "results" / "data"
PLACES = ("plain", "experts grouped", "rows where foretold", "both", "both, experts known")


def texts(loaded: Loaded, count: int, seed: int = 1) -> list[list[int]]:
    """Prompts with right answers, in a random order."""
    cases = [case for task in TASKS for case in parallel_tasks.cases(task, count, seed)]
    order = np.random.default_rng(seed).permutation(len(cases))
    said = [f"{cases[i].prompt} {cases[i].answer}" for i in order]
    return [loaded.tokenizer.encode(each) for each in said]


def routed(loaded: Loaded, given: Sequence[Sequence[int]]) -> BoolArray:
    """Experts of the rows of texts, one behind another: `[rows, layers, experts]`."""
    target: Any = loaded.target
    found = []
    for tokens in given:
        cache = target.open()
        target.forward([Pass(cache, tokens[:1], chain(tokens[1:]))])
        found.append(np.stack([each != 0 for each in target.routes()], axis=1))
        target.release(cache)
    return np.concatenate(found)


def shares(used: BoolArray) -> dict[str, float]:
    """Share of the experts that some of so many rows in a row use, or any row at all."""
    out = {}
    for size in UNIONS:
        whole = used[: len(used) // size * size]
        out[str(size)] = float(whole.reshape(-1, size, *used.shape[1:]).any(1).mean())
    return out | {"all": float(used.any(0).mean())}


def foretold(
    used: BoolArray, given: Sequence[Sequence[int]], count: int
) -> tuple[Foretelling, dict[str, dict[str, float]]]:
    """The table after all texts, and what it and the mean over tokens foretold on the way."""
    tables = {
        "by token": Foretelling(*used.shape[1:], count),
        "by the mean": Foretelling(*used.shape[1:], count, tokens=False),
    }
    at = 0
    for tokens in given:
        for table in tables.values():
            table.learn(tokens, used[at : at + len(tokens)])
        at += len(tokens)
    return tables["by token"], {name: as_dict(each.counters) for name, each in tables.items()}


def costs(
    used: BoolArray, tokens: Sequence[int], table: Foretelling, seen: BoolArray, size: int
) -> list[dict[str, Any]]:
    """How often a row is sent to another device, per layer, and the load, by placement.

    Args:
        used: of rows that are new to the table.
        tokens: of these rows.
        table: what foretells them; it learns no more.
        seen: experts of other rows, to group by.
        size: rows of a forward.
    """
    layers, out = used.shape[1], []
    for count in DEVICES:
        plain = [d.plain_places(used.shape[2], count)] * layers
        grouped = [d.grouped_places(seen[:, layer], count) for layer in range(layers)]
        found: dict[str, list[d.Volume]] = {name: [] for name in PLACES}
        even = 0.0
        for begin in range(0, len(used) - size + 1, size):
            part, told = used[begin : begin + size], table.shares(tokens[begin : begin + size])
            for layer in range(layers):
                own, first = part[:, layer], d.plain_homes(size, count)
                homes = [
                    d.foretold_homes(of, at[layer], count)
                    for of, at in (
                        (told[:, layer], plain),
                        (told[:, layer], grouped),
                        (own.astype(np.float64), grouped),
                    )
                ]
                ways = (
                    (plain, first),
                    (grouped, first),
                    (plain, homes[0]),
                    (grouped, homes[1]),
                    (grouped, homes[2]),
                )
                for name, (at, where) in zip(PLACES, ways, strict=True):
                    found[name].append(d.volume(own, at[layer], where))
                even += own.sum() / count
        rows = len(found["plain"]) * size
        for name, each in found.items():
            sent = sum(one.sent for one in each) / rows
            load = sum(one.busiest for one in each) / even
            out.append({"devices": count, "placement": name, "sent": sent, "load": load})
    return out


def served(loaded: Loaded, table: Foretelling, count: int) -> bool:
    """Whether texts are the same with the table watching, drafts included."""
    found = []
    for target in (loaded.target, Watched(loaded.target, table)):
        own = Loaded(loaded.source, loaded.tokenizer, target, loaded.options)
        engine = make_engine(own, drafter="suffix-automaton", nodes=6, depth=6, max_batch=4)
        cases = [case for task in TASKS for case in parallel_tasks.cases(task, count, 2)]
        params = SamplingParams(temperature=1.0, seed=3, max_new_tokens=12)
        numbers = [engine.add(case.prompt, params, raw=True) for case in cases]
        done = {}
        while engine.pending:
            for event in engine.step():
                if event.completion is not None:
                    done[event.request] = event.completion.token_ids
        found.append([done[each] for each in numbers])
    return found[0] == found[1]


def measured(model: str, mixtures: Mixtures | None, given: argparse.Namespace) -> dict[str, Any]:
    """All figures of a model."""
    loaded = load_model(model)
    experts = loaded.source.config.experts
    if experts is None:
        raise InvalidOption(f"{model} has no experts: give a model of `paceline train experts`")
    known, new = texts(loaded, given.texts), texts(loaded, given.texts // 4, 5)
    seen, used = routed(loaded, known), routed(loaded, new)
    table, told = foretold(seen, known, experts.used)
    tokens = [token for each in new for token in each]
    watched = Foretelling(used.shape[1], used.shape[2], experts.used)
    card = json.loads((loaded.source.path / "card.json").read_text(encoding="utf-8"))
    out = {
        "model": model,
        "right": 100 * mean(card["held_out"]["right"].values()),  # percent, greedy
        "rows": len(seen),
        "experts": experts.count,
        "row_bytes": 2 * 2 * loaded.source.config.hidden_size,  # there and back, in halves
        "shares": shares(seen),
        "foretold": told,
        "devices": costs(used, tokens, table, seen, given.rows),
        "identical": served(loaded, watched, given.texts // 8),
        "served": as_dict(watched.counters),
    }
    if mixtures is not None:
        layers = [seen[:, i % seen.shape[1]] for i in range(given.layers)]
        out["times"] = {n: times(mixtures, layers, n, given.chunks) for n in SIZES}
    return out


def write(found: Sequence[dict[str, Any]], mixtures: Mixtures, given: argparse.Namespace) -> None:
    """Record the tables of a page of results."""
    names = [Path(each["model"]).name for each in found]
    command = f"python -m benchmarks.experts {' '.join(names)} --record"
    both = list(zip(names, found, strict=True))
    rows: list[list[Any]] = [
        [
            name,
            round(each["right"], 1),
            *(round(100 * share, 1) for share in each["shares"].values()),
            *(round(each["times"][n][way], 2) for n in SIZES for way in WAYS),
        ]
        for name, each in both
    ]
    width, bytes_ = mixtures.width, mixtures.expert_bytes / 2**20
    record(
        DATA / "kernels-experts.json",
        "Experts that tokens in a row share",
        "kernels",
        command,
        [
            "model",
            "% right",
            *(f"% of experts, {size}" for size in ("1 token", *UNIONS[1:], "all")),
            *(f"{n} rows {way}, ms" for n in SIZES for way in WAYS),
        ],
        rows,
        "Models of `paceline train experts`: `lists-blockffn` is blockffn, the one without losses "
        "has `--locality 0 --chunk 0`, the third is top-k. Right answers as their cards say. "
        f"Experts of held-out lists, {found[0]['rows']:,} rows, used by some of so many in a row. "
        f"Times: {given.layers} layers of {found[0]['experts']} random experts of "
        f"width {width} and {bytes_:.1f} MiB each, int8, with the experts of these rows: "
        "processor time of one thread, medians of "
        f"{given.chunks} chunks, by turns. All ways give the same bits.",
        {
            f"{size} rows together, times as fast as row by row, {names[0]}": round(
                found[0]["times"][size]["row by row"] / found[0]["times"][size]["together"], 2
            )
            for size in SIZES
        },
    )
    record(
        DATA / "kernels-experts-foretold.json",
        "Experts foretold from tokens, and simulated devices",
        "kernels",
        command,
        [
            "model",
            "% of uses foretold",
            "% of foretold used",
            "% of uses foretold by the mean",
            "devices",
            *(f"{name}, bytes" for name in PLACES),
            "load, plain",
            "load, both",
        ],
        [
            [
                name,
                *(
                    round(100 * each["foretold"]["by token"][key], 1)
                    for key in ("recall", "precision")
                ),
                round(100 * each["foretold"]["by the mean"]["recall"], 1),
                count,
                *(round(each["row_bytes"] * of[count, place]["sent"]) for place in PLACES),
                *(round(of[count, place]["load"], 2) for place in ("plain", "both")),
            ]
            for name, each in both
            for of in [{(one["devices"], one["placement"]): one for one in each["devices"]}]
            for count in DEVICES
        ],
        "A table that learns from every row foretells the next one. Bytes: per row and layer, "
        f"there and back, in halves, forwards of {given.rows} rows. Load: experts run by the "
        "busiest device over the mean. Groups are learned from other texts. A simulation: no "
        "second device was there. "
        f"Texts that were served with the table watching were the same: "
        f"{'yes' if all(each['identical'] for each in found) else 'no'}.",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure models, and print JSON."""
    parser = argparse.ArgumentParser(prog="experts", description="Mixtures of experts.")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--texts", type=int, default=40, help="of a task")
    parser.add_argument("--rows", type=int, default=32, help="of a forward over devices")
    parser.add_argument(
        "--layers", type=int, default=8, help="of the mixture that is timed; 0: none"
    )
    parser.add_argument("--width", type=int, default=1024, help="of its rows")
    parser.add_argument("--inner", type=int, default=1024, help="size of its experts")
    parser.add_argument("--chunks", type=int, default=15, help="timed")
    parser.add_argument("--record", action="store_true", help="write the tables of the results")
    given = parser.parse_args(argv)
    try:
        mixtures = None
        if given.layers:
            count = 16  # as many as the models have
            mixtures = Mixtures(given.layers, count, given.width, given.inner)
        found = [measured(model, mixtures, given) for model in given.models]
        if given.record and mixtures is not None:
            write(found, mixtures, given)
    except PacelineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(dumps({"machine": machine(), "models": found}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
