"""Drafts of a denoiser for an autoregressive target with its tokenizer: DEER (arXiv:2512.15176) and
DiffuSpec (Li et al. 2025, arXiv:2510.02358). One forward over mask rows gives the distributions of
all places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from paceline.core import tree as trees
from paceline.core.options import arguments, require
from paceline.core.target import Rows, Target
from paceline.core.types import (
    Budget,
    Distribution,
    DraftSampling,
    IntArray,
    LogitArray,
    ProbArray,
    TokenTree,
)
from paceline.denoising.canvas import visible
from paceline.drafters.base import Drafter, DrafterContext
from paceline.errors import InvalidOption
from paceline.lab.training.data import Shards
from paceline.models.source import DRAFTING
from paceline.models.tokenizer import read_json
from paceline.sampling.distributions import gumbel_max
from paceline.sampling.generation import Generation
from paceline.sampling.randomness import Draw, Purpose
from paceline.weights import weight_files


def shipped_for(model: str) -> str | None:
    """Return the installed denoiser that drafts for a model, by its fingerprint, or None."""
    for name in DRAFTING:
        for path in weight_files(f"denoisers/{name}/config.json"):
            if read_json(path).get("embedding_of", {}).get("fingerprint") == model:
                return name
    return None


class CleanKeys(NamedTuple):
    """Keys of a sequence's clean rows, from its token `begin` on."""

    of: Any
    begin: int


