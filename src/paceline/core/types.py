"""Core types of speculative decoding: distributions, token trees, verdicts, parameters.

A *drafter* proposes a *draft* (`TokenTree`) under the *root*, the last committed token, whose keys
and values are not cached yet. A *verdict* is the accepted path and the next token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from numbers import Integral, Real
from typing import ClassVar, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from paceline.core.options import check_text
from paceline.errors import InvalidOption

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
LogitArray = npt.NDArray[np.float32]
ProbArray = npt.NDArray[np.float64]

SamplingScheme = Literal["iid", "paths", "without_replacement", "top_and_one", "factorised"]
FinishReason = Literal["stop", "loop", "length", "cancelled"]

_Function = TypeVar("_Function", bound=Callable[..., object])

# Parent index of children of the root.
ROOT = -1


@dataclass(frozen=True, slots=True)
class Distribution:
    """Probability distribution over the vocabulary, stored on its support.

    `probs` is float64 `[k]`, summing to one. `ids` is int64 `[k]`, ascending token ids of the
    support, or None for the whole vocabulary, `size` tokens.
    """

    probs: ProbArray
    ids: IntArray | None
    size: int

    def token(self, index: int) -> int:
        return index if self.ids is None else int(self.ids[index])

    def prob(self, token: int) -> float:
        if self.ids is None:
            return float(self.probs[token])
        index = int(np.searchsorted(self.ids, token))
        hit = index < len(self.ids) and self.ids[index] == token
        return float(self.probs[index]) if hit else 0.0

    def at(self, ids: IntArray | None) -> ProbArray:
        """Return float64 probabilities of `ids` (any int64 ids; None for the whole vocabulary)."""
        if ids is None:
            return self.dense()
        if self.ids is None:
            return self.probs[ids]
        places = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(self.ids[places] == ids, self.probs[places], 0.0)

    def dense(self) -> ProbArray:
        """Return float64 `[size]` with zeros outside the support."""
        if self.ids is None:
            return self.probs
        out = np.zeros(self.size)
        out[self.ids] = self.probs
        return out

    def argmax(self) -> int:
        """Return the argmax token, ties to the lowest id."""
        return self.token(int(self.probs.argmax()))


@dataclass(frozen=True, slots=True)
class DraftSampling:
    """Sampling scheme of a draft.

    Whether a node gets one more child is decided before that child is drawn (predictability), but
    may depend on elder siblings; verifiers therefore try siblings in order. The kinds:

    * "iid": children drawn independently from the node's row.
    * "paths": `paths` drawn independently, each token from the row of its prefix, and merged.
    * "without_replacement": children drawn one after another from the rest, in node order.
    * "top_and_one": the row's most likely tokens, and a last child drawn from the rest.
    * "factorised": a chain whose rows do not depend on earlier drafted tokens (Jacobi windows).

    Attributes:
        rows: by parent node, the draft distribution q of its children, after the same logits
            processing as the target.
        draws: kind "iid": by parent, children in the order drawn, with repeats. A parent without
            an entry drew each child once, in node order.
        paths: kind "paths": each path as node indices from a child of the root down.
    """

    kind: SamplingScheme
    rows: Mapping[int, Distribution]
    draws: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    paths: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class TokenTree:
    """Draft tree: proposed tokens under the root, in topological order.

    Attributes:
        tokens: int64 `[n]`.
        parents: int64 `[n]`, `ROOT` for children of the root; a parent precedes its children.
        sampling: sampling scheme, or None if the draft is deterministic, a function of the
            committed tokens alone. Lossless p/q rules must refuse the latter.
        source: name of the drafter.
        scores: float64 `[n]`, acceptance probability of each node, never above its parent's.
        origins: per node, its drafter, where several worked together; else empty.
        first: the drafter's distribution under the root, where it has one.
    """

    tokens: IntArray
    parents: IntArray
    sampling: DraftSampling | None = None
    source: str = ""
    scores: ProbArray | None = None
    origins: tuple[str, ...] = ()
    first: Distribution | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def origin(self, node: int) -> str:
        return self.origins[node] if self.origins else self.source


class Verdict(NamedTuple):
    """Outcome of one verification: accepted path and correction or bonus token.

    `path` is node indices from a child of the root downwards.
    """

    path: tuple[int, ...]
    next_token: int


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a draft.

    Drafts may end at nodes with an acceptance probability below `least`. To verify a node takes
    `row` of a plain step's time, where that is known.
    """

    nodes: int
    depth: int
    least: float = 0.0
    row: float = 0.0


