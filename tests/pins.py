"""Pins: hashes of what the engine does, so that a change of structure shows what it changed.

`python -m tests.pins` runs everything and compares with `pins.json`; exit code 1 if a pin differs.
`--write` records, `--only PATTERN` takes the pins whose name has that regular expression, `--quick`
a choice of two minutes. With `--only`, `--write` renews those alone.

Texts are the same on every processor. Drafts and their scores also come from NumPy's functions,
whose last bits a processor may choose: compare them on one machine, before and after.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import inspect
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

import paceline
from paceline import errors
from paceline.cli import app as command_line
from paceline.core.types import CanvasParams
from paceline.drafters.resources import Loaded
from paceline.engine.engine import Engine
from paceline.errors import PacelineError
from paceline.lab.measure import fingerprint, parallel_tasks
from paceline.networks import catalogue
from paceline.networks.weights import Trained, save_network
from paceline.proof import inside
from paceline.proof.cases import QUICK
from paceline.registry import loading, table
from paceline.verifiers.base import Verifier

FILE = Path(__file__).with_name("pins.json")
TOP = Path(__file__).parents[1]
MODEL = "smollm2-135m"

PROMPTS = (
    "Repeat this list twice: red, green, blue, yellow, red, green, blue, yellow.",
    "Write a Python function that reverses a linked list.",
    "What is 12 times 7? Explain.",
    "Write a short story about a dog who finds a key.",
    "Repeat this with semicolons for commas: one, two, three, one, two, three, one, two.",
    "Translate to French: Good morning, my friend. How are you today?",
    "def total(orders):\n    result = 0\n    for order in orders:\n        result = result +",
    "The days of the week are Monday, Tuesday, Wednesday,",
    "Summarise: Bees visit flowers for nectar. While they do, pollen sticks to them and is carried "
    "from flower to flower.",
    "Make a table of three countries with their capitals and languages.",
    'Give this as JSON with the keys name and age: "Ann is 12, Ben is 7, Cid is 31."',
    "Write SQL that creates a table of customers and a table of orders.",
)

KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 1.0, "seed": 7},
}

SIZES = {"nodes": 6, "depth": 4}
"""Given, so that no measured time decides how much is drafted."""

DRAFTERS: dict[str, tuple[str, ...]] = {
    "none": ("none",),
    "prompt-lookup": ("prompt-lookup",),
    "recycling": ("recycling",),
    "stand": ("stand",),
    "aded": ("aded",),
    "hydra": ("hydra", "hydra:growth=expand-rerank"),
    "eagle3": ("eagle3", "eagle3:growth=expand-rerank", "eagle3:growth=static-recycling"),
    "block-parallel": ("block-parallel", "block-parallel:growth=expand-rerank"),
    "draft-lm": ("draft-lm", "draft-lm:growth=shared-noise-2.1"),
    "kangaroo": ("kangaroo", "kangaroo:stop=0.1"),
    "lookahead": ("lookahead",),
    "forced": ("forced",),
    "suffix-automaton": ("suffix-automaton",),
    "suffix-decoding": ("suffix-decoding",),
    "datastore": ("datastore:index={index}",),
    "input-guided": ("input-guided",),
    "cacheback": ("cacheback",),
    "suffix-tree": ("suffix-tree", "suffix-tree:mode=path"),
    "aded-mcts": ("aded-mcts:trials=9,seed=1",),
    "ppd": ("ppd",),
    "deer": ("deer",),
    "diffuspec": ("diffuspec",),
    "jacobi": ("jacobi",),
    "swift": ("swift:skip=0.1", "swift:skip=0.1,trials=0"),
    "del": ("del:spacing=3,every=2",),
    "double-exit": ("double-exit", "double-exit:stop=0.1"),
}
"""Expressions by method, of those that need nothing but the model and what ships with it."""

MERGED = (
    "suffix-automaton+recycling",
    "graft:floor=0.3+eagle3:growth=expand-rerank+recycling",
    "fuse+eagle3:growth=expand-rerank+suffix-decoding",
    "prompt-lookup+hydra",
)

DRAFT_MODEL: dict[str, tuple[str, ...]] = {
    "draft-model": (
        "draft-model",
        "draft-model:growth=shared-noise-2.1",
        "draft-model:growth=expand-rerank-3",
        "draft-model:growth=static-medusa",
    ),
    "string-level": ("string-level",),
    "omnidraft": ("omnidraft",),
    "cascade": ("cascade", "cascade:bottom=suffix-automaton,nodes=6,least=6"),
    "pearl": ("pearl:window=3",),
    "mirror-sd": ("mirror-sd:exit=20,branches=2",),
    "easyspec": ("easyspec",),
    "dovetail": ("dovetail",),
    "s2d": ("s2d",),
}
"""On fp32 weights, for which the same model drafts at its default precision."""

FP32 = {"quantised": ("quantised",)}

NETWORKS = (
    *("medusa", "eagle", "clover", "chimera", "falcon", "ctc", "specformer", "longspec"),
    *("hidden-transfer", "imitation", "msd", "vispec", "specvlm"),
)
"""Without weights in the package: theirs are drawn here, so that drafts are junk, but always the
same junk."""

SETTINGS: dict[str, dict[str, Any]] = {
    "msd": {"picture": 4},
    "vispec": {"picture": 4},
    "specvlm": {"picture": 4, "keep": 2},
}
"""Of those whose usual ones do not fit the pictures of tests."""

TORCH = ("none", "eagle3", "kangaroo")
"""On the torch runtime, whose bits are those of one machine and one release of torch."""

TIMED = ("suffix-automaton>eagle3", "recycling|prompt-lookup", "choose:seed=1|eagle3|recycling")
"""Which part drafts hangs on measured times: pinned by their texts alone."""

AUTO = ({}, {"drafter": "suffix-automaton"}, {"drafter": "eagle3", "controller": "cost-model"})
"""Sizes hang on measured costs: texts alone."""

RULES: tuple[tuple[str, str, str], ...] = (
    ("greedy", "recycling", "greedy"),
    ("sample-match", "recycling", "sampled"),
    ("coupled", "draft-model:growth=shared-noise-2.1", "sampled"),
    ("rejection", "draft-model", "sampled"),
    ("rejection", "eagle3", "sampled"),
    ("rejection", "jacobi", "sampled"),
    ("rejection", "deer", "sampled"),
    ("rejection", "diffuspec", "sampled"),
    ("block", "draft-model", "sampled"),
    ("multipath-block", "draft-model:growth=paths-2", "sampled"),
    ("recursive", "draft-model:growth=iid-2.1", "sampled"),
    ("recursive-distinct", "draft-model:growth=branching-2.1", "sampled"),
    ("recursive-distinct", "draft-model:growth=stochastic-beam-3", "sampled"),
    ("recursive-distinct", "draft-model:growth=dynamic", "sampled"),
    ("recursive-distinct", "draft-model:growth=threshold-0.1", "sampled"),
    ("recursive-distinct", "stand", "sampled"),
    ("recursive-distinct", "hydra:growth=branching-2.1", "sampled"),
    ("k-seq", "draft-model:growth=paths-2", "sampled"),
    ("top-and-one", "draft-model:growth=top-and-one-2.1", "sampled"),
    ("typical", "recycling", "sampled"),
    ("typical:epsilon=0.5,delta=0.5,greedy_next=false", "eagle3", "sampled"),
    ("top-gap:beta=9,gap=9", "recycling", "greedy"),
    ("top-gap", "eagle3", "sampled"),
    ("fly:window=2,gate=0", "eagle3", "greedy"),
    ("reflective", "recycling", "greedy"),
    ("reflective", "recycling", "sampled"),
    ("relaxed:ratio=2", "recycling", "sampled"),
    ("relaxed:ratio=2", "draft-model", "sampled"),
    ("judge:head={judge}", "recycling", "greedy"),
    ("pivot:head={pivot}", "recycling", "greedy"),
)
"""Verifier, drafter and kind of request."""

CONTROLLERS = ("confidence", "adaptive")

CANVASES = ("lists-mdm", "lists-bd", "lists-order", "deer-smollm2-135m")
SAMPLERS: dict[str, tuple[str, ...]] = {
    "counts": ("counts", "counts:per_step=2", "counts:by=leftmost"),
    "threshold": ("threshold:tau=0.8",),
    "dream": ("dream",),
    "factor": ("factor",),
    "entropy-bound": ("entropy-bound",),
    "entropy": ("entropy",),
    "hierarchical": ("hierarchical",),
    "local-leap": ("local-leap",),
    "filter": ("filter",),
    "credit": ("credit>threshold",),
    "cfg": ("cfg>counts",),
    "prophet": ("prophet>counts",),
    "revise": ("revise>counts",),
    "guided": ("guided",),
    "genmol": ("genmol",),
    "remask": ("remask>genmol",),
    "wedlm": ("wedlm>entropy:tau=0.4,penalty=0.02", "wedlm>counts:by=leftmost"),
    "freedave": ("freedave:width=4>counts",),
    "speculative": ("speculative>counts",),
    "assd": ("assd",),
    "tidar": ("tidar:width=3",),
    "linear-spec": ("linear-spec:width=3",),
    "lexical-units": ("lexical-units",),
}
PLANS = ("none", "exact", "prefix", "dual", "freecache", "vicinity", "window")
TASKS = ("sort", "shuffle", "insert-random")
ROOM = 12

WRONG: tuple[dict[str, Any], ...] = (
    *({"drafter": each} for each in ("nope", "recycling+", ">eagle3", "recycling||none", "")),
    *({"drafter": each} for each in ("recycling:rows=many", "recycling:no=1", "recycling:no")),
    *({"drafter": each} for each in ("graft:floor=2+recycling+aded", "graft+recycling", "fuse")),
    *({"drafter": each} for each in ("choose:seed=x|recycling|aded", "choose|recycling", "swift:")),
    *({"drafter": each} for each in ("eagle3:growth=nope", "eagle3:growth=iid-2.1", "eagle3:x=1")),
    *({"drafter": each} for each in ("draft-model", "datastore", "s2d", "cascade", "quantised")),
    *({"drafter": each} for each in ("judge", "ppd+recycling", "eagle3:weights=/nowhere")),
    {"drafter": "recycling", "draft_model": MODEL},
    {"drafter": "none", "nodes": 0},
    {"drafter": "recycling", "nodes": -1},
    {"drafter": "recycling", "depth": 10**6},
    {"drafter": "recycling", "controller": "nope", "nodes": 4},
    {"drafter": "recycling", "controller": "fixed"},
    {"drafter": "recycling", "controller": "fixed:x=1", "nodes": 4},
    {"drafter": "recycling", "controller": "confidence:least=2"},
    {"drafter": "recycling", "verifier": "rejection", "nodes": 4},
    {"drafter": "recycling", "verifier": "nope", "nodes": 4},
    {"drafter": "recycling", "verifier": "typical:epsilon=x", "nodes": 4},
    {"drafter": "recycling", "verifier": "judge", "nodes": 4},
    {"max_batch": 0},
    {"max_waiting": -1},
    {"step_tokens": 0},
    {"pool": 2},
    {"sampler": "counts"},
    {"block": 4},
    {"canvas_cache": "exact"},
)
"""Options of an engine that are refused: their messages are pinned."""

WRONG_LOADS: tuple[dict[str, Any], ...] = (
    {"model": "/nowhere/model"},
    {"runtime": "nope"},
    {"precision": "int3"},
    {"device": "nope"},
    {"threads": 0},
    {"max_context": 0},
    {"max_context": 10**7},
    {"kv_tokens": 0},
    {"prefix_tokens": -1},
    {"kv_precision": "fp8"},
    {"denoiser": "x"},
    {"denoiser": "mask=3,mask=4"},
    {"denoiser": {"rows": "auto", "mask": 3}},
    {"chat_template": "/nowhere.jinja"},
    {"sampler": "nope"},
    {"sampler": "credit"},
    {"sampler": "counts>counts"},
    {"canvas_cache": "nope"},
    {"drafter": "nope"},
    {"verifier": "nope"},
    {"controller": "nope"},
    {"runtime": "reference", "threads": 1},
    {"runtime": "torch", "kv_tokens": 100},
)

COMMANDS: tuple[str, ...] = (
    "",
    "nope",
    "generate",
    "generate hello --drafter nope",
    "generate hello --verifier nope",
    "generate hello --controller nope",
    "generate hello --runtime nope",
    "generate hello --nodes 0",
    "generate hello --depth x",
    "generate hello --temperature -1",
    "generate hello --seed -1",
    "generate hello --sampler nope",
    "generate hello --threads 0",
    "generate hello --kv-tokens 0",
    "generate hello --max-new-tokens -1",
    "generate hello --first-of 0",
    "bench --drafters nope",
    "bench --drafters recycling,,none",
    "bench --workload nope",
    "bench --turns nope",
    "bench methods --only nope",
    "bench parallel --samplers ;",
    "bench parallel --tasks nope",
    "bench parallel --blocks x",
    "bench batches /nowhere",
    "serve --threads 0",
    "serve --config /nowhere.toml",
    "batch /nowhere.jsonl",
    "tune --trials 0",
    "train drafter nope /nowhere",
    "train data /nowhere",
    "export nope",
    "index /nowhere --out /tmp/nowhere",
    "audit inside --verifier nope",
    "audit inside --jobs 0",
    "audit outside nope",
    "methods --markdown --json",
    "pull nope",
)
"""Command lines that are refused before a model is read: exit code and message are pinned."""

# What stands for what was skipped, and why, in the record itself.
ABOUT = {
    "command": "python -m tests.pins --write",
    "texts alone": "cascades (>), bandits (|, choose) and sizes by the cost model hang on measured "
    "times; a bandit controller draws by them too",
    "left out": "learning drafters (online=), peers, servers, training, whatever measures time",
    "values": "ids, drafts, scores: a hash for each prompt; counts: forwards, drafted, accepted",
}

Value = Any


class Pin(NamedTuple):
    """A name, what computes the value, and whether it belongs to the quick choice."""

    name: str
    make: Callable[[], Value]
    quick: bool = False


def digest(*parts: object) -> str:
    """Ten hex digits of the SHA-256 of values as JSON, or of bytes."""
    found = hashlib.sha256()
    for part in parts:
        raw = isinstance(part, bytes)
        found.update(part if raw else json.dumps(part, sort_keys=True, default=str).encode())
    return found.hexdigest()[:10]


def listed(values: Sequence[Any]) -> str:
    """Six hex digits for each."""
    return " ".join(digest(each)[:6] for each in values)


# Models, and files that options name:

_HELD: dict[str, Loaded] = {}


def model(precision: str = "file", name: str = MODEL, **options: Any) -> Loaded:
    """A model, by default on the CPU runtime; one at a time stays in memory."""
    options = {"runtime": "cpu", **options}
    key = f"{name} {precision} {options}"
    if key not in _HELD:
        _HELD.clear()
        _HELD[key] = loading.load_model(
            name, precision=precision, threads=1, progress=False, **options
        )
    return _HELD[key]


@contextlib.contextmanager
def lasting() -> Iterator[None]:
    """Load each draft model once: engines may share them, and converting weights takes long."""
    held: dict[str, Loaded] = {}
    load = loading.load_model

    def once(*asked: Any, **options: Any) -> Loaded:
        if not options.get("drafts") or options.get("layers"):
            return load(*asked, **options)
        key = f"{asked} {options}"
        if key not in held:
            held.clear()
            held[key] = load(*asked, **options)
        return held[key]

    loading.load_model = once  # type: ignore[assignment]
    try:
        yield
    finally:
        loading.load_model = load


@cache
def folder() -> Path:
    held = tempfile.TemporaryDirectory(prefix="pins-")
    folder.held = held  # type: ignore[attr-defined]  # removed at the end of the process
    return Path(held.name)


@cache
def index() -> Path:
    """An index of the prompts and of a text that stays."""
    text = folder() / "corpus.txt"
    text.write_text("\n".join((*PROMPTS, (TOP / "LICENSE").read_text())))
    code, _, told = command("index", str(text), "--out", str(folder() / "index"))
    assert code == 0, told
    return folder() / "index"


def drawn(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers from the name alone."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    numbers = np.random.Generator(np.random.Philox(seed)).random(shape) - 0.5
    if len(shape) == 1:
        return (1 + 0.2 * numbers).astype(np.float32)
    return (numbers * 2 / np.sqrt(shape[-1])).astype(np.float32)


@cache
def network(name: str) -> Path:
    """Weights of a network for the model, drawn."""
    source = model().source
    made = catalogue.build(name, source.config, SETTINGS.get(name, {}))
    parameters = {each: drawn(f"{name} {each}", shape) for each, shape in made.shapes().items()}
    ids = np.arange(0, 4096, 2)
    path = folder() / f"{name}.safetensors"
    save_network(path, Trained(made, parameters, ids, {"model": source.fingerprint}))
    return path


@cache
def head(kind: str) -> Path:
    """A head of a lossy rule that says yes to some states and no to others."""
    from paceline.methods.heads.verifiers import LinearHead, save_head

    loaded = model()
    width = loaded.target.capabilities.hidden_size + (4 if kind == "pivot" else 0)
    weights = drawn(kind, (1, width))[0] * np.float32(np.sqrt(width))
    path = folder() / f"{kind}-head"
    save_head(path, LinearHead(weights, 0.0, {"kind": kind, "model": loaded.source.fingerprint}))
    return path


def filled(text: str) -> str:
    """Put the files where an expression names them."""
    made: dict[str, Callable[[], Path]] = {
        "index": index,
        **{each: partial(head, each) for each in ("judge", "pivot")},
        **{each: partial(network, each) for each in NETWORKS},
    }
    return re.sub(r"{(.*?)}", lambda found: str(made[found[1]]()), text)


# What an engine does:


class Watched(Verifier):
    """A rule that notes every draft it is shown, and its verdict.

    Steps of one request share their randomness, which tells requests apart.
    """

    def __init__(self, rule: Verifier) -> None:
        self._rule = rule
        self.steps: dict[int, list[Any]] = {}
        self.scores: dict[int, list[Any]] = {}
        self.held: list[Any] = []  # so that no identity is given twice
        for name in ("name", "lossless", "accepts", "shape", "greedy_only", "gumbel_coupled"):
            setattr(self, name, getattr(rule, name))
        self.needs = rule.needs  # type: ignore[misc]

    def extend(self, draft: Any) -> Any:
        return self._rule.extend(draft)

    def verify(self, draft: Any, target: Any, randomness: Any) -> Any:
        verdict = self._rule.verify(draft, target, randomness)
        if id(randomness) not in self.steps:
            self.held.append(randomness)
        found = [draft.tokens.tolist(), draft.parents.tolist(), draft.source, list(draft.origins)]
        found += [list(map(int, verdict.path)), int(verdict.next_token)]
        self.steps.setdefault(id(randomness), []).append(found)
        scores = None if draft.scores is None else [float(np.float32(s)) for s in draft.scores]
        self.scores.setdefault(id(randomness), []).append(scores)
        return verdict


def watch(engine: Engine) -> Watched:
    """Look on as drafts are verified."""
    decoder: Any = engine.decoder
    decoder.verifier = Watched(decoder.verifier)
    return decoder.verifier  # type: ignore[no-any-return]


def refusal(work: Callable[[], Value]) -> Value:
    """The value, or the message if an option is refused."""
    try:
        return work()
    except PacelineError as error:
        return f"{type(error).__name__}: {tidy(str(error))}"


def tidy(text: str) -> str:
    """Leave out places of this machine."""
    text = text.replace(str(folder()), "FOLDER").replace(str(TOP), "TOP")
    return re.sub(r"\b\d+(\.\d+)? (s|ms|GiB|MB)\b", "N", text)


def decoded(
    kind: str,
    batch: int,
    count: int,
    tokens: int,
    precision: str = "file",
    runtime: str = "cpu",
    **options: Any,
) -> Callable[[], Value]:
    """Texts, drafts and counts of an engine over the first prompts."""

    def work() -> Value:
        given = {
            key: filled(value) if isinstance(value, str) else value
            for key, value in options.items()
        }
        loaded = model(precision, runtime=runtime)
        return refusal(partial(texts, loaded, kind, batch, (count, tokens), given))

    return work


def texts(
    loaded: Loaded, kind: str, batch: int, size: tuple[int, int], options: Mapping[str, Any]
) -> Value:
    asked = list(PROMPTS[: size[0]])
    engine = loading.make_engine(loaded, max_batch=batch, progress=False, **options)
    watched = watch(engine)
    params = {"max_new_tokens": size[1], **KINDS[kind]}
    if options.get("drafter") == "forced":
        own = loaded.tokenizer.encode("Here is the answer")
        params["forced_tokens"] = dict(enumerate(own))
    done = engine.generate(asked, **params)
    stats = [each.stats for each in done]
    out: dict[str, Any] = {"ids": listed([list(each.token_ids) for each in done])}
    if "nodes" in options or options.get("drafter") == "none":
        out["drafts"] = listed(list(watched.steps.values()))
        out["scores"] = digest(list(watched.scores.values()))
        names = "target_forwards", "drafted_tokens", "accepted_tokens"
        out["counts"] = [sum(getattr(each, name) for each in stats) for name in names]
    if failed := sum(each.drafter_errors for each in stats):
        out["drafter errors"] = failed
    return out


def drafts() -> Iterator[Pin]:
    """Every drafter, alone and in a batch, greedy and sampled."""
    for kind in KINDS:
        for precision, batch, count in (("file", 8, 12), ("file", 1, 3), ("fp32", 2, 2)):
            plain = decoded(kind, batch, count, 24, precision, drafter="none")
            yield Pin(f"draft/{precision}/none/{kind}/{batch}", plain, count == 12)
    quick = ("suffix-automaton", "eagle3", "recycling", "ppd", "kangaroo", "swift", "deer")
    alone, together = (1, 1, 12), (8, 6, 4)
    ways = [("greedy", alone), ("sampled", alone), ("greedy", together), ("sampled", together)]
    for name, of in {**DRAFTERS, "merged": MERGED}.items():
        for number, each in enumerate(of if name != "none" else ()):
            for kind, size in ways if number == 0 else (ways[0], ways[-1]):  # of variants two
                made = decoded(kind, *size, drafter=each, **SIZES)
                soon = name in quick and not number and (kind, size) in (ways[0], ways[-1])
                yield Pin(f"draft/file/{each}/{kind}/{size[0]}", made, soon)
    for name in NETWORKS:
        for size in ((1, 1, 8), (8, 3, 4)):
            made = decoded("greedy", *size, drafter=f"{name}:weights={{{name}}}", **SIZES)
            yield Pin(f"draft/drawn/{name}/greedy/{size[0]}", made, size[0] == 1)
    for each in ("recycling", "eagle3", "suffix-automaton", *FP32["quantised"]):
        made = decoded("greedy", 2, 2, 8, "fp32", drafter=each, **SIZES)
        yield Pin(f"draft/fp32/{each}/greedy/2", made)
    for each in [each for of in DRAFT_MODEL.values() for each in of]:
        for kind in KINDS:
            made = decoded(kind, 2, 2, 8, "fp32", drafter=each, draft_model=MODEL, **SIZES)
            yield Pin(f"draft/fp32/{each}/{kind}/2", made)
    for each in TORCH:
        for kind in KINDS:
            made = decoded(kind, 2, 2, 6, "fp32", "torch", drafter=each, **SIZES)
            yield Pin(f"draft/torch/{each}/{kind}/2", made)
    for each in TIMED:
        for kind in KINDS:
            yield Pin(f"text/{each}/{kind}", decoded(kind, 1, 1, 12, drafter=each))
    for options in AUTO:
        shown = " ".join(options.values()) or "auto"
        yield Pin(f"text/{shown}/greedy", decoded("greedy", 1, 1, 12, **options), shown == "auto")


def rules() -> Iterator[Pin]:
    """Every verifier, lossy ones too, and controllers that measure nothing."""
    for rule, drafter, kind in sorted(RULES, key=lambda each: "draft-model" in each[1]):
        own = "draft-model" in drafter
        options: dict[str, Any] = {"drafter": drafter, "verifier": rule, **SIZES}
        if own:
            options["draft_model"] = MODEL
        made = decoded(kind, 2, 2, 8, "fp32" if own else "file", **options)
        yield Pin(f"rule/{rule}/{drafter}/{kind}", made, rule in ("reflective", "typical"))
    for name in CONTROLLERS:
        for drafter in ("eagle3", "recycling"):
            options = {"drafter": drafter, "controller": name, **SIZES}
            yield Pin(f"controller/{name}/{drafter}", decoded("greedy", 2, 2, 10, **options))
    yield Pin(
        "controller/bandit", decoded("greedy", 1, 2, 10, drafter="recycling", controller="bandit")
    )


# Canvases:


def canvas(name: str, kind: str, sampler: str, plan: str | None, block: int | None = None) -> Value:
    """Texts and forwards of a sampler over small cases, or why it is refused."""
    loaded = model("file", name)
    if name.startswith("lists"):
        cases = [case for task in TASKS for case in parallel_tasks.cases(task, 1, 3)]
        asked = [case.prompt for case in cases]
    else:
        asked = list(PROMPTS[:2])

    def work() -> Value:
        engine = loading.make_engine(loaded, max_batch=2, progress=False)
        room = 20 if sampler == "filter" else ROOM
        denoising = CanvasParams(sampler, block, plan, steps=True)
        options = {"raw": True, "max_new_tokens": room, "denoising": denoising, **KINDS[kind]}
        order = {engine.add(text, **options): number for number, text in enumerate(asked)}
        steps: list[list[Any]] = [[] for _ in asked]
        done: dict[int, Any] = {}
        while engine.pending:
            for event in engine.checked_step():
                place = order[event.request]
                steps[place].append([event.token_ids, event.fills])
                if event.completion is not None:
                    done[place] = event.completion
        stats = [each.stats for each in done.values()]
        names = "target_forwards", "position_evaluations"
        return {
            "ids": listed([done[place].token_ids for place in order.values()]),
            "steps": listed(steps),
            "counts": [sum(getattr(each, part) for each in stats) for part in names],
        }

    return refusal(work)


def mask_rows(kind: str, sampler: str) -> Value:
    """A model of left-to-right decoding with trained rows for masks."""
    loaded = model("file", denoiser="rows")

    def work() -> Value:
        engine = loading.make_engine(loaded, sampler=sampler, max_batch=2, progress=False)
        done = engine.generate(list(PROMPTS[:2]), max_new_tokens=12, **KINDS[kind])
        return {
            "ids": listed([list(each.token_ids) for each in done]),
            "forwards": sum(each.stats.target_forwards for each in done),
        }

    return refusal(work)


def canvases() -> Iterator[Pin]:
    """Small denoisers under every sampler, and under every cache plan with some."""
    for name in CANVASES:
        for sampler in [each for of in SAMPLERS.values() for each in of]:
            for kind in KINDS:
                made = partial(canvas, name, kind, sampler, None)
                yield Pin(f"canvas/{name}/{sampler}/{kind}", made, name == "lists-bd")
        for sampler in ("counts", "threshold:tau=0.8", "freedave:width=4>counts", "assd"):
            for plan in PLANS:
                made = partial(canvas, name, "greedy", sampler, plan, 4)
                yield Pin(f"canvas/{name}/{sampler}/{plan}", made)
    for sampler in ("tidar:width=3", "linear-spec:width=3", "lexical-units", "threshold"):
        for kind in KINDS:
            yield Pin(f"canvas/mask rows/{sampler}/{kind}", partial(mask_rows, kind, sampler))


# The rest of the house: fingerprints, the audit, commands, pages, names.


def prints() -> Iterator[Pin]:
    for name, case in fingerprint.CASES.items():

        def made(case: fingerprint.TinyModel = case) -> str:
            return fingerprint.fingerprint(case.target())[:16]

        yield Pin(f"fingerprint/{name}", made, True)


GRID = replace(
    QUICK,
    vocabularies=(2,),
    depths=(2,),
    widths=(1, 2),
    samplings=((1.5, 0.85),),
    loops=(2, 1, 1),
    seeds=100,
    noise_sizes=((2, 2, 2),),
    others=(),
)
"""What `paceline audit inside` enumerates, in its smallest cases."""


@cache
def audited() -> dict[str, Any]:
    return inside.audit((), GRID, 1).as_dict()


def verdicts(part: str) -> Value:
    """Verdicts of the audit, without figures that hang on the machine."""
    report = audited()
    if part == "passed":
        return [report["passed"], report["problems"]]
    if part in report:
        found = [{k: v for k, v in row.items() if k != "max_abs_error"} for row in report[part]]
        return f"{len(found)} {digest(found)}"
    rows = [row for row in report["rows"] if row["verifier"] == part]
    exact = sum(row["exact"] for row in rows)
    figures = ("max_abs_error", "p_value")
    cases = [{k: v for k, v in row.items() if k not in figures} for row in rows]
    return f"{exact} of {len(rows)} exact, {digest(cases)}"


def audits() -> Iterator[Pin]:
    parts = ("passed", "left_out", "refused", "bad_input", "lossy", "negative_controls")
    for part in (*parts, *table.names("verifier")):
        yield Pin(f"audit/{part}", partial(verdicts, part))


def command(*arguments: str) -> tuple[int, str, str]:
    """Run a command line in this process; return exit code and both streams."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = command_line.run(arguments)
        except SystemExit as ended:
            code = int(ended.code or 0)
    return code, out.getvalue(), err.getvalue()


