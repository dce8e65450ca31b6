"""What the rows of a denoiser see and must say, by kind, for the tasks for parallel decoding.

- "full" (LLaDA, arXiv:2502.09992): every row sees every row; mask rows say their own token. Where
  the recipe wants it, some visible tokens are exchanged at random and must be put right (the first
  stage of ReDiff, arXiv:2510.19871).
- "block" (BD3-LM, arXiv:2503.09573): clean rows beside noisy ones in one pass. A noisy row sees its
  own noisy block and the clean rows before it. Two noisy copies mask complementary places
  (Fast-dLLM v2, arXiv:2509.26328). Clean rows see their block, or, in half of the examples, only
  what is before them: then they say the next token (TiDAR, arXiv:2511.08923), and the same weights
  decode left to right. One head thus says the own token of mask rows and the next of clean rows.
- "order" (ASSD, arXiv:2504.20456; WeDLM): clean rows see those before them in an order of the
  places; a mask row sees the first clean rows, and the mask rows just before it or none.

The number of masked places of a block is uniform, and their mean loss counts: the order-agnostic
bound (arXiv:2110.02037), the same in the mean as weights of 1/t and with less noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from paceline.core.types import BoolArray, IntArray, ProbArray
from paceline.lab.measure import parallel_tasks
from paceline.lab.measure.parallel_tasks import Exercise
from paceline.lab.training.data import Text

PAD, EOS, MASK, UNKNOWN = range(4)
SPECIAL = ("<pad>", "<eos>", "<mask>", "<unk>")
BLOCKS = (1, 4, 8, 16)
"""Block sizes of a "block" denoiser: any of them can be decoded with."""

_PACK = 96  # rows of a packed sequence; a longer example is alone
_CANVAS = 4  # canvases are multiples of it


def vocabulary() -> dict[str, int]:
    """Return ids by word: the special tokens, then the words of the tasks."""
    return {word: index for index, word in enumerate([*SPECIAL, *parallel_tasks.words()])}


def text_of(case: Exercise, ids: dict[str, int], index: int = 0) -> Text:
    """Return prompt and answer of a case as tokens, without an end token."""
    prompt, answer = case.prompt.split(), case.answer.split()
    tokens = np.array([ids[word] for word in (*prompt, *answer)], dtype=np.int64)
    return Text(index, tokens, len(prompt))


class ExampleRows(NamedTuple):
    """Rows of one example.

    Attributes:
        tokens: int64 `[rows]`.
        positions: int64 `[rows]`, for rotary positions.
        sees: bool `[rows, rows]`.
        labels: int64 `[rows]`, what a row must say.
        weights: float64 `[rows]`, of the loss; 0 for rows that say nothing.
    """

    tokens: IntArray
    positions: IntArray
    sees: BoolArray
    labels: IntArray
    weights: ProbArray


class PackedRows(NamedTuple):
    """Examples side by side: `[bins, rows]` tensors, `sees` `[bins, 1, rows, rows]`.

    `places` holds bin and first row of each example. Rows of different examples do not see each
    other.
    """

    places: list[tuple[int, int]]
    tokens: Tensor
    positions: Tensor
    sees: Tensor
    labels: Tensor
    weights: Tensor


def pack(examples: Sequence[ExampleRows], size: int = _PACK) -> PackedRows:
    """Lay examples into bins of `size` rows, each into the last bin or into a new one."""
    bins: list[int] = []
    places: list[tuple[int, int]] = []
    for each in examples:
        count = len(each.tokens)
        if not bins or bins[-1] + count > size:
            bins.append(0)
        places.append((len(bins) - 1, bins[-1]))
        bins[-1] += count
    shape = (len(bins), max(bins))
    tokens, labels = np.full(shape, PAD), np.full(shape, PAD)
    positions, weights = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.float32)
    sees = np.zeros((*shape, shape[1]), dtype=np.bool_)
    sees[:] = np.eye(shape[1], dtype=np.bool_)  # padding sees itself, or its softmax is empty
    for (bin_, begin), each in zip(places, examples, strict=True):
        end = begin + len(each.tokens)
        tokens[bin_, begin:end], labels[bin_, begin:end] = each.tokens, each.labels
        positions[bin_, begin:end], weights[bin_, begin:end] = each.positions, each.weights
        sees[bin_, begin:end, begin:end] = each.sees
    found = map(torch.from_numpy, (tokens, positions, sees[:, None], labels, weights))
    return PackedRows(places, *found)


def canvas(text: Text, length: int) -> IntArray:
    """Return the answer of a text and end tokens up to `length`."""
    answer = text.tokens[text.prompt_length :]
    return np.concatenate([answer, np.full(length - len(answer), EOS)])


def full_rows(text: Text, rng: np.random.Generator, corrupt: float) -> ExampleRows:
    """Return prompt and masked canvas, each row seeing all."""
    start, answer = text.prompt_length, canvas(text, _canvas_length(text, rng))
    size = len(answer)
    masked = _drawn(rng, size, int(rng.integers(1, size + 1)))
    noisy, weights = np.where(masked, MASK, answer), masked / masked.sum()
    if corrupt and rng.random() < 0.5:
        # All visible places count, since nothing tells the exchanged ones from the others.
        wrong = ~masked & (rng.random(size) < corrupt)
        noisy[wrong] = rng.choice(text.tokens, int(wrong.sum()))
        weights = weights + np.where(masked, 0, 1 / size)
    return _seeing_all(text.tokens[:start], noisy, answer, weights)


def staged_rows(text: Text, rng: np.random.Generator, size: int) -> list[ExampleRows]:
    """Return prompt and canvas as they stand while blocks of `size` are filled (dParallel).

    Blocks before a drawn one are there, those behind it are masks; of its own places half are
    masked, and the other half in a second copy. These count alone.
    """
    answer = canvas(text, _canvas_length(text, rng))
    block = np.arange(len(answer)) // size
    drawn = int(rng.integers(block[-1] + 1))
    mine = np.flatnonzero(block == drawn)
    half = np.zeros(len(answer), dtype=np.bool_)
    half[mine] = _drawn(rng, len(mine), len(mine) // 2)
    out = []
    for hidden in (half, (block == drawn) & ~half):
        noisy = np.where(hidden | (block > drawn), MASK, answer)
        weights = hidden / max(1, hidden.sum()) / 2
        out.append(_seeing_all(text.tokens[: text.prompt_length], noisy, answer, weights))
    return out


def _seeing_all(
    prompt: IntArray, noisy: IntArray, answer: IntArray, weights: ProbArray
) -> ExampleRows:
    count = len(prompt) + len(answer)
    return ExampleRows(
        np.concatenate([prompt, noisy]),
        np.arange(count),
        np.ones((count, count), dtype=np.bool_),
        np.concatenate([prompt, answer]),
        np.concatenate([np.zeros(len(prompt)), weights]),
    )


def block_rows(
    text: Text, rng: np.random.Generator, size: int, causal: bool, causal_weight: float
) -> ExampleRows:
    """Return clean rows and two complementary noisy copies of the blocks that hold the answer.

    Args:
        size: of the blocks. They begin at a random place of the prompt's last `size` tokens.
        causal: clean rows see what is before them only, and say the next token.
    """
    start, length = text.prompt_length, len(text.tokens)
    first = start - int(rng.integers(min(size, start)))
    end = first + size * -(-(length + 1 - first) // size)  # with at least one end token
    answer = canvas(text, end - start)
    clean, noisy = np.arange(length), np.arange(first, end)
    block, clean_block = (noisy - first) // size, (clean - first) // size
    free = noisy >= start  # the prompt's rest is never masked
    masked = np.zeros(len(noisy), dtype=np.bool_)
    counts = np.zeros(len(noisy))
    for each in range(block[-1] + 1):
        mine = np.flatnonzero((block == each) & free)
        masked[mine] = _drawn(rng, len(mine), int(rng.integers(len(mine) + 1)))
        counts[mine] = len(mine)
    shown = np.concatenate([text.tokens[first:start], answer])
    copies, weights = [], []
    for hidden in (masked, free & ~masked):
        copies.append(np.where(hidden, MASK, shown))
        hits = np.bincount(block, hidden, minlength=block[-1] + 1)[block]
        weights.append(np.where(hidden, counts / np.maximum(hits, 1) / len(answer) / 2, 0))
    own = np.zeros(length)
    labels = np.concatenate([text.tokens[1:], [EOS]])
    if causal:
        own[start - 1 :] = causal_weight / (length - start + 1)
        clean_sees = clean[:, None] >= clean
    else:
        clean_sees = clean_block[:, None] >= clean_block
    before = block[:, None] > clean_block
    same = block[:, None] == block
    nothing = np.zeros_like(same)
    sees = np.block(
        [
            [clean_sees, np.zeros((length, 2 * len(noisy)), dtype=np.bool_)],
            [before, same, nothing],
            [before, nothing, same],
        ]
    )
    return ExampleRows(
        np.concatenate([text.tokens, *copies]),
        np.concatenate([clean, noisy, noisy]),
        sees,
        np.concatenate([labels, shown, shown]),
        np.concatenate([own, *weights]),
    )


def order_rows(text: Text, rng: np.random.Generator) -> ExampleRows:
    """Return clean rows in an order of the canvas, and a mask row for every place of it.

    The canvas is read from the left, in any order, or some places first and then the rest, each
    from the left (ASSD). It is cut into chunks that are masked as one: their rows see what is
    before the chunk, and either the mask rows before them in it (WeDLM) or no other one (ASSD).
    """
    start, answer = text.prompt_length, canvas(text, _canvas_length(text, rng))
    size = len(answer)
    order = np.arange(size)
    way = rng.integers(3)
    if way == 1:
        order = rng.permutation(size)
    elif way == 2:
        first = _drawn(rng, size, int(rng.integers(size)))
        order = np.concatenate([order[first], order[~first]])
    width = int(rng.choice([1, 2, 4, 8, size]))
    chunk = (np.arange(size) + rng.integers(width)) // width
    order = order[np.lexsort((order, chunk))]  # from the left within a chunk, as at inference
    clean, rank = start + size, np.arange(size)
    before = np.concatenate([np.full(start, -1), chunk])  # the chunk of a clean row
    others = (chunk[:, None] == chunk) & (rank[:, None] >= rank)
    if rng.random() < 0.5:
        others = np.eye(size, dtype=np.bool_)
    sees = np.block(
        [
            [np.tri(clean, dtype=np.bool_), np.zeros((clean, size), dtype=np.bool_)],
            [before < chunk[:, None], others],
        ]
    )
    shown = np.concatenate([text.tokens[:start], answer[order]])
    places = np.concatenate([np.arange(start), start + order])
    return ExampleRows(
        np.concatenate([shown, np.full(size, MASK)]),
        np.concatenate([places, start + order]),
        sees,
        np.concatenate([shown, answer[order]]),
        np.concatenate([np.zeros(clean), np.full(size, 1 / size)]),
    )


def _canvas_length(text: Text, rng: np.random.Generator) -> int:
    # Room for an end token; more room is rarer.
    least = -(-(len(text.tokens) - text.prompt_length + 1) // _CANVAS)
    return _CANVAS * (least + int(rng.choice(6, p=[0.4, 0.2, 0.1, 0.1, 0.1, 0.1])))


def _drawn(rng: np.random.Generator, size: int, count: int) -> BoolArray:
    return rng.permutation(size) < count
