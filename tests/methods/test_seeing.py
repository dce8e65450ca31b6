"""Drafters that are shown pictures: what stands for one, in training and in decoding."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.networks.cases import NETWORKS, TINY, context_rows, module, texts
from tests.networks.runners import runner
from tests.networks.test_cpu import WIDE, quantised

from paceline.core.rows import Placed, RowStore
from paceline.errors import InvalidOption
from paceline.lab.training.batches import Batch, padded
from paceline.lab.training.data import Text
from paceline.lab.training.drafter import DrafterTask
from paceline.lab.training.module import DraftModule
from paceline.lab.training.recipe import DrafterRecipe
from paceline.lab.training.vocabulary import keep_frequent
from paceline.methods.seeing.drafter import SeeingDrafter
from paceline.methods.seeing.msd import Msd
from paceline.methods.seeing.specvlm import WAYS, SpecVlm, pruned
from paceline.networks.base import Network
from paceline.networks.catalogue import build
from paceline.networks.runner import ContextUpdate
from paceline.policy.constants import PROMPT_ROWS, WAITING_ROWS

SEEING = ("msd", "vispec", "specvlm")
SETTINGS: dict[str, dict[str, Any]] = {"specvlm": {"picture": 6, "keep": 2}}
WIDTH, ROWS, PLACE, STAND_IN = TINY.hidden_size, 6, 3, 15
every = pytest.mark.parametrize("name", SEEING)


def shown(seed: int = 0, length: int = 18) -> tuple[Text, np.ndarray]:
    """A text with a picture in its prompt, and features of all its rows."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(15, size=length)
    tokens[PLACE : PLACE + ROWS] = STAND_IN
    picture = rng.standard_normal((ROWS, WIDTH)).astype(np.float16)
    features = rng.standard_normal((length, 4 * WIDTH)).astype(np.float32)
    return Text(0, tokens, 13, picture, PLACE), features


def batch(*of: tuple[Text, np.ndarray]) -> Batch:
    return Batch(
        padded([features for _, features in of]),
        padded([text.tokens for text, _ in of]),
        np.array([len(text.tokens) for text, _ in of]),
        np.array([text.prompt_length for text, _ in of]),
    )


def learnt(trained: DraftModule, *of: tuple[Text, np.ndarray]) -> tuple[Batch, torch.Tensor]:
    """Logits `[texts, time, depth, columns]` of training, and the batch that it arranged."""
    made = trained.network.arranged(batch(*of), [text for text, _ in of])
    features, tokens = torch.from_numpy(made.features).double(), torch.from_numpy(made.tokens)
    return made, torch.stack(trained.draft(features, tokens, made.reveal).logits, dim=2)


def drafter_of(trained: DraftModule, text: Text) -> tuple[SeeingDrafter, Any]:
    """A drafter in NumPy, and a request of a text whose root is the prompt's last token."""
    drafter = SeeingDrafter(runner("reference", trained))
    drafter.network, drafter._beside = trained.network, {}  # type: ignore[assignment]
    drafter._store = RowStore(TINY.vocab_size, WIDTH, 64)
    pictures = []
    if text.picture is not None:
        run = drafter._store.hold(b"picture", ROWS)
        drafter._store.fill(run, text.picture.astype(np.float32))
        pictures = [Placed(text.begin, run)]
    tokens = text.tokens[: text.prompt_length].tolist()
    sequence = SimpleNamespace(id=0, tokens=tokens, pictures=pictures, cache=None, window=None)
    drafter.open(sequence)  # type: ignore[arg-type]
    return drafter, sequence


def drafted(drafter: SeeingDrafter, follow: list[int]) -> np.ndarray:
    """Logits `[depth, columns]` after what the drafter was told, along some tokens."""
    running, progress = drafter._begin.runner, drafter._progress[0]
    branches = running.start([progress.context_update(None, 0.0, None)])
    progress.consumed()
    for token in follow[: drafter.network.steps - 1]:
        branches += running.advance([(branches[-1], [token])])
    return np.concatenate([each.logits for each in branches])


@every
def test_training_and_decoding_read_the_same(name: str) -> None:
    """Of a prompt with its features, and of tokens behind; a picture of zeros is another one."""
    text, features = shown()
    trained, root = module(NETWORKS[name]()), text.prompt_length - 1
    with torch.no_grad():
        made, logits = learnt(trained, (text, features))
    drafter, sequence = drafter_of(trained, text)
    drafter.read(sequence, features[:root])
    behind = int(made.lengths[0]) - len(text.tokens)
    found = drafted(drafter, text.tokens[root + 1 :].tolist())
    np.testing.assert_allclose(found, logits[0, root - 1 + behind], rtol=1e-4, atol=1e-4)
    sequence.tokens = text.tokens[: root + 3].tolist()
    drafter._note(sequence, sequence.tokens[-2:], features[root : root + 2])
    found = drafted(drafter, text.tokens[root + 3 :].tolist())
    np.testing.assert_allclose(found[:2], logits[0, root + 1 + behind, :2], rtol=1e-4, atol=1e-4)
    assert text.picture is not None
    with torch.no_grad():
        _, blind = learnt(trained, (replace(text, picture=0 * text.picture), features))
        _, other = learnt(trained, (replace(text, picture=text.picture[::-1]), features))
        seen = features.copy()
        seen[PLACE : PLACE + ROWS] += 1  # features of its rows are not read
        _, same = learnt(trained, (text, seen))
    assert (blind - logits)[0, root].abs().max() > 1e-3
    assert (other - logits)[0, root].abs().max() > 1e-3
    assert torch.equal(same[0, root], logits[0, root])


