"""Hidden transfer in the verifying forward: pseudo states beside every row, no bit of a token."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.drafters.network.test_trained import (
    CONFIG,
    GREEDY,
    SAMPLED,
    TARGETS,
    TENSORS,
    context,
    every_runtime,
    generate,
    plain,
    random_weights,
    saved,
)
from tests.helpers.steps import step_of

from paceline.core import tree as trees
from paceline.core.target import Rows
from paceline.core.types import Budget, TokenTree, Verdict
from paceline.drafters.base import DrafterContext, NoDrafter
from paceline.drafters.combine.fallback import FallbackDrafter
from paceline.errors import InvalidOption, OutOfMemory, RuntimeUnavailable
from paceline.lab.training.module import DraftModule, share_target_weights
from paceline.methods.layers.hidden_transfer import HiddenTransferDrafter
from paceline.methods.networks.hidden_transfer import HiddenTransfer
from paceline.networks.base import drafter_config
from paceline.networks.weights import Trained
from paceline.sampling.generation import Generation

WIDTH = 3
TREE = TokenTree(
    np.array([9, 30, 31, 5, 8, 12], dtype=np.int64),
    np.array([-1, 0, 0, 2, -1, 4], dtype=np.int64),
    source="test",
)
PATHS = [(), (9,), (9, 30), (9, 31), (9, 31, 5), (8,), (8, 12)]
PROMPT = [5, 9, 17, 3, 60, 61, 5]


def weights(entries: int = 0, seed: int = 0) -> Trained:
    return random_weights(
        HiddenTransfer(drafter_config(CONFIG), width=WIDTH, entries=entries), seed
    )


def drafter(runtime: str, kind: type[HiddenTransferDrafter] = HiddenTransferDrafter) -> Any:
    return kind(TARGETS[runtime](), CONFIG.layers, weights())


def verified(made: Any, target: Any, draft: TokenTree | None) -> tuple[Any, Any, Any]:
    """The cache of a text, the forward over a draft behind it, and its pseudo states' rows."""
    cache = target.open()
    target.prefill(cache, PROMPT[:-1])
    made._asked = {id(cache)}
    [out] = made.forward(target, [Rows.draft(cache, PROMPT[-1:], draft)])
    return cache, out, made._rows[id(cache)]


class Seen(HiddenTransferDrafter):
    """Negative control: tokens see the pseudo states."""

    def _beside(self, block: Rows, tokens: Rows, each: int) -> Rows:
        out = super()._beside(block, tokens, each)
        out.sees[: len(tokens.tokens), len(block.tokens) :] = True
        return out


@pytest.mark.parametrize("kind", [HiddenTransferDrafter, Seen])
@pytest.mark.parametrize("draft", [None, trees.chain([9, 30, 4]), TREE])
def test_no_bit_of_a_token_changes(draft: TokenTree | None, kind: Any) -> None:
    target = TARGETS["cpu"]()
    cache, found, _ = verified(drafter("cpu", kind), target, draft)
    found = found.logits.copy()
    path = [0, 2, 3] if draft is TREE else []
    target.keep(cache, 1, path)
    [behind] = target.forward([Rows.draft(cache, [11])])
    behind = behind.logits.copy()
    target.release(cache)
    cache = target.open()
    target.prefill(cache, PROMPT[:-1])
    [expected] = target.forward([Rows.draft(cache, PROMPT[-1:], draft)])
    same = np.array_equal(found, expected.logits)
    target.keep(cache, 1, path)
    [expected] = target.forward([Rows.draft(cache, [11])])
    same &= np.array_equal(behind, expected.logits)
    target.release(cache)
    assert same == (kind is HiddenTransferDrafter)


class Further(HiddenTransferDrafter):
    """Negative control: pseudo states stand one place further on."""

    def _beside(self, block: Rows, tokens: Rows, each: int) -> Rows:
        out = super()._beside(block, tokens, each)
        out.positions[len(block.positions) :] += 1
        return out


class Apart(HiddenTransferDrafter):
    """Negative control: they do not see those before them."""

    def _beside(self, block: Rows, tokens: Rows, each: int) -> Rows:
        out, rows = super()._beside(block, tokens, each), len(tokens.tokens)
        out.sees[len(block.tokens) :, rows : len(block.tokens)] = False
        return out


