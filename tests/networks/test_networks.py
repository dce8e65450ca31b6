"""What every network promises: shapes, causality, one result however it is computed, gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.networks.cases import (
    DRAFT_VOCABULARY,
    EVERY,
    TINY,
    context_rows,
    module,
    texts,
)
from tests.networks.runners import Reference
from torch import Tensor
from torch.nn.functional import cross_entropy

TIME = 9
BLIND = ("medusa", "specformer", "hidden-transfer")
every_network = pytest.mark.parametrize("name", EVERY)


def drafts(name: str, features: Tensor, tokens: Tensor, seed: int = 0) -> Tensor:
    """`[batch, time, depth, columns]` of a network with random weights."""
    with torch.no_grad():
        return torch.stack(module(EVERY[name](), seed)(features, tokens), dim=2)


@every_network
def test_every_position_gets_a_draft_of_full_depth(name: str) -> None:
    features, tokens = texts(2, TIME)
    network = EVERY[name]()
    columns = DRAFT_VOCABULARY + (network.name == "ctc")
    assert drafts(name, features, tokens).shape == (2, TIME, network.depth, columns)


@every_network
@pytest.mark.parametrize("chunks", [[1] * 6, [4, 2], [6]])
def test_decoding_with_a_cache_equals_the_pass_over_all_positions(
    name: str, chunks: list[int]
) -> None:
    features, tokens = texts(1, TIME + 6)
    trained = module(EVERY[name]())
    network = trained.network
    with torch.no_grad():
        expected = torch.stack(trained(features, tokens), dim=2)[0].numpy()
    drafter = Reference(trained)
    begin = 0
    for count in chunks:
        end = begin + count
        follow = tokens[0, end + 1 : end + 1 + network.depth].tolist()
        rows = context_rows(network, features[0], tokens[0], begin, end)
        found = drafter.draft(*rows, follow)
        np.testing.assert_allclose(found, expected[end - 1], atol=4e-6 * np.abs(expected).max())
        begin = end


@pytest.mark.parametrize("name", [name for name in EVERY if EVERY[name]().layers])
def test_a_row_lost_from_the_cache_is_noticed(name: str) -> None:
    """Negative control: the equality above does see the cache, every layer of it."""
    features, tokens = texts(1, TIME)
    trained = module(EVERY[name]())
    for layer in range(trained.network.layers):
        results = []
        for lose in (False, True):
            drafter = Reference(trained)
            before = context_rows(trained.network, features[0], tokens[0], 0, 3)
            drafter.draft(*before, tokens[0, 4:].tolist())
            if lose:
                rows = drafter.cache.rows
                rows.data[layer, :, rows.length - 1 - trained.network.overlap] = 0
            after = context_rows(trained.network, features[0], tokens[0], 3, 4)
            results.append(drafter.draft(*after, tokens[0, 5:].tolist()))
        differs = np.abs(results[0] - results[1]).max(-1) > 1e-3
        assert differs[0]
        assert differs.all() or trained.network.reach


@every_network
def test_drafts_know_nothing_that_comes_later(name: str) -> None:
    """What a depth may know: features up to its position, tokens of the steps before its own."""
    features, tokens = texts(1, TIME)
    network, at = EVERY[name](), 3
    plainly = drafts(name, features, tokens)[0, at]
    future = features.clone()
    future[:, at + 1 :] += 1
    assert torch.equal(drafts(name, future, tokens)[0, at], plainly)
    for step in range(network.steps):
        known = at + 1 + step * network.width
        changed = tokens.clone()
        changed[:, known + 1 :] = (changed[:, known + 1 :] + 1) % 17
        upto = (step + 1) * network.width
        assert torch.equal(drafts(name, features, changed)[0, at, :upto], plainly[:upto])


@every_network
def test_drafts_hang_on_what_they_may_know(name: str) -> None:
    """Negative control: every one of those inputs matters, so the equalities above say much."""
    features, tokens = texts(1, TIME)
    network, at = EVERY[name](), 3
    plainly = drafts(name, features, tokens)[0, at]
    present = features.clone()
    present[:, at] += 1
    differs = (drafts(name, present, tokens)[0, at] != plainly).any(-1)
    assert differs.all() if network.reads_features else not differs.any()
    for step in range(1, network.steps):
        known = at + 1 + step * network.width
        changed = tokens.clone()
        changed[:, known] = (changed[:, known] + 1) % 17
        differs = (drafts(name, features, changed)[0, at] != plainly).any(-1)
        assert differs[step * network.width :].all()


@every_network
def test_gradients_reach_every_parameter(name: str) -> None:
    """Zero matrices hide those before them from the first step; one step on, all must move."""
    trained = module(EVERY[name](), randomise=False)
    features, tokens = texts(2, TIME)
    optimiser = torch.optim.SGD(trained.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(5)
    for _ in range(4):  # matrices behind one another wake up one step at a time
        optimiser.zero_grad()
        found = trained.draft(features, tokens)
        loss = torch.zeros(())
        for depths in (found.logits, *found.exits):
            logits = torch.stack(depths)
            labels = torch.randint(logits.shape[-1], logits.shape[:-1], generator=generator)
            loss = loss + cross_entropy(logits.flatten(0, -2), labels.flatten())
        loss.backward()
        optimiser.step()
    for parameter, each in trained.named().items():
        if parameter.startswith("look."):  # of pictures alone: tests/methods/test_seeing.py
            continue
        assert each.grad is not None, parameter
        assert (each.grad != 0).any(), parameter


@every_network
def test_all_that_is_trained_on_has_one_shape_and_the_same_logits(name: str) -> None:
    features, tokens = texts(2, TIME)
    trained = module(EVERY[name]())
    with torch.no_grad():
        found, plainly = trained.draft(features, tokens), trained(features, tokens)
    assert all(torch.equal(a, b) for a, b in zip(found.logits, plainly, strict=True))
    for depths in found.exits:
        assert [each.shape for each in depths] == [each.shape for each in plainly]
    deepest = trained.network.depth if trained.network.reads_features else 1
    assert len(found.features) in (0, deepest)
    assert all(each.shape == (2, TIME, TINY.hidden_size) for each in found.features)


@pytest.mark.parametrize("name", BLIND)
def test_blind_networks_ignore_all_tokens(name: str) -> None:
    features, tokens = texts(1, TIME)
    other = (tokens + 5) % 17
    assert torch.equal(drafts(name, features, tokens), drafts(name, features, other))


@pytest.mark.parametrize("name", [name for name in EVERY if name not in BLIND])
def test_sight_is_through_the_embeddings_alone(name: str) -> None:
    """With those zeroed, a network drafts the same whatever the tokens are."""
    features, tokens = texts(1, TIME)
    other = (tokens + 5) % 17
    trained = module(EVERY[name]())
    with torch.no_grad():
        assert not torch.equal(trained(features, tokens)[0], trained(features, other)[0])
        trained.get_buffer("embedding").zero_()
        seen, same = trained(features, tokens), trained(features, other)
    assert all(torch.equal(a, b) for a, b in zip(seen, same, strict=True))
