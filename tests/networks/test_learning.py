"""Every network learns a text by heart with all the losses it has: nothing is wired up wrongly."""

from __future__ import annotations

import pytest
import torch
from tests.networks.batch import batch_of
from tests.networks.cases import DRAFT_VOCABULARY, EVERY, GEOMETRY, module, texts

from paceline.training.losses import find_loss
from paceline.training.objective import argmax_tokens, network_loss
from paceline.zoo.networks.ctc import CTC

TIME, STEPS = 12, 40


@pytest.mark.parametrize("name", EVERY)
def test_a_network_learns_a_text_by_heart(name: str) -> None:
    network = EVERY[name]()
    trained = module(network, randomise=False).float()
    features, tokens = texts(1, TIME)
    features, tokens = features.float(), tokens % DRAFT_VOCABULARY
    trained.fit_scale(features.flatten(0, 1))
    batch = batch_of(tokens, [TIME], [0], features)
    places = torch.arange(GEOMETRY.vocab_size).clamp_max(DRAFT_VOCABULARY - 1)
    teacher = 12.0 * torch.nn.functional.one_hot(tokens.roll(-1, 1), DRAFT_VOCABULARY)
    optimiser = torch.optim.Adam(trained.parameters(), lr=0.02)
    given = (teacher, batch, places, find_loss("forward-kl"))
    losses = []
    slow = network.blank or network.runs  # slots settle late, and frozen layers leave few weights
    for _ in range(STEPS * (4 if slow else 1)):
        optimiser.zero_grad()
        drafts = trained.draft(features, tokens)
        loss = network_loss(network, drafts, features, *given, decay=0.8, prompt_weight=0.1)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 4
    known = (
        network.tokens if isinstance(network, CTC) else network.depth
    )  # tokens that all drafts were trained to say
    right = [
        drafted[0, at] == tokens[0, at + 1 + depth]
        for depth, drafted in enumerate(argmax_tokens(network, drafts.logits)[:known], start=1)
        for at in range(TIME - 1 - known)
    ]
    assert sum(right) > 0.6 * len(right)
