"""Audit cases: vocabulary and draft sizes, and sampling parameters."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any, ClassVar

import numpy as np

from paceline.core import tree as trees
from paceline.core.types import (
    Budget,
    Distribution,
    DraftSampling,
    LogitArray,
    SamplingParams,
    SamplingScheme,
    TokenTree,
)
from paceline.drafters.base import Drafter
from paceline.errors import InvalidOption
from paceline.proof.tabular import DistributionOf, LogitsOf, TabularModel
from paceline.registry import table as registry
from paceline.sampling.generation import Generation
from paceline.sampling.randomness import Draw, Purpose, Randomness
from paceline.trees.base import DistributionRequest, TreeExpansion, run_batched
from paceline.trees.deterministic import ExpandRerank, SharedNoise, Static
from paceline.trees.drawn import Branching, Iid, Paths, StochasticBeam, TopAndOne
from paceline.trees.dyspec import Dynamic, Threshold
from paceline.trees.shapes import MEDUSA, confident
from paceline.verifiers.base import Shape, Verifier

# From a context, a source of draws and a budget to a draft.
Propose = Callable[[tuple[int, ...], Randomness, Budget], TokenTree]


def grown(growth: TreeExpansion, distribution: DistributionOf) -> Propose:
    """Build a drafter from a tree expansion and a draft distribution."""

    def propose(context: tuple[int, ...], randomness: Randomness, budget: Budget) -> TokenTree:
        def answer(asks: Mapping[int, DistributionRequest]) -> dict[int, list[Distribution]]:
            return {index: [after(ask.tree, n) for n in ask.nodes] for index, ask in asks.items()}

        def after(tree: TokenTree, node: int) -> Distribution:
            return distribution((*context, *tree.tokens[list(trees.path_to(tree, node))].tolist()))

        [tree] = run_batched([growth.grow(budget, randomness, len(context))], answer)
        return replace(tree, source=growth.name)

    return propose


def sampled_chain(distribution: DistributionOf) -> Propose:
    """Build a drafter of sampled chains that reports its rows."""
    return grown(Iid([1]), distribution)


def random_tree(vocabulary: int, nodes: int, seed: int) -> Propose:
    """Build a drafter whose tree is an arbitrary but fixed function of the context."""

    @cache
    def tree(context: tuple[int, ...]) -> TokenTree:
        generator = np.random.default_rng([seed, len(context), *context])
        tokens: list[int] = []
        parents: list[int] = []
        for _ in range(nodes):
            edge = (int(generator.integers(-1, len(tokens))), int(generator.integers(vocabulary)))
            if edge not in zip(parents, tokens, strict=True):
                parents.append(edge[0])
                tokens.append(edge[1])
        return TokenTree(
            np.asarray(tokens, dtype=np.int64),
            np.asarray(parents, dtype=np.int64),
            source="random-tree",
        )

    def propose(context: tuple[int, ...], randomness: Randomness, budget: Budget) -> TokenTree:
        return trees.limit(tree(context), budget.nodes, budget.depth)

    return propose


def likely_chain(distribution: DistributionOf) -> Propose:
    """Build a drafter of argmax chains."""

    def propose(context: tuple[int, ...], randomness: Randomness, budget: Budget) -> TokenTree:
        tokens: list[int] = []
        for _ in range(min(budget.depth, budget.nodes)):
            tokens.append(distribution((*context, *tokens)).argmax())
        return trees.chain(tokens, "likely-chain")

    return propose


class FunctionDrafter(Drafter):
    """`Propose` as a drafter of the decode loop."""

    name: ClassVar[str] = "function"

    def __init__(self, propose: Propose) -> None:
        self._propose = propose

    def draft(self, sequence: Generation, budget: Budget) -> TokenTree:
        return self._propose(tuple(sequence.tokens), sequence.randomness, budget)


# Threshold of expansion and pruning: low enough for siblings and several levels.
_LEAST = 0.15


@dataclass(frozen=True, slots=True)
class Draftable:
    """One drafting method.

    Attributes:
        kind: declared kind of the draft distribution; None for deterministic drafts.
        nodes: node budget from width and depth.
        build: stateless drafter from a draft distribution, the vocabulary and a width.
        drafter: instead, for stateful drafters, which run in whole loops alone.
    """

    name: str
    kind: SamplingScheme | None
    shape: Shape
    nodes: Callable[[int, int], int]
    build: Callable[[DistributionOf, int, int], Propose] | None = None
    drafter: Callable[[LogitsOf, int], Drafter] | None = None

    def fits(self, verifier: Verifier) -> bool:
        """Return whether `verifier` accepts such drafts."""
        shaped = self.shape == "chain" or verifier.shape == "tree"
        return shaped and self.kind in verifier.accepts

    def budget(self, width: int, depth: int) -> Budget:
        return Budget(self.nodes(width, depth), depth)


def factorised_chain(distribution: DistributionOf) -> Propose:
    """Build a drafter whose rows depend on committed tokens and depth, not on drafted tokens."""

    def propose(context: tuple[int, ...], randomness: Randomness, budget: Budget) -> TokenTree:
        root = len(context) - 1
        depth = min(budget.depth, budget.nodes)
        rows = {level - 1: distribution((*context, *[0] * level)) for level in range(depth)}
        tokens = [
            q.token(randomness.choice(q.probs, Draw(root + 2 + parent, Purpose.DRAFT, root=root)))
            for parent, q in rows.items()
        ]
        return trees.chain(
            tokens, "factorised", DraftSampling("factorised", rows) if rows else None
        )

    return propose


def pruned(propose: Propose) -> Propose:
    """Build a drafter that prunes unlikely nodes of another's drafts, which must not be drawn."""
    return lambda context, randomness, budget: confident(
        propose(context, randomness, budget), _LEAST
    )