@dataclass(frozen=True, slots=True)
class Speculation:
    """Limits that a request sets to its drafts; None leaves them to the controller.

    `enabled` False is autoregressive decoding. Lossless rules preserve the output distribution.

    Attributes:
        draft: tokens that the client drafted for the beginning of the answer; rules by p/q, which
            need their distribution, leave them.
        once: end the request with its first verification.
        prediction: tokens, any number of them, that the answer is likely to repeat: drafted from
            where the answer follows them, by the same rules.
        marks: the first of the ids that only mark places in a prediction, such as times: they come
            and go, and where the answer has a later one those behind it are later, too.
    """

    nodes: int | None = None
    depth: int | None = None
    enabled: bool = True
    draft: tuple[int, ...] = ()
    once: bool = False
    prediction: tuple[int, ...] = ()
    marks: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("nodes", self.nodes), ("depth", self.depth)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise InvalidOption(
                    f"speculation {name} must be 1 or more, not {value!r}: for plain decoding use "
                    "enabled=False"
                )

    def cap(self, budget: Budget) -> Budget:
        """Return `budget` reduced to these limits."""
        if not self.enabled:
            return Budget(0, 0)
        if self.nodes is None and self.depth is None:
            return budget
        sizes = [size for size in (self.nodes, self.depth) if size is not None]
        nodes = budget.nodes if self.nodes is None else min(budget.nodes, self.nodes)
        return replace(budget, nodes=nodes, depth=min(budget.depth, *sizes))


UNLIMITED = Speculation()


Attention = Literal["full", "block", "order", "causal"]


