"""Published static trees, as digits: "021" is the rank path (0, 2, 1)."""

from __future__ import annotations

from paceline.shapes.static import StaticShape


def _shape(*digits: str) -> StaticShape:
    return tuple(tuple(map(int, path)) for line in digits for path in line.split())


# Token Recycling (Luo et al. 2024, arXiv:2408.08696): 80 nodes, 6 levels, 8 successors per token.
TOKEN_RECYCLING = _shape(
    "0 1 2 3 4 5 6 7",
    "00 01 02 03 04 05 06 07 10 11 12 13 20 21 22 30 31 40 50 60 70",
    "000 001 002 003 004 005 006 007 010 011 012 020 021 030 040 050 060 070 "
    "100 101 110 200 300 400 500",
    "0000 0001 0002 0003 0004 0010 0011 0020 0030 0040 0100 0200 1000 2000 3000",
    "00000 00001 00002 00010 00020 00100 01000 10000",
    "000000 000001 000100",
)

# `mc_sim_7b_63` of Medusa (Cai et al. 2024, arXiv:2401.10774; `medusa/model/medusa_choices.py`):
# 63 nodes, likeliest first, 4 levels, 10 tokens per head.
MEDUSA = _shape(
    "0 00 1 01 2 000 10 02 3 03 4 04 20 05 001 5 06 6 07 010 11 7 08 002 30 09 8 9 100 020 12 003",
    "40 21 004 005 0000 011 006 030 50 13 007 008 009 60 040 14 70 012 200 31 22 80 050 15 101 021",
    "90 060 0001 16 070",
)
