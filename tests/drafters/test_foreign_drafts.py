"""Where drafters work together, a drafter is shown drafts that it did not propose."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.helpers.drafter_context import context as drafter_context
from tests.helpers.steps import step_of
from tests.helpers.vocabularies import letters

from paceline.core import tree as trees
from paceline.core.target import Output
from paceline.core.types import ROOT, Budget, SamplingParams, TokenTree, Verdict
from paceline.drafters.base import Drafter
from paceline.drafters.draft_model import DraftModel
from paceline.drafters.suffix.history import HistoryDrafter
from paceline.methods.datastore.drafter import build
from paceline.methods.jacobi import Jacobi
from paceline.methods.statistics.stand import Stand
from paceline.proof.tabular import TabularModel, TabularTarget
from paceline.registry import table as registry
from paceline.sampling.generation import Generation
from paceline.trees.deterministic import SharedNoise
from paceline.trees.drawn import Branching

VOCABULARY = 8
MODEL = TabularModel(VOCABULARY, 2, seed=3, sharpness=2.0)
SMALL = TabularModel(VOCABULARY, 6, seed=4, sharpness=2.0)  # sees what was cached
NOTHING = Budget(0, 0)
LETTERS = letters("a b c d e f g h")


def small() -> TabularTarget:
    return TabularTarget(SMALL.logits, VOCABULARY)


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Drafter]:
    """Any registered drafter, and settings of some that draw."""
    index = tmp_path_factory.mktemp("store") / "index"
    build(np.array([1, 2, 3, 1, 2, 4, 5, 1] * 4, np.int32), index, VOCABULARY, "words")
    drawn: dict[str, Callable[[], Drafter]] = {
        "stand, drawn": lambda: Stand(VOCABULARY, drawn=True),
        "jacobi, drawn": lambda: Jacobi(VOCABULARY, needs_q=True),
        "draft-model, trees": lambda: DraftModel(small(), VOCABULARY, SharedNoise([2, 1])),
        "draft-model, drawn": lambda: DraftModel(small(), VOCABULARY, Branching([2, 1])),
    }

    def make(name: str) -> Drafter:
        if name in drawn:
            return drawn[name]()
        capabilities = TabularTarget(MODEL.logits, VOCABULARY).capabilities
        options = {"index": str(index)} if name == "datastore" else {}
        letters = LETTERS, LETTERS
        context = drafter_context(
            capabilities, small, options=options, coarse=small(), tokenizers=letters
        )
        drafter: Drafter = registry.find("drafter", name).load().create(context)
        return drafter

    return make


# Those with networks, and those that ask blocks of rows, need targets of their own: see
# test_trained.py, methods/test_seeing.py, methods/gad, methods/paraformer, methods/test_layers.py,
# methods/test_schedules.py and methods/test_denoised.py.
OTHERS = ("paceline.drafters.network.drafter:", "paceline.methods.networks.")
OTHERS += ("paceline.methods.layers.", "paceline.methods.denoised:", "paceline.methods.gad.")
OTHERS += ("paceline.methods.paraformer.", "paceline.methods.seeing.")
OTHERS += ("paceline.methods.schedules.mirror:", "paceline.methods.schedules.easyspec:")

NAMES = [
    # ppd works alone.
    *(
        name
        for name in registry.names("drafter")
        if name != "ppd" and not registry.find("drafter", name).factory.startswith(OTHERS)
    ),
    *("stand, drawn", "jacobi, drawn", "draft-model, trees", "draft-model, drawn"),
]


def foreign(generator: np.random.Generator, nodes: int) -> TokenTree:
    """A random tree whose siblings differ, from nobody in particular."""
    edges: list[tuple[int, int]] = []
    for _ in range(nodes):
        edge = (int(generator.integers(ROOT, len(edges))), int(generator.integers(VOCABULARY)))
        if edge not in edges:
            edges.append(edge)
    parents, tokens = np.array(edges, np.int64).reshape(-1, 2).T
    return TokenTree(tokens, parents, source="foreign")


def settle(
    sequence: Generation, draft: TokenTree, generator: np.random.Generator
) -> tuple[Verdict, Output]:
    """Accept a random path of a draft, commit, and give the target's rows."""
    rows = [MODEL.logits(tuple(sequence.tokens))]
    for node in range(len(draft)):
        path = draft.tokens[list(trees.path_to(draft, node))].tolist()
        rows.append(MODEL.logits((*sequence.tokens, *path)))
    below = trees.children(draft)
    path, node = [], ROOT
    while node in below and generator.random() < 0.8:
        node = int(generator.choice(below[node]))
        path.append(node)
    verdict = Verdict(tuple(path), int(generator.integers(VOCABULARY)))
    new = [*draft.tokens[path].tolist(), verdict.next_token]
    sequence.tokens += new
    sequence.sampler.commit(new)
    return verdict, Output(np.stack(rows))


def start(count: int, seed: int) -> list[Generation]:
    params = SamplingParams(temperature=1.0, seed=seed, max_new_tokens=200)
    return [Generation.start(i, [1, 2, 3, i, 1, 2], params) for i in range(count)]


