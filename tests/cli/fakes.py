"""A loaded model that is a table, so that commands run in milliseconds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from tests.helpers.tiny_model import CHAT_TEMPLATE, tiny_tokenizer

from paceline.core.target import RuntimeOptions
from paceline.drafters.resources import Loaded
from paceline.models.text import Tokenizer
from paceline.proof.tabular import TabularModel, TabularTarget

VOCABULARY = 320


def loaded(max_context: int = 600, chat: bool = True) -> Loaded:
    """A table over one token of context, so that texts run into loops that drafters can learn.

    Tokens that are letters are most likely, so that texts are visible.
    """
    table = TabularModel(VOCABULARY, 1, seed=5, sharpness=3.0)
    tokenizer = Tokenizer(tiny_tokenizer(VOCABULARY), chat_template=CHAT_TEMPLATE if chat else None)
    texts = [tokenizer.decode([token]) for token in range(VOCABULARY)]
    favour = np.array([9.0 * (t.isascii() and t.isalpha()) for t in texts], dtype=np.float32)
    source: Any = SimpleNamespace(
        name="table",
        fingerprint="0123",
        sampling={},
        config=SimpleNamespace(eos_token_ids=frozenset(), family="llama", token_to_come=None),
        weights=dict,
    )
    target: Any = TabularTarget(lambda c: table.logits(c) + favour, VOCABULARY, max_context)
    return Loaded(source, tokenizer, target, RuntimeOptions())
