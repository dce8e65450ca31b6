"""FastVLM's imitation network: exact drafts, and the loss and the layer that its paper adds."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.helpers.tiny_model import named_tensors, tiny_config  # noqa: E402
from tests.methods import test_layers as layers  # noqa: E402
from tests.networks.batch import batch_of  # noqa: E402

from paceline.drafters.base import NoDrafter  # noqa: E402
from paceline.lab.training.losses import find_loss  # noqa: E402
from paceline.lab.training.module import DraftModule, share_target_weights  # noqa: E402
from paceline.lab.training.objective import forward  # noqa: E402
from paceline.methods.layers.double_exit import AdapterCache, DoubleExit  # noqa: E402
from paceline.methods.layers.imitation import Imitation, ImitationDrafter, Imitator  # noqa: E402
from paceline.networks.base import drafter_config  # noqa: E402
from paceline.networks.runner import ContextUpdate  # noqa: E402
from paceline.networks.weights import Trained  # noqa: E402
from paceline.runtimes.torch.target import TorchTarget  # noqa: E402


def trained(exit: int = 2) -> Trained:
    """Random weights for the tiny model."""
    network = Imitation(drafter_config(layers.CONFIG), exit=exit)
    rng = np.random.default_rng(4)
    parameters = {
        name: (1.5 * rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
        if len(shape) > 1
        else layers.NORM
        for name, shape in network.shapes().items()
    }
    return Trained(network, parameters, np.arange(96), {})


def drafter(target: Any, cls: type[DoubleExit] = ImitationDrafter, exit: int = 2) -> DoubleExit:
    eps = layers.CONFIG.norm_eps
    norm = layers.NORM
    return cls(target, 4, trained=trained(exit), final_norm=norm, norm_eps=eps, stop=0.0)


@pytest.mark.parametrize("params", layers.PARAMS)
@pytest.mark.parametrize("runtime", [layers.cpu, layers.torch])
def test_the_text_is_that_of_plain_decoding(runtime: Any, params: str) -> None:
    target = runtime()
    plain, _ = layers.texts(target, NoDrafter(), layers.PARAMS[params])
    found, done = layers.texts(target, drafter(target), layers.PARAMS[params])
    assert found == plain
    assert sum(each.stats.drafted_tokens for each in done) > 50
    assert sum(each.stats.accepted_tokens for each in done) > 0


class WithoutFeedForward(ImitationDrafter):
    """Kangaroo's adapter over the weights of an imitation network."""

    adapter = AdapterCache


@pytest.mark.parametrize(
    ("cls", "exit", "same"),
    [(ImitationDrafter, 2, True), (WithoutFeedForward, 2, False), (ImitationDrafter, 1, False)],
)
def test_it_drafts_as_it_was_trained(cls: type[DoubleExit], exit: int, same: bool) -> None:
    """As the network on the native runner has it; other parts, or another layer, do not."""
    target = layers.Watched(layers.cpu())
    made = drafter(target, cls, exit)
    _, draft, calls = layers.drafted(made, target)
    runner = target.run_network(trained())
    update = ContextUpdate(runner.open(), np.zeros((6, 0), np.float32), [5, 6, 7, 8, 1, 2], None)
    [chain] = runner.draft([update], 4)
    assert (list(chain.tokens[:4]) == draft.tokens.tolist()) == same
    assert {each for each, _, _ in calls if each} == {tuple(range(exit))}


def test_row_by_row_is_at_once() -> None:
    rng = np.random.default_rng(1)
    states = rng.standard_normal((9, layers.CONFIG.hidden_size)).astype(np.float32)
    whole, parts = Imitator(trained()), Imitator(trained())
    expected = whole.append(list(range(9)), states)
    found = [parts.append([row], states[row : row + 1]) for row in range(9)]
    np.testing.assert_allclose(np.concatenate(found), expected, atol=1e-5)


# Training:

CONFIG = tiny_config(layers=7)
SHAPE = drafter_config(CONFIG)
TIME = 24


@cache
def text() -> tuple[Any, Any]:
    """Features and tokens of some random texts."""
    target = TorchTarget(CONFIG, named_tensors(CONFIG))
    rng = np.random.default_rng(1)
    tokens = rng.integers(3, CONFIG.vocab_size, (8, TIME))
    features = [target.prefill(target.open(), each.tolist(), True) for each in tokens]
    return torch.from_numpy(np.stack(features)), torch.from_numpy(tokens)  # type: ignore[arg-type]


def learner(exit: int) -> DraftModule:
    network = Imitation(SHAPE, exit=exit, steps=2)
    tensors = named_tensors(CONFIG)
    lent = share_target_weights(network, CONFIG, tensors)  # type: ignore[arg-type]
    embedding = torch.from_numpy(tensors["embed"])
    head = torch.from_numpy(tensors.get("head", tensors["embed"]))
    given = {name: torch.from_numpy(each) for name, each in lent.items()}
    return DraftModule(network, embedding, head, torch.Generator().manual_seed(0), given)


def likeness(module: DraftModule) -> float:
    """Mean cosine of predicted and true last hidden states, of the texts that it learns from."""
    features, tokens = text()
    with torch.no_grad():
        foretold = module.draft(features, tokens).features[0][:, :-1]
    true = features[:, 1:, -SHAPE.hidden_size :]
    return float(torch.cosine_similarity(foretold, true, dim=-1).mean())


@cache
def learned(weight: float) -> DraftModule:
    module, (features, tokens) = learner(2), text()
    batch = batch_of(tokens, [TIME] * 8, [1] * 8, features)
    places = torch.arange(CONFIG.vocab_size)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        _, cost = forward(
            module,
            batch,
            places,
            find_loss("forward-kl"),
            decay=1.0,
            prompt_weight=1.0,
            feature_weight=weight,
            half=False,
        )
        cost.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return module


def test_the_imitation_loss_makes_states_those_of_the_last_layer() -> None:
    """Wrong: without that loss, untrained, and with a layer less below the same weights."""
    right = likeness(learned(1.0))
    shallow = learner(1)
    shallow.load(learned(1.0).named())
    wrong = [likeness(each) for each in (learned(0.0), learner(2), shallow)]
    assert right > max(wrong) + 0.1, (right, wrong)
