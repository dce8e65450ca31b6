"""When to stop drafting, by predicted acceptance (SpecDec++, Huang et al. 2024, arXiv:2405.19715).

A small head reads the network's state behind each drafted token and says how likely the target is
to accept that token. The product over a chain is the chance that all of it stands; once it is low,
drafting on would cost more than it brings. The paper's theorem 1: the best rule has such a form.
Unlike the paper's, the head also starts from the probability that the network's own law gave the
token, which says most of it where texts to learn from are few.

The token that makes the chain doubtful stays in the draft, and the one behind it is never drawn:
the rule looks at what was drafted before, and never decides about a token by that token.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from paceline import tree as trees
from paceline.errors import InvalidOption
from paceline.networks.runner import Grown, Runner
from paceline.networks.tensor_file import write_tensors
from paceline.networks.weights import Trained
from paceline.types import IntArray, LogitArray, ProbArray, TokenTree

STANDS = 0.7
"""Least chance that all of a chain stands, for which it goes on; the paper's."""

_KIND = "acceptance"
_EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class AcceptanceHead:
    """Residual blocks over a network's state.

    Attributes:
        parameters: float32: "scale" `[width]` of the states' axes, "in" `[inner, width]`, "block.N"
            `[inner, inner]` and its "bias", "out" `[inner]`, "own" `[1]`, the weight of the
            network's own log-odds, and "bias" `[1]`.
        rejection: how much more a token that was wrongly trusted weighed in training.
        metadata: provenance, as text; "weights" is the digest of the network that it was trained
            with.
    """

    parameters: Mapping[str, LogitArray]
    rejection: float
    metadata: Mapping[str, str]

    @property
    def width(self) -> int:
        """Width of the states that it reads."""
        return int(self.parameters["in"].shape[1])

    def chances(self, states: LogitArray, own: ProbArray) -> ProbArray:
        """Of tokens being accepted, float64 `[n]`.

        Args:
            states: float32 `[n, width]`, the network's behind each token.
            own: float64 `[n]`, probability of each in the network's law before it.
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
    """log(p / (1 - p)), finite where p is 0 or 1."""
    inside = np.clip(chances, _EPSILON, 1 - _EPSILON)
    found: ProbArray = np.log(inside / (1 - inside))
    return found


def blocks_of(parameters: Mapping[str, object]) -> int:
    """How many blocks there are."""
    return sum(name.startswith("block.") and name.endswith(".bias") for name in parameters)


def unweighted(predictions: ProbArray, rejection: float) -> ProbArray:
    """Probabilities of acceptance from those of a head trained with a rejection weight w.

    The weighted loss is least at s = y / (y + w (1 - y)); this gives back y, float64 `[n]`.
    """
    found: ProbArray = rejection * predictions / (rejection * predictions + 1 - predictions)
    return found


@dataclass(frozen=True, slots=True)
class DoubtfulStop:
    """Drafts chains that end where they become doubtful.

    Attributes:
        head: predicts acceptance.
        ids: int64 `[draft vocabulary]`, token ids.
        stands: least chance that all of a chain stands, for which it goes on.
    """

    head: AcceptanceHead
    ids: IntArray
    stands: float

    def chains(self, runner: Runner, grown: List[Grown], wanted: List[int]) -> list[TokenTree]:
        """Chains of the likeliest tokens, step by step over the batch.

        Args:
            runner: drafts a token per step.
            grown: what contexts have gained.
            wanted: most tokens for each, at least one.

        Returns:
            One chain for each. Scores are predicted chances to stand; of a last token that nothing
            was predicted of, since the chain was as long as wanted, by the network's own law.

        Raises:
            OutOfMemory: the network's own cache is full.
        """
        branches = runner.start(grown)
        tokens: list[list[int]] = [[] for _ in grown]
        scores: list[list[float]] = [[] for _ in grown]
        stands, own = np.ones((2, len(grown)))
        going = list(range(len(grown)))
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
    """Raise InvalidOption unless a network drafts one token after another."""
    network = trained.network
    if network.width > 1 or network.steps == 1 or network.blank:
        raise InvalidOption(
            f"network '{network.name}' drafts several tokens at once, and no head can stop it in "
            "between: leave out head"
        )


def save_acceptance_head(path: Path, head: AcceptanceHead) -> None:
    """Write a head, whole or not at all.

    Raises:
        InvalidOption: the file cannot be written.
    """
    metadata = {**head.metadata, "kind": _KIND, "rejection": repr(head.rejection)}
    write_tensors(path, head.parameters, metadata)


def load_acceptance_head(path: Path, weights: str) -> AcceptanceHead:
    """Read a head.

    Args:
        path: of the file.
        weights: digest of the network that drafts.

    Raises:
        InvalidOption: the file is missing, damaged, holds something else, or was trained with
            another network.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if metadata.get("kind") != _KIND:
            raise ValueError("it is of another kind")
        head = AcceptanceHead(tensors, float(metadata["rejection"]), metadata)
        if not np.isfinite(head.chances(np.ones((1, head.width), np.float32), np.ones(1))).all():
            raise ValueError("impossible numbers")
    except (SafetensorError, OSError, LookupError, ValueError) as error:
        raise InvalidOption(
            f"{path} holds no acceptance head ({error}): train one with `paceline train "
            "acceptance-head`"
        ) from error
    if metadata.get("weights") != weights:
        raise InvalidOption(
            f"{path} was trained with other weights than those that draft: train one with "
            "`paceline train acceptance-head`"
        )
    return head
