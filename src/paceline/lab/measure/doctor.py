"""Diagnosis of a machine and a model: time of a step by part, fidelity, noise of logits."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from statistics import fmean as mean
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from paceline.core import tree as trees
from paceline.core.target import Rows, Target, open_for_figures
from paceline.core.types import ROOT, LogitArray, ProbArray, TokenTree
from paceline.engine.engine import Engine
from paceline.errors import InvalidOption
from paceline.lab.measure.prompts import FIDELITY, NOISE_TEXT
from paceline.models.text import Tokenizer

if TYPE_CHECKING:
    from paceline.drafters.resources import Loaded

# Attributes of a decoder that can be clocked.
PARTS = ("target", "drafter", "verifier", "controller")

# The target's forward without its inputs and outputs.
INFERENCE = "inference"

_FORWARD = "inputs and outputs"
# What time is booked on, by attribute of the decoder and method (None: any).
_METHODS = {
    ("target", "forward"): _FORWARD,
    ("target", "keep"): "keeping the path",
    ("verifier", None): "sampling and verification",
    ("drafter", None): "drafting",
    ("controller", None): "draft sizing",
}

_LOOP = "loop and text"
_ORDER = (INFERENCE, *_METHODS.values(), _LOOP)


class Clocks:
    """Book every moment of a decoder's steps on the innermost part that runs, or on the loop."""

    def __init__(self, decoder: Any, parts: Sequence[str]) -> None:
        self.rows: Sequence[Any] = ()
        self._decoder = decoder
        self._parts = {name: getattr(decoder, name) for name in parts}
        self._spent: dict[str, float] = {}
        self._open: list[str] = []
        self._since = 0.0

    def __enter__(self) -> Clocks:
        for name, part in self._parts.items():
            setattr(self._decoder, name, _Clocked(name, part, self))
        return self

    def __exit__(self, *error: object) -> None:
        for name, part in self._parts.items():
            setattr(self._decoder, name, part)

    def begin(self) -> None:
        self._spent = defaultdict(float)
        self._open = [_LOOP]
        self._since = perf_counter()

    def end(self) -> dict[str, float]:
        """Return seconds by part since `begin`."""
        self._book()
        target = self._decoder.target
        if target.capabilities.timed:
            self._spent[INFERENCE] = target.inference_seconds
            self._spent[_FORWARD] -= target.inference_seconds
        else:  # this runtime does not tell its inputs from its inference
            self._spent[INFERENCE] = self._spent.pop(_FORWARD, 0.0)
        return {name: self._spent[name] for name in _ORDER if name in self._spent}

    def call(self, part: str, method: Any, given: Any, named: Any) -> Any:
        """Call a method with its clock running."""
        self._book()
        self._open.append(part)
        try:
            return method(*given, **named)
        finally:
            self._book()
            self._open.pop()

    def _book(self) -> None:
        now = perf_counter()
        self._spent[self._open[-1]] += now - self._since
        self._since = now


class _Clocked:
    """A part of the loop whose methods are clocked."""

    def __init__(self, name: str, part: Any, clocks: Clocks) -> None:
        self._name, self._part, self._clocks = name, part, clocks

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(self._part, attribute)
        part = _METHODS.get((self._name, attribute), _METHODS.get((self._name, None)))
        if part is None or not callable(value):
            return value

        def clocked(*given: Any, **named: Any) -> Any:
            if attribute == "forward":
                self._clocks.rows = given[0]
            return self._clocks.call(part, value, given, named)

        return clocked


# Steps of each kind in a round.
_STEPS = 6

# Most steps taken for one that counts: the drafter may have nothing to propose.
_MOST_TRIES = 20