@dataclass(frozen=True, slots=True)
class CanvasTraits:
    """How a model fills a canvas.

    Attributes:
        mask: id of the mask token; its logit never counts.
        attention: what it was trained with: "full", "block" (block-causal), "order" (in the order
            of filling) or "causal" (clean rows are causal, a group of masks sees the text before it
            and itself).
        block: trained block, of attention "block"; None if any.
        shifted: logits of row i speak of place i + 1.
        autoregressive: clean causal rows predict the next token.
        ends: tokens that end a text, beside those of the tokenizer.
    """

    mask: int
    attention: Attention
    block: int | None = None
    shifted: bool = False
    autoregressive: bool = False
    ends: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CanvasParams:
    """How a request fills its canvas; None leaves a part to the model's default.

    Attributes:
        sampler: an expression, see `paceline methods`.
        block: places that are filled before those right of them.
        cache: the cache plan.
        ending: what a filled end token does: "fill" nothing until all before it is filled, "cut"
            ends the canvas there (EoTP), "hold" bans it but at the first masked place.
        steps: report what is filled at each step.
        prompt_rows: of a model with blocks, the prompt's rows see their "blocks"; "causal" ones see
            what stands before them, and the answer's blocks begin behind the prompt (DiDA).
    """

    sampler: str | None = None
    block: int | None = None
    cache: str | None = None
    ending: Literal["fill", "cut", "hold"] = "fill"
    steps: bool = False
    prompt_rows: Literal["blocks", "causal"] = "blocks"

    def __post_init__(self) -> None:
        for name, kind, value in (
            ("sampler", str, self.sampler),
            ("block", int, self.block),
            ("cache", str, self.cache),
        ):
            if value is not None and type(value) is not kind:
                raise InvalidOption(f"{name} must be of type {kind.__name__}, not {value!r}")
        if self.block is not None and not 1 <= self.block < 2**31:
            raise InvalidOption(f"block must be from 1 to {2**31 - 1}, not {self.block}")
        if self.ending not in ("fill", "cut", "hold"):
            raise InvalidOption(f"ending {self.ending!r} is unknown: use fill, cut or hold")
        if self.prompt_rows not in ("blocks", "causal"):
            raise InvalidOption(f"prompt_rows must be blocks or causal, not {self.prompt_rows!r}")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of a target, declared by its runtime.

    Attributes:
        hidden_states: whether `Rows.hidden` is supported.
        feature_layers: layers whose inputs are in `Output.features`, lowest first; empty if
            `Rows.features` is not supported.
        bit_exact: logits do not depend on batch composition and draft, bit for bit. Otherwise
            near-ties may resolve differently.
        tree: whether drafts may branch.
        kv_precision: kv dtype, or None for that of the model.
        blocks: it runs `Rows.block`, rows with inputs, and layers apart.
        networks: it runs drafter networks, as a `paceline.networks.runner.NetworkTarget`.
        embeddings: draft nodes may hold embeddings: it has `add_embeddings`.
        paged: it is an `paceline.engine.memory.Paged`.
        timed: it tells what its forwards take: `inference_seconds`, and `counted` by operation.
        head: token ids of its logits, ascending, if it was loaded without the others.
        denoises: how it fills a canvas, if it was trained to.
        rollback: how many cached tokens `truncate` can drop unless more are asked for
            (`GoesBack`); None for any number.
    """

    runtime: str
    device: str
    precision: str
    vocab_size: int
    max_context: int
    hidden_size: int
    hidden_states: bool
    bit_exact: bool
    tree: bool = True
    feature_layers: tuple[int, ...] = ()
    kv_precision: str | None = None
    kv_bytes_per_token: int = 0
    blocks: bool = False
    networks: bool = False
    embeddings: bool = False
    paged: bool = False
    endless: bool = False
    timed: bool = False
    head: tuple[int, ...] | None = None
    denoises: CanvasTraits | None = None
    rollback: int | None = None


@dataclass(frozen=True, slots=True)
class Needs:
    """Outputs that a drafter or verifier needs: final hidden states of root and nodes, logits of
    rejected nodes, features of several layers (`Output.features`).

    `recent` limits features to the prompt's last tokens, so that the prefix cache can serve the
    others; None needs all.
    """

    hidden: bool = False
    node_logits: bool = False
    features: bool = False
    recent: int | None = None


# Bound of penalties and biases. Logits of models are below 1e4, so larger ones change nothing; sums
# over a text of any length stay far from overflow, and float64 keeps differences of 1e-9 beside it.
LARGEST = 1e6

# Order in which samplers apply. Penalties and DRY stand first in any order.
SAMPLERS: tuple[str, ...] = ("penalties", "dry", "temperature", "top_n_sigma", "top_k", "typ_p")
SAMPLERS += ("top_p", "min_p", "xtc")
# Samplers that mean nothing at temperature 0, and the values that turn them off.
OF_CHANCE = {"typical_p": 1, "dynatemp_range": 0, "xtc_probability": 0, "mirostat": 0}


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters and stop conditions.

    Applied in this order: repetition, presence and frequency penalties, logit bias, banned tokens,
    allowed tokens, end tokens before `min_tokens`, forced tokens (which none of these excludes),
    DRY, temperature, top-n-sigma, top-k, typical, top-p, min-p, XTC, mirostat. At temperature 0
    what stands before the temperature still counts; top-n-sigma, top-k, top-p and min-p never
    exclude the most likely token; the others are refused.

    Attributes:
        temperature: 0 is greedy.
        top_k: retain the k most likely tokens (and ties of the last); 0 is off.
        top_p: retain the smallest set of most likely tokens with this mass, in (0, 1].
        min_p: drop tokens below this times the largest probability, in [0, 1].
        repetition_penalty: divides positive and multiplies negative logits of tokens in prompt or
            output; 1 is off.
        presence_penalty: subtracted once from logits of tokens in the output.
        frequency_penalty: subtracted once per occurrence in the output.
        logit_bias: token id to additive bias.
        forced_tokens: output index (0 = first generated token) to token id.
        stop: strings that end the text, cut from it.
        stop_token_ids: ids that end generation, beside the model's own end tokens.
        stop_loops: end on repetition (`stopping.ends_in_loop`).
        logprobs: number of most likely tokens to report (log-softmax of raw logits); 0 reports
            only the committed token, None nothing.
        max_new_tokens: most tokens to generate; 0 only with `prompt_logprobs`.
        prompt_logprobs: the same of every prompt token but the first.
        min_tokens: tokens that would end the text have probability 0 before so many tokens. Stop
            strings still end it, and so does a constraint that lets nothing else follow.
        allowed_tokens: if not empty, all others are banned.
        keep_stop: the stop string that ended the text stays in it.
        shown_tokens: special tokens that the text shows; it leaves out all others.
        repeat_last_n: penalties look at the last tokens of prompt and output, so many; -1 at all.
        dry_multiplier, mirostat, xtc_probability, top_n_sigma, dynatemp_range: 0 is off. These and
            fields beside them are llama.cpp's (docs/serving.md); -1 of `dry_penalty_last_n` is all.
        typical_p: retain tokens of typical surprise with this mass, in (0, 1].
        samplers: names of `SAMPLERS` in another order; those that are not named are off.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    banned_tokens: tuple[int, ...] = ()
    forced_tokens: Mapping[int, int] = field(default_factory=dict)
    seed: int = 0
    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    stop_loops: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    min_tokens: int = 0
    allowed_tokens: tuple[int, ...] = ()
    keep_stop: bool = False
    shown_tokens: tuple[int, ...] = ()
    repeat_last_n: int = -1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    samplers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        def check(good: bool, name: str, rule: str) -> None:
            if not good:
                raise InvalidOption(f"{name} must be {rule}, not {getattr(self, name)!r}")

        def within(least: float, most: float, *names: str) -> None:
            for name in names:
                value = getattr(self, name)
                check(least <= value <= most, name, f"from {least:g} to {most:g}")

        for name, (kind, rule) in _KINDS.items():
            value = getattr(self, name)
            optional = name in ("logprobs", "prompt_logprobs")
            fits = isinstance(value, kind) and not isinstance(value, str | bytes)
            check(fits or (optional and value is None), name, rule)
        finite = math.isfinite
        check(
            finite(self.temperature) and self.temperature >= 0, "temperature", "0 (greedy) or more"
        )
        check(0 <= self.top_k < 2**63, "top_k", "0 (off) or a count below 2 ** 63")
        check(0 < self.top_p <= 1, "top_p", "in (0, 1]")
        check(0 <= self.min_p <= 1, "min_p", "in [0, 1]")
        check(
            1 / LARGEST <= self.repetition_penalty <= LARGEST,
            "repetition_penalty",
            f"from {1 / LARGEST:g} to {LARGEST:g} (1 is off)",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            check(abs(getattr(self, name)) <= LARGEST, name, f"within {LARGEST:g} of 0")
        check(
            all(isinstance(b, Real) and abs(b) <= LARGEST for b in self.logit_bias.values()),
            "logit_bias",
            f"within {LARGEST:g} of 0 for every token",
        )
        least = 1 if self.prompt_logprobs is None else 0
        check(
            self.max_new_tokens >= least,
            "max_new_tokens",
            "1 or more (0 if only the prompt is scored)",
        )
        check(0 <= self.min_tokens <= self.max_new_tokens, "min_tokens", "from 0 to max_new_tokens")
        check(all(isinstance(s, str) for s in self.stop), "stop", "a tuple of strings")
        check(all(self.stop), "stop", "free of empty strings")
        check_text("stop", self.stop)
        check(self.seed >= 0, "seed", "0 or more")
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            check(value is None or value >= 0, name, "0 or more, or None")
        within(-1, 2**31 - 1, "repeat_last_n", "dry_penalty_last_n")
        within(0, 2**31 - 1, "dry_allowed_length")
        within(0, LARGEST, "dry_multiplier", "dynatemp_range", "dynatemp_exponent")
        within(0, LARGEST, "mirostat_tau", "mirostat_eta")
        within(-1, LARGEST, "top_n_sigma")
        within(1, LARGEST, "dry_base")
        within(0, 1, "xtc_probability", "xtc_threshold")
        check(0 < self.typical_p <= 1, "typical_p", "in (0, 1]")
        check(self.mirostat in (0, 1, 2), "mirostat", "0 (off), 1 or 2")
        words, order = self.dry_sequence_breakers, self.samplers
        proper = all(isinstance(word, str) and 0 < len(word) <= 40 for word in words)
        rule = "a tuple of at most 64 strings of 1 to 40 characters"
        check(proper and len(words) <= 64, "dry_sequence_breakers", rule)
        check_text("dry_sequence_breakers", words)
        early = [name in SAMPLERS[:2] for name in order]
        known = all(name in SAMPLERS for name in order)
        rule = f"a tuple of {', '.join(SAMPLERS)}, once each, penalties and dry before the others"
        right = known and len(set(order)) == len(order) and early == sorted(early, reverse=True)
        check(right, "samplers", rule)
        for name, off in OF_CHANCE.items() if self.greedy else ():
            if getattr(self, name) != off:
                raise InvalidOption(
                    f"{name} has no meaning at temperature 0, which takes the most likely token: "
                    "raise temperature, or leave it out"
                )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def preset(self) -> bool:
        """Whether it asks for more than temperature, top-k, top-p and min-p in that order."""
        beyond = self.typical_p < 1 or self.top_n_sigma > 0 or self.dynatemp_range > 0
        return beyond or self.xtc_probability > 0 or self.mirostat > 0 or bool(self.samplers)


_FIELDS = SamplingParams.__slots__
_OF_DEFAULT = {
    float: (Real, "a number"),
    int: (Integral, "a whole number"),
    type(None): (Integral, "a whole number"),
    tuple: (Collection, "a tuple"),
    type(MISSING): (Mapping, "a mapping of tokens"),
}
_KINDS: dict[str, tuple[type, str]] = {
    each.name: _OF_DEFAULT[type(each.default)]
    for each in fields(SamplingParams)
    if type(each.default) in _OF_DEFAULT
}
PRESETS: tuple[str, ...] = tuple(_FIELDS[_FIELDS.index("repeat_last_n") :])
"""Fields of the samplers that presets of other engines name."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of a committed token under the raw logits, and of the most likely others."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Described:
    """A method that the table of methods lists. Its module imports without any extra.

    Attributes:
        name: as options say it.
        guarantee: a few words; lossy methods start with "lossy".
        requires: what it needs, "-" for nothing.
        paper: "NAME, AUTHORS YEAR, PLACE", or "-"; "after NAME, ..." if it differs from the paper.
        proof: "module:attribute" of a `paceline.proof.cases.Proof`, for `paceline audit inside`.
    """

    name: ClassVar[str]
    guarantee: ClassVar[str] = "lossless"
    requires: ClassVar[str] = "-"
    paper: ClassVar[str] = "-"
    proof: ClassVar[str | None] = None


def described(guarantee: str, requires: str, paper: str) -> Callable[[_Function], _Function]:
    """Describe a function that is a method."""

    def mark(function: _Function) -> _Function:
        vars(function).update(guarantee=guarantee, requires=requires, paper=paper, proof=None)
        return function

    return mark
