"""The head that a model brings along, against the layer and norms of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.models.test_families import write
from transformers.models.qwen3_5 import modeling_qwen3_5 as dense
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as mixed

from paceline.errors import ModelError
from paceline.models.gguf import GGUFFile
from paceline.models.source import DirectorySource
from paceline.models.weights import gguf_weights
from paceline.networks.mtp import own_head
from paceline.networks.runner import ContextUpdate
from paceline.runtimes.cpu.target import CpuTarget
from paceline.runtimes.torch.target import TorchTarget

TOKENS = [3, 17, 5, 80, 41, 9, 2, 66, 31, 7, 50, 12, 90, 4, 28, 33, 71, 8, 19, 62]
STEPS = 3
SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "attn_implementation": "eager",
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 64,
    "experts_implementation": "eager",
}


class Judge:
    """The equations of the head over modules of transformers."""

    def __init__(self, kind: str) -> None:
        torch.manual_seed(3)
        config = transformers.AutoConfig.for_model(kind, **SIZES)
        self.model = transformers.AutoModelForCausalLM.from_config(config).eval()
        layer = mixed.Qwen3_5MoeDecoderLayer if "moe" in kind else dense.Qwen3_5DecoderLayer
        self.layer = layer(config, 3).eval()
        self.fc = torch.nn.Linear(128, 64, bias=False)
        self.norms = {
            name: dense.Qwen3_5RMSNorm(64)
            for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
        }
        with torch.no_grad():
            for each in (*self.layer.parameters(), *self.fc.parameters()):
                each.copy_(0.3 * torch.randn_like(each))
            for norm in self.norms.values():
                norm.weight.copy_(0.2 * torch.randn(64))

    def save(self, path: Path) -> Path:
        self.model.save_pretrained(path)
        tensors = load_file(path / "model.safetensors")
        for name, each in self.layer.state_dict().items():
            tensors[f"mtp.layers.0.{name}"] = each.contiguous()
        tensors["mtp.fc.weight"] = self.fc.weight.data
        tensors |= {f"mtp.{name}.weight": each.weight.data for name, each in self.norms.items()}
        save_file(tensors, path / "model.safetensors", {"format": "pt"})
        return path

    @torch.inference_mode()
    def drafts(self, tokens: list[int], chain: str = "normed") -> list[Any]:
        """Logits by step: of the token after the root, which is the last, and on."""
        embed = self.model.get_input_embeddings()
        hidden = self.model.model(torch.tensor([tokens])).last_hidden_state[0, :-1]
        ids, states, out = tokens[1:], list(hidden), []
        for _ in range(STEPS):
            embedded = self.norms["pre_fc_norm_embedding"](embed(torch.tensor(ids)))
            read = torch.cat(
                [embedded, self.norms["pre_fc_norm_hidden"](torch.stack(states))], dim=-1
            )
            rows = self.fc(read)[None]
            places = torch.arange(rows.shape[1])[None]
            count = rows.shape[1]
            mask = torch.full((count, count), float("-inf")).triu(1)[None, None]
            turns = self.model.model.rotary_emb(rows, places)
            made = self.layer(rows, position_embeddings=turns, attention_mask=mask)
            made = (made[0] if isinstance(made, tuple) else made)[0]
            normed = self.norms["norm"](made)
            out.append(self.model.lm_head(normed[-1]).numpy())
            states.append((normed if chain == "normed" else made)[-1])
            ids = [*ids, int(out[-1].argmax())]
        return out


@pytest.fixture(scope="module", params=["qwen3_5_text", "qwen3_5_moe_text"])
def judge(request: pytest.FixtureRequest) -> Judge:
    return Judge(request.param)


@pytest.fixture(scope="module")
def source(judge: Judge, tmp_path_factory: pytest.TempPathFactory) -> DirectorySource:
    return DirectorySource(judge.save(tmp_path_factory.mktemp("mtp")))


def branches(target: Any, source: DirectorySource, begin: int = 0) -> list[Any]:
    """Logits by step of the head, greedy, over the tokens from `begin` on."""
    trained = own_head(source.config, source.weights(), "of this test")
    assert trained is not None
    runner, cache = target.run_network(trained), target.open()
    features = target.prefill(cache, TOKENS[:-1], features=True)
    own = runner.open()
    for end in (7, len(TOKENS) - 1):  # context rows in two parts
        update = ContextUpdate(own, features[begin:end], TOKENS[begin + 1 : end + 1])
        [branch] = runner.start([update])
        begin = end
    out = [branch.logits[0].copy()]
    for _ in range(STEPS - 1):
        [branch] = runner.advance([(branch, [int(out[-1].argmax())])])
        out.append(branch.logits[0].copy())
    return out


@pytest.mark.parametrize("runtime", ["cpu", "torch"])
def test_it_drafts_what_its_equations_say(
    runtime: str, judge: Judge, source: DirectorySource
) -> None:
    if runtime == "cpu":
        parts = source.config, source.weights(), "fp32"
        target: Any = CpuTarget(*parts, kv_tokens=256, kv_precision="fp32")
    else:
        target = TorchTarget(source.config, source.weights())
    for found, expected in zip(branches(target, source), judge.drafts(TOKENS), strict=True):
        assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


def test_another_chain_is_seen(judge: Judge, source: DirectorySource) -> None:
    """Negative control: what goes on to the next step is normed."""
    right, wrong = judge.drafts(TOKENS), judge.drafts(TOKENS, "not normed")
    assert np.array_equal(right[0], wrong[0])
    assert np.abs(right[1] - wrong[1]).max() > 1e-2 * np.abs(right[1]).max()


def test_a_gguf_file_may_hold_it(source: DirectorySource, tmp_path: Path) -> None:
    """As one block more, which is none of the model's."""
    path = tmp_path / "model.gguf"
    write(path, source.config, source.weights(), "F32", {})
    file = GGUFFile(path)
    assert file.config.layers == source.config.layers
    found = own_head(file.config, gguf_weights(file), "")
    expected = own_head(source.config, source.weights(), "")
    assert found is not None
    assert expected is not None
    assert dict(found.parameters).keys() == dict(expected.parameters).keys()
    for name, values in expected.parameters.items():
        assert np.array_equal(found.parameters[name], values), name


def test_half_a_head_is_refused_and_none_is_none(judge: Judge, tmp_path: Path) -> None:
    judge.save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for name, message in (("mtp.layers.0.self_attn.o_proj.weight", "layers.4.o"), ("", "")):
        left = {key: each for key, each in tensors.items() if key != name}
        if not name:
            left = {key: each for key, each in tensors.items() if not key.startswith("mtp.")}
        save_file(left, tmp_path / "model.safetensors", {"format": "pt"})
        source = DirectorySource(tmp_path)
        if name:
            with pytest.raises(ModelError, match=message):
                own_head(source.config, source.weights(), "")
        else:
            assert own_head(source.config, source.weights(), "") is None