class Deer(Drafter):
    """Draft a chain from one forward: drawn, or with the target's Gumbel noise.

    Differs from the paper in that any denoiser drafts, aligned with the target or not.
    """

    name: ClassVar[str] = "deer"
    requires = "a denoiser as draft model, or the one that ships for the model"
    paper = "after DEER, Cheng et al. 2025, arXiv:2512.15176"
    proof: ClassVar[str | None] = "paceline.methods.proof:DEER"

    def __init__(
        self, model: Target, vocab_size: int, *, needs_q: bool = False, recent: int = 256
    ) -> None:
        """Bind a denoiser that reads the last `recent` tokens.

        It reads them anew at each step, unless its clean rows are causal.

        Raises InvalidOption if the model fills no canvas or has another vocabulary.
        """
        require(recent >= 1, "recent", recent, "1 or more")
        known = model.capabilities
        if known.denoises is None or not known.blocks:
            raise InvalidOption(
                f"drafter '{self.name}' needs a draft model that fills masked places: name a "
                "denoiser, or use drafter 'draft-model'"
            )
        if known.vocab_size != vocab_size:
            raise InvalidOption(
                f"the draft model has {known.vocab_size} tokens and the target {vocab_size}: use "
                "a denoiser with the target's tokenizer"
            )
        self._model, self._facts = model, known.denoises
        self._needs_q, self._recent = needs_q, recent
        self._caches: dict[int, CleanKeys] = {}
        self.kind = "iid" if needs_q else None
        self.gumbel_coupled = not needs_q

    @classmethod
    def create(cls, context: DrafterContext) -> Self:
        """Load the draft model; InvalidOption for an unknown option."""
        bound = "model", "vocab_size", "needs_q"
        chosen = arguments(cls, "drafter", context.options, *bound)
        default = shipped_for(context.model)
        model = context.resources.draft_model(cls.name, default=default).target
        return cls(model, context.target.vocab_size, needs_q=context.needs_q, **chosen)

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        lengths = [min(budget.nodes, budget.depth) for budget in budgets]
        asked = [index for index, length in enumerate(lengths) if length > 0]
        drafts = [trees.EMPTY] * len(sequences)
        if not asked:
            return drafts
        kept = self._facts.attention == "causal"  # clean rows never change, so their keys stay
        rows = self._behind if kept else self._rows
        blocks: list[Rows] = []
        try:
            blocks += (rows(sequences[index], lengths[index]) for index in asked)
            outputs = self._model.forward(blocks)
            for index, output in zip(asked, outputs, strict=True):
                logits = output.logits.copy()
                logits[:, self._facts.mask : self._facts.mask + 1] = -np.inf
                drafts[index] = self.chain(sequences[index], logits)
            for block in blocks if kept else ():
                self._model.keep(block.cache, block.num_new, ())
        finally:
            for block in () if kept else blocks:
                self._model.release(block.cache)
        return drafts

    def close(self, sequence: Generation) -> None:
        if (cache := self._caches.pop(sequence.id, None)) is not None:
            self._model.release(cache.of)

    def _rows(self, sequence: Generation, length: int) -> Rows:
        facts = self._facts
        size = facts.block or 1
        room = self._model.capabilities.max_context - length - size
        # Whole blocks are left out, so that the others stay where they are.
        begin = max(0, len(sequence.tokens) - min(self._recent, room)) // size * size
        known = sequence.tokens[begin:]
        places = np.arange(len(known) + length)
        tokens = np.asarray([*known, *[facts.mask] * length], dtype=np.int64)
        wanted = places[len(known) :] - int(facts.shifted)
        sees = visible(places, places, facts.attention, size)
        return Rows.block(self._model.open(), tokens, places, sees, wanted=wanted)

    def _behind(self, sequence: Generation, length: int) -> Rows:
        # New clean rows, each seeing those before it, and a group of masks that sees all.
        room = self._model.capabilities.max_context - length
        cache = self._caches.get(sequence.id)
        if cache is not None and len(sequence.tokens) - cache.begin > room:
            self.close(sequence)
            cache = None
        if cache is None:
            begin = max(0, len(sequence.tokens) - min(self._recent, room))
            cache = self._caches[sequence.id] = CleanKeys(self._model.open(), begin)
            self._model.prefill(cache.of, sequence.tokens[begin:-1])
        known = sequence.tokens[cache.begin + cache.of.length :]
        clean, masks = len(known), length - int(self._facts.shifted)
        tokens = np.asarray([*known, *[self._facts.mask] * masks], dtype=np.int64)
        sees = np.tri(len(tokens), dtype=np.bool_)
        sees[clean:] = True
        wanted = np.arange(len(tokens) - length, len(tokens))
        places = cache.of.length + np.arange(len(tokens))
        return Rows.block(cache.of, tokens, places, sees, wanted=wanted, num_new=clean)

    def chain(self, sequence: Generation, logits: LogitArray) -> TokenTree:
        """Return a chain from float32 `[places, vocabulary]` logits of the next places."""
        tokens: list[int] = []
        probs: dict[int, Distribution] = {}
        root = len(sequence.tokens) - 1
        for index, row in enumerate(logits):
            distribution = probs[index - 1] = sequence.sampler.proposal(row, tokens)
            place = root + 1 + index
            if self._needs_q:
                draw = Draw(place, Purpose.DRAFT, root=root)
                tokens.append(
                    distribution.token(sequence.randomness.choice(distribution.probs, draw))
                )
            else:
                tokens.append(gumbel_max(distribution, place, sequence.randomness))
        sampling = DraftSampling("iid", probs) if self._needs_q else None
        return trees.chain(tokens, self.name, sampling)


class _Beam(NamedTuple):
    score: float
    tokens: tuple[int, ...]


