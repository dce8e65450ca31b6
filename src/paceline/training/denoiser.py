"""Training of small denoisers: models that fill masked places, on the tasks for parallel decoding.

The trunk is that of Llama. What a row sees, and what it must say, makes the kind of denoiser:

- "full" (LLaDA, arXiv:2502.09992): every row sees every row; mask rows say their own token. Some
  visible tokens are exchanged at random and must be put right (ReDiff, arXiv:2510.19871).
- "block" (BD3-LM, arXiv:2503.09573): clean rows beside noisy ones in one pass. A noisy row sees its
  own noisy block and the clean rows before it. Two noisy copies mask complementary places (Fast-dLLM
  v2, arXiv:2509.26328). Clean rows see their block, or, in half of the batches, what is before them
  only: then they say the next token (TiDAR, arXiv:2511.08923), and the same weights decode left to
  right. A head thus says the own token of mask rows, and the next token of clean rows.
- "order" (ASSD, arXiv:2504.20456; WeDLM, arXiv:2512.22737): clean rows see those before them in an
  order of the places; a mask row sees the first clean rows, and the mask rows just before it or none.

The number of masked places of a block is uniform, and their mean loss counts: the order-agnostic
bound (arXiv:2110.02037), the same in the mean as weights of 1/t and with less noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.core.options import require
from paceline.core.types import BoolArray, IntArray
from paceline.measure import parallel_tasks
from paceline.measure.parallel_tasks import Case
from paceline.training.data import Text
from paceline.training.run import Muon, Rated, TrainingRun

Kind = Literal["full", "block", "order"]

PAD, EOS, MASK, UNKNOWN = range(4)
SPECIAL = ("<pad>", "<eos>", "<mask>", "<unk>")
BLOCKS = (1, 4, 8, 16)
"""Block sizes of a "block" denoiser: any of them can be decoded with."""

_PACK = 96  # rows of a packed sequence; a longer example is alone
_CANVAS = 4  # canvases are multiples of it


@dataclass(frozen=True, slots=True)
class DenoiserRecipe:
    """Shape and hyperparameters of a denoiser.

    Attributes:
        kind: what its rows see.
        steps: updates.
        batch: examples per update.
        width: hidden size, a multiple of `head`.
        head: width of an attention head.
        ffn: inner size of the feed-forward blocks.
        matrix_rate: peak learning rate of matrices (Muon).
        vector_rate: peak learning rate of embeddings and norms (AdamW).
        warm_up: share of the updates.
        corrupt: share of the visible tokens that are exchanged, in half of the examples of "full".
        causal_weight: of the loss on next tokens, of "block".
    """

    kind: Kind
    steps: int = 3000
    batch: int = 128
    width: int = 192
    layers: int = 4
    head: int = 32
    ffn: int = 512
    matrix_rate: float = 0.02
    vector_rate: float = 3e-3
    warm_up: float = 0.05
    clip: float = 1.0
    corrupt: float = 0.1
    causal_weight: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.kind in get_args(Kind), "kind", self.kind, "full, block or order")
        require(self.steps >= 2, "steps", self.steps, "2 or more")
        require(self.batch >= 1, "batch", self.batch, "1 or more")
        require(self.width % self.head == 0, "width", self.width, f"a multiple of {self.head}")


class Rows(NamedTuple):
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
    weights: np.ndarray[Any, np.dtype[np.float64]]


class Packed(NamedTuple):
    """Examples side by side: `[bins, rows]` tensors, `sees` `[bins, 1, rows, rows]`.

    `places` holds bin and first row of each example. Rows of different examples do not see each
    other.
    """

    tokens: Tensor
    positions: Tensor
    sees: Tensor
    labels: Tensor
    weights: Tensor
    places: list[tuple[int, int]]


def pack(examples: Sequence[Rows], size: int = _PACK) -> Packed:
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
    found = [torch.from_numpy(each) for each in (tokens, positions, sees[:, None], labels, weights)]
    return Packed(*found, places)


# Rows of the kinds.


def canvas(text: Text, length: int) -> IntArray:
    """Return the answer of a text and end tokens up to `length`."""
    answer = text.tokens[text.prompt_length :]
    return np.concatenate([answer, np.full(length - len(answer), EOS)])


def full_rows(text: Text, rng: np.random.Generator, corrupt: float) -> Rows:
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
    tokens = np.concatenate([text.tokens[:start], noisy])
    count = len(tokens)
    return Rows(
        tokens,
        np.arange(count),
        np.ones((count, count), dtype=np.bool_),
        np.concatenate([text.tokens[:start], answer]),
        np.concatenate([np.zeros(start), weights]),
    )


def block_rows(
    text: Text, rng: np.random.Generator, size: int, causal: bool, causal_weight: float
) -> Rows:
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
    return Rows(
        np.concatenate([text.tokens, *copies]),
        np.concatenate([clean, noisy, noisy]),
        sees,
        np.concatenate([labels, shown, shown]),
        np.concatenate([own, *weights]),
    )


def order_rows(text: Text, rng: np.random.Generator) -> Rows:
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
    return Rows(
        np.concatenate([shown, np.full(size, MASK)]),
        np.concatenate([places, start + order]),
        sees,
        np.concatenate([shown, answer[order]]),
        np.concatenate([np.zeros(clean), np.full(size, 1 / size)]),
    )


def _canvas_length(text: Text, rng: np.random.Generator) -> int:
    # Room for an end token; more room is rarer.
    least = -(-(len(text.tokens) - text.prompt_length + 1) // _CANVAS)
    return _CANVAS * (least + int(rng.choice(4, p=[0.55, 0.2, 0.15, 0.1])))


def _drawn(rng: np.random.Generator, size: int, count: int) -> BoolArray:
    return rng.permutation(size) < count


# The network.


class DenoiserModule(nn.Module):
    """A Llama trunk whose rows see what they are told to, with the head tied to the embedding."""

    def __init__(self, recipe: DenoiserRecipe, vocabulary: int, generator: torch.Generator) -> None:
        super().__init__()
        self.head, width = recipe.head, recipe.width

        def drawn(rows: int, columns: int, scale: float = 1.0) -> nn.Parameter:
            values = torch.randn((rows, columns), generator=generator)
            return nn.Parameter(values * scale / math.sqrt(columns))

        self.embedding = nn.Parameter(torch.randn((vocabulary, width), generator=generator) * 0.02)
        self.norm = nn.Parameter(torch.ones(width))
        self.layers = nn.ModuleList()
        for _ in range(recipe.layers):
            layer = nn.Module()
            layer.attention_norm, layer.ffn_norm = (
                nn.Parameter(torch.ones(width)) for _ in range(2)
            )
            layer.q, layer.k, layer.v = (drawn(width, width) for _ in range(3))
            layer.o = drawn(width, width, 0.5)
            layer.gate, layer.up = (drawn(recipe.ffn, width) for _ in range(2))
            layer.down = drawn(width, recipe.ffn, 0.5)
            self.layers.append(layer)

    def forward(self, tokens: Tensor, positions: Tensor, sees: Tensor) -> Tensor:
        """Return logits `[bins, rows, vocabulary]`; arguments as in `Packed`."""
        x = self.embedding[tokens]
        halves = torch.arange(0, self.head, 2, dtype=torch.float32)
        angles = positions[..., None, None] * 10000.0 ** (-halves / self.head)
        cos, sin = angles.cos(), angles.sin()
        for layer in self.layers:
            y = _rms(x, layer.attention_norm)
            q, k, v = (
                functional.linear(y, part).unflatten(-1, (-1, self.head))
                for part in (layer.q, layer.k, layer.v)
            )
            q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
            found = functional.scaled_dot_product_attention(
                q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=sees
            )
            x = x + functional.linear(found.transpose(1, 2).flatten(2), layer.o)
            y = _rms(x, layer.ffn_norm)
            inner = functional.silu(functional.linear(y, layer.gate))
            x = x + functional.linear(inner * functional.linear(y, layer.up), layer.down)
        return functional.linear(_rms(x, self.norm), self.embedding)

    def rated(self, matrix_rate: float, vector_rate: float) -> list[Rated]:
        """Return Muon for the layers' matrices and AdamW for the embedding and norms."""
        every = dict(self.named_parameters())
        matrices = [p for name, p in every.items() if p.ndim == 2 and name != "embedding"]
        others = [p for name, p in every.items() if p.ndim == 1 or name == "embedding"]
        adam = torch.optim.AdamW(others, lr=vector_rate, betas=(0.9, 0.95), weight_decay=0.0)
        return [(Muon(matrices, matrix_rate), matrix_rate), (adam, vector_rate)]