@cache
def tree_of_commands() -> dict[str, Any]:
    """Commands by path, groups included."""
    from typer.main import get_command

    found: dict[str, Any] = {}

    def walk(each: Any, path: str) -> None:
        found[path] = each
        for name, inner in getattr(each, "commands", {}).items():
            walk(inner, f"{path} {name}".strip())

    walk(get_command(command_line.commands()), "")
    return found


OPTION = (
    *("name", "param_type_name", "metavar", "opts", "secondary_opts"),
    *("required", "nargs", "multiple", "is_flag", "help"),
)


def options_of(path: str) -> Value:
    """The help of a command, and its options with their types and defaults."""
    code, out, err = command(*path.split(), "--help")
    told = [
        [*(getattr(each, name, None) for name in OPTION), str(getattr(each, "default", None))]
        for each in tree_of_commands()[path].params
    ]
    return {"help": digest(code, out, err), "options": digest(told), "count": len(told)}


SLOW = ("measuring ", "loading ")
"""Lines that are printed only where something takes long."""


def refused(line: str) -> Value:
    code, out, err = command(*line.split())
    lines = [each for each in err.splitlines() if not each.startswith(SLOW)]
    told = tidy(" ".join(lines))
    return f"{code} {digest(out, told)} {told[:90]}"


