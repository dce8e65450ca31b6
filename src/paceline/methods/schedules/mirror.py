"""After Mirror-SD (Bhendawade et al. 2025, arXiv:2510.13161): drafts for what the target may say.

The target's first layers guess the token behind each row of a draft, through its final norm and
head. While the other layers run, the draft model continues the text behind every guess. If
verification ends in one of them, the next draft is there already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from paceline.core import tree as trees
from paceline.core.options import require
from paceline.core.target import Output, Rows, Target
from paceline.core.types import Budget, LogitArray, TokenTree
from paceline.drafters.base import DrafterContext, check_layers
from paceline.errors import PacelineError
from paceline.methods.schedules.drafting import DraftRequest, Scheduled, Worker
from paceline.sampling.generation import Generation
from paceline.sampling.sampler import top_k_ids


class Mirror(Scheduled):
    """Continue every text that verification may end in, by the target's early exit.

    Attributes:
        hits: drafts that were there already.
        misses: drafts that had to be waited for.
    """

    name: ClassVar[str] = "mirror-sd"
    requires = "runtime cpu or torch; a model with the same vocabulary (--draft-model)"
    paper = "after Mirror-SD, Bhendawade et al. 2025, arXiv:2510.13161"
    _given = ("target", "layers")

    def __init__(
        self,
        worker: Worker,
        *,
        target: Target,
        layers: int,
        coupled: bool = True,
        window: int = 4,
        exit: int = 0,
        branches: int = 1,
    ) -> None:
        """Bind worker and target.

        Args:
            worker: drafts.
            target: runs its layers in two parts.
            layers: of the target.
            coupled: see `Scheduled`.
            window: tokens of a draft.
            exit: layers before the guess; 0 for half of them.
            branches: guesses per row.

        Raises:
            InvalidOption: a value is out of range.
        """
        super().__init__(worker, coupled=coupled, window=window)
        require(0 <= exit < layers, "exit", exit, f"from 0 (half) to {layers - 1}")
        require(branches >= 1, "branches", branches, "1 or more")
        self._target, self._count = target, layers
        self._exit, self._branches = exit or layers // 2, branches
        self._running: dict[int, Generation] = {}  # by the cache's identity
        self._ready: dict[int, dict[tuple[int, ...], list[int]]] = {}  # by what follows the text
        self._read: dict[int, int] = {}  # length of that text
        self.hits = self.misses = 0

    @classmethod
    def _parts(cls, context: DrafterContext) -> dict[str, Any]:
        check_layers(cls.name, "runs the target's layers in two parts", context.target)
        loaded = context.resources.loaded
        return {"target": loaded.target, "layers": loaded.source.config.layers}

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        self._running = {id(each.cache): each for each in sequences}
        drafts: list[TokenTree | None] = []
        for sequence, budget in zip(sequences, budgets, strict=True):
            new = tuple(sequence.tokens[self._read.pop(sequence.id, 0) :])
            known = self._ready.pop(sequence.id, {}).get(new)
            drafts.append(None if known is None else self._draft(known, budget))
        left = [at for at, each in enumerate(drafts) if each is None]
        waited = sum(budgets[at].depth > 0 for at in left)
        self.misses += waited
        self.hits += sum(each.depth > 0 for each in budgets) - waited
        made = super().propose([sequences[at] for at in left], [budgets[at] for at in left])
        for at, draft in zip(left, made, strict=True):
            drafts[at] = draft
        return [each for each in drafts if each is not None]

    def close(self, sequence: Generation) -> None:
        super().close(sequence)
        self._running.pop(id(sequence.cache), None)
        self._ready.pop(sequence.id, None)
        self._read.pop(sequence.id, None)

    def forward(self, target: Target, rows: Sequence[Rows]) -> list[Output]:
        mine = [at for at, each in enumerate(rows) if self._fits(each)]
        out: dict[int, Output] = {}
        if mine:
            asked = [rows[at] for at in mine]
            found = self._target.forward(asked, tuple(range(self._exit)))
            going = [
                replace(each, inputs=output.state.copy())
                for each, output in zip(asked, found, strict=True)
            ]
            asks = self._guesses(asked, found)
            self._send(asks)
            ended = self._target.forward(going, tuple(range(self._exit, self._count)))
            out = {at: Output(e.logits.copy()) for at, e in zip(mine, ended, strict=True)}
            self._store(asks)
        rest = [at for at in range(len(rows)) if at not in out]
        if rest:
            out |= dict(zip(rest, target.forward([rows[at] for at in rest]), strict=True))
        return [out[at] for at in range(len(rows))]

    def _fits(self, each: Rows) -> bool:
        chain = not each.tree or trees.is_chain(each.tree)
        plain = chain and each.num_new == 1 and not (each.hidden or each.features)
        return plain and id(each.cache) in self._running

    def _guesses(self, rows: Sequence[Rows], found: Sequence[Output]) -> list[DraftRequest]:
        asks = []
        for each, output in zip(rows, found, strict=True):
            sequence = self._running[id(each.cache)]
            text = tuple(sequence.tokens)
            self._read[sequence.id] = len(text)
            drafted = list(each.tokens[1:])
            for row, logits in enumerate(output.logits):
                path = drafted[:row]
                room = sequence.room - len(path) - 2
                count = min(self._window, room)
                taken = drafted[row : row + 1]  # if this is right, a later row has the guess
                for token in self._likely(sequence, logits, path, taken) if count > 0 else ():
                    asks.append(
                        DraftRequest(sequence.id, (*text, *path, token), count, branch=True)
                    )
        return asks

    def _likely(
        self, sequence: Generation, logits: LogitArray, path: list[int], but: list[int]
    ) -> list[int]:
        guesses = top_k_ids(logits, min(len(logits), self._branches + 1)).tolist()
        if self.gumbel_coupled and not sequence.params.greedy:
            position = len(sequence.tokens) + len(path)
            try:
                drawn = sequence.sampler.sample(logits, path, position, sequence.randomness)
            except PacelineError:  # nothing may follow here
                return []
            guesses.insert(0, drawn)
        return [each for each in dict.fromkeys(guesses) if each not in but][: self._branches]

    def _store(self, asks: Sequence[DraftRequest]) -> None:
        reply = self._receive()
        for each, tokens in zip(asks, reply.tokens if reply else (), strict=True):
            ready = self._ready.setdefault(each.id, {})
            ready[each.text[self._read[each.id] :]] = tokens
