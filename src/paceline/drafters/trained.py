"""Drafters with a trained network (EAGLE, Medusa and others). The network reads the prompt and
every later token with the target's features, and drafts a chain, or a tree (`grown.py`), in one
call. Networks are in `paceline.networks`; the runtime runs them.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import replace
from typing import ClassVar, Self

import numpy as np

from paceline import tree as trees
from paceline.drafters.acceptance import DoubtfulStop
from paceline.drafters.base import Drafter, DrafterContext
from paceline.drafters.chain_chances import ChainChances
from paceline.drafters.early import EarlyDraft
from paceline.drafters.grown import TreeDrafts
from paceline.drafters.online import Online
from paceline.drafters.trained_chains import chains, noise_behind
from paceline.drafters.trained_making import Made, Version
from paceline.drafters.trained_progress import RECENT, Progress
from paceline.networks.runner import Chain, Grown, Runner
from paceline.options import arguments, require
from paceline.sequence import Sequence
from paceline.target import Output
from paceline.types import Budget, LogitArray, Needs, TokenTree, Verdict


class TrainedDrafter(Drafter):
    """Draft with one network; a subclass names it."""

    needs: Needs = Needs(features=True, recent=RECENT)
    # Settings of the network that may be smaller than those of its weights.
    sizes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, runner: Runner, *, stop: float = 0.0, rivals: bool = True) -> None:
        """Bind a network that is ready to run.

        Args:
            runner: the network.
            stop: a chain ends before the first token whose acceptance probability (`Chain.chances`)
                is below this (second early exit of Kangaroo); 0 never stops. With option `head`:
                least probability that the whole chain is accepted (`acceptance.py`).
            rivals: whether runner-up tokens beside the chain's are drafted too, as far as a budget
                has more nodes than the chain.

        Raises:
            InvalidOption: `stop` is out of range.
        """
        require(0 <= stop < 1, "stop", stop, "0 or more, and below 1")
        self._begin = self._newest = Version(runner)
        self._stop = stop
        self._rivals = rivals
        self._progress: dict[int, Progress] = {}
        self._lines: dict[float, ChainChances] = {}  # by temperature
        self._online: Online[Version] | None = None
        self._doubt: DoubtfulStop | None = None
        self._early = EarlyDraft()
        self.follows_noise = True

    @classmethod
    def create(cls, context: DrafterContext) -> Self:
        """Load the weights of option `weights`, or those that ship; errors as in `Made.of`."""
        made = Made.of(context, cls.name, cls.sizes, cls.needs.features)
        drafter = cls(made.begin.runner, **arguments(cls, "drafter", made.options, "runner"))
        drafter.grow_by(made.begin.trees)
        drafter.follows_noise = context.follows_noise
        drafter._doubt = made.doubt(drafter._stop)
        if made.online is not None:
            drafter.learn_by(made.online)
        return drafter

    def grow_by(self, trees: TreeDrafts | None) -> None:
        """Draft trees, or argmax chains if None."""
        self._begin = self._newest = replace(self._begin, trees=trees)
        self.kind = None if trees is None else trees.kind

    def learn_by(self, online: Online[Version]) -> None:
        """Learn while serving. A sequence drafts with one version from first draft to last, so its
        cache in the network never mixes versions.
        """
        self._online = online
        self.needs = replace(TrainedDrafter.needs, recent=type(self).needs.recent)

    def reset(self) -> None:
        self._lines.clear()
        if self._online is not None:
            self._online.reset()
            self._newest = self._begin

    def open(self, sequence: Sequence) -> None:
        # Without features, all tokens can be read at once.
        version = self._take_up()
        self._progress[sequence.id] = Progress(version, version.runner.open(), [], [])
        if not self._reads:
            self._note(sequence, sequence.tokens, _no_features(len(sequence.tokens)))

    def read(self, sequence: Sequence, features: LogitArray) -> None:
        if self._reads:
            self._note(sequence, sequence.tokens[len(sequence.tokens) - len(features) :], features)
        if self._online is not None:
            self._online.read(sequence, features)

    @property
    def bears_gaps(self) -> bool:
        # A network that reads only the end of a prompt lacks tokens in any case; learning takes
        # all.
        return self._online is None and type(self).needs.recent is not None

    @property
    def _reads(self) -> bool:
        # A drafter that learns needs features in any case.
        return type(self).needs.features

    def _line(self, sequence: Sequence) -> ChainChances:
        temperature = round(sequence.params.temperature, 1)
        found = self._lines.get(temperature)
        if found is None:
            found = ChainChances(not temperature, self.follows_noise)
            self._lines[temperature] = found
        return found

    def _take_up(self) -> Version:
        # The newest version, of at most two in use.
        older = any(each.version is not self._newest for each in self._progress.values())
        if self._online is not None and not older:
            self._newest = self._online.newest() or self._newest
        return self._newest

    def _note(self, sequence: Sequence, tokens: list[int], features: LogitArray) -> None:
        reads_all = type(self).needs == Needs(features=True)
        self._progress[sequence.id].note(tokens, features, sequence.cache, reads_all)

    def propose(self, sequences: List[Sequence], budgets: List[Budget]) -> list[TokenTree]:
        # A version drafts for all its sequences in one run, except chains that have begun early.
        drafts = [trees.EMPTY] * len(sequences)
        for sequence, budget in zip(sequences, budgets, strict=True):
            self._progress[sequence.id].asked(budget)
        if not any(budget.nodes and budget.depth for budget in budgets):
            return drafts
        asking: dict[tuple[Version, bool], list[int]] = {}
        for index, (sequence, budget) in enumerate(zip(sequences, budgets, strict=True)):
            progress = self._progress[sequence.id]
            if min(budget.nodes, budget.depth) > 0 and progress.tokens:
                apart = self._early.has_begun(progress)
                asking.setdefault((progress.version, apart), []).append(index)
        for (version, _), indices in asking.items():
            parts = [sequences[i] for i in indices], [budgets[i] for i in indices]
            for index, draft in zip(indices, self._draft(version, *parts), strict=True):
                drafts[index] = draft
        return drafts

    def _draft(
        self, version: Version, sequences: List[Sequence], budgets: List[Budget]
    ) -> list[TokenTree]:
        progress = [self._progress[sequence.id] for sequence in sequences]
        wanted = [min(b.nodes, b.depth, version.runner.depth) for b in budgets]
        early = self._early.finish(progress[0])
        if early is not None:
            drafted = self._chains(sequences, budgets, [early])
        else:
            grown = list(map(self._grown, sequences, budgets))
            if version.trees is not None:
                drafted = list(map(self._named, version.trees.grow(sequences, budgets, grown)))
            elif self._doubt is not None:
                made = self._doubt.chains(version.runner, grown, wanted)
                drafted = list(map(self._named, made))
            else:
                chained = version.runner.draft(grown, max(wanted))
                drafted = self._chains(sequences, budgets, chained)
        for each in progress:
            each.taken()
        return drafted

    def _named(self, draft: TokenTree) -> TokenTree:
        return replace(draft, source=self.name)

    def _grown(self, sequence: Sequence, budget: Budget) -> Grown:
        progress = self._progress[sequence.id]
        noise = None
        if progress.version.trees is None and self.follows_noise:
            depth = min(budget.nodes, budget.depth, progress.version.runner.depth)
            noise = noise_behind(sequence, depth)
        return progress.grown(sequence.cache, self._line(sequence).said(budget.least), noise)

    def _chains(
        self, sequences: List[Sequence], budgets: List[Budget], drafted: List[Chain]
    ) -> list[TokenTree]:
        lines = list(map(self._line, sequences))
        made = chains(
            *(drafted, budgets, lines), source=self.name, stop=self._stop, rivals=self._rivals
        )
        for sequence, (_, chain) in zip(sequences, made, strict=True):
            self._progress[sequence.id].chain = chain
        return [draft for draft, _ in made]

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        outputs: List[Output],
    ) -> None:
        for sequence, verdict, output in zip(sequences, verdicts, outputs, strict=True):
            if self._reads:
                assert output.features is not None
                features = _committed(output.features, verdict.path)
            else:
                features = _no_features(1 + len(verdict.path))
            self._early.give_up(self._progress[sequence.id])
            self._note(sequence, sequence.tokens[-len(features) :], features)
        if len(sequences) == 1:
            self._begin_early(sequences[0])
        for sequence, verdict in zip(sequences, verdicts, strict=True):
            self._learn(sequence, sequence.tokens[-len(verdict.path) - 1 :])
        if self._online is not None:
            self._online.observe(sequences, drafts, verdicts, outputs)

    def _learn(self, sequence: Sequence, committed: list[int]) -> None:
        progress = self._progress[sequence.id]
        if progress.chain is not None:
            chances, tokens = progress.chain.chances, progress.chain.tokens
            self._line(sequence).learn(chances, tokens, committed)
            progress.chain = None

    def _begin_early(self, sequence: Sequence) -> None:
        progress = self._progress[sequence.id]
        if self._doubt is None and not sequence.finish_reason and self._early.expects(progress):
            budget = progress.budget
            depth = min(budget.nodes, budget.depth, progress.version.runner.depth)
            self._early.begin(progress, self._grown(sequence, budget), depth)

    def close(self, sequence: Sequence) -> None:
        progress = self._progress.pop(sequence.id, None)
        if progress is not None:
            progress.version.runner.release(progress.cache)
        if self._online is not None:
            self._online.close(sequence)


def _committed(features: LogitArray, path: List[int]) -> LogitArray:
    # A copy: the next forward overwrites the rows.
    if not path or path[-1] == len(path) - 1:  # a draft's first chain: they lie together
        return features[: 1 + len(path)].copy()
    rows: LogitArray = features[[0, *(node + 1 for node in path)]]
    return rows


def _no_features(rows: int) -> LogitArray:
    return np.zeros((rows, 0), dtype=np.float32)
