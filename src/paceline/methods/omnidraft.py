"""A draft model of another vocabulary that learns: after OmniDraft (Ramakrishnan et al. 2025,
arXiv:2507.02659).

As in the paper, an online cache maps n-grams of draft tokens to the target's tokens, and the draft
model is distilled online with a hybrid loss. Unlike the paper's, a low-rank correction of the LM
head is trained instead of the draft model, drafts end by their own probability instead of a trained
head's, they are verified as deterministic ones (the product of draft probabilities is not the
distribution of a merged token), and by default their text is encoded instead of merged by the
cache.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from paceline.core.options import require
from paceline.core.target import Output, Target
from paceline.core.types import Budget, IntArray, LogitArray, TokenTree, Verdict
from paceline.drafters.string_level import CANDIDATES, StringDraft, StringLevel
from paceline.drafters.translation import Translation
from paceline.sampling.generation import Generation, VerifiedDraft
from paceline.sampling.sampler import top_k_ids

# Entries of the cache; the least recently used go first.
_ENTRIES = 1 << 16

# Draft tokens of the longest n-gram.
_LONGEST = 8


class NgramCache:
    """The target's tokens by the draft tokens that spell them, two or more."""

    def __init__(self) -> None:
        self._tokens: OrderedDict[tuple[int, ...], int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tokens)

    def learn(self, ngram: tuple[int, ...], token: int) -> None:
        if 2 <= len(ngram) <= _LONGEST:
            self._tokens[ngram] = token
            self._tokens.move_to_end(ngram)
            if len(self._tokens) > _ENTRIES:
                self._tokens.popitem(last=False)

    def longest(self, tokens: Sequence[int]) -> tuple[int, int] | None:
        """Return the token and size of the longest n-gram that `tokens` begin with."""
        for size in range(min(len(tokens), _LONGEST), 1, -1):
            found = self._tokens.get(tuple(tokens[:size]))
            if found is not None:
                return found, size
        return None


class Correction:
    """Low-rank correction of an LM head: logits + U V h, with U from zero (LoRA, arXiv:2106.09685).

    `U` is float32 `[vocabulary, rank]`, `V` `[rank, hidden]`. Hidden states are scaled to length 1.
    """

    def __init__(self, vocabulary: int, hidden: int, rank: int, rate: float) -> None:
        self._up = np.zeros((vocabulary, rank), dtype=np.float32)
        draws = np.random.default_rng(0).standard_normal((rank, hidden))
        self._down = draws.astype(np.float32)
        self._rate = rate

    def at(self, ids: IntArray, hidden: LogitArray) -> LogitArray:
        """Return what is added to the logits of `ids` `[k]`, float32 `[k]`."""
        added: LogitArray = self._up[ids] @ (self._down @ _unit(hidden))
        return added

    def step(self, ids: IntArray, hidden: LogitArray, gradient: LogitArray) -> None:
        """Descend along the gradient by the logits of `ids`, float32 `[k]`."""
        unit = _unit(hidden)
        seen, back = self._down @ unit, gradient @ self._up[ids]
        self._up[ids] -= self._rate * gradient[:, None] * seen
        self._down -= self._rate * back[:, None] * unit


def _unit(hidden: LogitArray) -> LogitArray:
    scaled: LogitArray = hidden / (np.linalg.norm(hidden) + 1e-6)
    return scaled


@dataclass(frozen=True, slots=True)
class _Seen:
    # Where a token was drafted: its candidates, their corrected logits, and the hidden state.

    ids: IntArray
    logits: LogitArray
    hidden: LogitArray