def commands() -> Iterator[Pin]:
    for path in tree_of_commands():
        yield Pin(f"command/{path or 'paceline'}", partial(options_of, path), True)
    for line in COMMANDS:
        yield Pin(f"refused/paceline {line}", partial(refused, line), True)

    def load(options: dict[str, Any]) -> Value:
        return _short(refusal(lambda: f"loaded {type(paceline.load(**options)).__name__}"))

    def make(options: dict[str, Any]) -> Value:
        def work() -> str:
            config = loading.make_engine(model(), progress=False, **options).config
            return f"made {[(key, config[key]) for key in config if key != 'version']}"

        return _short(tidy(str(refusal(work))))

    for options in WRONG_LOADS:
        yield Pin(f"refused/load {json.dumps(options)}", partial(load, options), True)
    for options in WRONG:
        yield Pin(f"refused/engine {json.dumps(options)}", partial(make, options), True)


def _short(text: str) -> str:
    return f"{digest(text)} {text[:80]}"


def pages() -> Iterator[Pin]:
    from tests import reference

    def read(name: str) -> str:
        return digest((TOP / "docs" / name).read_bytes())

    for name in ("cli.md", "methods.md"):
        yield Pin(f"page/docs/{name}", partial(read, name), True)
    yield Pin("page/of the commands", lambda: digest(reference.page()), True)
    for option in ("--markdown", "--json", "--weights"):
        yield Pin(f"page/paceline methods {option}", partial(_printed, "methods", option), True)


