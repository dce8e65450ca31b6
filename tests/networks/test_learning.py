"""Networks learn a text from what they read, features or tokens, and cannot from anything else.

That they are the networks of their papers is said in `test_mechanisms.py`, with wrong ones beside.
"""

from __future__ import annotations

import pytest
import torch
from tests.networks.batch import batch_of
from tests.networks.cases import DRAFT_VOCABULARY, EVERY, TINY, module, texts

from paceline.lab.training.losses import find_loss
from paceline.lab.training.objective import argmax_tokens, network_loss
from paceline.methods.networks.ctc import CTC

TIME, STEPS = DRAFT_VOCABULARY, 40
BLIND = ("medusa", "specformer", "hidden-transfer")


@pytest.mark.parametrize("source", ["features", "tokens"])
@pytest.mark.parametrize("name", EVERY)
def test_a_network_learns_a_text_by_heart_if_it_reads_it(name: str, source: str) -> None:
    """All tokens differ, so that the root alone tells the position, and with it the text."""
    network = EVERY[name]()
    trained = module(network, randomise=False).float()
    features = texts(1, TIME)[0].float()
    trained.fit_scale(features.flatten(0, 1))
    tokens = torch.randperm(TIME, generator=torch.Generator().manual_seed(3))[None]
    if source == "features":
        reads = network.reads_features
        trained.get_buffer("embedding").zero_()
    else:
        reads = name not in BLIND
        features = features[:, :1].expand(features.shape).contiguous()
    batch = batch_of(tokens, [TIME], [0], features)
    places = torch.arange(TINY.vocab_size).clamp_max(DRAFT_VOCABULARY - 1)
    teacher = 12.0 * torch.nn.functional.one_hot(tokens.roll(-1, 1), DRAFT_VOCABULARY)
    optimiser = torch.optim.Adam(trained.parameters(), lr=0.02)
    given = (teacher, batch, places, find_loss("forward-kl"))
    slots = network.name == "ctc"
    slow = slots or network.runs  # slots settle late, and frozen layers leave few weights
    for _ in range(STEPS * (8 if slots else 4 if slow else 1)):
        optimiser.zero_grad()
        drafts = trained.draft(features, tokens)
        loss = network_loss(network, drafts, features, *given, decay=0.8, prompt_weight=0.1)
        loss.backward()
        optimiser.step()
    known = (
        network.tokens if isinstance(network, CTC) else network.depth
    )  # tokens that all drafts were trained to say
    ends = TIME - 1 - known
    right = sum(
        bool(drafted[0, at] == tokens[0, at + 1 + depth])
        for depth, drafted in enumerate(argmax_tokens(network, drafts.logits)[:known], start=1)
        for at in range(ends)
    )
    if name == "chimera" and source == "features":
        assert right > known  # tokens alone tell its depths apart
    elif reads:
        assert right > 0.6 * known * ends
    elif name == "hidden-transfer":
        assert right < 0.6 * known * ends  # how many rows a pseudo state sees tells places apart
    else:
        assert right <= known  # the same draft everywhere is right once per depth