# Nodes, by width and depth, of `width` chains.
straight = operator.mul


def _full(width: int, depth: int) -> int:
    return sum(width**level for level in range(1, depth + 1))


def _grown(
    name: str, make: Callable[[int], TreeExpansion], nodes: Callable[[int, int], int] = straight
) -> Draftable:
    kind = make(1).kind
    return Draftable(name, kind, "tree", nodes, lambda q, vocabulary, width: grown(make(width), q))


def _chain(
    name: str, kind: SamplingScheme | None, build: Callable[[DistributionOf], Propose]
) -> Draftable:
    return Draftable(name, kind, "chain", straight, lambda q, vocabulary, width: build(q))


DRAFT_LAWS: tuple[Draftable, ...] = (
    _chain("likely chain", None, likely_chain),
    Draftable("any tree", None, "tree", _full, lambda q, v, w: random_tree(v, 4 * w, w)),
    _grown("shared noise", lambda width: SharedNoise([width])),
    _grown("expand and rerank", ExpandRerank),
    _grown("static shape", lambda width: Static(MEDUSA)),
    Draftable(
        "pruned by confidence",
        None,
        "tree",
        _full,
        lambda q, v, w: pruned(grown(ExpandRerank(w), q)),
    ),
    _chain("iid chain", "iid", sampled_chain),
    _grown("iid star", lambda width: Iid([width, 1])),
    _grown("iid tree", lambda width: Iid([width]), _full),
    _chain("one path", "paths", lambda q: grown(Paths(1), q)),
    _grown("paths", Paths),
    _grown("paths cut short", Paths, lambda width, depth: max(1, width * depth - 1)),
    _grown("branching", lambda width: Branching([width]), _full),
    _grown("branching by noise", lambda width: Branching([width], noise=True), _full),
    _grown("dynamic", lambda width: Dynamic()),
    _grown("threshold", lambda width: Threshold(_LEAST)),
    _grown("stochastic beam", StochasticBeam),
    _grown("top and one", lambda width: TopAndOne([width]), _full),
    _chain("factorised chain", "factorised", factorised_chain),
)


# Prompt of every case.
PROMPT = (0,)

# Standard deviation of the logits: truncation has an effect, but leaves several tokens.
SHARPNESS = 1.5

# Output tokens of a whole decode loop: several rounds for short drafts.
LOOP_TOKENS = 3