def is_sound(draft: TokenTree, budget: Budget) -> bool:
    trees.validate(draft)
    depths = trees.depths(draft)
    tokens = draft.tokens
    return (
        len(draft) <= budget.nodes
        and depths.max(initial=0) <= budget.depth
        and bool(np.all((tokens >= 0) & (tokens < VOCABULARY)))
    )


def live(
    drafter: Drafter, sequences: list[Generation], seed: int, steps: int, asked: list[Budget]
) -> None:
    """Steps whose verified drafts are somebody else's, whatever the drafter proposed."""
    generator = np.random.default_rng(seed)
    for step in range(steps):
        budgets = [asked[(step + s.id) % len(asked)] for s in sequences]
        own = drafter.propose(sequences, budgets)
        assert all(map(is_sound, own, budgets))
        drafts = [foreign(generator, int(generator.integers(0, 9))) for _ in sequences]
        settled = [settle(s, d, generator) for s, d in zip(sequences, drafts, strict=True)]
        verdicts, outputs = zip(*settled, strict=True)
        drafter.observe(step_of(sequences, drafts, list(verdicts), list(outputs)))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), count=st.sampled_from([1, 4]), asked=st.data())
def test_foreign_drafts_leave_a_drafter_sound(
    make: Callable[[str], Drafter], name: str, seed: int, count: int, asked: st.DataObject
) -> None:
    sizes = st.builds(Budget, st.integers(0, 8), st.integers(0, 5))
    drafter = make(name)
    sequences = start(count, seed)
    for sequence in sequences:
        drafter.open(sequence)
    live(drafter, sequences, seed, 6, asked.draw(st.lists(sizes, min_size=1, max_size=4)))
    for sequence in sequences:
        drafter.close(sequence)


@pytest.mark.parametrize("asked", [[Budget(6, 3)], [NOTHING], [Budget(4, 4), NOTHING]], ids=str)
@pytest.mark.parametrize("name", ["draft-model", "draft-model, trees", "cascade"])
def test_models_go_on_from_what_was_committed(
    make: Callable[[str], Drafter], name: str, asked: list[Budget]
) -> None:
    """What they have cached of their own drafts must not outlive somebody else's."""
    for seed in range(8):
        drafter = make(name)
        sequences = start(2, seed)
        for sequence in sequences:
            drafter.open(sequence)
        live(drafter, sequences, seed, 5, asked)
        fresh = make(name)
        for sequence in sequences:
            fresh.open(sequence)
        budgets = [Budget(6, 4)] * 2
        pairs = zip(
            drafter.propose(sequences, budgets), fresh.propose(sequences, budgets), strict=True
        )
        for old, new in pairs:
            assert old.tokens.tolist() == new.tokens.tolist()
            assert len(new) > 0


@pytest.mark.parametrize("name", NAMES)
def test_nothing_asked_for_is_nothing_drafted_but_something_heard(
    make: Callable[[str], Drafter], name: str
) -> None:
    """As one of several drafters whose turn it is not: it knows the text when its turn comes."""
    drafter = make(name)
    [sequence] = start(1, 0)
    drafter.open(sequence)
    for _ in range(12):
        [draft] = drafter.propose([sequence], [NOTHING])
        assert len(draft) == 0
        shown = trees.chain([4, 5, 6], "foreign")
        context = (*sequence.tokens,)
        rows = [MODEL.logits((*context, *[4, 5, 6][:n])) for n in range(4)]
        sequence.tokens += [4, 5, 6, 7]
        sequence.sampler.commit([4, 5, 6, 7])
        drafter.observe(
            step_of([sequence], [shown], [Verdict((0, 1, 2), 7)], [Output(np.stack(rows))])
        )
    [draft] = drafter.propose([sequence], [Budget(3, 3)])
    if isinstance(drafter, HistoryDrafter) or name in ("prompt-lookup", "cacheback"):
        assert draft.tokens.tolist() == [4, 5, 6]
    elif name not in ("none", "forced", "input-guided", "datastore", "pearl"):
        assert len(draft) > 0  # pearl drafts beside a forward, of which there is none


def test_a_window_takes_its_rows_from_the_path_that_stood() -> None:
    """A Jacobi window in a foreign tree: the node behind the accepted path, not the next index."""
    drafter = Jacobi(VOCABULARY, needs_q=True)
    [sequence] = start(1, 0)
    drafter.open(sequence)
    drafter.propose([sequence], [NOTHING])
    # Two chains under the root; the second stands, but for its last token.
    draft = TokenTree(np.array([1, 2, 3, 5, 6, 7]), np.array([ROOT, 0, 1, ROOT, 3, 4]))
    rows = np.full((7, VOCABULARY), -20.0, np.float32)
    rows[np.arange(7), [0, 1, 2, 3, 4, 5, 6]] = 20.0  # row n says n
    sequence.tokens += [5, 6, 0]
    sequence.sampler.commit([5, 6, 0])
    drafter.observe(step_of([sequence], [draft], [Verdict((3, 4), 0)], [Output(rows)]))
    [window] = drafter.propose([sequence], [Budget(1, 1)])
    assert window.tokens.tolist() == [6]
