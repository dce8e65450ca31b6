"""PEARL (Liu et al. 2024, arXiv:2408.11850): the draft model goes on while the target verifies.

A step without a draft is the paper's pre-verification: the target checks the first token of a
window that is drafted meanwhile. A step with one is post-verification: drafting goes on behind the
draft, as if all of it stood, and the target's last row checks the first token of what follows. The
target needs a processor of its own, as with --threads 1 on two cores, or a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from threading import Event, Thread
from typing import Any, ClassVar, Self

from paceline.core import tree as trees
from paceline.core.options import arguments, require
from paceline.core.target import Output, Pass, Target
from paceline.core.types import Budget, TokenTree, Verdict
from paceline.drafters.base import DrafterContext
from paceline.drafters.draft_model import DraftModel
from paceline.errors import InvalidOption
from paceline.sampling.sequence import Sequence
from paceline.trees.deterministic import SharedNoise


class Pearl(DraftModel):
    """Drafts chains in a thread of its own, as long as the target's forward takes."""

    name: ClassVar[str] = "pearl"

    def __init__(
        self, model: Target, vocab_size: int, *, least: int = 0, most: int = 16, recent: int = 256
    ) -> None:
        """Bind the draft model; drafts share the target's Gumbel noise.

        Args:
            least: tokens that are drafted in a step, however long the target takes: the paper's
                window. 0 ends drafting with the target's forward, so that no step waits for it.
            most: tokens that are drafted in a step, at the most.
            recent: as for the draft model.

        Raises:
            InvalidOption: other vocabularies, or a number out of range.
        """
        require(0 <= least <= most, "least", least, f"from 0 to most, {most}")
        require(most >= 1, "most", most, "1 or more")
        super().__init__(model, vocab_size, SharedNoise([1]), recent)
        self._least, self._most = least, most
        # By sequence: the length of its text at the last step, and tokens drafted behind it.
        self._ahead: dict[int, tuple[int, list[int]]] = {}
        self._sequences: List[Sequence] = ()
        self._error: BaseException | None = None

    @classmethod
    def create(cls, context: DrafterContext) -> Self:
        """Load the draft model. Raises InvalidOption for unknown options, or rules by p/q."""
        if context.needs_q:
            raise InvalidOption(
                f"drafter '{cls.name}' shares the target's noise and has no q: use verifier "
                "'coupled', 'greedy' or 'sample-match'"
            )
        chosen = arguments(cls, "drafter", context.options, "model", "vocab_size")
        return cls(cls._load(context), context.target.vocab_size, **chosen)

    def propose(self, sequences: List[Sequence], budgets: List[Budget]) -> list[TokenTree]:
        self._sequences = sequences
        drafts = []
        for sequence, budget in zip(sequences, budgets, strict=True):
            if sequence.id not in self._caches:
                self._read(sequence)
            ahead = self._agreed(sequence)
            drafts.append(trees.chain(ahead[: min(budget.nodes, budget.depth)], self.name))
        return drafts

    def forward(self, target: Target, passes: List[Pass]) -> list[Output]:
        stop = Event()
        drafting = Thread(target=self._draft, args=(stop,), name=f"paceline-{self.name}")
        drafting.start()
        try:
            return target.forward(passes)
        finally:
            stop.set()
            drafting.join()

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        outputs: List[Output],
    ) -> None:
        """Raise what ended the drafting thread, if anything."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self, sequence: Sequence) -> None:
        self._ahead.pop(sequence.id, None)
        super().close(sequence)

    def _agreed(self, sequence: Sequence) -> list[int]:
        # What was drafted behind the text that has been committed since, if that is what was
        # drafted before it.
        begin, ahead = self._ahead.get(sequence.id, (len(sequence.tokens), []))
        committed = sequence.tokens[begin:]
        kept = ahead[len(committed) :] if ahead[: len(committed)] == committed else []
        self._ahead[sequence.id] = (len(sequence.tokens), kept)
        if not kept:
            agreed = 0
            while agreed < min(len(ahead), len(committed)) and ahead[agreed] == committed[agreed]:
                agreed += 1
            self._shorten(sequence, min(begin + agreed, len(sequence.tokens) - 1))
        return kept

    def _draft(self, stop: Event) -> None:
        try:
            for drafted in range(self._most):
                open_ = [each for each in self._sequences if self._wants(each)]
                if not open_ or (drafted >= self._least and stop.is_set()):
                    return
                self._extend(open_)
        except BaseException as error:  # told in `observe`: the target's forward stands
            self._error = error

    def _wants(self, sequence: Sequence) -> bool:
        left = sequence.params.max_new_tokens - len(sequence.generated)
        return len(self._ahead[sequence.id][1]) < min(left, self._room(sequence) - 1)

    def _extend(self, sequences: List[Sequence]) -> None:
        passes, texts = [], []
        for sequence in sequences:
            cache: Any = self._caches[sequence.id]
            text = [*sequence.tokens, *self._ahead[sequence.id][1]]
            texts.append(text)
            passes.append(Pass(cache, text[self._begins[sequence.id] + cache.length :]))
        outputs = self._model.forward(passes)
        for sequence, text, each, output in zip(sequences, texts, passes, outputs, strict=True):
            self._model.keep(each.cache, len(each.pending), ())
            ahead = self._ahead[sequence.id][1]
            token = sequence.sampler.sample(output.logits[0], ahead, len(text), sequence.randomness)
            ahead.append(token)
