"""Published DFlash and DSpark drafters beside speculators' own modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from tests.networks import test_published as published
from tests.networks.blocks import MASK, Drafter, random_drafter, write
from tests.networks.heads import with_maps
from tests.networks.test_blocks import DRAFTED, KINDS, block
from tests.networks.test_published import CONFIG, TOKENS, apart, states

from paceline.models.source import DirectorySource
from paceline.runtimes.cpu.target import CpuTarget

source = published.source
core: Any = pytest.importorskip("speculators.models.dspark.core")


def judged(drafter: Drafter, features: np.ndarray) -> np.ndarray:
    """Logits of a block behind the context, by its forward over one anchor and given tokens."""
    from transformers import Qwen3Config

    spark = drafter.rank > 0
    of_kind = {"markov_rank": drafter.rank, "markov_head_type": ["vanilla", "gated"][drafter.gated]}
    kind = core.DSparkSpeculatorConfig if spark else core.DFlashDraftModel.config_class
    config = kind(
        transformer_layer_config=Qwen3Config(**drafter.layer, attn_implementation="eager"),
        draft_vocab_size=len(drafter.ids),
        block_size=drafter.slots,
        aux_hidden_state_layer_ids=list(drafter.boundaries or ()),
        mask_token_id=MASK,
        sample_from_anchor=drafter.anchored,
        **(of_kind if spark else {}),
    )
    model = (core.DSparkDraftModel if spark else core.DFlashDraftModel)(config).eval()
    tensors = {name: torch.from_numpy(each) for name, each in with_maps(drafter).items()}
    missing, unknown = model.load_state_dict(tensors, strict=False)
    assert not unknown
    assert {each.split(".")[0] for each in missing} <= {"verifier_norm", "verifier_lm_head"}
    before, slots = len(features), drafter.slots
    tokens = torch.tensor([[*TOKENS, *DRAFTED, *[0] * slots]])
    rows = torch.full((1, tokens.shape[1], features.shape[1]), 9.0)  # of which no later one is seen
    rows[0, :before] = torch.from_numpy(features)
    anchors = torch.zeros_like(tokens)
    anchors[0, before] = 1
    last = torch.zeros(1, tokens.shape[1], CONFIG.hidden_size)
    with torch.inference_mode():
        hidden, logits, *_ = model._backbone_forward(
            rows, tokens, anchors, last, torch.zeros_like(tokens), max_anchors=1
        )
        if spark:  # as in its forward
            of_block = tokens[:, before : before + slots]
            shifted = torch.cat([of_block[:, :1], of_block[:, :-1]], dim=1)
            said = of_block if drafter.anchored else shifted
            logits = logits + model.markov_head.block_bias(
                prev_token_ids=said, hidden_states=hidden.view(1, slots, -1)
            )
    return logits[0, not drafter.anchored :].numpy()


@pytest.mark.parametrize("kind", [each for each in KINDS if each != "window"])
def test_computes_what_speculators_does(tmp_path: Path, source: DirectorySource, kind: str) -> None:
    drafter = random_drafter(CONFIG, **{**KINDS[kind], "own_embedding": True})
    path = write(drafter, "speculators", tmp_path / "drafter")
    target = CpuTarget(source.config, source.weights(), precision="fp32")
    wanted = judged(drafter, states(source, drafter.boundaries or ())[:-1])
    assert apart(block(target, path, source), wanted) < 1e-5