# Other settings of the sampler, by name. Of trimmed drafts the drafter's own setting differs.
TRIMMED = "trimmed drafts"
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "top-k": {"top_k": 2},
    "min-p": {"min_p": 0.4},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    "bias": {"logit_bias": {0: 1.5, 1: -0.7}},
    "ban": {"banned_tokens": (0,)},
    "dry": {"dry_multiplier": 0.8, "dry_allowed_length": 1},
    "typical": {"typical_p": 0.5, "top_n_sigma": 1.2, "dynatemp_range": 0.4},
    "mirostat": {"mirostat": 2, "mirostat_tau": 1.0, "mirostat_eta": 0.9},
    TRIMMED: {},
}


@dataclass(frozen=True, slots=True)
class Case:
    """One size and one setting of the sampler: `width` is draws per level, or paths; 1 for chains.

    `loop` runs the whole decode loop instead of one round. `setting` names one of `SETTINGS`.
    """

    vocabulary: int
    depth: int
    width: int
    temperature: float
    top_p: float
    loop: bool = False
    setting: str = ""

    def __str__(self) -> str:
        return (
            f"vocabulary {self.vocabulary}, depth {self.depth}, width {self.width}, temperature "
            f"{self.temperature:g}, top-p {self.top_p:g}, "
            f"{self.setting + ', ' if self.setting else ''}"
            f"{'whole loop' if self.loop else 'one round'}"
        )

    @property
    def horizon(self) -> int:
        # Compared tokens: all that one round may emit, or the loop's output.
        return LOOP_TOKENS if self.loop else self.depth + 1

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            max_new_tokens=self.horizon,
            **SETTINGS.get(self.setting, {}),
        )

    @property
    def draft_params(self) -> SamplingParams:
        # The drafter draws for greedy targets, too.
        return replace(self.params, temperature=self.temperature or 1.0)

    def models(self) -> tuple[LogitsOf, LogitsOf]:
        # The drafter equals the target after every other context, so that one draft meets both
        # equal and unequal rows.
        seed = 100 * self.vocabulary + 10 * self.depth + self.width
        target = TabularModel(self.vocabulary, 4, seed, SHARPNESS)
        other = TabularModel(self.vocabulary, 4, seed + 1000, SHARPNESS)

        def drafter(context: tuple[int, ...]) -> LogitArray:
            logits = (target if sum(context) % 2 else other).logits(context)
            if self.setting == TRIMMED:  # its vocabulary lacks a token
                logits = logits.copy()
                logits[0] = -np.inf
            return logits

        return target.logits, drafter


@dataclass(frozen=True, slots=True)
class Grid:
    """Cases of an audit.

    Attributes:
        samplings: temperature and top-p; greedy-only verifiers get temperature 0 instead.
        others: names of `SETTINGS`, at temperature 1 or 0.
        loops: largest vocabulary, depth and width of cases of the whole decode loop.
        noise_sizes: vocabulary, depth and width (1 for chains) of cases with continuous noise.
    """

    vocabularies: tuple[int, ...]
    depths: tuple[int, ...]
    widths: tuple[int, ...]
    samplings: tuple[tuple[float, float], ...]
    loops: tuple[int, int, int]
    max_runs: int
    noise_sizes: tuple[tuple[int, int, int], ...]
    noise_samplings: tuple[tuple[float, float], ...]
    seeds: int
    others: tuple[str, ...] = ()

    def cases(self, verifier: Verifier, drafts: Draftable) -> Iterator[Case]:
        """Yield the cases of one pair, single rounds first."""
        widths = (1,) if drafts.shape == "chain" else self.widths
        greedy = ((0.0, 1.0),)
        settings = [(*each, "") for each in (greedy if verifier.greedy_only else self.samplings)]
        settings += [(float(not verifier.greedy_only), 1.0, each) for each in self.others]
        for sizes in product(self.vocabularies, self.depths, widths):
            for temperature, top_p, setting in settings if drafts.build is not None else ():
                yield Case(*sizes, temperature, top_p, setting=setting)
        noisy = self._noise_sizes(drafts)
        for sizes in product(self.vocabularies, self.depths, widths):
            if all(map(operator.le, sizes, self.loops)) or sizes in noisy:
                for temperature, top_p, setting in settings:
                    yield Case(*sizes, temperature, top_p, True, setting)

    def most(self, verifier: Verifier, case: Case) -> int:
        """Return the most combinations of outcomes of a case; larger cases are left out.

        Verifiers that read no draft distribution get a fourth; for others the first setting gets
        more, so that larger drafts occur at least there. Loops are slower and get half.
        """
        if case.loop:
            return self.most(verifier, replace(case, loop=False)) // 2
        if None in verifier.accepts:
            return self.max_runs // 4
        first = (case.temperature, case.top_p, case.setting) == (*self.samplings[0], "")
        return self.max_runs * (4 if first else 1)

    def samples(self, verifier: Verifier, drafts: Draftable, case: Case) -> int:
        """Return the samples of `case` if its noise is continuous; only whole loops get any."""
        sizes = case.vocabulary, case.depth, case.width
        settings = *self.noise_samplings, (0.0, 1.0)
        sampled = sizes in self._noise_sizes(drafts) and (case.temperature, case.top_p) in settings
        if case.setting or not (case.loop and sampled):
            return 0
        few = case.temperature == 0 or None in verifier.accepts
        return self.seeds // 4 if few else self.seeds

    def _noise_sizes(self, drafts: Draftable) -> tuple[tuple[int, int, int], ...]:
        if drafts.shape == "tree":
            return self.noise_sizes
        return tuple((vocabulary, depth, 1) for vocabulary, depth, _ in self.noise_sizes)