def _printed(*arguments: str) -> str:
    return digest(command(*arguments))


def signature(thing: Any) -> str:
    try:
        return str(inspect.signature(thing))
    except (TypeError, ValueError):
        return ""


def signatures() -> Iterator[Pin]:
    """Public names, and what they take."""

    def told(thing: Any) -> Value:
        if not inspect.isclass(thing):
            return signature(thing) or str(type(thing))
        members = {
            name: signature(each) if callable(each) else type(each).__name__
            for name, each in inspect.getmembers(thing)
            if not name.startswith("_")
        }
        return {"made": signature(thing), "members": digest(members), "count": len(members)}

    yield Pin("public/paceline", lambda: list(paceline.__all__), True)
    for name in paceline.__all__:
        yield Pin(f"public/{name}", partial(told, getattr(paceline, name)), True)
    kinds = [each for each in vars(errors).values() if inspect.isclass(each)]
    tree = {each.__name__: [base.__name__ for base in each.__mro__] for each in kinds}
    yield Pin("public/errors", lambda: digest(tree), True)


# Benches: one small result each, without times.

_TIMES = re.compile(
    "second|speed|share|milli|per_second|machine|cpu|cores|c_n|cost|version|overhead|loops|seconds"
)


def timeless(value: Any) -> Any:
    """Drop what is measured in time."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if not _TIMES.search(str(k))}
    return [timeless(each) for each in value] if isinstance(value, list) else value


def bench_result(*arguments: str) -> Value:
    code, out, err = command(*arguments, "--json")
    assert code == 0, err
    found = timeless(json.loads(out))
    for name in ("remarks", "closed_forms", "area"):
        found.pop(name, None)
    return {key: digest(each) for key, each in found.items()}


def methods_result() -> Value:
    """Of the paper's sizes; ours hang on measured costs."""
    line = "bench methods --only ADED,Cacheback --limit 1 --max-new-tokens 8 --batch 1 --json"
    code, out, err = command(*line.split())
    assert code == 0, err
    cells = [each for each in json.loads(out)["cells"] if each["sizes"] == "paper"]
    return {each["system"]: digest(timeless(each)) for each in cells}