@every
def test_texts_in_a_batch_do_not_see_one_anothers_pictures(name: str) -> None:
    trained = module(NETWORKS[name]())
    plain = Text(2, np.arange(12) % 15, 5), shown(7, 12)[1]
    with torch.no_grad():
        _, together = learnt(trained, shown(0), plain, shown(1, 15))
        for at, each in enumerate((shown(0), plain, shown(1, 15))):
            made, alone = learnt(trained, each)
            size = int(made.lengths[0])
            torch.testing.assert_close(together[at, :size], alone[0, :size])


@every
def test_the_picture_stands_in_the_context_if_its_features_are_gone(name: str) -> None:
    """As where a prefix is cached: only rows of the text before it are missing."""
    text, features = shown()
    trained, root = module(NETWORKS[name]()), text.prompt_length - 1
    results = []
    for picture in (text.picture, 0 * text.picture):  # type: ignore[operator]
        drafter, sequence = drafter_of(trained, replace(text, picture=picture))
        for begin in (root - 2, PLACE + 2, 0):  # behind it, within it, all
            drafter.read(sequence, features[begin:root])
            assert len(drafter._progress[0].tokens) == trained.network.kept + min(  # type: ignore[attr-defined]
                root - begin, root - PLACE - ROWS
            ) + (PLACE if begin == 0 else 0)
            results.append(drafted(drafter, [1, 2, 3]))
            drafter, sequence = drafter_of(trained, replace(text, picture=picture))
    assert all(np.abs(a - b).max() > 1e-3 for a, b in zip(results[:3], results[3:], strict=True))


@every
def test_the_picture_stands_before_a_long_text(name: str) -> None:
    text, features = shown(0, PROMPT_ROWS + WAITING_ROWS + 50)
    drafter, sequence = drafter_of(module(NETWORKS[name]()), replace(text, prompt_length=1300))
    drafter.read(sequence, features[:1299])
    known = np.concatenate(drafter._progress[0].features)
    assert len(known) == len(drafter._progress[0].tokens) == PROMPT_ROWS
    assert known[:, -1].sum() == drafter.network.kept
    np.testing.assert_array_equal(known[-1, : 4 * WIDTH], features[1298])


def test_the_first_token_behind_a_picture_stands_before_it() -> None:
    text, features = shown()
    drafter, sequence = drafter_of(module(NETWORKS["msd"]()), text)
    drafter.read(sequence, features[: text.prompt_length - 1])
    told, tokens = drafter._progress[0].tokens, text.tokens.tolist()
    assert told[: PLACE - 1] == tokens[1:PLACE]
    assert told[PLACE - 1] == tokens[PLACE + ROWS]
    assert told[PLACE : PLACE + ROWS] == [STAND_IN] * ROWS
    assert told[PLACE + ROWS :] == tokens[PLACE + ROWS + 1 : text.prompt_length]
    [known] = drafter._progress[0].features
    assert known[:, -1].tolist() == [0] * PLACE + [1] * ROWS + [0] * (len(told) - PLACE - ROWS)


@every
@pytest.mark.parametrize("runtime", ["cpu", "torch", "reference"])
def test_texts_alone_are_drafted_as_by_eagle3(name: str, runtime: str) -> None:
    """To the bit on the CPU and in NumPy; with what goes beside them the drafts are others."""
    plain = module(build("eagle3", TINY, {"steps": 4}))
    own = module(NETWORKS[name](), randomise=False)
    own.load({each: plain.named().get(each, own.named()[each]) for each in own.named()})
    features, tokens = texts(1, 12)
    found = []
    for trained in (plain, own):
        compiled = runner(runtime, trained)
        rows, following = context_rows(trained.network, features[0], tokens[0], 0, 9)
        given = ContextUpdate(compiled.open(), rows.astype(np.float32), following)
        branches = compiled.start([given])
        branches += compiled.advance([(branches[0], [3])])
        found.append(np.concatenate([each.logits for each in branches]))
    np.testing.assert_array_equal(*found)


