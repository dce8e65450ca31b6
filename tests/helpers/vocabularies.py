"""Tokenizers of different vocabularies over the same texts."""

from __future__ import annotations

from functools import cache

import tokenizers
from tests.helpers.tiny_model import SPECIAL
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

from paceline.models.text import Tokenizer

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


@cache
def letters(words: str) -> Tokenizer:
    """A BPE vocabulary of the given words, shorter ones first; other letters have no token."""
    vocabulary = {word: index for index, word in enumerate(words.split())}
    merges = [
        (word[:cut], word[cut:])
        for word in vocabulary
        for cut in range(1, len(word))
        if word[:cut] in vocabulary and word[cut:] in vocabulary
    ]
    core = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    core.decoder = decoders.Fuse()
    return Tokenizer(core)


@cache
def byte_level(corpus: str) -> Tokenizer:
    """A byte-level vocabulary with merges for the words of `corpus`."""
    core = tokenizers.Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator([corpus] * 4, trainer)
    return Tokenizer(core)


@cache
def spaced(words: str) -> Tokenizer:
    """A vocabulary as sentencepiece makes them: a space before a text, bytes for the rest."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), _SPACE]
    pieces += sorted({letter for letter in words if letter != " "})
    merges: list[tuple[str, str]] = []
    for word in words.split():
        for size in range(1, len(word) + 1):
            left, right = _SPACE + word[: size - 1], word[size - 1]
            if left + right not in pieces:
                pieces.append(left + right)
            if (left, right) not in merges:
                merges.append((left, right))
    core = tokenizers.Tokenizer(
        models.BPE(
            {piece: index for index, piece in enumerate(pieces)},
            merges,
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    core.normalizer = normalizers.Sequence(
        [normalizers.Prepend(_SPACE), normalizers.Replace(" ", _SPACE)]
    )
    core.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return Tokenizer(core)
