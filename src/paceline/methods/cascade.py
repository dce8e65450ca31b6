"""Hierarchical speculative decoding (Mohri et al. 2025, arXiv:2510.19705).

Each model of a stack decodes with the one below as its drafter. Its output, a chain with q
rows of its own distribution, is the draft for the level above. Chain length depends on earlier
acceptance only (predictability), so any p/q rule may verify it.

SpecMQuant (Zhang et al. 2025, arXiv:2505.22179) is a quantised target over a small model with an
EAGLE-2 tree: `cascade:bottom=eagle3,growth=expand-rerank,nodes=30,least=6`. The bottom gets the
features of the model above it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from paceline.core import tree as trees
from paceline.core.options import arguments
from paceline.core.target import Rows, Target
from paceline.core.types import (
    ROOT,
    Budget,
    Distribution,
    DraftSampling,
    LogitArray,
    ProbArray,
    TokenTree,
)
from paceline.drafters.base import Drafter, DrafterContext, NoDrafter
from paceline.drafters.resources import Resources
from paceline.errors import InvalidOption
from paceline.registry import table as registry
from paceline.sampling.generation import Generation, VerifiedDraft
from paceline.sampling.gumbel import GumbelNoise
from paceline.sampling.processors import State
from paceline.sampling.randomness import Draw, Purpose, Randomness
from paceline.sampling.sampler import Sampler, TreeDistributions
from paceline.verifiers.base import Verifier
from paceline.verifiers.block import Block
from paceline.verifiers.matching import Coupled, SampleMatch

# Most tokens drafted ahead; names of nested draws have room for this many roots.
LONGEST = 200

_ROOT_BITS, _PURPOSE_BITS = 8, 3


class Ahead:
    """A sequence extended by drafted tokens.

    Attributes:
        sequence: a copy of the real sequence, longer by the drafted tokens.
        rows: draft distributions of those tokens, where given.
    """

    def __init__(self, sequence: Generation, *, fresh: bool) -> None:
        """Copy a sequence, which may be such a copy itself.

        With `fresh` draws, the draft is independent of the draws that verify it (p/q rules);
        otherwise it shares the Gumbel noise of the real sequence.
        """
        self._start = len(sequence.tokens)
        self.sequence = Generation(
            sequence.id,
            list(sequence.tokens),
            sequence.prompt_length,
            sequence.params,
            _AheadSampler(sequence.sampler),
            _Nested(sequence.randomness, self._start - 1) if fresh else sequence.randomness,
        )
        self.rows: list[Distribution] = []

    def __len__(self) -> int:
        return len(self.sequence.tokens) - self._start

    @property
    def tokens(self) -> list[int]:
        return self.sequence.tokens[self._start :]

    def extend(self, tokens: Sequence[int], rows: Sequence[Distribution]) -> None:
        self.sequence.tokens += tokens
        self.sequence.sampler.commit(tokens)
        self.rows += rows


class _AheadSampler(Sampler):
    def __init__(self, sampler: Sampler) -> None:
        self.params = sampler.params
        self.constraint = sampler.constraint
        self.mu = sampler.mu
        self._sampler = sampler
        self._drafted: list[int] = []

    def commit(self, tokens: Sequence[int]) -> None:
        self._drafted += tokens

    def distribution(
        self, logits: LogitArray, path: Sequence[int] = (), *, soft: bool = False, mu: State = None
    ) -> Distribution:
        return self._sampler.distribution(logits, (*self._drafted, *path), soft=soft, mu=mu)

    @property
    def greedy_argmax(self) -> bool:
        return self._sampler.greedy_argmax

    def sample(
        self,
        logits: LogitArray,
        path: Sequence[int],
        position: int,
        draws: Randomness,
        mu: State = None,
    ) -> int:
        return self._sampler.sample(logits, (*self._drafted, *path), position, draws, mu)


class _Nested:
    # Purpose, sibling and root (counted from the outer root) of the inner draw are packed into the
    # sibling of the outer one. Names stay distinct at every depth of nesting, as long as a decoder
    # draws nothing as its own drafter.

    def __init__(self, randomness: Randomness, root: int) -> None:
        self._randomness = randomness
        self._root = root

    def choice(self, weights: ProbArray, draw: Draw) -> int:
        return self._randomness.choice(weights, self._rename(draw))

    def bernoulli(self, probability: float, draw: Draw) -> bool:
        return self._randomness.bernoulli(probability, self._rename(draw))

    def uniform(self, size: int, draw: Draw) -> ProbArray:
        return self._randomness.uniform(size, self._rename(draw))

    def noise(self, draw: Draw) -> GumbelNoise:
        return self._randomness.noise(self._rename(draw))

    def _rename(self, draw: Draw) -> Draw:
        step = 0  # for draws that name no root
        if draw.root:
            step = draw.root - self._root + 1
            if not 0 < step < 1 << _ROOT_BITS:
                raise ValueError(f"{draw} has no place inside the round at {self._root}")
        packed = (draw.sibling << _ROOT_BITS | step) << _PURPOSE_BITS | int(draw.purpose)
        return Draw(draw.position, Purpose.DRAFT, packed, self._root)


@dataclass(frozen=True, slots=True)
class Level:
    """One model of a cascade.

    Attributes:
        model: not the target, and not used at two levels.
        least: tokens after which the chain goes up; None fills the budget.
        nodes: most nodes drafted by the level below at once.
    """

    model: Target
    least: int | None = None
    nodes: int = 6


@dataclass(frozen=True, slots=True)
class _Asked:
    # Options of the drafter: `least` and `nodes` are of every level, 0 fills the budget.
    name: ClassVar[str] = "cascade"
    bottom: str = "prompt-lookup"
    middle: bool = True
    int8: bool = False
    least: int = 0
    nodes: int = 6


# Options that are of the drafter at the bottom.
_OF_BOTTOM = ("growth", "weights")


class Cascade(Drafter):
    """Drafts with a stack of models that share the target's vocabulary."""

    name: ClassVar[str] = "cascade"
    requires = "a model with the same vocabulary (--draft-model); more levels from Python"
    paper = (
        "after HSD, Mohri et al. 2025, arXiv:2510.19705; SpecMQuant, Zhang et al. 2025, "
        "arXiv:2505.22179"
    )
    proof = "paceline.methods.proof:CASCADE"

    def __init__(
        self,
        levels: Sequence[Level],
        vocab_size: int,
        *,
        needs_q: bool,
        bottom: Drafter | None = None,
        rule: Verifier | None = None,
    ) -> None:
        """Stack the models, cheapest first.

        Args:
            needs_q: sample independently and give q rows (p/q rules), instead of sharing the
                target's Gumbel noise.
            bottom: drafts for the cheapest model; none by default. Reopened on every rollback.
            rule: lossless rule for chains with q rows; default block verification.

        Raises:
            InvalidOption: no level, different vocabularies, or a size below 1.
        """
        if not levels:
            raise InvalidOption("a cascade needs a model: give one or more levels")
        bottom = bottom or NoDrafter()
        if bottom.kind is not None:
            raise InvalidOption(
                f"drafter '{bottom.name}' draws its drafts, which the bottom of a cascade may not: "
                "use other options"
            )
        source: _Source = _Bottom(bottom)
        for level in levels:
            theirs = level.model.capabilities.vocab_size
            if theirs != vocab_size:
                raise InvalidOption(
                    f"a model of the cascade has {theirs} tokens and the target {vocab_size}: "
                    "use models of the target's family, with the same tokenizer"
                )
            if level.nodes < 1 or (level.least is not None and level.least < 1):
                raise InvalidOption("least and nodes of a cascade's level must be 1 or more")
            source = _Model(level, source, rule or Block(), needs_q)
        self._source = source
        self.kind = "iid" if needs_q else None

    @classmethod
    def create(cls, context: DrafterContext) -> Self:
        """Build what drafts at the bottom, the draft model, the target.

        Raises InvalidOption for unknown options, sizes below 1, or no model between.
        """
        options = dict(context.options)
        theirs = {key: options.pop(key) for key in _OF_BOTTOM if key in options}
        asked = _Asked(**arguments(_Asked, "drafter", options))
        drafts = registry.find("drafter", asked.bottom).load()
        if not asked.middle and not asked.int8:
            raise InvalidOption(
                "a cascade of one level is its bottom drafter alone: use drafter "
                f"'{asked.bottom}', or leave out middle=false"
            )
        models = [context.resources.draft_model(cls.name)] if asked.middle else []
        if asked.int8:
            models.append(context.resources.coarser(cls.name))
        coupled = not context.needs_q
        below = DrafterContext(Resources(models[0]), gumbel_coupled=coupled, options=theirs)
        bottom: Drafter = drafts.create(below)
        return cls(
            [Level(model.target, asked.least or None, asked.nodes) for model in models],
            context.target.vocab_size,
            needs_q=context.needs_q,
            bottom=bottom,
        )

    def open(self, sequence: Generation) -> None:
        self._source.open(sequence)

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        return self._source.propose(sequences, budgets)

    def close(self, sequence: Generation) -> None:
        self._source.close(sequence)

    def reset(self) -> None:
        self._source.reset()