_GAPS = "between nodes"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StepProfile:
    """Where the time of one kind of step goes.

    Attributes:
        rows: rows of the target's forward, the root included.
        parts: seconds by part, scaled to steps without counters.
        slowdown: of the inference by counting, as a share; None if the runtime does not count.
        covered: share of the counted inference that its nodes account for.
    """

    rows: int
    context: int
    steps: int
    seconds: float
    parts: dict[str, float]
    slowdown: float | None
    covered: float | None

    @property
    def closure(self) -> float:
        """Return the sum of the parts over the whole."""
        return sum(self.parts.values()) / self.seconds

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for `--json`; times are in milliseconds."""
        return {
            "rows": self.rows,
            "context": self.context,
            "steps": self.steps,
            "step_ms": 1000 * self.seconds,
            "parts": {
                part: {"ms": 1000 * seconds, "share": seconds / self.seconds}
                for part, seconds in self.parts.items()
            },
            "closure": self.closure,
            "counting_slowdown": self.slowdown,
            "covered_by_nodes": self.covered,
        }


def repetitive(tokenizer: Tokenizer, max_context: int) -> list[int]:
    """Make a prompt of 257 tokens, or half the context, that the model goes on repeating."""
    length = min(257, max_context // 2)
    return np.resize(np.asarray(tokenizer.encode(NOISE_TEXT), dtype=np.int64), length).tolist()


def profile(engine: Engine, prompt: Sequence[int], rows: int, rounds: int = 5) -> StepProfile:
    """Profile the steps of an engine whose forward has exactly `rows` rows, 1 for plain steps.

    For drafted steps the engine's controller is fixed to `rows - 1` nodes. Every round starts from
    `prompt`, which has repetitions to draft from. InvalidOption if drafts of that size are rare.
    """
    engine.decoder.target.warm_up()
    bench = _Bench(engine, rows)
    counted: Any = None
    steps: list[float]
    booked: list[dict[str, float]]
    whole: list[float] = []
    clocked: list[dict[str, float]] = []
    for turn in range(rounds + 1):
        steps, booked = [], []
        with bench.request(prompt):
            for _ in range(_STEPS):  # side by side: the machine and the context change
                steps.append(sum(bench.step(("target",)).values()))
                booked.append(bench.step(PARTS))
            counted = bench.counted(rounds * _STEPS) if turn == rounds else None
        if turn:  # the first round warms up
            whole += steps
            clocked += booked
    whole, clocked = _quiet(whole, float), _quiet(clocked, lambda step: sum(step.values()))
    parts = {name: mean(step.get(name, 0.0) for step in clocked) for name in clocked[0]}
    slowdown = covered = None
    if counted is not None:
        inference, nodes = parts.pop(INFERENCE), sum(counted.groups.values())
        groups = {**counted.groups, _GAPS: max(0.0, counted.seconds - nodes)}
        scale = inference / sum(groups.values())
        parts = {g: scale * t for g, t in groups.items() if t} | parts
        slowdown, covered = counted.seconds / inference - 1, nodes / counted.seconds
    return StepProfile(rows, len(prompt) - 1, len(whole), mean(whole), parts, slowdown, covered)


def _quiet(runs: list[T], seconds: Callable[[T], float]) -> list[T]:
    # The faster half: other load on the machine falls on the slower one.
    return sorted(runs, key=seconds)[: -(-len(runs) // 2)]


class _Bench:
    """Run steps of one engine, and keep those of the wanted size."""

    def __init__(self, engine: Engine, rows: int) -> None:
        self._engine = engine
        self._rows = rows
        self._target: Any = engine.decoder.target
        self._asked: Sequence[Any] = ()

    @contextmanager
    def request(self, prompt: Sequence[int]) -> Iterator[None]:
        """Open a request, with its first step done."""
        room = self._target.capabilities.max_context - len(prompt)
        number = self._engine.add(list(prompt), ignore_eos=True, max_new_tokens=room)
        try:
            while not any(e.token_ids or e.completion for e in self._engine.checked_step()):
                pass  # parts of the prompt
            yield
        finally:
            self._engine.cancel(number)

    def step(self, parts: Sequence[str]) -> dict[str, float]:
        """Return the seconds of a step of the wanted size, by clocked part."""
        for _ in range(_MOST_TRIES):
            if not self._engine.pending:
                raise InvalidOption("the context has no room for the steps: give a shorter prompt")
            with Clocks(self._engine.decoder, parts) as clocks:
                clocks.begin()
                self._engine.checked_step()
                found = clocks.end()
            draft = clocks.rows[0].tree
            if 1 + (0 if draft is None else len(draft)) == self._rows:
                self._asked = clocks.rows
                return found
        raise InvalidOption(
            f"too few drafts of {self._rows - 1} tokens: give fewer rows or another drafter"
        )

    def counted(self, count: int) -> Any:
        """Repeat the last step's forward with counters; None where there are none."""
        if not self._target.capabilities.timed:
            return None
        return self._target.counted(self._asked, count)


@dataclass(frozen=True, slots=True)
class Fidelity:
    """A model against its reference, on the reference's greedy text.

    `kl` is the mean KL(reference || model) per token in nats, `top1_agreement` the share of equal
    argmax tokens.
    """

    tokens: int
    kl: float
    top1_agreement: float
    perplexity: float
    reference_perplexity: float


def fidelity(
    reference: Target,
    model: Target,
    tokenizer: Tokenizer,
    prompts: Sequence[str] = FIDELITY,
    new_tokens: int = 64,
) -> Fidelity:
    """Compare two targets that share a tokenizer, teacher-forced on the reference's greedy text."""
    contexts = [tokenizer.prompt(prompt) for prompt in prompts]
    texts = _continue(reference, contexts, new_tokens, tokenizer.eos_token_ids)
    count, kl, agree, loss, reference_loss = 0, 0.0, 0, 0.0, 0.0
    for context, text in zip(contexts, texts, strict=True):
        p, q = (_logprobs(target, context, text) for target in (reference, model))
        rows = np.arange(len(text))
        count += len(text)
        kl += float((np.exp(p) * (p - q)).sum())
        agree += int((p.argmax(axis=1) == q.argmax(axis=1)).sum())
        loss -= float(q[rows, text].sum())
        reference_loss -= float(p[rows, text].sum())
    return Fidelity(
        count, kl / count, agree / count, math.exp(loss / count), math.exp(reference_loss / count)
    )


