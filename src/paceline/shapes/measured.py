"""Rank accuracies of a drafter, counted while decoding, from which static trees are built."""

from __future__ import annotations

import json
from collections.abc import Sequence as List
from pathlib import Path
from typing import Any, Self

import numpy as np

from paceline import tree as trees
from paceline.errors import InvalidOption
from paceline.models.cache import write_atomically
from paceline.types import ROOT, IntArray, ProbArray, TokenTree

_FORMAT = "paceline-rank-counts-1"

_DOUBT = 2.0


class RankCounts:
    """Trials and hits of every rank, by depth.

    Attributes:
        drafter: name of the drafter measured.
        trials: int64 `[depth, rank]`, visits to a node at this depth (0: root) with such a child.
        hits: int64 `[depth, rank]`, visits where that child was the target's token.
    """

    def __init__(self, drafter: str, depth: int, ranks: int) -> None:
        self.drafter = drafter
        self.trials: IntArray = np.zeros((depth, ranks), dtype=np.int64)
        self.hits: IntArray = np.zeros((depth, ranks), dtype=np.int64)

    def add(self, depth: int, offered: int, rank: int | None) -> None:
        """Count one step: children offered at `depth` (0: the root), and the right rank or None."""
        if depth < len(self.trials):
            self.trials[depth, :offered] += 1
            if rank is not None and rank < self.hits.shape[1]:
                self.hits[depth, rank] += 1

    def observe(self, draft: TokenTree, committed: List[int]) -> None:
        """Count a draft whose siblings are in rank order, as proposed, before pruning.

        `committed` are the tokens after its root, also of later steps.
        """
        below = trees.children(draft)
        node = ROOT
        for depth, token in enumerate(committed):
            offered = below.get(node, [])
            found = [rank for rank, child in enumerate(offered) if draft.tokens[child] == token]
            self.add(depth, len(offered), found[0] if found else None)
            if not found:
                return
            node = offered[found[0]]

    @property
    def accuracies(self) -> ProbArray:
        """float64 `[depth, rank]`, hits per trial; smoothed by two added misses."""
        return self.hits / (self.trials + _DOUBT)

    def save(self, path: Path) -> None:
        """Write a JSON file atomically. Raises InvalidOption if it cannot be written."""
        content = {
            "format": _FORMAT,
            "drafter": self.drafter,
            "trials": self.trials.tolist(),
            "hits": self.hits.tolist(),
        }
        try:
            write_atomically(path, json.dumps(content))
        except OSError as error:
            raise InvalidOption(
                f"cannot write {path} ({error.strerror or error}): give another file"
            ) from error

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote. Raises InvalidOption if unreadable or inconsistent."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InvalidOption(
                f"cannot read {path} ({error.strerror or error}): give a file of rank counts"
            ) from error
        except (ValueError, RecursionError) as error:
            raise _foreign(path, "it is not JSON") from error
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise _foreign(path, f"its format is not {_FORMAT!r}")
        trials, hits = _counts(content.get("trials")), _counts(content.get("hits"))
        if not isinstance(content.get("drafter"), str) or trials is None or hits is None:
            raise _foreign(path, "it lacks a drafter's name or a table of counts")
        if trials.shape != hits.shape:
            raise _foreign(path, f"trials are {trials.shape} and hits {hits.shape}")
        if (np.diff(trials, axis=1) > 0).any() or (hits.sum(axis=1) > trials[:, 0]).any():
            raise _foreign(path, "a step would have had more hits, or higher ranks, than children")
        if (hits > trials).any():
            raise _foreign(path, "a rank has more hits than trials")
        counts = cls(content["drafter"], *trials.shape)
        counts.trials, counts.hits = trials, hits
        return counts


def _counts(table: Any) -> IntArray | None:
    try:
        counts = np.array(table)
    except ValueError:  # rows of unequal length
        return None
    good = counts.dtype == np.int64 and counts.ndim == 2 and counts.size and counts.min() >= 0
    return counts if good else None


def _foreign(path: Path, why: str) -> InvalidOption:
    return InvalidOption(f"{path} holds no rank counts, as {why}: measure again, or give another")