def _rms(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, (x.shape[-1],), weight, 1e-5)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


# The vocabulary: words of the tasks.


def vocabulary() -> dict[str, int]:
    """Return ids by word: the special tokens, then the words of the tasks."""
    return {word: index for index, word in enumerate([*SPECIAL, *parallel_tasks.words()])}


def text_of(case: Case, ids: dict[str, int], index: int = 0) -> Text:
    """Return prompt and answer of a case as tokens, without an end token."""
    prompt, answer = case.prompt.split(), case.answer.split()
    tokens = np.array([ids[word] for word in (*prompt, *answer)], dtype=np.int64)
    return Text(index, tokens, len(prompt))


# Training.


class DenoiserTraining(TrainingRun[dict[str, float]]):
    """Resumable training of a denoiser on cases drawn as it goes.

    `judge` returns the share of strictly right answers on held-out cases by task.
    """

    def __init__(self, recipe: DenoiserRecipe, *, checkpoint_at: Path | None = None) -> None:
        """Initialise the weights or resume; errors as `TrainingRun`."""
        generator = torch.Generator().manual_seed(recipe.seed)
        self.recipe, self.ids = recipe, vocabulary()
        self.warm_up, self.clip = recipe.warm_up, recipe.clip
        self.module = DenoiserModule(recipe, len(self.ids), generator)
        self._tasks = list(parallel_tasks.TASKS.items())
        super().__init__(
            self.module,
            self.module.rated(recipe.matrix_rate, recipe.vector_rate),
            generator,
            (),
            (),
            steps=recipe.steps,
            batch_tokens=0,
            seed=recipe.seed,
            settings=asdict(recipe) | {"vocabulary": list(self.ids)},
            checkpoint_at=checkpoint_at,
        )

    def batches(self, epoch: int) -> list[list[Text]]:
        """Return the batch of step `epoch`, empty if it is done."""
        if epoch < self.step:
            return [[]]
        rng = np.random.default_rng((self.recipe.seed, epoch, 0))
        texts = []
        for index in range(self.recipe.batch):
            name, task = self._tasks[rng.integers(len(self._tasks))]
            case = parallel_tasks.draw(task, name, rng, False, int(rng.integers(3)))
            texts.append(text_of(case, self.ids, index))
        return [texts]

    def losses(self, texts: Sequence[Text]) -> Iterator[tuple[Tensor, float]]:
        rows = noised(texts, self.recipe, self.step)
        packed = pack(rows)
        logits = self.module(packed.tokens, packed.positions, packed.sees)
        counted = packed.weights > 0
        each = functional.cross_entropy(logits[counted], packed.labels[counted], reduction="none")
        loss = (each * packed.weights[counted]).sum() / len(texts)
        yield loss, float(loss.detach())

    def judge(self) -> dict[str, float]:
        return accuracy(self.module, self.recipe.kind, count=48)


