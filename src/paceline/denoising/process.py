"""What decodes one canvas: samplers make processes, which ask rows and take their logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from paceline.core.types import (
    Attention,
    CanvasParams,
    CanvasTraits,
    IntArray,
    LogitArray,
    ProbArray,
    SamplingParams,
    TokenLogprob,
)
from paceline.denoising.caches import CachePlan
from paceline.denoising.canvas import Ask, Canvas
from paceline.denoising.distributions import Distributions
from paceline.sampling.generation import Generation
from paceline.sampling.randomness import Randomness


@dataclass
class View:
    """What a rule sees of a step.

    Attributes:
        canvas: before the step.
        places: int64 `[masked]`, masked places of the block, ascending.
        scores: float64 `[masked, vocabulary]`, logits after penalties and bans.
        probs: float64 `[masked, vocabulary]`, the distributions of sampling.
        picks: int64 `[masked]`, most likely tokens, or draws.
        filled: the same for the block's filled places that are not pinned, if the rule reads them.
        randomness: of the request.
        redraw: makes the view of places from their scores.
    """

    canvas: Canvas
    places: IntArray
    scores: ProbArray
    probs: ProbArray
    picks: IntArray
    randomness: Randomness
    filled: View | None = None
    redraw: Callable[[ProbArray, IntArray], View] | None = None

    def rescored(self, scores: ProbArray) -> View:
        """Return the view with other scores, float64 `[masked, vocabulary]`."""
        assert self.redraw is not None
        view = self.redraw(scores, self.places)
        view.filled = self.filled
        return view

    @cached_property
    def confidence(self) -> ProbArray:
        """float64 `[masked]`, the largest probability of each distribution."""
        top: ProbArray = self.probs.max(axis=1)
        return top

    @cached_property
    def picked(self) -> ProbArray:
        """float64 `[masked]`, the probabilities of the picks."""
        of_picks: ProbArray = self.probs[np.arange(len(self.places)), self.picks]
        return of_picks

    @cached_property
    def margin(self) -> ProbArray:
        """float64 `[masked]`, between the two most likely tokens."""
        two = np.partition(self.probs, -2, axis=1)[:, -2:]
        apart: ProbArray = two[:, 1] - two[:, 0]
        return apart

    @cached_property
    def entropy(self) -> ProbArray:
        """float64 `[masked]`, in nats."""
        logs = np.log(self.probs, out=np.zeros_like(self.probs), where=self.probs > 0)
        spread: ProbArray = -(self.probs * logs).sum(axis=1)
        return spread


class Decision(NamedTuple):
    """What a rule decides.

    Attributes:
        fill: indices into `View.places` that take their picks; not empty.
        edit: filled places and their new tokens.
        remask: filled places that become masks again.
    """

    fill: Sequence[int] | IntArray
    edit: Sequence[tuple[int, int]] = ()
    remask: Sequence[int] = ()


def best(values: ProbArray, count: int = 1) -> IntArray:
    """Return int64 indices of the largest values, largest first, ties to the lower index."""
    order: IntArray = np.argsort(-values, kind="stable")[:count]
    return order


class Context(NamedTuple):
    """What a process is made from.

    Attributes:
        request: the sequence; `tokens` are its prompt and what is final of the answer.
        facts: of the model.
        options: of the request.
        distributions: of its places.
        room: places of the answer, at most.
        plan: which keys are kept.
    """

    request: Generation
    facts: CanvasTraits
    options: CanvasParams
    distributions: Distributions
    room: int
    plan: CachePlan

    @property
    def attention(self) -> Attention:
        return self.facts.attention

    def canvas(self) -> Canvas:
        """Return a canvas of the prompt, with no block yet."""
        prompt, params = self.request.prompt, self.request.params
        begin = len(prompt)
        pinned = {begin + index: token for index, token in params.forced_tokens.items()}
        nothing = range(begin, begin)
        end = begin + self.room
        return Canvas(self.facts.mask, list(prompt), begin, end, nothing, nothing, pinned)


class Process(Protocol):
    """The decoding of one canvas, a forward at a time.

    It is a function of prompt, parameters, seed and weights alone: what it has filled does not
    depend on others, and one that begins anew fills the same again.

    Attributes:
        canvas: what is filled, and what is final.
        exact: whether a cache that was lost and read again holds the same keys.
        logprobs: of filled places, under the raw logits at their step, if asked for.
    """

    exact: bool

    @property
    def canvas(self) -> Canvas: ...

    @property
    def logprobs(self) -> dict[int, TokenLogprob]: ...

    def log_likelihood(self, end: int) -> float | None:
        """Log-probability, in nats, of the answer up to place `end`; None if it cannot be told."""
        ...

    def ask(self) -> Ask:
        """Return the rows of the next forward; asking twice changes nothing."""
        ...

    def take(self, logits: LogitArray) -> Sequence[int]:
        """Take float32 `[wanted, vocabulary]`, fill, and return the ascending rows to cache."""
        ...

    def forget(self) -> None:
        """Go on with an empty cache, or begin anew."""
        ...


class Terms(NamedTuple):
    """What is known of a request before it is decoded.

    Attributes:
        facts: of the model.
        plan: which keys are kept.
        params: of the request.
        block: places that are filled together, at most.
        constrained: whether a constraint holds the text.
    """

    facts: CanvasTraits
    plan: CachePlan
    params: SamplingParams
    block: int
    constrained: bool


class Sampler(Protocol):
    """What `--sampler` names. Constructor arguments are its options.

    A wrapper takes a rule, `inner`, as first argument: `prophet>threshold:tau=0.9`.

    Attributes:
        needs: attentions of models that it can serve.
        ignores_draws: which places are filled depends on distributions and seed alone, not on what
            was drawn. Then a text has a likelihood.
    """

    name: ClassVar[str]
    guarantee: ClassVar[str] = "measured only"
    requires: ClassVar[str] = "a denoiser"
    paper: ClassVar[str] = "-"
    needs: tuple[Attention, ...]
    ignores_draws: bool = True

    def check(self, terms: Terms) -> None:
        """Raise InvalidOption if model or request are not for it, beyond `needs`."""

    def process(self, context: Context) -> Process:
        """Return the process of a request."""
        ...