class OmniDraft(StringLevel):
    """Drafts with a model of another vocabulary, by n-grams, and adapts it to what is accepted."""

    name: ClassVar[str] = "omnidraft"
    paper = "after OmniDraft, Ramakrishnan et al. 2025, arXiv:2507.02659"

    def __init__(
        self,
        model: Target,
        translation: Translation,
        noise: bool = True,
        recent: int = 256,
        rank: int = 32,
        rate: float = 0.05,
        ngrams: bool = False,
    ) -> None:
        """Bind the draft model as `StringLevel` does.

        Args:
            rank: of the correction that is learnt.
            rate: its learning rate; 0 learns n-grams alone, as does a model without hidden states.
            ngrams: translate by n-grams, as in the paper; else encode the text, as `StringLevel`.

        Raises InvalidOption if a number is out of range.
        """
        super().__init__(model, translation, noise, recent)
        require(1 <= rank <= 4096, "rank", rank, "1 or more, and at most 4096")
        require(0 <= rate < 1, "rate", rate, "from 0 (learn n-grams alone) to below 1")
        self._rank, self._rate, self._by_ngrams = rank, rate, ngrams
        self.hidden = rate > 0 and model.capabilities.hidden_states
        self.reset()

    def reset(self) -> None:
        able = self._model.capabilities
        self.ngrams = NgramCache()
        self._correction = Correction(able.vocab_size, able.hidden_size, self._rank, self._rate)
        self._chains: dict[int, StringDraft] = {}
        self._seen: dict[int, list[_Seen]] = {}

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        self._seen = {sequence.id: [] for sequence in sequences}
        return super().propose(sequences, budgets)

    def close(self, sequence: Generation) -> None:
        self._chains.pop(sequence.id, None)
        super().close(sequence)

    def learn(self, verified: VerifiedDraft) -> None:
        sequence, _, verdict, output = verified
        chain = self._chains.pop(sequence.id, None)
        if chain is not None:
            self._learn(sequence, chain, verdict, output)

    def _translated(self, chain: StringDraft) -> list[int]:
        # The longest n-gram, or the token alone: one of the target's with its bytes, or several.
        self._chains[chain.sequence.id] = chain
        if not self._by_ngrams or chain.followed.reader.partial:
            return super()._translated(chain)
        out: list[int] = []
        rest = chain.drafted
        while rest:
            merged = self.ngrams.longest(rest)
            token, size = merged or (None, 1)
            alone = self._translation.alone(rest[0]) if token is None else [token]
            if not alone:
                break
            out += alone
            rest = rest[size:]
        return out

    def _corrected(self, chain: StringDraft, output: Output) -> LogitArray:
        logits = super()._corrected(chain, output)
        if output.hidden is None:
            return logits
        ids = top_k_ids(logits, min(CANDIDATES, len(logits)))
        hidden = output.hidden[0].astype(np.float32)
        changed: LogitArray = logits.copy()
        changed[ids] += self._correction.at(ids, hidden)
        self._seen[chain.sequence.id].append(_Seen(ids, changed[ids], hidden))
        return changed

    def _learn(
        self, sequence: Generation, chain: StringDraft, verdict: Verdict, output: Output
    ) -> None:
        new = sequence.tokens[chain.length :]
        rows = [0, *(node + 1 for node in verdict.path)]
        starts = {place: index for index, place in enumerate((0, *chain.ends))}
        begins = dict(zip([0, *chain.ends], self._seen.get(sequence.id, ()), strict=False))
        place = len(chain.followed.reader.partial)
        text = chain.text
        for token, row in zip(new, rows, strict=False):
            piece = self._translation.target.bytes_of(token)
            spelled = tuple(self._translation.draft_tokens(token))
            self.ngrams.learn(spelled, token)
            seen = begins.get(place)
            if seen is not None:
                self._distil(seen, output.logits[row], spelled)
            if not piece or text[place : place + len(piece)] != piece:
                return
            first, last = starts.get(place), starts.get(place := place + len(piece))
            if first is not None and last is not None:  # as the draft model writes it here
                self.ngrams.learn(tuple(chain.drafted[first:last]), token)

    def _distil(self, seen: _Seen, target: LogitArray, spelled: tuple[int, ...]) -> None:
        # KL divergence where vocabularies are shared, and the log-likelihood of n-grams.
        q = _softmax(seen.logits)
        if len(spelled) > 1:
            hit = seen.ids == spelled[0]
            if hit.any():
                self._correction.step(seen.ids, seen.hidden, q - hit)
            return
        shared = [self._translation.direct(token) for token in seen.ids.tolist()]
        places = np.array([i for i, token in enumerate(shared) if token is not None], np.int64)
        if len(places):
            p = _softmax(target[[shared[i] for i in places.tolist()]].astype(np.float32))
            gradient = _softmax(seen.logits[places]) - p
            self._correction.step(seen.ids[places], seen.hidden, gradient)


def _softmax(logits: LogitArray) -> LogitArray:
    weights: LogitArray = np.exp(logits - logits.max())
    weights /= weights.sum()
    return weights