def noised(texts: Sequence[Text], recipe: DenoiserRecipe, step: int) -> list[Rows]:
    """Return the rows of a step's batch, a function of the recipe's seed and the step."""
    rng = np.random.default_rng((recipe.seed, step, 1))
    if recipe.kind == "full":
        return [full_rows(text, rng, recipe.corrupt) for text in texts]
    if recipe.kind == "order":
        return [order_rows(text, rng) for text in texts]
    return [
        block_rows(text, rng, int(rng.choice(BLOCKS)), bool(i % 2), recipe.causal_weight)
        for i, text in enumerate(texts)
    ]


# A plain decoder, to judge by: one token per forward, the most confident first.


@torch.no_grad()
def decode(
    module: DenoiserModule,
    prompts: Sequence[IntArray],
    kind: Literal["full", "block", "order", "causal"],
    *,
    block: int = 8,
    length: int = 20,
) -> list[list[int]]:
    """Fill a place per forward, the most probable token first, and cut at the first end token.

    Args:
        kind: "causal" decodes a "block" denoiser from left to right by its clean rows.
        block: of "block", counted from the begin of the prompt.
        length: places of an answer at most.
    """
    answers = [np.full(length, MASK) for _ in prompts]
    filled: list[list[int]] = [[] for _ in prompts]  # places in the order of filling
    while True:
        open_ = [i for i, answer in enumerate(answers) if not _ended(answer)]
        if not open_:
            break
        examples, asked = [], []
        for i in open_:
            rows, at, places = _asked(prompts[i], answers[i], filled[i], kind, block)
            examples.append(rows)
            asked.append((at, places))
        packed = pack(examples)
        logits = module(packed.tokens, packed.positions, packed.sees)
        logits[..., [MASK, PAD, UNKNOWN]] = -torch.inf
        sure, best = logits.softmax(-1).max(-1)
        for i, (bin_, begin), (at, places) in zip(open_, packed.places, asked, strict=True):
            index = int(sure[bin_, begin + at].argmax())
            place = int(places[index])
            answers[i][place] = int(best[bin_, begin + int(at[index])])
            filled[i].append(place)
    return [answer[: _first_end(answer)].tolist() for answer in answers]