class _Source(Drafter):
    # Drafts for a model. Sequences may shrink or change between calls; `needs` are of the model's
    # forwards.

    # Features of the last tokens before the root, from the model; read if they are needed.
    features: Callable[[Generation], LogitArray]


class _Bottom(_Source):
    # Drafters expect sequences to grow only: reopen on every rollback.

    def __init__(self, drafter: Drafter) -> None:
        self.needs = drafter.needs
        self._drafter = drafter
        self._seen: dict[int, list[int]] = {}

    def open(self, sequence: Generation) -> None:
        self._seen[sequence.id] = sequence.tokens
        self._drafter.open(sequence)
        if self.needs.features:
            self._drafter.read(sequence, self.features(sequence))

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        for sequence in sequences:
            seen = self._seen[sequence.id]
            # One that reads features has not those of a token that the level above added, either.
            known = len(sequence.tokens) if self.needs.features else len(seen)
            if sequence.tokens[:known] != seen:
                self._drafter.close(sequence)
                self.open(sequence)
            self._seen[sequence.id] = sequence.tokens
        return self._drafter.propose(sequences, budgets)

    def observe(self, step: Sequence[VerifiedDraft]) -> None:
        self._drafter.observe(step)

    def close(self, sequence: Generation) -> None:
        if self._seen.pop(sequence.id, None) is not None:
            self._drafter.close(sequence)

    def reset(self) -> None:
        self._drafter.reset()


