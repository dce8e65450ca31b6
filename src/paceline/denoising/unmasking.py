"""The standard process: blocks from left to right, in each a rule fills places step by step.

A rule says which places are filled at a step. One file each, ten to forty lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from typing import Any, ClassVar, Self

import numpy as np

from paceline.core.constraint import ConstraintState
from paceline.core.types import (
    Attention,
    CanvasParams,
    CanvasTraits,
    IntArray,
    LogitArray,
    ProbArray,
    TokenLogprob,
)
from paceline.denoising.canvas import Ask, Canvas, tokens_at, visible
from paceline.denoising.process import Context, Decision, Sampler, Terms, View, best
from paceline.errors import InvalidOption, PacelineError
from paceline.sampling.sampler import logprobs, peak_of

# Block of models that were trained with any.
ANY_BLOCK = 8


def block_sizes(facts: CanvasTraits, options: CanvasParams, room: int) -> tuple[int, int]:
    """Return the places that are filled together, and the size of an attention block.

    Raises InvalidOption if the one does not divide the other, or there are none to begin behind the
    prompt.
    """
    if options.prompt_rows == "causal" and facts.attention != "block":
        raise InvalidOption(
            f"prompt_rows=causal is for models with blocks, and this one's attention is "
            f"{facts.attention}: leave it out"
        )
    if facts.attention != "block":
        size = options.block or room
        return size, room
    span = facts.block or options.block or ANY_BLOCK
    size = options.block or span
    if span % size:
        raise InvalidOption(
            f"block {size} does not divide {span}, the block that the model was trained with: "
            f"use a divisor of {span}"
        )
    return size, span


def check_parts(sampler: Sampler, terms: Terms) -> None:
    """Raise InvalidOption if a sampler or a plan is not for a model or a request."""
    facts, plan = terms.facts, terms.plan
    for kind, name, served in (
        ("sampler", sampler.name, sampler.needs),
        ("cache", plan.name, plan.serves),
    ):
        if facts.attention not in served:
            raise InvalidOption(
                f"{kind} '{name}' is for attention {' or '.join(served)}, and the model has "
                f"{facts.attention}: use another {kind}"
            )
    if facts.shifted and not plan.shifts:
        raise InvalidOption(
            f"cache '{plan.name}' is not for models whose rows speak of the next place: use another"
        )
    sampler.check(terms)


def check_clean_rows(name: str, facts: CanvasTraits) -> None:
    """Raise InvalidOption if clean rows do not predict the next token, as sampler `name` needs."""
    if not facts.autoregressive:
        raise InvalidOption(
            f"sampler '{name}' is for models whose clean rows predict the next token, and "
            "this one's do not: use another sampler"
        )


def constrain(
    scores: ProbArray, places: IntArray, canvas: Canvas, constraint: ConstraintState
) -> None:
    """Ban what a constraint forbids at the first masked place: only there is the past known.

    Raises InvalidOption if it forbids a pinned token.
    """
    first = canvas.run()
    said = canvas.tokens[canvas.begin : first]
    known = constraint.valid(said)
    if known < len(said):
        raise InvalidOption(
            f"forced_tokens wants token {said[known]} at {known}, where the constraint forbids "
            "it: leave out one of the two"
        )
    for index in np.flatnonzero(places == first):
        scores[index, ~constraint.mask(said)] = -np.inf


class Rule(Sampler):
    """A sampler that fills places of blocks by a rule, in the standard process.

    Attributes:
        reads_filled: the rule needs the distributions of filled places.
        monotone: what is filled never changes.
        fresh: picks are drawn anew at each step, for rules that look at what was drawn. Else the
            noise of a place is fixed.
        scheduled: steps of a block are planned when it begins, so a block must not move.
        standard: its process is the standard one. Others do not go into a `Wrapper`, which changes
            what a rule sees and chooses, and knows no other process.
        needs: attentions that it can serve.
    """

    name: ClassVar[str] = "rule"
    reads_filled: bool = False
    monotone: bool = True
    fresh: bool = False
    scheduled: bool = False
    standard: ClassVar[bool] = True
    needs: tuple[Attention, ...] = ("full", "block")

    def begin(self, canvas: Canvas) -> Any:
        """Return the state of a new block."""
        return None

    def view(self, view: View, state: Any) -> View:
        """Return the view with other distributions (credits, guidance); the same by default."""
        return view

    def choose(self, view: View, state: Any) -> Decision:
        raise NotImplementedError

    def process(self, context: Context) -> Unmasking:
        return Unmasking(context, self)


def goes(wrapper: str, inner: Rule, fits: bool, why: str) -> None:
    """Raise InvalidOption unless a rule fits into a wrapper; `why` says what of it does not."""
    if not fits:
        raise InvalidOption(
            f"sampler '{wrapper}' does not go around '{inner.name}', which {why}: leave out one"
        )


class Wrapper(Rule):
    """A rule around another; what it does not change is the inner rule's."""

    def __init__(self, inner: Rule) -> None:
        """Take over what the rule declares; InvalidOption if its process is not the standard."""
        goes(self.name, inner, inner.standard, "has steps of its own")
        self.inner = inner
        self.reads_filled, self.monotone = inner.reads_filled, inner.monotone
        self.fresh, self.ignores_draws, self.needs = inner.fresh, inner.ignores_draws, inner.needs
        self.scheduled = inner.scheduled

    def check(self, terms: Terms) -> None:
        self.inner.check(terms)

    def begin(self, canvas: Canvas) -> Any:
        return self.inner.begin(canvas)

    def view(self, view: View, state: Any) -> View:
        return self.inner.view(view, state)

    def choose(self, view: View, state: Any) -> Decision:
        return self.inner.choose(view, state)


