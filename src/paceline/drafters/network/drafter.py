"""Drafters with a trained network (EAGLE, Medusa and others). The network reads the prompt and
every later token with the target's features, and drafts a chain, or a tree (`trees.py`), in one
call. Networks are in `paceline.networks`; the runtime runs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from paceline.core import tree as trees
from paceline.core.options import arguments, require
from paceline.core.types import Budget, LogitArray, Needs, TokenTree
from paceline.drafters.base import Drafter, DrafterContext
from paceline.drafters.network.build import DrafterParts, LoadedNetwork
from paceline.drafters.network.first_drafts import FirstDrafts
from paceline.drafters.network.online import Online
from paceline.drafters.network.stopping_head import AcceptanceStop
from paceline.drafters.network.trees import TreeDrafts
from paceline.networks.base import Network
from paceline.networks.runner import Chain, ContextUpdate, Noise, Runner
from paceline.policy.acceptance import PlattScaling
from paceline.policy.constants import DRAFT_TEMPERATURE, PROMPT_ROWS, RECENT_ROWS, WAITING_ROWS
from paceline.sampling.generation import Generation, VerifiedDraft
from paceline.sampling.randomness import Draw, Purpose
from paceline.trees.union import with_runner_ups


@dataclass(slots=True)
class ContextState:
    """A sequence's cache in the network, and the rows that are not in it yet.

    Attributes:
        version: the network that drafts for it.
        cache: from `Runner.open`.
        features: float32 `[rows, 4 * width]` each; row i belongs to the position before
            `tokens[i]`. They have no width if none are read.
        tokens: those that wait, the root at the end.
        begun: whether the cache holds any rows.
        chain: the last that was drafted, until its verdict is known.
    """

    version: LoadedNetwork
    cache: Any
    features: list[LogitArray]
    tokens: list[int]
    begun: bool = False
    chain: Chain | None = None

    def note(
        self, tokens: list[int], features: LogitArray, target: Any, reads_all: bool = False
    ) -> None:
        """Add rows for the next draft, and what follows each; `target` is the target's cache.

        Of too many, old rows are dropped before the first draft (unless the network `reads_all`),
        and run through the network after it.
        """
        most = WAITING_ROWS if self.begun else PROMPT_ROWS + WAITING_ROWS
        self.tokens += tokens
        self.features.append(features)
        if len(self.tokens) <= most:
            return
        if self.begun or reads_all:
            known = np.concatenate(self.features)
            read = ContextUpdate(self.cache, known[:-1], self.tokens[:-1], target)
            self.version.runner.draft([read], 0)
            self._keep(1)  # the root, which drafts start from
        else:
            self._keep(PROMPT_ROWS)

    def _keep(self, rows: int) -> None:
        # Rows may be megabytes: they are copied only where a view would hold more memory than
        # they need.
        self.tokens = self.tokens[-rows:]
        kept: list[LogitArray] = []
        for features in reversed(self.features):
            tail = features[-rows:]
            kept.insert(0, tail if 2 * len(tail) >= len(features) else tail.copy())
            rows -= len(tail)
            if not rows:
                break
        self.features = kept

    def context_update(self, target: Any, least: float, noise: Noise | None) -> ContextUpdate:
        """Return the waiting rows, for a draft that may end below a chance of `least`."""
        new = self.features[0] if len(self.features) == 1 else np.concatenate(self.features)
        return ContextUpdate(self.cache, new, self.tokens, target, noise, least)

    def consumed(self) -> None:
        """Note that the cache holds all rows."""
        self.features, self.tokens, self.begun = [], [], True


def chains(
    drafted: Sequence[Chain],
    wanted: Sequence[Budget],
    scalings: Sequence[PlattScaling],
    *,
    source: str,
    stop: float = 0.0,
    runner_ups: bool = True,
) -> list[tuple[TokenTree, Chain]]:
    """Build a draft per sequence, as deep as its budget and chain allow; return both.

    Args:
        drafted: the network's chains.
        wanted: a budget for each.
        scalings: acceptance statistics of each.
        source: name of the drafter.
        stop: a chain ends with the first token whose acceptance probability is below this.
        runner_ups: whether remaining nodes go to runner-up tokens beside the chain's, as leaves:
            the network has computed these already.
    """
    out = []
    for chain, budget, scaling in zip(drafted, wanted, scalings, strict=True):
        depth = min(budget.nodes, budget.depth, len(chain.tokens))
        if stop:
            doubtful = (at + 1 for at in range(depth) if chain.chances[at] < stop)
            depth = next(doubtful, depth)
        room = budget.nodes - depth if runner_ups else 0
        chances = scaling.acceptance(chain.chances[:depth])
        out.append((with_runner_ups(chain, chances, room, source), chain))
    return out


def noise_behind(sequence: Generation, depth: int) -> Noise | None:
    """Return the Gumbel noise of the `depth` positions after the root; None for greedy requests."""
    temperature = sequence.params.temperature
    if not temperature:
        return None
    begin, randomness = len(sequence.tokens), sequence.randomness
    draws = (Draw(place, Purpose.NOISE) for place in range(begin, begin + depth))
    return Noise(
        b"".join([randomness.noise(draw).key for draw in draws]), DRAFT_TEMPERATURE * temperature
    )


WEIGHTS = "weights for the model (paceline train drafter)"


class TrainedDrafter(Drafter):
    """Draft with one network; a subclass names it."""

    requires = f"features; {WEIGHTS}"
    needs: Needs = Needs(features=True, recent=RECENT_ROWS)
    # Option `stop` where the user sets none.
    stop: ClassVar[float] = 0.0
    network: Network  # that drafts

    def __init__(self, runner: Runner, *, stop: float = 0.0, runner_ups: bool = True) -> None:
        """Bind a network that is ready to run.

        Args:
            runner: the network.
            stop: a chain ends with the first token whose acceptance probability (`Chain.chances`)
                is below this (second early exit of Kangaroo); 0 never stops. With option `head`:
                least probability that the whole chain is accepted (`stopping_head.py`).
            runner_ups: whether runner-up tokens beside the chain's are drafted too, as far as a
                budget has more nodes than the chain.

        Raises:
            InvalidOption: `stop` is out of range.
        """
        require(0 <= stop < 1, "stop", stop, "0 or more, and below 1")
        self._begin = self._newest = LoadedNetwork(runner)
        self._stop = stop
        self._runner_ups = runner_ups
        self._ids = np.zeros(0, dtype=np.int64)  # of the draft vocabulary
        self._progress: dict[int, ContextState] = {}
        self._scalings: dict[float, PlattScaling] = {}  # by temperature
        self._online: Online[LoadedNetwork] | None = None
        self._places: Sequence[int] | None = None  # of the parts of features that it reads
        self._width = 0  # of a part; 0 to read all
        self._stopping_head: AcceptanceStop | None = None
        self._first: FirstDrafts | None = None
        self.gumbel_coupled = True

    @classmethod
    def create(cls, context: DrafterContext) -> Self:
        """Load the weights of option `weights`, or those that ship; errors: `DrafterParts.load`."""
        made = DrafterParts.load(context, cls.name, cls.needs.features)
        options = {"stop": str(cls.stop), **made.options}
        drafter = cls(made.begin.runner, **arguments(cls, "drafter", options, "runner"))
        drafter.network = made.trained.network
        drafter.expand_by(made.begin.trees)
        drafter._ids = made.trained.draft_ids
        drafter._places, drafter._width = made.places, context.target.hidden_size
        drafter._first = made.first
        drafter.gumbel_coupled = context.gumbel_coupled
        drafter._stopping_head = made.stopping_head(drafter._stop)
        if made.online is not None:
            drafter.learn_by(made.online)
        return drafter

    def expand_by(self, trees: TreeDrafts | None) -> None:
        """Draft trees, or argmax chains if None."""
        self._begin = self._newest = replace(self._begin, trees=trees)
        self.kind = None if trees is None else trees.kind

    def learn_by(self, online: Online[LoadedNetwork]) -> None:
        """Learn while serving. A sequence drafts with one version from first draft to last, so its
        cache in the network never mixes versions.
        """
        self._online = online
        self.needs = replace(TrainedDrafter.needs, recent=type(self).needs.recent)

    def reset(self) -> None:
        self._scalings.clear()
        if self._online is not None:
            self._online.reset()
            self._newest = self._begin

    def open(self, sequence: Generation) -> None:
        # Without features, all tokens can be read at once.
        version = self._newest_version()
        self._progress[sequence.id] = ContextState(version, version.runner.open(), [], [])
        if not self._reads:
            self._note(sequence, sequence.tokens, _no_features(len(sequence.tokens)))

    def read(self, sequence: Generation, features: LogitArray) -> None:
        features = self._parts(features)
        if self._reads:
            self._note(sequence, sequence.tokens[len(sequence.tokens) - len(features) :], features)
        if self._online is not None:
            self._online.read(sequence, features)

    @property
    def tolerates_gaps(self) -> bool:
        # A network that reads only the end of a prompt lacks tokens in any case; learning takes
        # all.
        return self._online is None and type(self).needs.recent is not None

    @property
    def _reads(self) -> bool:
        # A drafter that learns needs features in any case.
        return type(self).needs.features

    def _parts(self, features: LogitArray) -> LogitArray:
        # Those that the network reads: a target may have been told to give more.
        if self._places is None:
            usual = 4 * self._width
            return features[:, :usual] if 0 < usual < features.shape[1] else features
        parts = features.reshape(len(features), -1, self._width)
        return parts[:, self._places].reshape(len(features), -1)

    def _scaling(self, sequence: Generation) -> PlattScaling:
        temperature = round(sequence.params.temperature, 1)
        found = self._scalings.get(temperature)
        if found is None:
            found = self._scalings[temperature] = PlattScaling()
        return found

    def _newest_version(self) -> LoadedNetwork:
        # The newest version, of at most two in use.
        older = any(each.version is not self._newest for each in self._progress.values())
        if self._online is not None and not older:
            self._newest = self._online.newest() or self._newest
        return self._newest

    def _note(self, sequence: Generation, tokens: list[int], features: LogitArray) -> None:
        progress, reads_all = self._progress[sequence.id], type(self).needs == Needs(features=True)
        if sequence.window and sequence.cache.gone:  # a network keeps all, and drafts no more
            progress.consumed()
        else:
            progress.note(tokens, features, sequence.cache, reads_all)

    def unread(self, sequence: Generation) -> int:
        return len(self._progress[sequence.id].tokens) - 1

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        # A version drafts for all its sequences in one run.
        drafts = [trees.EMPTY] * len(sequences)
        by_version: dict[LoadedNetwork, list[int]] = {}
        for index, (sequence, budget) in enumerate(zip(sequences, budgets, strict=True)):
            progress = self._progress[sequence.id]
            if min(budget.nodes, budget.depth) > 0 and progress.tokens:
                by_version.setdefault(progress.version, []).append(index)
        for version, indices in by_version.items():
            parts = [sequences[i] for i in indices], [budgets[i] for i in indices]
            for index, draft in zip(indices, self._draft(version, *parts), strict=True):
                drafts[index] = draft
        return drafts

    def _draft(
        self, version: LoadedNetwork, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        progress = [self._progress[sequence.id] for sequence in sequences]
        wanted = [min(b.nodes, b.depth, version.runner.depth) for b in budgets]
        context_update = list(map(self._context_update, sequences, budgets))
        if version.trees is not None:
            drafted = list(
                map(self._signed, version.trees.grow(sequences, budgets, context_update))
            )
        elif self._stopping_head is not None:
            made = self._stopping_head.chains(version.runner, context_update, wanted)
            drafted = list(map(self._signed, made))
        else:
            chained = version.runner.draft(context_update, max(wanted))
            drafted = self._chains(sequences, budgets, chained)
        for each in progress:
            each.consumed()
        return drafted

    def _signed(self, draft: TokenTree) -> TokenTree:
        return replace(draft, source=self.name)

    def _context_update(self, sequence: Generation, budget: Budget) -> ContextUpdate:
        progress = self._progress[sequence.id]
        noise = None
        if progress.version.trees is None and self.gumbel_coupled:
            depth = min(budget.nodes, budget.depth, progress.version.runner.depth)
            noise = noise_behind(sequence, depth)
        return progress.context_update(
            sequence.cache, self._scaling(sequence).predicted(budget.least), noise
        )

    def _chains(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget], drafted: Sequence[Chain]
    ) -> list[TokenTree]:
        scalings = list(map(self._scaling, sequences))
        made = chains(
            drafted,
            budgets,
            scalings,
            source=self.name,
            stop=self._stop,
            runner_ups=self._runner_ups,
        )
        for sequence, (_, chain) in zip(sequences, made, strict=True):
            self._progress[sequence.id].chain = chain
        return [draft for draft, _ in made]

    def observe(self, step: Sequence[VerifiedDraft]) -> None:
        for sequence, _, verdict, output in step:
            if self._reads:
                assert output.features is not None
                features = self._parts(_committed(output.features, verdict.path))
            else:
                features = _no_features(1 + len(verdict.path))
            self._note(sequence, sequence.tokens[-len(features) :], features)
            self._learn(sequence, sequence.tokens[-len(verdict.path) - 1 :])
        if self._online is not None:
            self._online.observe(step)

    def _learn(self, sequence: Generation, committed: list[int]) -> None:
        progress = self._progress[sequence.id]
        if progress.chain is not None:
            chances, tokens = progress.chain.chances, progress.chain.tokens
            self._scaling(sequence).learn(chances, tokens, committed)
            if self._first is not None and not self._first.note(tokens, committed):
                self._first = None
            progress.chain = None

    def close(self, sequence: Generation) -> None:
        progress = self._progress.pop(sequence.id, None)
        if progress is not None:
            progress.version.runner.release(progress.cache)
        if self._online is not None:
            self._online.close(sequence)


def _committed(features: LogitArray, path: Sequence[int]) -> LogitArray:
    # A copy: the next forward overwrites the rows.
    if not path or path[-1] == len(path) - 1:  # a draft's first chain: they lie together
        return features[: 1 + len(path)].copy()
    rows: LogitArray = features[[0, *(node + 1 for node in path)]]
    return rows


def _no_features(rows: int) -> LogitArray:
    return np.zeros((rows, 0), dtype=np.float32)


class Eagle3Drafter(TrainedDrafter):
    name: ClassVar[str] = "eagle3"
    paper = "after EAGLE-3, Li et al. 2025, arXiv:2503.01840"


class EagleDrafter(TrainedDrafter):
    name: ClassVar[str] = "eagle"
    paper = "after EAGLE, Li et al. 2024, arXiv:2401.15077"


class MedusaDrafter(TrainedDrafter):
    name: ClassVar[str] = "medusa"
    paper = "after Medusa, Cai et al. 2024, arXiv:2401.10774"


class MlpSpeculatorDrafter(TrainedDrafter):
    name: ClassVar[str] = "mlp-speculator"
    paper = "MLP speculators, Wertheimer et al. 2024, arXiv:2404.19124"
    requires = "features; a published drafter (--draft-model)"


class MtpDrafter(TrainedDrafter):
    name: ClassVar[str] = "mtp"
    paper = "after DeepSeek-V3, DeepSeek-AI 2024, arXiv:2412.19437"
    requires = "a model whose files hold the head (Qwen 3.5, DeepSeek V3, Nemotron 3)"


class AssistantDrafter(TrainedDrafter):
    name: ClassVar[str] = "assistant"
    paper = "after Gemma 4, Google 2026, github.com/huggingface/transformers"
    requires = "features; a Gemma 4 model and its published assistant (--draft-model)"
    needs: Needs = Needs(features=True, recent=1)


class DFlashDrafter(TrainedDrafter):
    name: ClassVar[str] = "dflash"
    paper = "after DFlash, Chen et al. 2026, arXiv:2602.06036"
    requires = "features; a published drafter (--draft-model), or weights (paceline train drafter)"


class DSparkDrafter(TrainedDrafter):
    name: ClassVar[str] = "dspark"
    paper = "DSpark, DeepSeek-AI 2026, arXiv:2607.05147"
    requires = "features; a published drafter (--draft-model)"
