"""Retrieval drafts, after REST (He et al. 2023, arXiv:2311.08252).

Continuations of the longest suffix match in a suffix array form a trie. Learned hit rates rank
the nodes, not raw counts; a match of half the length fills the rest of the budget.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from paceline.core.types import Budget, IntArray, TokenTree
from paceline.drafters.base import Drafter, DrafterContext
from paceline.drafters.candidates import Evidence, evidence_rates, weigh
from paceline.errors import InvalidOption
from paceline.policy.constants import OTHER_SOURCE
from paceline.sampling.generation import Generation, VerifiedDraft
from paceline.trees.candidates import CandidateTree, Offer

# Longest context that is searched for.
LONGEST = 16

# Tokens that suffixes are compared by; a power of two. Equal ones stay in text order.
_SORTED = 2 * LONGEST

_FORMAT = 1
_MANIFEST = "index.json"
_ARRAYS = ("tokens.npy", "suffixes.npy", "starts.npy")
_MOST = 2**31 - 1

Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Manifest:
    """Metadata of an index; `vocabulary` is `Tokenizer.fingerprint`."""

    format: int
    tokens: int
    vocab_size: int
    vocabulary: str


def sort_suffixes(tokens: Tokens, done: Callable[[], None] = lambda: None) -> IntArray:
    """Return int64 `[n]`, the begins of all suffixes of int32 `[n]` sorted by their first 32
    tokens.

    Prefix doubling (Manber and Myers 1993); about 40 bytes per token. `done` is called after each
    of at most `ROUNDS` rounds.
    """
    rank = np.unique(tokens, return_inverse=True)[1].astype(np.int64)
    known = 1
    while True:
        later = np.zeros_like(rank)
        later[:-known] = rank[known:] + 1
        key = rank * (len(rank) + 1) + later
        order = np.argsort(key, kind="stable")
        known *= 2
        done()
        ordered = key[order]
        differ = ordered[1:] != ordered[:-1]
        if known == _SORTED or differ.all():
            return order
        rank[order] = np.concatenate([[0], np.cumsum(differ)])


# Rounds of sorting at most.
ROUNDS = _SORTED.bit_length() - 1


def build(
    tokens: Tokens,
    directory: Path,
    vocab_size: int,
    vocabulary: str,
    done: Callable[[], None] = lambda: None,
) -> None:
    """Build the index of a text. The directory is replaced atomically.

    Args:
        tokens: int32 `[n]`, each in `[0, vocab_size)`.
        directory: of the index, see `check_place`.
        vocab_size: width of the vocabulary.
        vocabulary: fingerprint of the tokenizer.
        done: called after each round of sorting.

    Raises:
        InvalidOption: the text is empty, too long or has foreign tokens, or the directory fails.
    """
    check_place(directory)
    if not 0 < len(tokens) <= _MOST:
        raise InvalidOption(f"{len(tokens)} tokens cannot be indexed: give 1 to {_MOST}")
    if not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab_size:
        raise InvalidOption(
            f"there are tokens outside of 0 to {vocab_size - 1}: name the model they were made for"
        )
    order = sort_suffixes(tokens, done)
    starts: IntArray = np.searchsorted(tokens[order], np.arange(vocab_size + 1))
    contents: tuple[npt.NDArray[np.integer], ...] = (tokens, order, starts)
    manifest = Manifest(_FORMAT, len(tokens), vocab_size, vocabulary)
    part = None
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=directory.parent, prefix=f"{directory.name}.part-"))
        for name, array in zip(_ARRAYS, contents, strict=True):
            np.save(part / name, array.astype(np.int32))
        (part / _MANIFEST).write_text(json.dumps(asdict(manifest)), encoding="utf-8")
        part.chmod(0o755)  # temporary directories are private
        if directory.exists():
            directory.rename(part / "earlier")
        part.rename(directory)
        shutil.rmtree(directory / "earlier", ignore_errors=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidOption(
            f"cannot write to {directory} ({reason}): give another --out"
        ) from error
    finally:
        if part is not None:
            shutil.rmtree(part, ignore_errors=True)


def check_place(directory: Path) -> None:
    """Raise InvalidOption unless a directory is absent, empty, or an index."""
    if directory.is_dir():
        if (directory / _MANIFEST).exists() or not any(directory.iterdir()):
            return
    elif not directory.exists():
        return
    raise InvalidOption(f"{directory} exists and is no index: give another --out or remove it")


class SuffixArray:
    """Memory-mapped index; `tokens` is a view of the text that gives plain integers."""

    def __init__(
        self, directory: Path, vocabulary: str | None = None, most: int | None = None
    ) -> None:
        """Open what `build` wrote; None skips the comparison of the tokenizer, or of its size.

        Raises:
            InvalidOption: there is no index, it is damaged, or it is for another tokenizer.
        """
        self.manifest = _manifest(directory)
        larger = most is not None and self.manifest.vocab_size > most
        if larger or vocabulary not in (None, self.manifest.vocabulary):
            raise InvalidOption(
                f"index {directory} is for another tokenizer: build one for this model with "
                "`paceline index --model`"
            )
        n, width = self.manifest.tokens, self.manifest.vocab_size
        try:
            arrays = [np.load(directory / name, mmap_mode="r") for name in _ARRAYS]
        except (OSError, ValueError, EOFError) as error:
            raise _damaged(directory) from error
        if [(a.shape, a.dtype) for a in arrays] != [((k,), np.int32) for k in (n, n, width + 1)]:
            raise _damaged(directory)
        # Reading single integers through views is several times faster than through arrays.
        views = [memoryview(array) for array in arrays]
        self.tokens: memoryview[int] = views[0]
        self._suffixes: memoryview[int] = views[1]
        self._starts: memoryview[int] = views[2]

    def find(self, context: Sequence[int], most: int = LONGEST) -> tuple[int, int, int]:
        """Return length and suffix range of the longest end of `context` in the text, or zeros."""
        # What occurs, occurs without its first tokens: the length can be searched by halving.
        found = 0, 0, 0
        low, high = 0, min(most, LONGEST, len(context))
        while low < high:
            length = (low + high + 1) // 2
            begin, end = self.range(context[len(context) - length :])
            if begin < end:
                low, found = length, (length, begin, end)
            else:
                high = length - 1
        return found

    def range(self, pattern: Sequence[int]) -> tuple[int, int]:
        """Return the range of suffixes that begin with `pattern`, 1 to `LONGEST` tokens."""
        first, size = pattern[0], len(pattern)
        if not 0 <= first < self.manifest.vocab_size:
            return 0, 0
        begin, end = self._starts[first], self._starts[first + 1]
        if size == 1 or begin == end:
            return begin, end
        tokens = self.tokens
        pattern = list(pattern)

        def head(suffix: int) -> list[int]:
            return tokens[suffix : suffix + size].tolist()

        begin = bisect_left(self._suffixes, pattern, begin, end, key=head)
        return begin, bisect_right(self._suffixes, pattern, begin, end, key=head)

    def sample(self, begin: int, end: int, most: int) -> list[int]:
        """Return text positions of up to `most` suffixes of a range, evenly over continuations."""
        count = min(most, end - begin)
        return [self._suffixes[begin + i * (end - begin) // count] for i in range(count)]


def _manifest(directory: Path) -> Manifest:
    path = directory / _MANIFEST
    if not path.is_file():
        raise InvalidOption(
            f"{directory} is no index: build one with `paceline index FILE --out DIR`"
        )
    try:
        manifest = Manifest(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise _damaged(directory) from error
    if manifest.format != _FORMAT:
        raise _damaged(directory)
    return manifest


def _damaged(directory: Path) -> InvalidOption:
    return InvalidOption(
        f"index {directory} is damaged or of another version: build it again with `paceline index`"
    )


# Sampled occurrences per match.
_SAMPLE = 32

_TIMES = itemgetter(1)


@dataclass(slots=True)
class _Spot:
    # Occurrences of a context: `places` are the positions after them; `below` has the places one
    # token further, by that token, filled on expansion.

    length: int
    places: list[int]
    below: dict[int, list[int]] = field(default_factory=dict)


class Datastore(Drafter):
    """Drafts tries of continuations from an index on disk."""

    name: ClassVar[str] = "datastore"
    requires = "an index (paceline index): datastore:index=DIR"
    paper = "after REST, He et al. 2023, arXiv:2311.08252"

    def __init__(self, index: SuffixArray) -> None:
        self._index = index
        self._guesses: dict[int, CandidateTree] = {}
        self._known: dict[int, tuple[int, int]] = {}
        self.reset()

    @classmethod
    def create(cls, context: DrafterContext) -> Self:
        """Open the index of option `index`. Raises InvalidOption if missing or unfit."""
        if set(context.options) != {"index"}:
            raise InvalidOption(
                "drafter 'datastore' needs an index and no other option: build one with `paceline "
                "index FILE --out DIR` and use drafter datastore:index=DIR"
            )
        path = Path(context.options["index"]).expanduser()
        return cls(SuffixArray(path, most=context.target.vocab_size))

    def reset(self) -> None:
        self._rates = evidence_rates(OTHER_SOURCE)

    def open(self, sequence: Generation) -> None:
        self._known[sequence.id] = (len(sequence.tokens), LONGEST)

    def learn(self, verified: VerifiedDraft) -> None:
        sequence = verified.sequence
        begin, _ = self._known[sequence.id]
        self._guesses.pop(sequence.id).learn(sequence.tokens[begin:], self._rates)

    def close(self, sequence: Generation) -> None:
        self._guesses.pop(sequence.id, None)
        self._known.pop(sequence.id, None)

    def draft(self, sequence: Generation, budget: Budget) -> TokenTree:
        index, tokens = self._index, sequence.tokens
        # A match grows by no more than the tokens that were committed since the last one.
        before, length = self._known[sequence.id]
        length, begin, end = index.find(tokens[-LONGEST:], length + len(tokens) - before)
        self._known[sequence.id] = (len(tokens), length)
        spots = []
        if length:
            spots.append(self._spot(length, begin, end))
        if length > 1:
            shorter = length // 2
            spots.append(self._spot(shorter, *index.range(tokens[len(tokens) - shorter :])))
        guess = CandidateTree.grow(spots, budget, self._offers, _follow)
        self._guesses[sequence.id] = guess
        return guess.tree(self.name)

    def _spot(self, length: int, begin: int, end: int) -> _Spot:
        return _Spot(length, [p + length for p in self._index.sample(begin, end, _SAMPLE)])

    def _offers(self, spots: list[_Spot], reach: float) -> list[Offer]:
        tokens, size = self._index.tokens, len(self._index.tokens)
        found: list[Evidence] = []
        for spot in spots:
            for place in spot.places:
                if place < size:
                    spot.below.setdefault(tokens[place], []).append(place + 1)
            followers = [(token, len(places)) for token, places in spot.below.items()]
            followers.sort(key=_TIMES, reverse=True)
            total = sum(times for _, times in followers)
            found.append((0, spot.length, total, followers))
        return weigh(found, self._rates.table, reach)


def _follow(spots: list[_Spot], token: int) -> list[_Spot]:
    return [_Spot(s.length + 1, s.below[token]) for s in spots if token in s.below]