def fidelity_to_fp32(loaded: Loaded, model: str) -> dict[str, Any] | None:
    """Compare a loaded model with itself at fp32 throughout; None if it is fp32.

    Raises:
        PacelineError: `model` cannot be loaded at fp32.
    """
    from paceline.registry import loading

    capabilities = loaded.target.capabilities
    if capabilities.precision == "fp32" and capabilities.kv_precision in (None, "fp32"):
        return None
    options = replace(loaded.options, precision="fp32", kv_precision=None)
    reference = loading.load_model(options, model=model, runtime=capabilities.runtime)
    return asdict(fidelity(reference.target, loaded.target, loaded.tokenizer))


def _continue(
    target: Target, contexts: Sequence[Sequence[int]], length: int, ends: Sequence[int]
) -> list[list[int]]:
    texts: list[list[int]] = [[] for _ in contexts]
    caches = [open_for_figures(target) for _ in contexts]
    try:
        for cache, context in zip(caches, contexts, strict=True):
            target.prefill(cache, context[:-1])
        running = list(range(len(contexts)))
        while running:
            roots = [(texts[i] or contexts[i])[-1] for i in running]
            outputs = target.forward(
                [Rows.draft(caches[i], [root]) for i, root in zip(running, roots, strict=True)]
            )
            for i, output in zip(running, outputs, strict=True):
                texts[i].append(int(output.logits[0].argmax()))
                target.keep(caches[i], 1, ())
            running = [i for i in running if len(texts[i]) < length and texts[i][-1] not in ends]
    finally:
        for cache in caches:
            target.release(cache)
    return texts


def _logprobs(target: Target, context: Sequence[int], text: Sequence[int]) -> ProbArray:
    cache = open_for_figures(target)
    try:
        target.prefill(cache, context[:-1])
        draft = trees.chain(text[:-1])
        logits: LogitArray = target.forward([Rows.draft(cache, context[-1:], draft)])[0].logits
        x = logits.astype(np.float64)
    finally:
        target.release(cache)
    x -= x.max(axis=1, keepdims=True)
    out: ProbArray = x - np.log(np.exp(x).sum(axis=1, keepdims=True))
    return out


_PREFIX = 150
_CHAIN = 16
# Four paths whose nodes do not stand in the order of the paths.
_PARENTS = (ROOT, ROOT, ROOT, 0, 0, 1, 3, 3, 5)
# A context without room for the tree.
_SHORTEST = 10


def noise_floor(target: Target, tokens: Sequence[int]) -> dict[str, float]:
    """Return the largest |logit difference| of a forward to one-token decoding, by kind of draft.

    Zero means that drafts cannot change a bit of the output. `tokens` is an ordinary text, repeated
    to the length needed. Kinds are "chain", and "tree" where target and context take one.
    """
    context = target.capabilities.max_context
    prefix = max(1, min(_PREFIX, context // 2))
    chain = max(1, min(_CHAIN, context - prefix - 1))
    text = np.resize(np.asarray(tokens, dtype=np.int64), prefix + chain + 1).tolist()
    root, following = text[prefix], text[prefix + 1 :]
    cache = open_for_figures(target)
    try:
        target.prefill(cache, text[:prefix])
        out = {"chain": _difference(target, cache, root, trees.chain(following))}
        if target.capabilities.tree and context > _SHORTEST:
            vocabulary = target.capabilities.vocab_size
            # Distinct tokens, so that no two siblings are equal.
            nodes = [(text[0] + 7 * node) % vocabulary for node in range(len(_PARENTS))]
            tree = TokenTree(np.array(nodes, dtype=np.int64), np.array(_PARENTS, dtype=np.int64))
            out["tree"] = _difference(target, cache, root, tree)
    finally:
        target.release(cache)
    return out


def _difference(target: Target, cache: object, root: int, draft: TokenTree) -> float:
    rows = target.forward([Rows.draft(cache, [root], draft)])[0].logits.copy()
    worst = 0.0
    for path in trees.leaf_paths(draft):
        plain = _one_by_one(target, cache, [root, *draft.tokens[list(path)].tolist()])
        drafted = rows[[0, *(node + 1 for node in path)]]
        worst = max(worst, float(np.abs(plain - drafted).max()))
    return worst


def _one_by_one(target: Target, cache: object, tokens: Sequence[int]) -> LogitArray:
    copy, rows = target.fork(cache), []
    for token in tokens:
        rows.append(target.forward([Rows.draft(copy, [token])])[0].logits[0].copy())
        target.keep(copy, 1, ())
    target.release(copy)
    return np.stack(rows)
