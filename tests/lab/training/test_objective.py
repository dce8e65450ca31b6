"""Labels, weights and hits against plain loops."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from paceline.lab.training.batches import Batch
from paceline.lab.training.losses import find_loss
from paceline.lab.training.objective import Hits, hits, labels, total_loss, wanted

VOCABULARY, DRAFT, DEPTH = 9, 6, 3
PLACES = torch.tensor([0, 1, -1, 2, 3, -1, 4, 5, -1])


def batch(seed: int = 0) -> Batch:
    generator = np.random.default_rng(seed)
    lengths, prompts = np.array([7, 4, 10, 1]), np.array([3, 1, 6, 1])
    tokens = generator.integers(VOCABULARY, size=(4, 10))
    for row, length in enumerate(lengths):
        tokens[row, length:] = 0
    return Batch(np.zeros((4, 10, 8), np.float32), tokens, lengths, prompts)


def test_labels_are_the_tokens_ahead() -> None:
    data = batch()
    for depth in range(1, DEPTH + 1):
        found = labels(data, PLACES, depth)
        for row in range(4):
            for position in range(10):
                place = position + 1 + depth
                expected = int(PLACES[data.tokens[row, place]]) if place < 10 else -1
                assert int(found[row, position]) == expected


@pytest.mark.parametrize("prompt_weight", [0.0, 0.25, 1.0])
def test_answers_count_fully_prompts_by_their_weight_and_padding_nothing(
    prompt_weight: float,
) -> None:
    data = batch()
    for depth in range(1, DEPTH + 1):
        counts = wanted(data, depth, prompt_weight)
        for row in range(4):
            for position in range(10):
                place = position + 1 + depth
                inside = place < data.lengths[row]
                expected = (1.0 if place >= data.prompt_lengths[row] else prompt_weight) * inside
                assert float(counts[row, position]) == expected


def test_hits_are_those_of_drafting_one_by_one() -> None:
    data = batch(1)
    generator = torch.Generator().manual_seed(0)
    drafted = []
    for depth in range(1, DEPTH + 1):  # right half of the time
        logits = torch.randn(4, 10, DRAFT, generator=generator)
        label = labels(data, PLACES, depth)
        right = torch.rand(4, 10, generator=generator) < 0.5
        boost = torch.nn.functional.one_hot(label.clamp_min(0), DRAFT) * 99.0
        drafted.append(logits + boost * (right & (label >= 0))[..., None])
    starts, accepted = 0, [0] * DEPTH
    for row in range(4):
        text = data.tokens[row, : data.lengths[row]].tolist()
        position = max(0, data.prompt_lengths[row] - 2)
        while position + 1 + DEPTH < len(text):
            starts += 1
            kept = 0
            for depth in range(1, DEPTH + 1):
                own = int(PLACES[text[position + 1 + depth]])
                if int(drafted[depth - 1][row, position].argmax()) != own:
                    break
                accepted[depth - 1] += 1
                kept += 1
            position += kept + 1
    assert starts >= 3
    assert accepted[0] > 0
    found = hits([logits.argmax(-1) for logits in drafted], data, PLACES)
    assert (found.starts, found.accepted.tolist()) == (starts, accepted)
    assert found.block_efficiency == 1 + sum(accepted) / starts
    both = found + found
    assert both.block_efficiency == found.block_efficiency
    assert both.acceptance == found.acceptance


def test_a_hit_is_a_hit_only_below_hits() -> None:
    found = Hits(10, np.array([8, 4, 1]))
    assert found.acceptance == (0.8, 0.5, 0.25)


def test_the_loss_is_zero_for_the_teacher_itself_and_for_nobody_else() -> None:
    data = batch()
    teacher = torch.randn(4, 10, DRAFT, generator=torch.Generator().manual_seed(2))
    perfect = [torch.cat([teacher[:, depth:], teacher[:, :depth]], dim=1) for depth in (1, 2, 3)]

    def loss(drafted, decay: float = 0.8) -> float:
        kind = find_loss("forward-kl")
        out = total_loss(drafted, teacher, data, PLACES, kind, decay=decay, prompt_weight=0.0)
        return float(out)

    assert abs(loss(perfect)) < 1e-6
    worst = [perfect[0], perfect[1], perfect[2] + torch.arange(DRAFT)]
    assert loss(worst) > 1e-2
    assert loss(worst, 0.1) < loss(worst, 0.8)  # what is deep counts less
    unseen = [each.clone() for each in perfect]
    unseen[0][0, 0] += torch.arange(DRAFT)  # a token of the prompt
    assert abs(loss(unseen)) < 1e-6
