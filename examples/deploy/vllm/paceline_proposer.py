"""A drafter of paceline inside vLLM, which loads it by name (method `custom_class`, experimental):

    vllm serve MODEL --speculative-config \
        '{"model": "paceline_proposer.Suffix", "num_speculative_tokens": 8}'

Written against vLLM 0.32. It verifies chains, so this is suffix decoding along the likeliest path.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np

from paceline.core import tree as trees
from paceline.core.target import NO_LOGITS, Output
from paceline.core.types import Budget, SamplingParams, Verdict
from paceline.methods.suffix_decoding import SuffixDecoding
from paceline.sampling.generation import Generation, VerifiedDraft


class Suffix:
    """Drafts from the texts in the batch and from those that have ended."""

    def __init__(self, vllm_config: Any) -> None:
        self._most: int = vllm_config.speculative_config.num_speculative_tokens
        self._longest: int = vllm_config.model_config.max_model_len
        self._drafter = SuffixDecoding(mode="path")
        self._ids = count()
        # By row of the batch: a sequence, and its tokens as the batch had them.
        self._rows: dict[int, tuple[Generation, np.ndarray]] = {}

    def load_model(self, *_: Any, **__: Any) -> None:
        """Load nothing; vLLM calls it."""

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: np.ndarray,
        token_ids_cpu: np.ndarray,
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Return a draft for every row; none for rows that sampled nothing, in prefill.

        Args:
            sampled_token_ids: by row, the tokens of this step.
            num_tokens_no_spec: by row, the tokens of the text, those included.
            token_ids_cpu: `[rows, max_model_len]` texts.
            slot_mappings: not used.
        """
        before, self._rows = self._rows, {}
        rows = [row for row, new in enumerate(sampled_token_ids) if new]
        texts = {row: token_ids_cpu[row, : num_tokens_no_spec[row]].copy() for row in rows}
        for row in rows:  # they keep their place, as a rule
            self._keep(row, row, texts[row], before)
        for row in rows:
            for other in list(before):
                if row not in self._rows:
                    self._keep(row, other, texts[row], before)
        for sequence, _ in before.values():
            self._drafter.close(sequence)
        drafts: list[list[int]] = [[] for _ in sampled_token_ids]
        for row in rows:
            if row not in self._rows:
                new = sampled_token_ids[row]
                self._rows[row] = self._opened(texts[row], len(texts[row]) - len(new))
            # One token of the context is left for the model's own.
            most = min(self._most, self._longest - len(texts[row]) - 1)
            sequence = self._rows[row][0]
            [tree] = self._drafter.propose([sequence], [Budget(max(0, most), max(0, most))])
            drafts[row] = [int(token) for token in tree.tokens]
        return drafts

    def _keep(
        self,
        row: int,
        place: int,
        text: np.ndarray,
        before: dict[int, tuple[Generation, np.ndarray]],
    ) -> None:
        # vLLM names no requests, and moves rows: a sequence is the one whose text goes on.
        sequence, known = before.get(place, (None, text))
        if sequence is None or not np.array_equal(text[: len(known)], known):
            return
        del before[place]
        sequence.tokens += text[len(known) :].tolist()
        said = Verdict((), sequence.root)
        self._drafter.learn(VerifiedDraft(sequence, trees.EMPTY, said, Output(NO_LOGITS)))
        self._rows[row] = sequence, text

    def _opened(self, text: np.ndarray, prompt: int) -> tuple[Generation, np.ndarray]:
        tokens: Sequence[int] = text.tolist()
        sequence = Generation.start(next(self._ids), tokens[:prompt], SamplingParams())
        sequence.tokens += tokens[prompt:]
        self._drafter.open(sequence)
        return sequence, text