def batches_result() -> Value:
    """Of made-up benches, since all its figures are times."""
    paths = []
    for number, size in enumerate((1, 2, 4, 8)):
        own = {"category": "all", "tokens_per_second": 50.0 + 20 * number}
        rows = [{**own, "drafter": "none", "speedup": 1.0}]
        rows += [{**own, "drafter": "fast", "speedup": 1.5 - 0.13 * number - 0.02 * (number == 2)}]
        settings = {"model": "m", "limit": 4, "max_new_tokens": 8, "drafters": ["none", "fast"]}
        content = {"complete": True, "rows": rows, "settings": {**settings, "batch": size}}
        path = folder() / f"batch-{size}"
        path.mkdir(exist_ok=True)
        (path / "results.json").write_text(json.dumps(content))
        paths.append(str(path))
    code, out, err = command("bench", "batches", *paths)
    return digest(code, out, err)


def command_result(*arguments: str) -> Value:
    """What a command prints as JSON but for times."""
    code, out, err = command(*arguments, "--json")
    assert code == 0, err
    return {key: digest(each) for key, each in timeless(json.loads(out)).items()}


def batch_result() -> Value:
    """Requests of a file, by `paceline batch`."""
    path = folder() / "requests.jsonl"
    asked = [
        {
            "custom_id": str(number),
            "method": "POST",
            "url": "/v1/completions",
            "body": {"model": MODEL, "prompt": text, "max_tokens": 8, "seed": number},
        }
        for number, text in enumerate(PROMPTS[:3])
    ]
    path.write_text("".join(json.dumps(each) + "\n" for each in asked))
    out = folder() / "answers.jsonl"
    out.unlink(missing_ok=True)
    code, _, err = command("batch", str(path), str(out), "--drafter", "none")
    assert code == 0, err
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    bodies = {each["custom_id"]: each["response"]["body"]["choices"] for each in answers}
    return digest(bodies)


