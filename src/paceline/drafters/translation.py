"""Text between two vocabularies: what a draft model reads of a text, and its drafts as tokens.

Nothing here has to be right for a text to be the target's: tokens that the target would not have
written are not accepted.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from functools import cached_property

from paceline.models.text import Tokenizer

# Committed tokens that drafted text is encoded with, so that words, spaces and characters that
# cross the boundary are cut as in a whole text. The first that leaves them as they are counts.
_WINDOWS = (4, 1, 0)

# Characters at the end of a text that are encoded again when it grows.
_REREAD = 64


class Vocabulary:
    """A tokenizer's tokens as bytes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        unknown = getattr(tokenizer.core.model, "unk_token", None)
        found = None if unknown is None else tokenizer.core.token_to_id(unknown)
        # Tokens that stand for no text of their own.
        self.silent = frozenset(tokenizer.special_ids.values()) | (
            frozenset() if found is None else {found}
        )
        self._bytes: dict[int, bytes] = {}

    def bytes_of(self, token: int) -> bytes:
        """Return the bytes of a token; empty for special and unknown ones."""
        known = self._bytes.get(token)
        if known is None:
            known = b"" if token in self.silent else self.tokenizer.bytes_of(token)
            self._bytes[token] = known
        return known

    def join(self, tokens: Iterable[int]) -> bytes:
        return b"".join(map(self.bytes_of, tokens))

    def encode(self, text: str) -> list[int]:
        """Encode what stands inside a text: without the space that some tokenizers put first."""
        if self._spaces and text.startswith(" "):
            return self.tokenizer.encode(text[1:])
        return self.tokenizer.encode(text)

    @cached_property
    def _spaces(self) -> bool:
        return self.join(self.tokenizer.encode("a")).startswith(b" ")


class Translation:
    """From a target's tokens to those of its draft model, and back."""

    def __init__(self, target: Tokenizer, draft: Tokenizer) -> None:
        self.target, self.draft = Vocabulary(target), Vocabulary(draft)
        # Special tokens that both have are read as such; others are left out.
        self._shared = {
            token: text.encode()
            for text, token in target.special_ids.items()
            if text in draft.special_ids and token not in target.around[0]
        }
        self._alone: dict[int, list[int]] = {}
        self._spellings: dict[int, list[int]] = {}

    def text_of(self, token: int) -> bytes:
        """Return what the draft model reads for a token of the target."""
        return self._shared.get(token) or self.target.bytes_of(token)

    def alone(self, token: int) -> list[int]:
        """Return the target's tokens for the text of a draft token; empty if it has none."""
        if token not in self._alone:
            piece = self.draft.bytes_of(token)
            ids = self.tokens((), piece)
            self._alone[token] = ids if self.target.join(ids) == piece else []
        return self._alone[token]

    def direct(self, token: int) -> int | None:
        """Return the target's token with the text of a draft token; None if there is none."""
        alone = self.alone(token)
        return alone[0] if len(alone) == 1 else None

    def draft_tokens(self, token: int) -> list[int]:
        """Return the draft model's tokens for one of the target's; empty if it has none."""
        if token not in self._spellings:
            piece = self.target.bytes_of(token)
            ids = self.draft.encode(_whole(piece))
            self._spellings[token] = ids if self.draft.join(ids) == piece else []
        return self._spellings[token]

    def tokens(self, committed: Sequence[int], drafted: bytes) -> list[int]:
        """Return the target's tokens for `drafted` after `committed` ones, whose ids stand.

        Ends before a character that is not whole, or that the target has no tokens for.
        """
        for size in _WINDOWS:
            window = list(committed[len(committed) - min(size, len(committed)) :])
            if any(token in self.target.silent for token in window):
                continue
            before = self.target.join(window)
            ids = self.target.encode(_whole(before + drafted))
            if ids[: len(window)] == window:
                return self._spelled(ids[len(window) :], drafted)
        return []

    def _spelled(self, ids: Sequence[int], drafted: bytes) -> list[int]:
        # The tokens whose bytes are the drafted ones: normal forms may be written otherwise.
        done, out = 0, []
        for token in ids:
            piece = self.target.bytes_of(token)
            if not piece or drafted[done : done + len(piece)] != piece:
                break
            out.append(token)
            done += len(piece)
        return out


class Reader:
    """What a draft model reads of one sequence, as it grows.

    Attributes:
        partial: bytes at the end that are not a whole character yet, so not in `ids`.
    """

    def __init__(self, translation: Translation, begins: bool) -> None:
        """Start with the draft model's begin tokens if the text `begins` here."""
        self._translation = translation
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._settled: list[int] = []
        self._tail = ""
        self._known = 0
        if begins:
            self._settled += translation.draft.tokenizer.around[0]
        self._ids = self._settled

    @property
    def ids(self) -> list[int]:
        """Tokens of the draft model; not to be changed."""
        return self._ids

    @property
    def partial(self) -> bytes:
        return self._decoder.getstate()[0]

    def read(self, tokens: Sequence[int]) -> None:
        """Take the target's next tokens."""
        new = b"".join(map(self._translation.text_of, tokens))
        text = self._decoder.decode(new)
        if not text:
            return
        encode = self._translation.draft.encode
        self._tail += text
        if len(self._tail) > 2 * _REREAD:
            last = len(self._tail) - _REREAD
            cut = self._tail.rfind(" ", 1, last)
            cut = last if cut < 0 else cut
            self._settled += encode(self._tail[:cut])
            self._tail = self._tail[cut:]
        self._ids = self._settled + encode(self._tail)


def _whole(data: bytes) -> str:
    # The text up to the first byte that is part of no whole character.
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        return data[: error.start].decode()
