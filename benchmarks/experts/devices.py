"""Simulated devices that share the experts of a model, and what rows cost on the way.

Under expert parallelism a device holds as many experts of a layer as the others, and as many rows
of a forward. A row is sent to each other device that holds an expert of it, and what those make of
it is sent back. Where experts are, and where rows are, is free: Speculative MoE (arXiv:2503.04398)
groups experts that are used together, and puts a row where most of its foretold experts are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from paceline.core.types import BoolArray, IntArray, ProbArray


class Volume(NamedTuple):
    """Of a layer and some rows: rows sent (and back), and experts run by the busiest device."""

    sent: int
    busiest: int


def plain_places(experts: int, devices: int) -> IntArray:
    """Return the device of each expert: by number."""
    return np.arange(experts) * devices // experts


def grouped_places(used: BoolArray, devices: int) -> IntArray:
    """Return the device of each expert so that rows need few devices.

    From the plain places, the best swap of two experts is made until none is left.

    Args:
        used: bool `[rows, experts]` of the texts to learn from.
    """
    places, rows = plain_places(used.shape[1], devices), used.astype(np.int64)
    distinct, counts = np.unique(rows, axis=0, return_counts=True)

    def needed(at: IntArray) -> int:
        return int(counts @ (distinct @ np.eye(devices, dtype=np.int64)[at] > 0).sum(1))

    least = needed(places)
    while True:
        best = None
        for one in range(len(places)):
            for other in range(one):
                if places[one] == places[other]:
                    continue
                swapped = places.copy()
                swapped[[one, other]] = swapped[[other, one]]
                if (found := needed(swapped)) < least:
                    best, least = swapped, found
        if best is None:
            return places
        places = best


def plain_homes(rows: int, devices: int) -> IntArray:
    """Return the device of each row: by number."""
    return np.arange(rows) * devices // rows


def foretold_homes(shares: ProbArray, places: IntArray, devices: int) -> IntArray:
    """Return the device of each row: where its experts are expected, none over-full.

    Rows that lose most elsewhere come first.

    Args:
        shares: `[rows, experts]`, how probable the experts are.
        places: device of each expert.
    """
    here = shares @ np.eye(devices)[places]
    room = np.full(devices, -(-len(here) // devices))
    ordered = np.sort(here, axis=1)
    homes = np.zeros(len(here), dtype=np.int64)
    for row in np.argsort(ordered[:, -2] - ordered[:, -1], kind="stable"):
        best = int(np.argmax(np.where(room > 0, here[row], -1)))
        homes[row], room[best] = best, room[best] - 1
    return homes


def volume(used: BoolArray, places: IntArray, homes: IntArray) -> Volume:
    """Return what rows cost, routed by the experts that they do use."""
    devices = int(max(places.max(), homes.max())) + 1
    experts = used.astype(np.int64) @ np.eye(devices, dtype=np.int64)[places]
    needs = experts > 0
    needs[np.arange(len(homes)), homes] = False
    return Volume(int(needs.sum()), int(experts.sum(0).max()))