def benches() -> Iterator[Pin]:
    for line in (
        "",
        "--temperature 1 --seed 3",
        "--raw --logprobs 2",
        "--first-of 2 --temperature 1",
    ):
        own = "--drafter recycling --nodes 4 --max-new-tokens 12"
        made = partial(command_result, "generate", PROMPTS[2], *own.split(), *line.split())
        yield Pin(f"command run/generate {line}", made, True)
    yield Pin("command run/batch", batch_result)
    small = "--limit 2 --max-new-tokens 8 --nodes 4 --depth 3"
    yield Pin("bench/prompts", partial(bench_result, "bench", *small.split()))
    sampled = f"bench {small} --drafters recycling --temperature 1 --seed 4 --batch 2 --turns all"
    yield Pin("bench/sampled", partial(bench_result, *sampled.split()))
    yield Pin("bench/methods", methods_result)
    yield Pin("bench/batches", batches_result, True)
    line = "bench parallel --tasks copy,shuffle --templates 0 --seeds 1 --cases 2"
    yield Pin("bench/parallel", partial(bench_result, *line.split()))
    warm = f"{line} --temperature 1 --batches 1,2 --samplers autoregressive;counts"
    yield Pin("bench/parallel, sampled", partial(bench_result, *warm.split()))


def covered() -> Value:
    """Registered names, by kind; those that no list here has are told."""
    lists = {
        "drafter": {*DRAFTERS, *DRAFT_MODEL, *FP32, *NETWORKS},
        "verifier": {each.partition(":")[0] for each, _, _ in RULES},
        "sampler": set(SAMPLERS),
        "cache": set(PLANS),
    }
    kinds = sorted({each.kind for each in table.methods()})
    return {
        kind: {
            "names": digest(sorted(table.names(kind))),
            "count": len(table.names(kind)),
            "missing": sorted({*table.names(kind)} - lists[kind]) if kind in lists else "no list",
        }
        for kind in kinds
    }


