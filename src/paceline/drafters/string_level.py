"""Draft models of other vocabularies: after string-level exact match (SLEM, Timor et al. 2025,
arXiv:2502.05202).

The draft model goes on with the text in its own tokens; what it wrote is encoded in the target's
tokens and verified as a deterministic draft. Unlike the paper's, drafts share the target's Gumbel
noise. The draft model reads again only from where its tokens for the committed text differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, ClassVar, Self

import numpy as np

from paceline.core import tree as trees
from paceline.core.options import arguments, require
from paceline.core.target import Output, Rows, Target, open_for_drafts
from paceline.core.types import Budget, Distribution, LogitArray, SamplingParams, TokenTree
from paceline.drafters.base import Drafter, DrafterContext
from paceline.drafters.draft_model import DraftModel
from paceline.drafters.resources import Loaded
from paceline.drafters.translation import Reader, Translation
from paceline.errors import InvalidOption
from paceline.sampling.generation import Generation
from paceline.sampling.gumbel import gumbel_argmax
from paceline.sampling.randomness import Draw, Purpose
from paceline.sampling.sampler import Sampler, top_k_ids

# Tokens of the draft model that are looked at for one of the target's.
CANDIDATES = 64

# Draft tokens per token of the target, at most: tokens of a vocabulary of bytes are short.
_LONGEST = 4


@dataclass(eq=False)
class Followed:
    """A sequence as the draft model sees it; `cached` mirrors the tokens in its cache."""

    cache: Any
    reader: Reader
    sampler: Sampler
    known: int
    cached: list[int] = field(default_factory=list)


@dataclass(eq=False)
class StringDraft:
    """A draft being written after the `length` tokens of a sequence.

    Attributes:
        noisy: the target's noise decides.
        drafted: tokens of the draft model, `text` their bytes.
        tokens: the same text in the target's tokens, as far as it has any.
        ends: per drafted token, where its bytes end.
        chances: per drafted token, the probability of the chain so far.
    """

    sequence: Generation
    followed: Followed
    budget: Budget
    noisy: bool
    drafted: list[int] = field(default_factory=list)
    text: bytes = b""
    tokens: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    done: bool = False

    def __post_init__(self) -> None:
        self.length = len(self.sequence.tokens)

    @property
    def wanted(self) -> int:
        return min(self.budget.nodes, self.budget.depth)


class StringLevel(Drafter):
    """Drafts chains with a target of any vocabulary."""

    name: ClassVar[str] = "string-level"
    requires = "a smaller model of any vocabulary (--draft-model)"
    paper = "after SLEM, Timor et al. 2025, arXiv:2502.05202"
    # Whether hidden states of the draft model are asked for.
    hidden = False

    def __init__(
        self, model: Target, translation: Translation, noise: bool = True, recent: int = 256
    ) -> None:
        """Bind the draft model, which reads at most the last `recent` tokens of a prompt.

        `noise` drafts sampled requests with the target's Gumbel noise. Raises InvalidOption if
        `recent` is below 1.
        """
        require(recent >= 1, "recent", recent, "1 or more")
        self._model = model
        self._translation = translation
        self._noise = noise
        self._recent = recent
        self._followed: dict[int, Followed] = {}

    @classmethod
    def create(cls, context: DrafterContext, model: Loaded | None = None) -> Self:
        """Load the draft model, if none is given. `recent` limits what it reads of a prompt.

        Raises InvalidOption for an unknown option, or a verifier that needs draft distributions.
        """
        chosen = arguments(cls, "drafter", context.options, "model", "translation", "noise")
        if None not in context.accepts:
            raise InvalidOption(
                "a draft model of another vocabulary has no probabilities of the target's tokens: "
                "use verifier 'coupled', or a draft model of the target's family"
            )
        model = model or context.resources.draft_model(cls.name, translated=True)
        translation = Translation(context.resources.loaded.tokenizer, model.tokenizer)
        return cls(model.target, translation, context.gumbel_coupled, **chosen)

    def open(self, sequence: Generation) -> None:
        begin = max(0, len(sequence.tokens) - self._recent)
        reader = Reader(self._translation, begins=begin == 0)
        reader.read(sequence.tokens[begin:])
        followed = self._followed[sequence.id] = Followed(
            open_for_drafts(self._model), reader, _sampler(sequence.params), len(sequence.tokens)
        )
        if 1 < len(reader.ids) <= self._model.capabilities.max_context:
            self._model.prefill(followed.cache, reader.ids[:-1])
            followed.cached = reader.ids[:-1]

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        chains = []
        for sequence, budget in zip(sequences, budgets, strict=True):
            followed = self._followed[sequence.id]
            followed.reader.read(sequence.tokens[followed.known :])
            followed.known = len(sequence.tokens)
            noisy = self._noise and not sequence.params.greedy
            chains.append(StringDraft(sequence, followed, budget, noisy))
        while going := [each for each in chains if self._goes_on(each)]:
            for each, logits in zip(going, self._logits(going), strict=True):
                self._extend(each, logits)
        return [self._draft(each) for each in chains]

    def close(self, sequence: Generation) -> None:
        followed = self._followed.pop(sequence.id, None)
        if followed is not None:
            self._model.release(followed.cache)

    def _goes_on(self, chain: StringDraft) -> bool:
        known = len(chain.followed.reader.ids) + len(chain.drafted)
        return (
            not chain.done
            and len(chain.tokens) < chain.wanted
            and len(chain.drafted) < _LONGEST * chain.wanted
            and 0 < known < self._model.capabilities.max_context
        )

    def _logits(self, chains: Sequence[StringDraft]) -> list[LogitArray]:
        # Of the draft model's next token. Only what is not cached of text and draft is read.
        rows, texts = [], []
        for chain in chains:
            followed = chain.followed
            text = followed.reader.ids + chain.drafted
            pairs = zip(followed.cached, text[:-1], strict=False)
            agreed = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            if agreed < followed.cache.length:
                self._model.truncate(followed.cache, agreed)
                agreed = followed.cache.length  # a state may have gone back further
                del followed.cached[agreed:]
            rows.append(Rows.draft(followed.cache, text[agreed:], hidden=self.hidden))
            texts.append(text)
        outputs = self._model.forward(rows)
        for each, chain, text in zip(rows, chains, texts, strict=True):
            self._model.keep(each.cache, each.num_new, ())
            chain.followed.cached = text
        return [self._corrected(*each) for each in zip(chains, outputs, strict=True)]

    def _extend(self, chain: StringDraft, logits: LogitArray) -> None:
        distribution = chain.followed.sampler.distribution(logits, soft=True)
        token, chance = self._choose(chain, distribution)
        piece = b"" if token is None else self._translation.draft.bytes_of(token)
        chance *= chain.chances[-1] if chain.chances else 1.0
        if token is None or not piece or (not chain.noisy and chance < chain.budget.least):
            chain.done = True
            return
        chain.drafted.append(token)
        chain.text += piece
        chain.chances.append(chance)
        chain.ends.append(len(chain.text))
        chain.tokens = self._translated(chain)

    def _translated(self, chain: StringDraft) -> list[int]:
        partial = len(chain.followed.reader.partial)
        return self._translation.tokens(chain.sequence.tokens, chain.text[partial:])

    def _corrected(self, chain: StringDraft, output: Output) -> LogitArray:
        # Logits of the draft model's next token.
        logits: LogitArray = output.logits[0]
        return logits

    def _choose(self, chain: StringDraft, distribution: Distribution) -> tuple[int | None, float]:
        # The most likely token, or that of the target's most likely next token under its noise.
        left = chain.followed.reader.partial[len(chain.text) :]
        if not chain.noisy and not left:
            best = distribution.argmax()
            return best, distribution.prob(best)
        places = top_k_ids(distribution.probs, min(CANDIDATES, len(distribution.probs))).tolist()
        if left:  # a character is not whole yet: only its other bytes can follow
            for token in map(distribution.token, places):
                piece = self._translation.draft.bytes_of(token)
                if piece.startswith(left) or (piece and left.startswith(piece)):
                    return token, distribution.prob(token)
            return None, 0.0
        masses: dict[int, float] = {}
        likely: dict[int, int] = {}  # places come in descending probability
        for place in places:
            alone = self._translation.alone(distribution.token(place))
            if alone:
                first = alone[0]
                masses[first] = masses.get(first, 0.0) + float(distribution.probs[place])
                likely.setdefault(first, distribution.token(place))
        if not masses:
            return None, 0.0
        ids = np.array(list(masses), dtype=np.int64)
        weights = np.log(np.array(list(masses.values())))
        position = len(chain.sequence.tokens) + len(chain.tokens)
        noise = chain.sequence.randomness.noise(Draw(position, Purpose.NOISE))
        chosen = gumbel_argmax(ids, weights, noise)
        return likely[chosen], masses[chosen]

    def _draft(self, chain: StringDraft) -> TokenTree:
        tokens = chain.tokens[: chain.wanted]
        if not tokens:
            return trees.EMPTY
        if chain.noisy:  # how likely a token is says little of whether it wins under the noise
            return trees.chain(tokens, self.name)
        partial = len(chain.followed.reader.partial)
        sizes = [len(self._translation.target.bytes_of(token)) for token in tokens]
        ends = np.cumsum(sizes) + partial
        places = np.searchsorted(chain.ends, ends)
        return trees.chain(tokens, self.name, scores=np.array(chain.chances)[places])


def _sampler(params: SamplingParams) -> Sampler:
    # Penalties, biases and bans are about the target's tokens.
    neutral = SamplingParams(params.temperature, params.top_k, params.top_p, params.min_p)
    return Sampler(neutral, ())


class ByVocabulary(Drafter):
    """Drafter "draft-model": by tokens where the vocabularies are the same, else by text."""

    name: ClassVar[str] = DraftModel.name
    requires = "a smaller model (--draft-model); of another vocabulary: string-level"
    paper = "Leviathan et al. 2023, arXiv:2211.17192"

    @classmethod
    def create(cls, context: DrafterContext) -> Drafter:  # type: ignore[override]  # of two classes
        """Load the draft model once and build the drafter for it; errors as of either."""
        if "vocabulary" in context.options:  # which counts tokens
            return DraftModel.create(context)
        model = context.resources.draft_model(cls.name, translated=True)
        same = model.tokenizer.agrees(context.resources.loaded.tokenizer)
        return (DraftModel if same else StringLevel).create(context, model)
