"""Published heads beside speculators' own modules, where that package can be imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from tests.networks import test_published as published
from tests.networks.heads import with_maps, write
from tests.networks.test_published import CONFIG, DRAFTED, TOKENS, WIRINGS, apart, chain, states

from paceline.models.source import DirectorySource
from paceline.runtimes.cpu.target import CpuTarget

source = published.source
core: Any = pytest.importorskip("speculators.models.eagle3.core")
OURS = ("plain", "norm-before-residual", "norm-output", "norm-before-fc", "eagle-3.1")
OURS += ("qwen3", "two-layers", "five-parts")


def judged(head: Any, features: np.ndarray) -> np.ndarray:
    """Logits of its forward at the last context row, step by step, over given tokens."""
    from transformers import LlamaConfig, Qwen3Config

    kind = Qwen3Config if head.layer["model_type"] == "qwen3" else LlamaConfig
    layer = kind(**head.layer, attn_implementation="eager")
    config = core.Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=len(head.ids),
        eagle_aux_hidden_state_layer_ids=list(head.boundaries or (2, 4, 5)),
        **head.flags,
    )
    model = core.Eagle3DraftModel(config).eval()
    tensors = {name: torch.from_numpy(each) for name, each in with_maps(head).items()}
    missing, unknown = model.load_state_dict(tensors, strict=False)
    assert not unknown
    assert {each.split(".")[0] for each in missing} <= {
        "verifier_norm",
        "verifier_lm_head",
        "embed_tokens",
    }
    logits: list[torch.Tensor] = []
    model.lm_head.register_forward_hook(lambda _, __, out: logits.append(out))
    tokens = torch.tensor([[*TOKENS[1:], *DRAFTED]])
    rows = torch.zeros(1, tokens.shape[1], features.shape[1])
    rows[0, : len(features)] = torch.from_numpy(features)
    with torch.inference_mode():
        model(
            rows,
            tokens,
            torch.zeros_like(tokens),
            ttt_steps=1 + len(DRAFTED),
            return_dict=False,
        )
    return torch.stack([each[0, len(features) - 1] for each in logits]).numpy()


@pytest.mark.parametrize("wiring", OURS)
def test_computes_what_speculators_does(
    tmp_path: Path, source: DirectorySource, wiring: str
) -> None:
    head = published.random_head(CONFIG, own_embedding=True, **WIRINGS[wiring])
    path = write(head, "speculators", tmp_path / "head")
    target = CpuTarget(source.config, source.weights(), precision="fp32")
    wanted = judged(head, states(source, head.boundaries or (2, 4, 5))[:-1])
    assert apart(chain(target, path, source), wanted) < 1e-5
