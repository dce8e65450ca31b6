"""Layout of a forward for attention along paths: every token once, and what it sees."""

from __future__ import annotations

from collections.abc import Sequence

from paceline import tree as trees
from paceline.runtimes.openvino_batch import Batch, Input
from paceline.runtimes.paged_cache import BLOCK, PagedCache
from paceline.types import ROOT, TokenTree


class PathBatch(Batch):
    """A row's keys are a run of its sequence's tokens, then single ones: drafted ancestors.

    Five numbers per row, see `Plan` in `native/path_attention.hpp`.
    """

    def __init__(self) -> None:
        """Start empty."""
        super().__init__()
        self._rows: list[int] = []
        self._tables: list[int] = []
        self._singles: list[int] = []

    def add(self, cache: PagedCache, tokens: Sequence[int], draft: TokenTree) -> int:
        """Add rows, see `Batch.add`; where nodes are stored is noted in `cache.places`.

        The first root-to-leaf path is stored first: keeping it moves nothing.
        """
        cache.discard()
        past, behind = cache.length, cache.length + len(tokens)
        cache.reserve(len(tokens) + len(draft))
        table = len(self._tables)
        self._tables += cache.blocks[: -(-(behind + len(draft)) // BLOCK)]
        first = len(self.ids)
        self.ids += [*tokens, *draft.tokens.tolist()]
        blocks, rows = cache.blocks, self._rows
        straight = trees.is_chain(draft)
        end = behind + len(draft) if straight else behind
        for position in range(past, end):
            slot = blocks[position // BLOCK] * BLOCK + position % BLOCK
            rows += (position, slot, table, position + 1, 0)
        if straight:
            cache.places = list(range(behind, end))
            return first
        cache.places, runs, apart = _places(draft.parents.tolist(), behind)
        for place, run, singles in zip(cache.places, runs, apart, strict=True):
            slot = blocks[place // BLOCK] * BLOCK + place % BLOCK
            rows += (run + len(singles) - 1, slot, table, run, len(self._singles))
            self._singles += singles
        return first

    def inputs(self) -> dict[str, Input]:
        """int32: beside the common ones `rows [5 * rows]`, `tables` and `singles`."""
        return {
            **self.common(),
            "rows": self._rows,
            "tables": self._tables,
            "singles": self._singles,
        }


def _places(parents: list[int], begin: int) -> tuple[list[int], list[int], list[list[int]]]:
    """Where nodes are stored from `begin` on, and what they see.

    Returns:
        By node: its place; how many tokens from the first on it sees without a gap; the places of
        the others, itself last.
    """
    inner = set(parents)
    node = next(node for node in range(len(parents)) if node not in inner)
    lead: set[int] = set()
    while node != ROOT:
        lead.add(node)
        node = parents[node]
    next_lead, next_other = begin, begin + len(lead)
    stored: list[int] = []
    runs: list[int] = []
    apart: list[list[int]] = []
    for node, parent in enumerate(parents):
        run, singles = (begin, []) if parent == ROOT else (runs[parent], apart[parent])
        if node in lead:  # in order of their depth, as all nodes stand behind their parents
            stored.append(next_lead)
            next_lead += 1
            run += 1
        else:
            stored.append(next_other)
            next_other += 1
            singles = [*singles, stored[node]]
        runs.append(run)
        apart.append(singles)
    return stored, runs, apart