@every
@pytest.mark.parametrize("runtime", ["cpu", "torch"])
def test_digests_are_those_of_the_plain_evaluation(name: str, runtime: str) -> None:
    trained = module(NETWORKS[name]())
    network: Any = trained.network
    text, features = shown()
    assert text.picture is not None
    given = network.given(text.picture.astype(np.float32), features[0, -WIDTH:])
    expected = runner("reference", trained).digest(given)
    np.testing.assert_allclose(runner(runtime, trained).digest(given), expected, atol=1e-4)
    assert np.abs(expected).max() > 0.1


@every
def test_int8_digests_are_those_of_the_reference(name: str) -> None:
    network: Any = build(name, WIDE, {"picture": 8, **({"keep": 2} if name == "specvlm" else {})})
    compiled, reference = quantised(network)
    rng = np.random.default_rng(4)
    rows = rng.standard_normal((8, WIDE.hidden_size)).astype(np.float32)
    given = network.given(rows, rows[0])
    np.testing.assert_array_equal(compiled.digest(given), reference.digest(given))
    cache = [each.open() for each in (compiled, reference)]
    read = rng.standard_normal((9, network.feature_width)).astype(np.float32)
    read[:, -1] = np.arange(9) % 3 == 1
    roots = [
        each.start([ContextUpdate(own, read, [5] * 9)])[0]
        for each, own in zip((compiled, reference), cache, strict=True)
    ]
    np.testing.assert_array_equal(roots[0].logits, roots[1].logits)


@pytest.mark.parametrize("name", ["vispec", "specvlm"])
def test_gradients_reach_what_looks(name: str) -> None:
    trained = module(NETWORKS[name]())
    many = map(shown, range(40))  # of which the gate sends some every way
    learnt(trained, *many)[1].square().sum().backward()
    for parameter, each in trained.named().items():
        assert each.grad is not None, parameter
        assert (each.grad != 0).any(), parameter


def test_a_gate_chooses_by_the_question() -> None:
    network = SpecVlm(TINY, picture=6, keep=2)
    trained = module(network)
    running, text = runner("reference", trained), shown()[0]
    assert text.picture is not None
    rng, chosen = np.random.default_rng(1), set()
    for _ in range(20):
        asked = rng.standard_normal(WIDTH).astype(np.float32)
        said = running.digest(network.given(text.picture.astype(np.float32), asked))
        scores = said[-len(WAYS) :]
        stood = network.stood(said, lambda each: np.eye(len(WAYS))[each.argmax()])
        ways = said[: -len(WAYS)].reshape(len(WAYS), 2, WIDTH)
        np.testing.assert_array_equal(stood.rows, ways[scores.argmax()])
        chosen.add(int(scores.argmax()))
    assert len(chosen) > 1
    rows = text.picture.astype(np.float32)
    np.testing.assert_allclose(ways[WAYS.index("pool")][0], rows[:3].mean(0), rtol=1e-5)
    np.testing.assert_array_equal(ways[WAYS.index("prune")], pruned(rows, 2))
    np.testing.assert_array_equal(pruned(rows, 6), rows)  # all, in order: as MSD shows them


def test_rows_alike_are_left_out_first() -> None:
    rows = np.tile(np.eye(4, dtype=np.float32)[0], (6, 1))
    rows[[1, 4]] = np.eye(4, dtype=np.float32)[1:3]
    np.testing.assert_array_equal(pruned(rows, 2), rows[[1, 4]])


def test_msd_begins_with_texts_alone() -> None:
    network = Msd(TINY, picture=6)
    shares = [network.share_of_pictures(at / 40) for at in range(41)]
    assert shares == sorted(shares)
    assert shares[20] == 0
    assert shares[40] == 1
    every_text = [replace(shown(i)[0], index=i) for i in range(90)]
    every_text = [replace(t, picture=None) if t.index % 2 else t for t in every_text]
    table = np.random.default_rng(0).standard_normal((TINY.vocab_size, WIDTH)).astype(np.float32)
    kept = keep_frequent(np.ones(TINY.vocab_size, np.int64), 11, frozenset())
    recipe = DrafterRecipe(tokens=40 * 18 * 4, batch_tokens=18 * 4)
    source: Any = SimpleNamespace(batch=lambda some: None)

    def shows(network: Network) -> list[bool]:
        task = DrafterTask(network, kept, table, table, every_text, source, recipe)
        task.steps = 40
        return [any(text.picture is not None for text in task.batch(step)) for step in range(40)]

    found = shows(network)
    assert not any(found[:21])
    assert sum(found[21:30]) < sum(found[31:])
    assert sum(shows(build("eagle3", TINY, {}))[:21]) > 15


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("vispec", {"picture": 0}),
        ("vispec", {"queries": 0}),
        ("specvlm", {"picture": 6, "keep": 4}),
        ("specvlm", {"keep": 0}),
    ],
)
def test_sizes_that_do_not_fit_are_refused(name: str, settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match=r"picture|queries|keep"):
        build(name, TINY, settings)