def everything() -> Iterator[Pin]:
    yield Pin("registry", covered, True)
    yield from pages()
    yield from signatures()
    yield from prints()
    yield from commands()
    yield from drafts()
    yield from rules()
    yield from canvases()
    yield from audits()
    yield from benches()


def ordered(chosen: Sequence[Pin]) -> list[Pin]:
    """Those that share a model together, as models take long to load."""
    return sorted(chosen, key=lambda pin: "fp32" in pin.name or "draft-model" in pin.name)


def compare(was: Mapping[str, Value], now: Mapping[str, Value]) -> list[str]:
    """What differs, a line a pin."""
    out = []
    for name, value in now.items():
        if name not in was:
            out.append(f"new      {name}: {value}")
        elif was[name] != value:
            out.append(f"changed  {name}: {difference(was[name], value)}")
    return out


def difference(was: Value, now: Value) -> str:
    if not (isinstance(was, dict) and isinstance(now, dict)):
        return f"{was} -> {now}"
    keys = [key for key in {**was, **now} if was.get(key) != now.get(key)]
    return "; ".join(f"{key} {was.get(key)} -> {now.get(key)}" for key in keys)


def write(
    path: Path, was: Mapping[str, Value], now: Mapping[str, Value], names: Sequence[str]
) -> None:
    """Write the record: a pin a line, in the order of `everything`."""
    kept = {**was, **now}
    lines = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(kept[name])}" for name in names if name in kept
    )
    about = json.dumps(ABOUT, indent=1)
    path.write_text(f'{{"about": {about},\n"pins": {{\n{lines}\n}}}}\n')


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.pins", description=__doc__)
    parser.add_argument("--write", action="store_true", help="record instead of comparing")
    parser.add_argument("--only", metavar="PATTERN", default="", help="regular expression of names")
    parser.add_argument("--quick", action="store_true", help="a choice of two minutes")
    parser.add_argument("--times", action="store_true", help="say how long each pin took")
    parser.add_argument("--out", type=Path, default=FILE, help="the record, another than pins.json")
    given = parser.parse_args()
    os.environ["COLUMNS"] = "100"
    os.environ["NO_COLOR"] = "1"
    every = list(everything())
    names = [pin.name for pin in every]
    assert len(set(names)) == len(names), "a name stands twice"
    chosen = [
        pin for pin in every if re.search(given.only, pin.name) and (pin.quick or not given.quick)
    ]
    record = json.loads(given.out.read_text()) if given.out.exists() else {"pins": {}}
    now: dict[str, Value] = {}
    begin = perf_counter()
    held = contextlib.ExitStack()
    held.enter_context(lasting())
    for number, pin in enumerate(ordered(chosen), 1):
        start = perf_counter()
        try:
            now[pin.name] = json.loads(json.dumps(pin.make()))
        except Exception as error:
            now[pin.name] = f"BROKEN {type(error).__name__}: {tidy(str(error))[:200]}"
        if given.write:
            write(given.out, record["pins"], now, names)
        if given.times:
            print(f"{perf_counter() - start:6.1f} s  {pin.name}", file=sys.stderr)
        elif number % 25 == 0:
            print(f"{number} of {len(chosen)}, {perf_counter() - begin:.0f} s", file=sys.stderr)
    held.close()
    differs = compare(record["pins"], now)
    gone = [] if given.only or given.quick else sorted(record["pins"].keys() - now.keys())
    differs += [f"gone     {name}" for name in gone]
    for line in differs:
        print(line)
    broken = sum(isinstance(each, str) and each.startswith("BROKEN") for each in now.values())
    took = perf_counter() - begin
    print(f"{len(now)} pins in {took:.0f} s: {len(differs)} differ, {broken} broken")
    if given.write:
        write(given.out, record["pins"], now, names)
        return int(broken > 0)
    return int(bool(differs or broken))


if __name__ == "__main__":
    sys.exit(main())
