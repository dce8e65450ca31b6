"""The head that a model brings along, against the layer and norms of transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.helpers.tiny_model import tiny_tokenizer
from tests.models.test_families import GROUPED, LATENT, write
from transformers.modeling_layers import MtpModel
from transformers.models.qwen3_5 import modeling_qwen3_5 as dense
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as mixed

import paceline
from paceline.core.types import SamplingParams
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

    def __init__(self, kind: str, **more: Any) -> None:
        torch.manual_seed(3)
        self.config = transformers.AutoConfig.for_model(kind, **{**SIZES, **more})
        self.model = transformers.AutoModelForCausalLM.from_config(self.config).eval()
        self.made()

    def made(self) -> None:
        layer = mixed.Qwen3_5MoeDecoderLayer
        if self.config.model_type == "qwen3_5_text":
            layer = dense.Qwen3_5DecoderLayer
        self.layer = layer(self.config, 3).eval()
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

    def tensors(self) -> dict[str, torch.Tensor]:
        """Under the names of the checkpoints."""
        out = {f"mtp.layers.0.{name}": each for name, each in self.layer.state_dict().items()}
        out["mtp.fc.weight"] = self.fc.weight.data
        return out | {f"mtp.{name}.weight": each.weight.data for name, each in self.norms.items()}

    def save(self, path: Path) -> Path:
        self.model.save_pretrained(path)
        tensors = load_file(path / "model.safetensors")
        tensors |= {name: each.contiguous() for name, each in self.tensors().items()}
        save_file(tensors, path / "model.safetensors", {"format": "pt"})
        return path

    def rows(self, ids: torch.Tensor, states: torch.Tensor, swapped: bool) -> torch.Tensor:
        """Return what the layer makes of all rows, before the last norm."""
        embedded = self.norms["pre_fc_norm_embedding"](self.model.get_input_embeddings()(ids))
        parts = [embedded, self.norms["pre_fc_norm_hidden"](states)]
        rows = self.fc(torch.cat(parts[:: -1 if swapped else 1], dim=-1))[None]
        places = torch.arange(rows.shape[1])[None]
        count = rows.shape[1]
        mask = torch.full((count, count), float("-inf")).triu(1)[None, None]
        turns = self.model.model.rotary_emb(rows, places)
        made = self.layer(rows, position_embeddings=turns, attention_mask=mask)
        return (made[0] if isinstance(made, tuple) else made)[0]

    def norm(self, x: torch.Tensor) -> torch.Tensor:
        return self.norms["norm"](x)

    @torch.inference_mode()
    def drafts(
        self, tokens: list[int], chain: str = "normed", *, swapped: bool = False
    ) -> list[Any]:
        """Logits by step: of the token after the root, which is the last, and on."""
        hidden = self.model.model(torch.tensor([tokens])).last_hidden_state[0, :-1]
        ids, states, out = tokens[1:], list(hidden), []
        for _ in range(STEPS):
            made = self.rows(torch.tensor(ids), torch.stack(states), swapped)
            normed = self.norm(made)
            out.append(self.model.lm_head(normed[-1]).numpy())
            states.append((normed if chain == "normed" else made)[-1])
            ids = [*ids, int(out[-1].argmax())]
        return out


class Latent(Judge):
    """Of DeepSeek V3 and GLM 4.7 Flash: the head of transformers itself."""

    def made(self) -> None:
        self.head = MtpModel(self.model, 1).eval()
        [self.layer] = self.head.layers
        self.layer.use_post_norm = False
        with torch.no_grad():
            for name, each in [*self.layer.named_parameters(), *self.layer.named_buffers()]:
                each.copy_(("norm" in name) + 0.15 * torch.randn_like(each))

    def tensors(self) -> dict[str, torch.Tensor]:
        layer, out = f"model.layers.{self.config.num_hidden_layers}", {}
        for name, each in self.layer.state_dict().items():
            plain = name.removeprefix("mtp_block.").replace("post_norm", "shared_head.norm")
            out[f"{layer}.{plain}"] = each
        return out

    def rows(self, ids: torch.Tensor, states: torch.Tensor, swapped: bool) -> torch.Tensor:
        self.layer.config.mtp_hidden_states_first = swapped
        places = torch.arange(len(ids))[None]
        return self.head.forward_layer(0, states[None], places, None, input_ids=ids[None])[0]

    def norm(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer.post_norm(x)


class Halves(Judge):
    """Of Nemotron 3: a model of attention, experts and a norm, over what both norms give."""

    def made(self) -> None:
        kinds: dict[str, Any] = {"layers_block_type": ["full_attention", "moe"]}
        kinds["moe_latent_size"] = self.config.moe_latent_size
        config = transformers.AutoConfig.for_model("nemotron_h", **{**SIZES, **HALVES, **kinds})
        self.layer = transformers.AutoModel.from_config(config).eval()
        self.fc = torch.nn.Linear(128, 64, bias=False)
        self.norms = {
            name: torch.nn.RMSNorm(64, eps=config.layer_norm_epsilon) for name in ("enorm", "hnorm")
        }
        self.last = self.layer.norm_f
        self.layer.norm_f = torch.nn.Identity()
        with torch.no_grad():
            for each in (*self.layer.parameters(), *self.layer.buffers(), self.fc.weight):
                each.copy_(0.3 * torch.randn_like(each) + (each.ndim == 1))
            for norm in (*self.norms.values(), self.last):
                norm.weight.copy_(1 + 0.2 * torch.randn(64))

    def tensors(self) -> dict[str, torch.Tensor]:
        found = self.layer.state_dict().items()
        out = {f"mtp.{name}": each for name, each in found if name.startswith("layers.")}
        for name in [name for name, each in out.items() if each.ndim == 3]:  # of all experts
            body, _, part = name.rpartition(".")
            rows = out.pop(name)
            out |= {f"{body}.{number}.{part}.weight": each for number, each in enumerate(rows)}
        out["mtp.layers.0.eh_proj.weight"] = self.fc.weight.data
        out["mtp.layers.1.final_layernorm.weight"] = self.last.weight.data
        return out | {
            f"mtp.layers.0.{name}.weight": each.weight.data for name, each in self.norms.items()
        }

    def rows(self, ids: torch.Tensor, states: torch.Tensor, swapped: bool) -> torch.Tensor:
        embedded = self.norms["enorm"](self.model.get_input_embeddings()(ids))
        parts = [embedded, self.norms["hnorm"](states)]
        rows = self.fc(torch.cat(parts[:: -1 if swapped else 1], dim=-1))
        return self.layer(inputs_embeds=rows[None], use_cache=False).last_hidden_state[0]

    def norm(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x)


DEEPSEEK = {
    **LATENT,
    **GROUPED,
    "num_hidden_layers": 2,
    "num_key_value_heads": 4,
    "head_dim": LATENT["qk_rope_head_dim"],
    "num_mtp_layers": 1,
    "first_k_dense_replace": 1,
}
GLM = {"mlp_layer_types": ["dense", "sparse"], "mtp_mlp_layer_types": ["sparse"]}
HALVES = {
    "head_dim": 16,
    "mamba_num_heads": 4,
    "mamba_head_dim": 32,
    "ssm_state_size": 16,
    "n_groups": 2,
    "time_step_min": 1e-30,
    "time_step_floor": 1e-4,
    "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
    "n_routed_experts": 6,
    "moe_shared_expert_intermediate_size": 64,
    "routed_scaling_factor": 2.5,
}
JUDGES: dict[str, Callable[[], Judge]] = {
    "qwen3_5_text": lambda: Judge("qwen3_5_text"),
    "qwen3_5_moe_text": lambda: Judge("qwen3_5_moe_text"),
    "deepseek_v3": lambda: Latent("deepseek_v3", **DEEPSEEK),
    "deepseek_v3-plain": lambda: Latent("deepseek_v3", **DEEPSEEK | {"q_lora_rank": None}),
    "glm4_moe_lite": lambda: Latent("glm4_moe_lite", **DEEPSEEK, **GLM),
    "nemotron_h": lambda: Halves("nemotron_h", **HALVES),
    "nemotron_h-latent": lambda: Halves("nemotron_h", **HALVES, moe_latent_size=32),
}


@pytest.fixture(scope="module", params=JUDGES)
def judge(request: pytest.FixtureRequest) -> Judge:
    return JUDGES[request.param]()


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


WHOLE: dict[str, Callable[[], Judge]] = {
    "glm4_moe_lite": lambda: Latent("glm4_moe_lite", **DEEPSEEK, **GLM, vocab_size=320),
    "nemotron_h": lambda: Halves("nemotron_h", **HALVES, moe_latent_size=32, vocab_size=320),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_texts_are_those_without_it(kind: str, tmp_path: Path) -> None:
    """In a batch, in chains and trees, and by default, which finds it."""
    path = WHOLE[kind]().save(tmp_path / "model")
    tiny_tokenizer(320).save(str(path / "tokenizer.json"))
    prompts = ["the quick brown fox and the quick", "def f(x): return x + 1 def f(x)"]
    params = SamplingParams(max_new_tokens=24, ignore_eos=True)
    options: dict[str, Any] = {"threads": 2, "controller": "fixed", "nodes": 3}
    plain = paceline.load(str(path), drafter="none", threads=2).generate(prompts, params)
    for drafter in ("mtp", "mtp:growth=expand-rerank"):
        found = paceline.load(str(path), drafter=drafter, **options).generate(prompts, params)
        assert [each.token_ids for each in found] == [each.token_ids for each in plain]
        assert sum(each.stats.drafted_tokens for each in found) > 0
    assert "mtp" in paceline.load(str(path), threads=2).config["drafter"]


def test_another_chain_is_seen(judge: Judge, source: DirectorySource) -> None:
    """Negative control: what goes on to the next step is normed."""
    right, wrong = judge.drafts(TOKENS), judge.drafts(TOKENS, "not normed")
    assert np.array_equal(right[0], wrong[0])
    assert np.abs(right[1] - wrong[1]).max() > 1e-2 * np.abs(right[1]).max()


def test_another_order_is_seen(judge: Judge) -> None:
    """Negative control: the embedding comes first."""
    right, wrong = judge.drafts(TOKENS), judge.drafts(TOKENS, swapped=True)
    assert np.abs(right[0] - wrong[0]).max() > 1e-2 * np.abs(right[0]).max()


@pytest.mark.parametrize("judge", ["qwen3_5_text", "qwen3_5_moe_text"], indirect=True)
def test_a_gguf_file_may_hold_it(judge: Judge, source: DirectorySource, tmp_path: Path) -> None:
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
    tensors, own = load_file(tmp_path / "model.safetensors"), judge.tensors()
    part = next(name for name in own if name.endswith(("hnorm.weight", "norm_hidden.weight")))
    layers = judge.config.num_hidden_layers
    # Halves of Nemotron's layers may be of any kind: these are none of attention and experts.
    other = {name for name in own if isinstance(judge, Halves) and "o_proj" in name}
    for gone in ({part}, {*own}, other):
        left = {name: each for name, each in tensors.items() if name not in gone}
        save_file(left, tmp_path / "model.safetensors", {"format": "pt"})
        source = DirectorySource(tmp_path)
        if len(gone) == 1 and gone != other:
            with pytest.raises(ModelError, match=f"layers.{layers}.mtp_hidden_norm"):
                own_head(source.config, source.weights(), "")
        elif gone:
            assert own_head(source.config, source.weights(), "") is None