def _first_end(answer: IntArray) -> int:
    ends = np.flatnonzero(answer == EOS)
    return int(ends[0]) if len(ends) else len(answer)


def _ended(answer: IntArray) -> bool:
    return not (answer[: _first_end(answer)] == MASK).any()


def _asked(
    prompt: IntArray, answer: IntArray, filled: Sequence[int], kind: str, block: int
) -> tuple[Rows, IntArray, IntArray]:
    # Rows of the next forward, those that may be filled, and their places in the answer.
    start = len(prompt)
    hidden = np.flatnonzero(answer == MASK)
    both = np.concatenate([prompt, answer])
    if kind == "order":
        at = np.asarray(filled, dtype=np.int64)
        tokens = np.concatenate([prompt, answer[at], np.full(len(hidden), MASK)])
        positions = np.concatenate([np.arange(start), start + at, start + hidden])
        sees = np.tri(len(tokens), dtype=np.bool_)
        clean = start + len(at)
        sees[clean:, clean:] = np.eye(len(hidden), dtype=np.bool_)
        rows, places = np.arange(clean, len(tokens)), hidden
    elif kind == "causal":
        tokens, positions = both[: start + hidden[0]], np.arange(start + hidden[0])
        sees = np.tri(len(tokens), dtype=np.bool_)
        rows, places = np.array([len(tokens) - 1]), hidden[:1]
    else:
        end = len(both)
        if kind == "block":
            end = min(end, ((start + hidden[0]) // block + 1) * block)
        tokens, positions = both[:end], np.arange(end)
        of = positions // block if kind == "block" else np.zeros(end)
        sees = of[:, None] >= of
        places = hidden[start + hidden < end]
        rows = start + places
    nothing = np.zeros(len(tokens), dtype=np.int64)
    return Rows(tokens, positions, sees, nothing, nothing.astype(np.float64)), rows, places


def accuracy(
    module: DenoiserModule,
    kind: Literal["full", "block", "order", "causal"],
    *,
    count: int,
    seed: int = 0,
    block: int = 8,
) -> dict[str, float]:
    """Return the share of strictly right answers by task, on `count` held-out cases of each."""
    ids = vocabulary()
    words = {index: word for word, index in ids.items()}
    found = {}
    for name in parallel_tasks.TASKS:
        cases = list(parallel_tasks.cases(name, count, seed))
        texts = [text_of(case, ids) for case in cases]
        prompts = [text.tokens[: text.prompt_length] for text in texts]
        answers = decode(module, prompts, kind, block=block)
        right = [
            parallel_tasks.grade(case, " ".join(words[i] for i in answer)).strict
            for case, answer in zip(cases, answers, strict=True)
        ]
        found[name] = sum(right) / count
    return found