# Some ten minutes on two cores.
FULL = Grid(
    vocabularies=(2, 3, 4),
    depths=(1, 2, 3),
    widths=(1, 2, 3),
    samplings=((1.0, 1.0), (0.7, 1.0), (1.0, 0.8), (1.5, 0.85), (0.0, 1.0)),
    loops=(3, 2, 2),
    max_runs=2000,
    noise_sizes=((3, 2, 2), (4, 3, 3)),
    noise_samplings=((1.0, 1.0), (1.5, 0.85)),
    seeds=2000,
    others=tuple(SETTINGS),
)

# Under half a minute.
QUICK = Grid(
    vocabularies=(2, 3),
    depths=(1, 2),
    widths=(1, 2),
    samplings=((1.0, 1.0), (1.5, 0.85)),
    loops=(2, 2, 2),
    max_runs=200,
    noise_sizes=((3, 2, 2),),
    noise_samplings=((1.5, 0.85),),
    seeds=400,
    others=("penalties", TRIMMED),
)


@dataclass(frozen=True, slots=True)
class Limit:
    """Constructor arguments at which a verifier is lossless, and whether it is then seed-exact."""

    arguments: Mapping[str, Any]
    seed_exact: bool = True


@dataclass(frozen=True, slots=True)
class Control:
    """A deliberate fault: a verifier for a case, and a drafting method, one of them wrong."""

    name: str
    rule: Callable[[Case], Verifier]
    drafts: Draftable


@dataclass(frozen=True, slots=True)
class Proof:
    """The audit of a registered method (`Method.proof`).

    Attributes:
        drafts: drafting methods that join the audit.
        limit: of a lossy verifier.
        controls: faults that the audit must detect.
    """

    drafts: tuple[Draftable, ...] = ()
    limit: Limit | None = None
    controls: tuple[Control, ...] = ()


def proofs() -> Iterator[Proof]:
    """Yield the proofs of all registered methods that have one."""
    return filter(None, (method.load_proof() for method in registry.methods()))


def draft_laws() -> Iterator[Draftable]:
    """Yield the drafting methods of the audit, then those of plugins."""
    yield from DRAFT_LAWS
    seen = {each.name for each in DRAFT_LAWS}
    for drafts in (each for proof in proofs() for each in proof.drafts):
        if drafts.name in seen:
            raise InvalidOption(f"two drafting methods of the audit are called '{drafts.name}'")
        seen.add(drafts.name)
        yield drafts


def draft_sampling(name: str) -> Draftable:
    return next(each for each in draft_laws() if each.name == name)
