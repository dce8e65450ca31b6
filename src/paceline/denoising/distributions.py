"""Logits to distributions at the places of a canvas, with all that a request asks of sampling."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from paceline.core.types import CanvasTraits, IntArray, LogitArray, ProbArray
from paceline.denoising.canvas import Canvas
from paceline.sampling.generation import Generation
from paceline.sampling.processors import listed
from paceline.sampling.randomness import Draw, Purpose
from paceline.sampling.sampler import adjusted, peak_of, truncated


class Distributions:
    """Distributions of places for one request.

    Penalties count the filled places of the answer, whatever their order. The mask has probability
    0. At temperature 0 distributions are those of temperature 1, and picks are the most likely
    tokens.
    """

    def __init__(self, sequence: Generation, facts: CanvasTraits, ends: frozenset[int]) -> None:
        params = listed(sequence.params)
        self.ends = ends
        self.greedy = params.greedy
        self._mask = facts.mask
        self._params = replace(params, temperature=1.0) if params.greedy else params
        self._randomness = sequence.randomness
        self._prompt = np.unique(np.asarray(sequence.prompt, dtype=np.int64))
        self._stops = [*ends, *params.stop_token_ids]
        self._adjusts = not (
            params.repetition_penalty == 1
            and params.presence_penalty == params.frequency_penalty == 0
            and not params.logit_bias
            and not params.banned_tokens
            and not params.allowed_tokens
        )
        self._truncates = params.top_k > 0 or params.top_p < 1 or params.min_p > 0 or params.preset

    def scores(
        self, logits: LogitArray, canvas: Canvas, places: IntArray, *, hold: bool = False
    ) -> ProbArray:
        """Return float64 `[places, vocabulary]` logits after penalties, biases and bans.

        `hold` bans end tokens but at the first masked place.
        """
        x: ProbArray = logits.astype(np.float64)
        if self._adjusts:
            said = Counter(canvas.filled())
            x = np.stack([adjusted(row, self._params, self._prompt, said) for row in logits])
        x[:, self._mask] = -np.inf
        early = places < canvas.begin + self._params.min_tokens
        if hold:
            early |= places > canvas.run()
        if early.any() and self._stops:
            x[np.flatnonzero(early)[:, None], self._stops] = -np.inf
        return x

    def __call__(self, scores: ProbArray) -> ProbArray:
        """Return float64 `[places, vocabulary]`, distributions after all samplers.

        A place where everything is banned has no distribution: zeros. Raises BadLogits for NaN.
        """
        peaks = scores.max(axis=1, keepdims=True)
        for row in scores[~(peaks < np.inf)[:, 0]]:
            peak_of(row)
        possible = peaks > -np.inf
        if self._truncates:
            return np.stack([self._row(row) for row in scores])
        x: ProbArray = scores - np.where(possible, peaks, 0.0)
        with np.errstate(over="ignore"):  # of a temperature near 0
            x /= self._params.temperature
        np.exp(x, out=x)
        x /= np.where(possible, x.sum(axis=1, keepdims=True), 1.0)
        return x

    def _row(self, scores: ProbArray) -> ProbArray:
        if not scores.max() > -np.inf:
            return np.zeros(len(scores))
        ids, kept = truncated(scores, self._params)
        weights = np.exp(kept)
        out = np.zeros(len(scores))
        out[slice(None) if ids is None else ids] = weights / weights.sum()
        return out

    def picks(self, probs: ProbArray, places: IntArray, sibling: int = 0) -> IntArray:
        """Return int64 `[places]`: the most likely tokens, or Gumbel-max draws.

        The noise of a place is fixed, unless `sibling` names a draw of its own.
        """
        if self.greedy:
            best: IntArray = probs.argmax(axis=1)
            return best
        ids = np.arange(probs.shape[1])
        return np.asarray(
            [
                (
                    distribution
                    / self._randomness.noise(Draw(int(at), Purpose.NOISE, sibling)).of(ids)
                ).argmax()
                for distribution, at in zip(probs, places, strict=True)
            ],
            dtype=np.int64,
        )
