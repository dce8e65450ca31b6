"""Draft trees of a trained network, by any tree expansion.

The network answers level by level over the batch; one step of a multi-token network answers
several levels. Tokens outside the draft vocabulary have probability zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat

import numpy as np

from paceline.core import tree as trees
from paceline.core.types import (
    Budget,
    Distribution,
    IntArray,
    LogitArray,
    SamplingParams,
    TokenTree,
)
from paceline.drafters.base import DrafterContext
from paceline.errors import InvalidOption
from paceline.networks.runner import Branch, ContextUpdate, Runner
from paceline.networks.weights import Trained
from paceline.sampling.generation import Generation
from paceline.sampling.sampler import Sampler
from paceline.trees.base import DistributionRequest, TreeExpansion, expand
from paceline.trees.choice import expansion_for

# Logit outside the draft vocabulary: probability exactly zero, but finite, so that a
# distribution exists even where all other tokens are banned.
_NEVER = -1e30


class TreeDrafts:
    """Expands draft trees of one network."""

    def __init__(self, runner: Runner, trained: Trained, growth: TreeExpansion) -> None:
        """Bind a network."""
        self._runner = runner
        self._expansion = growth
        self._width = trained.network.width
        self._ids = trained.draft_ids
        self._size = trained.network.config.vocab_size
        self.kind = growth.kind

    @classmethod
    def chosen(cls, context: DrafterContext, runner: Runner, trained: Trained) -> TreeDrafts | None:
        """Choose by option `growth` or the verifier; None means argmax chains, which cost one call.

        Raises InvalidOption if the expansion is unknown, or does not fit network or verifier.
        """
        named = context.options.get("growth", "")
        if not named and not context.needs_q:
            return None
        for option in ("stop", "runner_ups"):
            if option in context.options:
                raise InvalidOption(
                    f"option {option} is for chains of most likely tokens: leave it out with a "
                    "growth, or with a verifier of drawn drafts"
                )
        return cls(runner, trained, expansion_for(context.accepts, context.shape, named))

    def grow(
        self,
        sequences: Sequence[Generation],
        budgets: Sequence[Budget],
        context_update: Sequence[ContextUpdate],
    ) -> list[TokenTree]:
        """Draft one tree per sequence. Raises OutOfMemory if the network's KV cache is full."""
        known: list[dict[tuple[int, ...], Branch]]
        known = [{(): root} for root in self._runner.start(context_update)]

        def distributions(
            indices: Sequence[int], asks: Sequence[DistributionRequest]
        ) -> list[list[Distribution]]:
            paths = dict(zip(indices, map(_paths, asks), strict=True))
            self._advance(known, paths)
            return [
                [self._distribution(sequences[index], known[index], path) for path in each]
                for index, each in paths.items()
            ]

        depths = repeat(self._runner.depth, len(sequences))
        return expand(self._expansion, sequences, budgets, depths, distributions)

    def _advance(
        self,
        known: Sequence[dict[tuple[int, ...], Branch]],
        paths: Mapping[int, Sequence[tuple[int, ...]]],
    ) -> None:
        # Runs the missing whole steps of all paths in one call.
        missing = [
            (index, steps)
            for index, asked in paths.items()
            for steps in dict.fromkeys(map(self._whole, asked))
            if steps not in known[index]
        ]
        if not missing:
            return
        width = self._width
        asked = [(known[index][steps[:-width]], steps[-width:]) for index, steps in missing]
        for (index, steps), branch in zip(missing, self._runner.advance(asked), strict=True):
            known[index][steps] = branch

    def _whole(self, path: tuple[int, ...]) -> tuple[int, ...]:
        return path[: len(path) - len(path) % self._width]

    def _distribution(
        self, sequence: Generation, known: Mapping[tuple[int, ...], Branch], path: tuple[int, ...]
    ) -> Distribution:
        steps = self._whole(path)
        logits = known[steps].logits[len(path) - len(steps)]
        soft = self._expansion.soft
        return draft_sampling(sequence.sampler, logits, self._ids, self._size, path, soft=soft)


def draft_sampling(
    sampler: Sampler,
    logits: LogitArray,
    ids: IntArray,
    size: int,
    path: Sequence[int],
    *,
    soft: bool,
) -> Distribution:
    """Return a request's distribution over a draft vocabulary, as one over `size` tokens.

    `ids` are int64 `[draft vocabulary]`, ascending token ids of the float32 `logits`.
    """
    if sampler.constraint is not None or _names_tokens(sampler.params):
        wide = np.full(size, _NEVER, dtype=np.float32)
        wide[ids] = logits
        return sampler.proposal(wide, path, soft=soft)
    distribution = sampler.distribution(logits, path, soft=soft)
    return Distribution(
        distribution.probs, ids if distribution.ids is None else ids[distribution.ids], size
    )


def _names_tokens(params: SamplingParams) -> bool:
    # True if the request treats tokens differently, so that logits need the target's ids.
    penalties = params.presence_penalty, params.frequency_penalty, params.dry_multiplier
    penalised = params.repetition_penalty != 1 or any(penalties)
    return bool(penalised or params.logit_bias or params.banned_tokens or params.forced_tokens)


def _paths(ask: DistributionRequest) -> list[tuple[int, ...]]:
    tokens = ask.tree.tokens
    return [tuple(tokens[list(trees.path_to(ask.tree, node))].tolist()) for node in ask.nodes]