class Early(HiddenTransferDrafter):
    """Negative control: all enter at the first of the layers."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._network = HiddenTransfer(drafter_config(CONFIG), width=WIDTH, entries=1)


def trained_rows(tokens: list[int], features: np.ndarray) -> np.ndarray:
    """What training says behind the last of the tokens, `[width, vocabulary]`."""
    made = weights()
    shared = share_target_weights(made.network, CONFIG, TENSORS)  # type: ignore[arg-type]
    table = torch.from_numpy(TENSORS["embed"])
    head = table if CONFIG.tied_embeddings else torch.from_numpy(TENSORS["head"])
    parts = {name: torch.from_numpy(np.asarray(each)) for name, each in shared.items()}
    module = DraftModule(made.network, table, head, torch.Generator(), parts)
    module.load({name: torch.from_numpy(each) for name, each in made.parameters.items()})
    with torch.no_grad():
        out = module(torch.from_numpy(features)[None], torch.tensor([tokens]))
    return torch.stack(out)[:, 0, -1].numpy()


@every_runtime
@pytest.mark.parametrize("kind", [HiddenTransferDrafter, Further, Apart, Early])
def test_every_node_foretells_what_training_foretells_behind_its_path(
    runtime: str, kind: Any
) -> None:
    target = TARGETS[runtime]()
    cache, _, rows = verified(drafter(runtime, kind), target, TREE)
    rows = rows.copy()
    assert rows.shape == (WIDTH, len(PATHS), CONFIG.vocab_size)
    target.release(cache)
    for row, path in enumerate(PATHS):
        text = [*PROMPT, *path]
        cache = target.open()
        expected = trained_rows(text, target.prefill(cache, text, True))
        target.release(cache)
        same = np.allclose(rows[:, row], expected, atol=1e-3)
        assert same == (kind is HiddenTransferDrafter)


@every_runtime
@pytest.mark.parametrize("ranks", [1, 8])
def test_texts_are_those_of_plain_decoding(runtime: str, ranks: int, tmp_path: Path) -> None:
    target = TARGETS[runtime]()
    path = str(saved(tmp_path / "weights", weights()))
    made = HiddenTransferDrafter.create(built(target, weights=path, ranks=str(ranks)))
    for params, expected in zip((GREEDY, SAMPLED), plain(runtime), strict=True):
        found = generate(target, made, params, depth=4)
        assert [each.tokens for each in found] == expected
        assert sum(each.stats.drafted_tokens for each in found) > 0


def built(target: Any, **options: str) -> DrafterContext:
    return context(target, **options)


def test_a_step_runs_every_layer_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafting runs none: the draft is there when the step before has ended."""
    target, run = TARGETS["cpu"](), Counter[Any]()
    real = target.forward

    def watched(rows: Any, layers: Any = None) -> Any:
        run.update(layers or ())
        return real(rows, layers)

    made = drafter("cpu")
    monkeypatch.setattr(target, "forward", watched)
    verified(made, target, TREE)
    assert run == dict.fromkeys(range(CONFIG.layers), 1)
    sequence = Generation.start(0, PROMPT, GREEDY)
    sequence.cache = target.open()
    target.prefill(sequence.cache, PROMPT[:-1])
    assert made.propose([sequence], [Budget(4, 4)]) == [trees.EMPTY]
    outputs = made.forward(target, [Rows.draft(sequence.cache, PROMPT[-1:])])
    token = int(outputs[0].logits[0].argmax())
    sequence.tokens.append(token)
    made.observe(step_of([sequence], [trees.EMPTY], [Verdict((), token)], outputs))
    run.clear()
    [draft] = made.propose([sequence], [Budget(4, 4)])
    assert len(draft) == 4
    assert not run


def test_the_draft_is_that_of_the_node_that_was_accepted_last() -> None:
    target, made = TARGETS["cpu"](), drafter("cpu")
    cache, out, rows = verified(made, target, TREE)
    sequence = Generation.start(0, [*PROMPT, 9, 31, 7], GREEDY)
    sequence.cache = cache
    expected = rows[:, 3].argmax(-1).tolist()
    made.observe(step_of([sequence], [TREE], [Verdict((0, 2), 7)], [out]))
    [draft] = made.propose([sequence], [Budget(64, WIDTH)])
    assert draft.tokens[:1].tolist() == expected[:1]
    chain, node = [], -1
    for _ in range(WIDTH):
        below = [at for at, parent in enumerate(draft.parents.tolist()) if parent == node]
        node = below[0]
        chain.append(int(draft.tokens[node]))
    assert chain == expected
    assert draft.scores is not None
    assert np.all(np.diff(draft.scores) <= 1e-12)
    sequence.tokens.append(4)  # another step, which it did not see
    assert made.propose([sequence], [Budget(64, WIDTH)]) == [trees.EMPTY]


def test_without_room_for_pseudo_states_tokens_are_verified_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target, made = TARGETS["cpu"](), drafter("cpu")

    real = target.forward

    def full(rows: Any, layers: Any = None) -> Any:
        if layers is not None:
            raise OutOfMemory("no room")
        return real(rows)

    cache = target.open()
    target.prefill(cache, PROMPT[:-1])
    made._asked = {id(cache)}
    asked = [Rows.draft(cache, PROMPT[-1:], TREE)]
    [expected] = target.forward(asked)
    expected = expected.logits.copy()
    monkeypatch.setattr(target, "forward", full)
    [found] = made.forward(target, asked)
    assert np.array_equal(found.logits, expected)
    assert not made._rows
    monkeypatch.undo()
    long = target.open()
    target.prefill(long, [7] * (CONFIG.max_context - 3))
    made._asked = {id(long)}
    made.forward(target, [Rows.draft(long, [7], trees.chain([8]))])  # pseudo states end too late
    assert not made._rows


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    path = str(saved(tmp_path / "weights", weights()))
    facts = replace(TARGETS["cpu"]().capabilities, blocks=False)
    with pytest.raises(RuntimeUnavailable, match="adds rows to the target's last layers"):
        HiddenTransferDrafter.create(context(facts, weights=path))


def test_it_cannot_be_combined() -> None:
    """Combined drafters have no forward of their own, where its drafts come from."""
    with pytest.raises(InvalidOption, match="'hidden-transfer' cannot be combined"):
        FallbackDrafter([NoDrafter(), drafter("cpu")])