class _Model(_Source):
    # The cache is rolled back to the accepted tokens in `propose`.

    def __init__(self, level: Level, below: _Source, rule: Verifier, needs_q: bool) -> None:
        self._model = level.model
        self._least = LONGEST if level.least is None else level.least
        self._nodes = level.nodes
        self._below = below
        below.features = self._recent
        self._rows: dict[int, LogitArray] = {}  # features of cached tokens, the last ones
        self._needs_q = needs_q
        self._match: Verifier = SampleMatch() if needs_q else Coupled()
        self._rule = rule if needs_q else self._match
        self._caches: dict[int, Any] = {}
        self._cached: dict[int, list[int]] = {}

    def open(self, sequence: Generation) -> None:
        self._caches[sequence.id] = self._model.open()
        self._cached[sequence.id] = sequence.tokens
        width = 4 * self._model.capabilities.hidden_size
        self._rows[sequence.id] = np.zeros((0, width), dtype=np.float32)
        if self._room(sequence):
            self._read(sequence)
        self._below.open(self._ahead(sequence).sequence)

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        runs = list(map(self._ahead, sequences))
        limits = [
            min(budget.nodes, budget.depth, self._room(sequence), LONGEST)
            for sequence, budget in zip(sequences, budgets, strict=True)
        ]
        for run in runs:
            self._roll_back(run.sequence)
        while live := [
            (run, limit - len(run))
            for run, limit in zip(runs, limits, strict=True)
            if len(run) < min(self._least, limit)
        ]:
            self._round(live)
        return [self._chain(run) for run in runs]

    def close(self, sequence: Generation) -> None:
        self._below.close(sequence)
        self._cached.pop(sequence.id, None)
        self._rows.pop(sequence.id, None)
        cache = self._caches.pop(sequence.id, None)
        if cache is not None:
            self._model.release(cache)

    def reset(self) -> None:
        self._below.reset()

    def _round(self, live: Sequence[tuple[Ahead, int]]) -> None:
        aheads = [run.sequence for run, _ in live]
        needs = self._below.needs
        if needs.features:
            for ahead in aheads:  # drafts begin with features of all tokens but the root
                self._read(ahead)
        # The last token of a round is the model's own.
        budgets = [Budget(self._nodes, min(self._nodes, room - 1)) for _, room in live]
        drafts = self._below.propose(aheads, budgets)
        rows = []
        for ahead, draft in zip(aheads, drafts, strict=True):
            cache = self._caches[ahead.id]
            new_tokens, hidden = ahead.tokens[cache.length :], needs.hidden
            rows.append(
                Rows.draft(cache, new_tokens, draft, hidden=hidden, features=needs.features)
            )
        outputs = self._model.forward(rows)
        step = []
        for (run, _), draft, each, output in zip(live, drafts, rows, outputs, strict=True):
            kind = None if draft.sampling is None else draft.sampling.kind
            rule = self._rule if kind in self._rule.accepts else self._match
            ahead = run.sequence
            distributions = TreeDistributions(
                ahead.sampler, draft, output, len(ahead.tokens), rule.name
            )
            verdict = rule.verify(draft, distributions, ahead.randomness)
            self._model.keep(each.cache, each.num_new, verdict.path)
            if output.features is not None:
                kept = [0, *(node + 1 for node in verdict.path)]
                self._note(ahead, output.features[kept])
            run.extend(
                [*draft.tokens[list(verdict.path)].tolist(), verdict.next_token],
                [distributions.distribution(node) for node in (ROOT, *verdict.path)]
                if self._needs_q
                else [],
            )
            step.append(VerifiedDraft(ahead, draft, verdict, output))
        self._below.observe(step)

    def _chain(self, run: Ahead) -> TokenTree:
        if not len(run):
            return trees.EMPTY
        distribution = (
            DraftSampling("iid", dict(enumerate(run.rows, ROOT))) if self._needs_q else None
        )
        return trees.chain(run.tokens, Cascade.name, distribution)

    def _ahead(self, sequence: Generation) -> Ahead:
        run = Ahead(sequence, fresh=self._needs_q)
        run.sequence.cache = self._caches[sequence.id]
        return run

    def _read(self, sequence: Generation) -> None:
        cache = self._caches[sequence.id]
        rest = sequence.tokens[cache.length : -1]
        if rest:
            seen = self._model.prefill(cache, rest, self._below.needs.features)
            if seen is not None:
                self._note(sequence, seen)

    def _note(self, sequence: Generation, features: LogitArray) -> None:
        most = LONGEST + (self._below.needs.recent or self._model.capabilities.max_context)
        self._rows[sequence.id] = np.concatenate([self._rows[sequence.id], features])[-most:]

    def _recent(self, sequence: Generation) -> LogitArray:
        return self._rows[sequence.id][-(self._below.needs.recent or len(sequence.tokens)) :]

    def _room(self, sequence: Generation) -> int:
        # Remaining tokens of the model's context window.
        return max(0, self._model.capabilities.max_context - len(sequence.tokens))

    def _roll_back(self, sequence: Generation) -> None:
        cache, cached = self._caches[sequence.id], self._cached[sequence.id]
        length = min(cache.length, len(sequence.tokens) - 1)
        while sequence.tokens[:length] != cached[:length]:
            length -= 1
        if length < cache.length:
            rows, before = self._rows[sequence.id], cache.length
            self._model.truncate(cache, length)
            self._rows[sequence.id] = rows[: max(0, len(rows) - (before - cache.length))]
        # The cache holds the head of this list, also when the list grows.
        self._cached[sequence.id] = sequence.tokens
