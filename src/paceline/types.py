"""The nouns of speculative decoding that every part of the engine shares.

Words used here and everywhere: the *target* is the model whose output law is promised; a *drafter*
proposes; a *draft* is a `TokenTree`; the *root* is the last committed token, whose keys and values
are not cached yet; a *verdict* is the accepted path and the next token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.errors import InvalidOption

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
LogitArray = npt.NDArray[np.float32]
ProbArray = npt.NDArray[np.float64]

LawKind = Literal["iid", "paths", "without_replacement", "top_and_one", "factorised"]
FinishReason = Literal["stop", "loop", "length", "cancelled"]
Layout = Literal["exact", "masked"]

ROOT = -1
"""Parent index of the nodes that hang directly under the root."""


@dataclass(frozen=True, slots=True)
class Law:
    """A distribution over the vocabulary, kept on its support.

    Attributes:
        probs: float64 `[k]`, summing to one.
        ids: int64 `[k]` ascending token ids of the support, or None when it is the whole
            vocabulary (`k == size`).
        size: width of the vocabulary.
    """

    probs: ProbArray
    ids: IntArray | None
    size: int

    def token(self, index: int) -> int:
        """Token id at `index` of the support."""
        return index if self.ids is None else int(self.ids[index])

    def prob(self, token: int) -> float:
        """Probability of `token`."""
        if self.ids is None:
            return float(self.probs[token])
        index = int(np.searchsorted(self.ids, token))
        hit = index < len(self.ids) and self.ids[index] == token
        return float(self.probs[index]) if hit else 0.0

    def at(self, ids: IntArray | None) -> ProbArray:
        """float64, probability of each of `ids` (any int64 ids; None for the whole vocabulary)."""
        if ids is None:
            return self.dense()
        if self.ids is None:
            return self.probs[ids]
        places = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(self.ids[places] == ids, self.probs[places], 0.0)

    def dense(self) -> ProbArray:
        """float64 `[size]` with zeros outside the support."""
        if self.ids is None:
            return self.probs
        out = np.zeros(self.size)
        out[self.ids] = self.probs
        return out

    def argmax(self) -> int:
        """The most likely token; the lowest id among equals."""
        return self.token(int(self.probs.argmax()))


@dataclass(frozen=True, slots=True)
class DraftLaw:
    """How the tokens of a sampled draft were drawn.

    Whether a node gets one more child was decided before that child was drawn (predictability);
    its elder siblings may have a say, so rules try siblings in order. The kinds:

    * "iid": the children of a node were drawn independently of each other from its row.
    * "paths": `paths` were drawn independently, each token from the row of its prefix, and merged
      where they agree; so the children of a node are independent draws, one per path through it.
    * "without_replacement": children were drawn from the row one after another, in node order,
      each from what its elder siblings left over.
    * "top_and_one": all children but the last are the row's most likely tokens, and the last was
      drawn from the rest of the row.
    * "factorised": a chain whose rows do not depend on the drafted tokens before them (parallel
      drafters, Jacobi windows).

    Attributes:
        kind: see above.
        rows: by parent node (`ROOT` for the root), the exact law q that its children were drawn
            from, after the same logits processing as the target.
        draws: kind "iid": by parent, its children in the order drawn, with repeats where a token
            was drawn again. A parent without an entry drew each child once, in node order.
        paths: kind "paths": the drawn paths, each as node indices from a child of the root down.
    """

    kind: LawKind
    rows: Mapping[int, Law]
    draws: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    paths: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class TokenTree:
    """A draft: a forest of proposed tokens under the root, in topological order.

    Attributes:
        tokens: int64 `[n]`, the proposed token of each node.
        parents: int64 `[n]`, index of each node's parent, `ROOT` for children of the root; a
            parent precedes its children.
        law: how the tokens were drawn, or None if the draft is a function of the committed tokens
            alone (n-grams, retrieval, top-k), which lossless p/q rules must refuse.
        source: name of the drafter, for display and statistics.
        scores: float64 `[n]`, estimated probability that each node is accepted, if the drafter
            has an estimate; never larger than the parent's.
        origins: per node, the drafter it came from, where several worked together; empty if all
            came from `source`.
    """

    tokens: IntArray
    parents: IntArray
    law: DraftLaw | None = None
    source: str = ""
    scores: ProbArray | None = None
    origins: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    def origin(self, node: int) -> str:
        """The drafter that a node came from."""
        return self.origins[node] if self.origins else self.source


class Verdict(NamedTuple):
    """Outcome of one verification.

    Attributes:
        path: node indices of the accepted path, from a child of the root downwards.
        next_token: the correction or bonus token that follows the path.
    """

    path: tuple[int, ...]
    next_token: int


@dataclass(frozen=True, slots=True)
class Budget:
    """How large a draft may be.

    Attributes:
        nodes: most of them.
        depth: of the deepest one.
        least: chance of being accepted below which a node is not worth its verification; drafts may
            end there.
    """

    nodes: int
    depth: int
    least: float = 0.0


@dataclass(frozen=True, slots=True)
class Speculation:
    """Limits that a request sets to drafting for it; lossless rules give it the same law anyway.

    Attributes:
        nodes: most drafted tokens per step; None leaves it to the controller.
        depth: deepest draft; None leaves it to the controller.
        enabled: False is plain decoding.
    """

    nodes: int | None = None
    depth: int | None = None
    enabled: bool = True

    def __post_init__(self) -> None:
        for name, value in (("nodes", self.nodes), ("depth", self.depth)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise InvalidOption(
                    f"speculation {name} must be 1 or more, not {value!r}: for plain decoding use "
                    "enabled=False"
                )

    def cap(self, budget: Budget) -> Budget:
        """The part of a budget that the request allows."""
        if not self.enabled:
            return Budget(0, 0)
        if self.nodes is None and self.depth is None:
            return budget
        sizes = [size for size in (self.nodes, self.depth) if size is not None]
        nodes = budget.nodes if self.nodes is None else min(budget.nodes, self.nodes)
        return Budget(nodes, min(budget.depth, *sizes), budget.least)


UNLIMITED = Speculation()
"""Leaves drafting to the controller."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a target can do, as its runtime declares it.

    Attributes:
        runtime: registry name of the runtime.
        device: where it runs, "cpu" or "cuda".
        precision: weights and activations, e.g. "int8", "fp32", "bf16".
        vocab_size: width of a logits row.
        max_context: longest sequence in tokens.
        hidden_size: width of a hidden-state row.
        hidden_states: whether `Pass.hidden` is honoured.
        feature_layers: layers whose inputs stand in `Output.features`, lowest first; empty if
            `Pass.features` is not honoured.
        bit_exact: whether a token's logits are the same numbers however its pass was batched and
            drafted (layout "exact"). Where False, near-ties may resolve differently.
        layout: tree layout in use.
        attention: which operation attends: "paths" (our own) or "plugin" on runtime openvino; empty
            where there is one only.
        tree: whether drafts with branches are supported.
        row_buckets: if not empty, forwards are padded to the next of these row counts, and
            changing from one to another costs extra.
        kv_precision: of the key-value cache, or None where it is that of the model.
        kv_lossy: whether the cache rounds so coarsely that texts differ noticeably from those of
            the model; drafts may change nothing all the same (`bit_exact`).
        kv_bytes_per_token: memory that a cached token takes, or 0 where it is not known.
    """

    runtime: str
    device: str
    precision: str
    vocab_size: int
    max_context: int
    hidden_size: int
    hidden_states: bool
    bit_exact: bool
    layout: Layout
    tree: bool = True
    row_buckets: tuple[int, ...] = ()
    feature_layers: tuple[int, ...] = ()
    kv_precision: str | None = None
    kv_lossy: bool = False
    kv_bytes_per_token: int = 0
    attention: str = ""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a drafter needs from the target's passes.

    Attributes:
        hidden: final hidden states (before the LM head) of the root and of every node.
        node_logits: logits of rejected nodes too (all runtimes give them).
        features: hidden states of several layers, of the prompt as well (`Output.features`).
        recent: of how many of the prompt's last tokens; None wants those of all, and then nothing
            that others have cached can be shared.
    """

    hidden: bool = False
    node_logits: bool = False
    features: bool = False
    recent: int | None = None


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is drawn from the target's logits, and when to stop.

    Processors apply in this order: repetition, presence and frequency penalties, logit bias,
    banned tokens, forced tokens, temperature, top-k, top-p, min-p.

    Attributes:
        temperature: 0 is greedy.
        top_k: keep the k most likely tokens (and ties of the last); 0 keeps all.
        top_p: keep the smallest set of most likely tokens whose mass reaches this, in (0, 1].
        min_p: drop tokens less likely than this times the most likely one, in [0, 1].
        repetition_penalty: divides positive and multiplies negative logits of tokens already in
            the prompt or output; 1 is off.
        presence_penalty: subtracted once from logits of tokens already in the output.
        frequency_penalty: subtracted once per occurrence in the output.
        logit_bias: token id to additive bias.
        banned_tokens: ids that may never be generated.
        forced_tokens: output index (0 = first generated token) to the id that must stand there.
        seed: keys all randomness of the request.
        max_new_tokens: most tokens to generate.
        stop: strings that end the text; the string itself is cut from it.
        stop_token_ids: ids that end generation, beside the model's own end tokens.
        ignore_eos: go on after the model's own end tokens.
        stop_loops: end a text that has come to repeat itself: its last tokens, 24 or more, are one
            run of up to 128 tokens three times over.
        logprobs: how many of the most likely tokens to report beside the chosen one (log-softmax
            of the raw logits); None reports nothing, 0 the chosen one alone.
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

    def __post_init__(self) -> None:
        def check(good: bool, name: str, rule: str) -> None:
            if not good:
                raise InvalidOption(f"{name} must be {rule}, not {getattr(self, name)!r}")

        finite = math.isfinite
        check(
            finite(self.temperature) and self.temperature >= 0, "temperature", "0 (greedy) or more"
        )
        check(self.top_k >= 0, "top_k", "0 (off) or a positive count")
        check(0 < self.top_p <= 1, "top_p", "in (0, 1]")
        check(0 <= self.min_p <= 1, "min_p", "in [0, 1]")
        check(
            finite(self.repetition_penalty) and self.repetition_penalty > 0,
            "repetition_penalty",
            "more than 0 (1 is off)",
        )
        check(finite(self.presence_penalty), "presence_penalty", "a finite number")
        check(finite(self.frequency_penalty), "frequency_penalty", "a finite number")
        check(
            all(finite(b) for b in self.logit_bias.values()), "logit_bias", "finite for every token"
        )
        check(self.max_new_tokens >= 1, "max_new_tokens", "1 or more")
        check(not isinstance(self.stop, str), "stop", "a tuple of strings")
        check(all(self.stop), "stop", "free of empty strings")
        check(self.seed >= 0, "seed", "0 or more")
        check(self.logprobs is None or self.logprobs >= 0, "logprobs", "0 or more, or None")

    @property
    def greedy(self) -> bool:
        """Whether the next token is a function of the logits alone."""
        return self.temperature == 0


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of a committed token under the raw logits, and of the likeliest others."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