class Unmasking:
    """Fill the blocks of a canvas by a rule."""

    def __init__(self, context: Context, rule: Rule) -> None:
        """Begin; InvalidOption if rule or plan are for models of another attention."""
        self.context, self.rule, self.plan = context, rule, context.plan
        self.size, self.span = block_sizes(context.facts, context.options, context.room)
        params, constrained = context.request.params, context.request.constraint is not None
        size = min(self.size, context.room)
        check_parts(rule, Terms(context.facts, self.plan, params, size, constrained))
        self.exact = self.plan.exact
        self.restart()

    def restart(self) -> None:
        """Begin anew, with an empty cache."""
        context = self.context
        self.canvas = canvas = context.canvas()
        self.logprobs: dict[int, TokenLogprob] = {}
        self.read: dict[int, LogitArray] = {}  # logits of filled places
        constraint = context.request.constraint
        self._constraint = None if constraint is None else constraint.start()
        self.held: list[int] = []
        self._edge: dict[int, LogitArray] = {}  # logits before a block, for shifted models
        if context.attention != "block":
            canvas.extend(canvas.end)
            canvas.span = range(len(canvas.tokens))
        # Blocks are counted from here.
        self._origin = canvas.begin if context.options.prompt_rows == "causal" else 0
        start = self._begin(canvas.begin, self.size)
        self._to_block(start if self._aligned else canvas.begin)

    def _begin(self, place: int, size: int) -> int:
        return place - (place - self._origin) % size

    def log_likelihood(self, end: int) -> float | None:
        """Log q, in nats, of the answer under its sampler: a sum over the trace.

        If a rule looks at distributions alone, the text says which places were filled at each step,
        and its probability is the product of its tokens' at their steps. None for other rules, for
        greedy texts, under a constraint, which looks at what was drawn, and where places behind the
        answer were filled, which could have held anything else. For random orders it is that of
        the text given the seed's order.
        """
        told = self.rule.ignores_draws and self._constraint is None
        trace = self.canvas.trace
        if not told or self.context.distributions.greedy or any(f.place >= end for f in trace):
            return None
        return self.canvas.logprob(end)

    def forget(self) -> None:
        if not self.exact:
            self.restart()
        self.held = []

    def fork(self) -> Self:
        """Return a process that goes on from here on its own, as far as the same cache serves."""
        other = copy(self)
        other.canvas, other.state = self.canvas.copy(), deepcopy(self.state)
        other.held, other.logprobs = list(self.held), dict(self.logprobs)
        return other

    @property
    def _aligned(self) -> bool:
        return self.context.attention == "block"

    def _to_block(self, start: int) -> None:
        # Go to the first block from `start` on that has a masked place, or past the end.
        canvas = self.canvas
        while True:
            stop = min(start + self.size, canvas.end)
            if self._aligned:
                first = self._begin(start, self.span)
                canvas.extend(first + self.span)
                canvas.span = range(first, min(first + self.span, canvas.end))
            canvas.block = range(start, stop)
            if start >= canvas.end or len(canvas.masked()):
                break
            start = stop
        self.fresh = True
        self.state = self.rule.begin(canvas)

    def ask(self) -> Ask:
        canvas, facts = self.canvas, self.context.facts
        plan = self.planned = self.plan.plan(canvas, self.held, self.fresh)
        places = np.asarray(plan.ask, dtype=np.int64)
        self._sources = self._read()
        wanted = np.flatnonzero(np.isin(places, self._sources))
        self._asked = places[wanted]
        return Ask(
            tokens_at(canvas, places),
            places,
            visible(places, places, facts.attention, self._blocks),
            wanted,
            None,
            plan.drop,
        )

    @property
    def _blocks(self) -> int | IntArray:
        # Their size, or where each begins: every token of a causal prompt is one.
        if not self._origin:
            return self.span
        answer = np.arange(self._origin, len(self.canvas.tokens), self.span)
        return np.concatenate([np.arange(self._origin), answer])

    def _read(self) -> IntArray:
        # Places whose rows the distributions are read from.
        block = self.canvas.block
        wanted = np.arange(block.start, block.stop)
        if not self.rule.reads_filled:
            wanted = self._open()
        elif self.planned.active is not None:
            wanted = np.intersect1d(wanted, self.planned.ask)
        if self.context.facts.shifted:
            return np.union1d(wanted - 1, [block.stop - 1])
        return wanted

    def _open(self) -> IntArray:
        # Masked places that may be filled now.
        active = self.planned.active
        return self.canvas.masked() if active is None else np.asarray(active, dtype=np.int64)

    def take(self, logits: LogitArray) -> Sequence[int]:
        if len(self._open()):  # else all places were given
            self.fill(self.view(logits))
        kept = self.kept()
        self.settle()
        return kept

    def kept(self) -> list[int]:
        """Note the places that the plan keeps, and return their rows."""
        plan = self.planned
        kept = set(plan.keep)
        if plan.drop is not None:
            del self.held[plan.drop :]
        self.held += [place for place in plan.ask if place in kept]
        return [row for row, place in enumerate(plan.ask) if place in kept]

    def view(self, logits: LogitArray) -> View:
        """Return what the rule sees; `logits` are those of the rows that were wanted."""
        rows, masked = self.by_place(logits), self._open()
        self.rows = np.stack([rows[place] for place in masked.tolist()])
        view = self._seen(self.rows, masked)
        view.filled = self.filled(rows) if self.rule.reads_filled else None
        return self.rule.view(view, self.state)

    def by_place(self, logits: LogitArray) -> dict[int, LogitArray]:
        """Return logits, `[vocabulary]` each, by the place that they speak of."""
        rows = dict(zip(self._asked.tolist(), logits, strict=True))
        if not self.context.facts.shifted:
            return rows
        self._edge = {
            place: row.copy()
            for place, row in (self._edge | rows).items()
            if place in (self.canvas.block.start - 1, self.canvas.block.stop - 1)
        }
        return {place + 1: row for place, row in (self._edge | rows).items()}

    def filled(self, rows: Mapping[int, LogitArray]) -> View | None:
        """Return the view of the block's filled places that are not pinned, of logits by place."""
        canvas = self.canvas
        free = [
            place
            for place in canvas.block
            if canvas.tokens[place] != canvas.mask
            and place >= canvas.begin
            and place not in canvas.pinned
            and place in rows
        ]
        self.read = {place: rows[place] for place in free}
        if not free:
            return None
        return self._seen(np.stack(list(self.read.values())), np.asarray(free, dtype=np.int64))

    def _seen(self, rows: LogitArray, places: IntArray) -> View:
        distributions, canvas = self.context.distributions, self.canvas
        scores = distributions.scores(
            rows, canvas, places, hold=self.context.options.ending == "hold"
        )
        if self._constraint is not None:
            constrain(scores, places, canvas, self._constraint)
        return self.drawn(scores, places)

    def drawn(self, scores: ProbArray, places: IntArray) -> View:
        """Return the view of places with these scores."""
        distributions = self.context.distributions
        found = distributions(scores)
        picks = distributions.picks(found, places, self.canvas.step + 1 if self.anew else 0)
        randomness = self.context.request.randomness
        return View(self.canvas, places, scores, found, picks, randomness, redraw=self.drawn)

    @property
    def anew(self) -> bool:
        """Whether picks are drawn anew at this step."""
        return self.rule.fresh

    def fill(self, view: View) -> None:
        """Let the rule choose, and put its tokens."""
        canvas, possible = self.canvas, view.confidence > 0
        if not possible.any():
            peak_of(view.scores[0])
        choice = self.rule.choose(view, self.state)
        if self._constraint is not None:
            choice = Decision(self._allowed(view, choice))
            peak_of(view.scores[choice.fill[0]])
        elif len(choice.fill) and not possible[choice.fill].any():
            choice = choice._replace(fill=best(view.confidence))
        self.draw(view, choice)
        fill = [int(index) for index in choice.fill if possible[index]]
        if not fill:
            raise PacelineError(
                f"sampler '{self.rule.name}' filled nothing at step {canvas.step}: it must fill a "
                "place at every step"
            )
        top = self.context.request.params.logprobs
        for index in fill:
            place, token = int(view.places[index]), int(view.picks[index])
            distribution = view.probs[index, token]
            canvas.put(place, token, float(np.log(distribution)) if distribution > 0 else -np.inf)
            if top is not None:
                self.logprobs[place] = logprobs(self.rows[index], token, top)
        self.edit(choice.edit)
        for place in choice.remask:
            canvas.tokens[place] = canvas.mask
        canvas.step += 1

    def edit(self, changes: Sequence[tuple[int, int]]) -> None:
        """Put other tokens at filled places."""
        top = self.context.request.params.logprobs
        for place, token in changes:
            self.canvas.put(place, token)
            if top is not None and place in self.read:
                self.logprobs[place] = logprobs(self.read[place], token, top)

    def draw(self, view: View, choice: Decision) -> None:
        """Set the picks of the chosen places, if they are not drawn before the choice."""

    def _allowed(self, view: View, choice: Decision) -> list[int]:
        # From the first masked place on, without a gap, as far as the constraint goes.
        assert self._constraint is not None
        index = {int(place): i for i, place in enumerate(view.places)}
        place, chosen = self.canvas.run(), set(map(int, choice.fill))
        said = self.canvas.tokens[self.canvas.begin : place]
        out = [index[place]]
        said.append(int(view.picks[index[place]]))
        while (following := index.get(place := place + 1)) in chosen and following is not None:
            said.append(int(view.picks[following]))
            if self._constraint.valid(said) < len(said):
                break
            out.append(following)
        return out

    def settle(self) -> None:
        """Cut at an end token, go to the next block, and say what is final."""
        canvas = self.canvas
        if self.context.options.ending == "cut":
            self._cut()
        self.fresh = False
        if not len(canvas.masked()):
            self._to_block(canvas.block.stop)
        canvas.final = canvas.run()
        if not self.rule.monotone:
            canvas.final = min(canvas.final, max(canvas.block.start, canvas.begin))

    def _cut(self) -> None:
        canvas, ends = self.canvas, self.context.distributions.ends
        for place in range(canvas.final, len(canvas.tokens)):
            if canvas.tokens[place] in ends:
                canvas.cut(place + 1)
                if any(held > place for held in self.held):
                    self.fresh = True
                return
