"""Acceptance head that ends draft chains early: SpecDec++ (Huang et al. 2024, arXiv:2405.19715).

The head predicts the acceptance probability of each drafted token from the hidden state after
it and, unlike the paper's, from the token's own draft probability.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paceline.core import tree as trees
from paceline.core.types import IntArray, LogitArray, ProbArray, TokenTree
from paceline.errors import InvalidOption
from paceline.networks.runner import ContextUpdate, Runner
from paceline.networks.weights import Trained, read_tensors, write_tensors

# Least probability that the whole chain is accepted, for drafting to go on; the paper's.
MIN_CHAIN_PROB = 0.7

_KIND = "acceptance"
_ADVICE = "train one with `paceline train acceptance-head`"
_EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class AcceptanceHead:
    """Residual blocks over the hidden state of a drafter network.

    Attributes:
        parameters: float32: "scale" `[width]`, "in" `[inner, width]`, "block.N" `[inner, inner]`
            and "block.N.bias", "out" `[inner]`, "own" `[1]` (weight of the draft log-odds),
            "bias" `[1]`.
        rejection: weight of falsely trusted tokens in the training loss.
        metadata: provenance; "weights" is the digest of the network it was trained with.
    """

    parameters: Mapping[str, LogitArray]
    rejection: float
    metadata: Mapping[str, str]

    @property
    def width(self) -> int:
        return int(self.parameters["in"].shape[1])

    def chances(self, states: LogitArray, own: ProbArray) -> ProbArray:
        """Return acceptance probabilities, float64 `[n]`.

        `states` are float32 `[n, width]`, after the tokens; `own` are their draft probabilities.
        """
        named = self.parameters
        x = states * named["scale"] @ named["in"].T
        for block in range(blocks_of(named)):
            inner = x @ named[f"block.{block}"].T + named[f"block.{block}.bias"]
            x = x + inner / (1 + np.exp(-np.clip(inner, -60, 60)))
        score = (x @ named["out"] + named["own"] * log_odds(own) + named["bias"]).astype(np.float64)
        said = 1 / (1 + np.exp(-np.clip(score, -60, 60)))
        return unweighted(said, self.rejection)


def log_odds(chances: ProbArray) -> ProbArray:
    """Return log(p / (1 - p)), clipped so that it is finite at 0 and 1."""
    inside = np.clip(chances, _EPSILON, 1 - _EPSILON)
    found: ProbArray = np.log(inside / (1 - inside))
    return found


def blocks_of(parameters: Mapping[str, object]) -> int:
    return sum(name.startswith("block.") and name.endswith(".bias") for name in parameters)


def unweighted(predictions: ProbArray, rejection: float) -> ProbArray:
    """Return y, float64 `[n]`, from s = y / (y + w (1 - y)), the optimum of the weighted loss."""
    found: ProbArray = rejection * predictions / (rejection * predictions + 1 - predictions)
    return found


@dataclass(frozen=True, slots=True)
class AcceptanceStop:
    """Drafts argmax chains while the chain's acceptance probability is at least `stands`."""

    head: AcceptanceHead
    ids: IntArray
    stands: float

    def chains(
        self, runner: Runner, context_update: Sequence[ContextUpdate], wanted: Sequence[int]
    ) -> list[TokenTree]:
        """Draft chains of 1 to `wanted` tokens; scores are acceptance probabilities.

        Raises OutOfMemory if the network's KV cache is full.
        """
        branches = runner.start(context_update)
        tokens: list[list[int]] = [[] for _ in context_update]
        scores: list[list[float]] = [[] for _ in context_update]
        stands, own = np.ones((2, len(context_update)))
        going = list(range(len(context_update)))
        while going:
            for index in going:
                row = branches[index].logits[0].astype(np.float64)
                best = int(row.argmax())
                tokens[index].append(int(self.ids[best]))
                own[index] = 1 / np.exp(row - row[best]).sum()
                scores[index].append(float(stands[index] * own[index]))
            going = [index for index in going if len(tokens[index]) < wanted[index]]
            if not going:
                break
            moved = runner.advance([(branches[index], tokens[index][-1:]) for index in going])
            states = np.stack([runner.hidden(branch).reshape(-1) for branch in moved])
            stands[going] *= self.head.chances(states, own[going])
            for index, branch in zip(going, moved, strict=True):
                branches[index] = branch
                scores[index][-1] = float(stands[index])
            going = [index for index in going if stands[index] >= self.stands]
        return [
            trees.chain(each, scores=np.array(score))
            for each, score in zip(tokens, scores, strict=True)
        ]


def check_steps(trained: Trained) -> None:
    """Raise InvalidOption unless the network drafts autoregressively."""
    network = trained.network
    if network.width > 1 or network.steps == 1:
        raise InvalidOption(
            f"network '{network.name}' drafts several tokens at once, and no head can stop it in "
            "between: leave out head"
        )


def save_acceptance_head(path: Path, head: AcceptanceHead) -> None:
    """Write a head atomically. Raises InvalidOption if the file cannot be written."""
    metadata = {**head.metadata, "kind": _KIND, "rejection": repr(head.rejection)}
    write_tensors(path, head.parameters, metadata)


def load_acceptance_head(path: Path, weights: str) -> AcceptanceHead:
    """Read a head trained with the network of digest `weights`.

    Raises InvalidOption if the file is missing, damaged, of another kind, or of another network.
    """
    tensors, metadata = read_tensors(path, "acceptance head", _ADVICE)
    try:
        if metadata.get("kind") != _KIND:
            raise ValueError("it is of another kind")
        head = AcceptanceHead(tensors, float(metadata["rejection"]), metadata)
        if not np.isfinite(head.chances(np.ones((1, head.width), np.float32), np.ones(1))).all():
            raise ValueError("impossible numbers")
    except (LookupError, ValueError) as error:
        raise InvalidOption(f"{path} holds no acceptance head ({error}): {_ADVICE}") from error
    if metadata.get("weights") != weights:
        raise InvalidOption(
            f"{path} was trained with other weights than those that draft: {_ADVICE}"
        )
    return head