class DiffuSpec(Deer):
    """Draft the chain that denoiser and n-grams like best: a beam over sets of candidates.

    N-grams are those of the text so far, or of text that the target wrote (`grams`). Lengths are
    those of the controller; the paper's is 'adaptive'.
    """

    name: ClassVar[str] = "diffuspec"
    paper = "after DiffuSpec, Li et al. 2025, arXiv:2510.02358"
    proof = None

    def __init__(
        self,
        model: Target,
        vocab_size: int,
        *,
        mass: float = 0.8,
        most: int = 15,
        beam: int = 3,
        share: float = 0.5,
        recent: int = 256,
        grams: str = "",
        needs_q: bool = False,
    ) -> None:
        """Set the search; errors as of `Deer`, and as of `Shards`.

        Args:
            model: the denoiser.
            vocab_size: of the target.
            mass: probability of a place's candidates, the most likely first.
            most: candidates of a place, at most.
            beam: chains that are kept at each place.
            share: of the denoiser's log-probability in a score; the rest is the n-grams'.
            recent: tokens that the denoiser reads.
            grams: folder of `paceline train data`, whose n-grams are counted.
            needs_q: whether the verifier takes drawn drafts alone, which is an error.
        """
        super().__init__(model, vocab_size, recent=recent)
        require(0 < mass <= 1, "mass", mass, "above 0, at most 1")
        require(most >= 1, "most", most, "1 or more")
        require(beam >= 1, "beam", beam, "1 or more")
        require(0 <= share <= 1, "share", share, "from 0 to 1")
        if needs_q:
            raise InvalidOption(
                f"drafter '{self.name}' searches and does not draw: use verifier 'coupled', or "
                "drafter 'deer'"
            )
        self.gumbel_coupled = False
        self._mass, self._most, self._beam, self._share = mass, most, beam, share
        texts = [each.tokens.tolist() for each in Shards(Path(grams)).read()] if grams else []
        self._grams = Grams(texts, vocab_size) if texts else None

    def chain(self, sequence: Generation, logits: LogitArray) -> TokenTree:
        grams = self._grams or Grams([sequence.tokens[-self._recent :]], logits.shape[1])
        past = tuple(sequence.tokens[-2:])
        beams = [_Beam(0.0, ())]
        for row in logits:
            distribution = sequence.sampler.proposal(row, (), soft=True).dense()
            ids = candidates(distribution, self._mass, self._most)
            ends = [end for end in self._facts.ends if distribution[end] > 0 and end not in ids]
            ids = np.concatenate([ids, np.asarray(ends, dtype=np.int64)])
            logs = self._share * np.log(distribution[ids])
            grown = [
                _Beam(
                    score + float(own) + (1 - self._share) * grams.log(past + tokens, token),
                    (*tokens, token),
                )
                for score, tokens in beams
                for token, own in zip(ids.tolist(), logs, strict=True)
            ]
            beams = sorted(grown, key=lambda each: (-each.score, each.tokens))[: self._beam]
            if ids[0] in self._facts.ends:
                break
        return trees.chain(beams[0].tokens, self.name)


def candidates(distribution: ProbArray, mass: float, most: int) -> IntArray:
    """Return int64 ids, the most likely first, of the least set with this mass; `most` at most."""
    order = np.argsort(-distribution, kind="stable")[: min(most, np.count_nonzero(distribution))]
    count = int(np.searchsorted(np.cumsum(distribution[order]), mass - 1e-12)) + 1
    return order[:count]


class Grams:
    """Token counts after one and two tokens of texts: smoothed conditional log-probabilities.

    Each order gives half of its weight to the next shorter one, down to all tokens alike.
    """

    def __init__(self, texts: Sequence[Sequence[int]], vocabulary: int) -> None:
        self._base = 1 / vocabulary
        self._counts = [Counter[tuple[int, ...]]() for _ in range(3)]
        self._totals = [Counter[tuple[int, ...]]() for _ in range(3)]
        for order, (counts, totals) in enumerate(zip(self._counts, self._totals, strict=True)):
            for text in texts:
                counts.update(zip(*(text[at:] for at in range(order + 1)), strict=False))
            for gram, count in counts.items():
                totals[gram[:-1]] += count

    def log(self, past: tuple[int, ...], token: int) -> float:
        """Return the log-probability of a token after others."""
        chance = self._base
        for order in range(min(2, len(past)) + 1):
            before = past[len(past) - order :]
            total = self._totals[order][before]
            if total:
                chance = (chance + self._counts[order][(*before, token)] / total) / 2
        return float(np.log(chance))
