"""Tiny denoisers of known weights, and the numbers that their reference implementations give.

    PYTHONPATH=src:. python -m tests.models.golden_denoisers FOLDER

runs what FOLDER holds of the references in `REFERENCES` and writes `denoisers.json` beside this
file: numbers only. It needs torch and the transformers of their time (see "versions" there).
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

PAGE = Path(__file__).with_name("denoisers.json")
MASK, END = 93, 94
PROMPT = [3, 17, 5, 80, 41, 9]
TOKENS = [*PROMPT, 66, MASK, 31, MASK, MASK, 12]
BLOCK = 4
_COMMON: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-3,
    "rope_theta": 5000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "mask_token_id": MASK,
    "pad_token_id": 95,
    "eos_token_id": END,
}
# A config.json by family. Norms divide by more than usual, so that it matters where they add.
CONFIGS: dict[str, dict[str, Any]] = {
    "llada": {
        "model_type": "llada",
        "architectures": ["LLaDAModelLM"],
        "d_model": 64,
        "n_heads": 4,
        "n_kv_heads": 2,
        "n_layers": 2,
        "mlp_hidden_size": 96,
        "mlp_ratio": 4,
        "max_sequence_length": 64,
        "vocab_size": 95,
        "embedding_size": 96,
        "rope": True,
        "rope_theta": 5000.0,
        "rms_norm_eps": 1e-3,
        "layer_norm_type": "rms",
        "layer_norm_with_affine": True,
        "block_type": "llama",
        "activation_type": "silu",
        "alibi": False,
        "scale_logits": False,
        "include_bias": False,
        "include_qkv_bias": False,
        "bias_for_layer_norm": False,
        "attention_layer_norm": False,
        "input_emb_norm": False,
        "block_group_size": 1,
        "multi_query_attention": None,
        "weight_tying": False,
        "mask_token_id": MASK,
        "eos_token_id": END,
        "pad_token_id": END,
    },
    "Dream": {**_COMMON, "model_type": "Dream", "architectures": ["DreamModel"]},
    "sdar": {
        **_COMMON,
        "model_type": "sdar",
        "architectures": ["SDARForCausalLM"],
        "head_dim": 32,
        "block_size": BLOCK,
        "attention_bias": False,
        "fuse_cross_entropy": False,
    },
    "Fast_dLLM_Qwen": {
        **_COMMON,
        "model_type": "Fast_dLLM_Qwen",
        "architectures": ["Fast_dLLM_QwenForCausalLM"],
        "bd_size": BLOCK,
    },
    "wedlm": {
        **_COMMON,
        "model_type": "wedlm",
        "architectures": ["WeDLMForCausalLM"],
        "head_dim": 32,
        "attention_bias": False,
        "qk_norm": True,
    },
}


def weights(shapes: Iterable[tuple[str, tuple[int, ...]]]) -> dict[str, npt.NDArray[np.float32]]:
    """Float32 tensors by name, the same on every machine: drawn from a hash of the name."""
    out = {}
    for name, shape in shapes:
        drawn = hashlib.shake_256(name.encode()).digest(2 * int(np.prod(shape)))
        values = np.frombuffer(drawn, dtype="<i2").astype(np.float64).reshape(shape) * 2.0**-15
        if "norm" in name or ".ln_f" in name:
            values = 1 + 0.3 * values
        elif "embed" not in name and "wte" not in name and len(shape) == 2:
            values = values * 2.5 / np.sqrt(shape[1])
        if name in ("lm_head.weight", "model.transformer.ff_out.weight"):
            values[MASK] = 0  # never the likeliest: the references do not exclude it
        out[name] = values.astype(np.float32)
    return out


# Where each was had, and which of its files FOLDER holds in a folder of this name.
REFERENCES = {
    "llada": "ZHZisZZ/dllm@ca176752 dllm/pipelines/llada/models (Apache-2.0), "
    "ML-GSAI/LLaDA@b7e6c356 generate.py (MIT)",
    "dream": "ZHZisZZ/dllm@ca176752 dllm/pipelines/dream/models (Apache-2.0)",
    "sdar": "JetAstra/SDAR@c2041a83 training/model/SDAR-4B-Chat, generate.py (MIT); its RMS norm "
    "and attention of whole blocks call flash_attn, in whose place are those of PyTorch",
    "fastv2": "Efficient-Large-Model/Fast_dLLM_v2_7B modeling.py, as of "
    "Satgoy152/DualDiffusion@9587d1e4 FastDLLM_inferencing (Apache-2.0)",
}


def _model(kind: str, folder: str, classes: tuple[str, str]) -> tuple[Any, dict[str, list[int]]]:
    # A reference model with the weights above, and the shapes of its tensors.
    import torch

    end = "" if folder == "fastv2" else f"_{folder}"
    configs, code = (
        importlib.import_module(f"{folder}.{x}{end}") for x in ("configuration", "modeling")
    )
    config = getattr(configs, classes[0])
    entries = {name: each for name, each in CONFIGS[kind].items() if name != "model_type"}
    made = getattr(code, classes[1])
    if kind == "llada":  # builds on a GPU unless it is given a trunk
        config = config(**entries)
        own = code.create_model_config_from_pretrained_config(config)
        own.init_device = "cpu"
        model = made(config, code.LLaDAModel(own, init_params=False))
    else:
        model = made(config(**entries))
    state = {name: tuple(each.shape) for name, each in model.state_dict().items()}
    drawn = {name: torch.from_numpy(each) for name, each in weights(state.items()).items()}
    model.load_state_dict(drawn, strict=True)
    return model.eval().float(), {name: list(shape) for name, shape in state.items()}


def _traced(model: Any, run: Callable[[], Any]) -> dict[str, Any]:
    # What the model reads at each forward, and the last text. The same with the mask token
    # forbidden, whose logit never counts here.
    found, forward = [], model.forward
    for ban in (False, True):
        reads: list[list[int]] = []

        def noted(input_ids: Any, *more: Any, ban: bool = ban, **options: Any) -> Any:
            reads.append(input_ids.reshape(-1).tolist())  # noqa: B023 (called in this turn)
            output = forward(input_ids, *more, **options)
            output.logits[..., MASK] -= 1e9 * ban
            return output

        model.forward = noted
        found.append({"reads": reads, "tokens": run().reshape(-1).tolist()})
    model.forward = forward
    assert found[0] == found[1], "the mask token counts in this trace: take another prompt"
    return found[0]


def _flash_attention() -> None:
    # Stands for the two functions of flash_attn that SDAR's code cannot do without.
    import torch

    def rms_norm_fn(x: Any, weight: Any, bias: Any, eps: float) -> Any:
        return weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)

    def flash_attn_func(q: Any, k: Any, v: Any, causal: bool, softmax_scale: float) -> Any:
        parts = (each.transpose(1, 2) for each in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(
            *parts, scale=softmax_scale, enable_gqa=True
        ).transpose(1, 2)

    names = ("flash_attn", "flash_attn.ops", "flash_attn.ops.triton")
    for name in (*names, "flash_attn.ops.triton.layer_norm", "flash_attn.bert_padding"):
        sys.modules[name] = ModuleType(name)
    sys.modules["flash_attn"].flash_attn_func = flash_attn_func  # type: ignore[attr-defined]
    sys.modules["flash_attn"].flash_attn_varlen_func = None  # type: ignore[attr-defined]
    for name in ("index_first_axis", "pad_input", "unpad_input"):
        setattr(sys.modules["flash_attn.bert_padding"], name, None)
    sys.modules["flash_attn.ops.triton.layer_norm"].rms_norm_fn = rms_norm_fn  # type: ignore[attr-defined]
    losses = ModuleType("sdar.fused_linear_diffusion_cross_entropy")
    losses.FusedLinearDiffusionCrossEntropyLoss = None  # type: ignore[attr-defined]
    sys.modules[losses.__name__] = losses


def _block_causal(rows: int, size: int) -> Any:
    import torch

    blocks = torch.arange(rows) // size
    return (blocks[:, None] >= blocks[None])[None]


def write(folder: Path) -> None:
    """Run the references in `folder` and write their numbers."""
    import torch
    import transformers

    sys.path.insert(0, str(folder))
    text, prompt = torch.tensor([TOKENS]), torch.tensor([PROMPT])
    cases: dict[str, Any] = {}

    def case(kind: str, model: Any, shapes: Any, logits: Any, runs: dict[str, Any]) -> None:
        traces = {
            name: {**_traced(model, partial(run, **options)), "options": options}
            for name, (run, options) in runs.items()
        }
        numbers = [[float(f"{each:.8g}") for each in row] for row in logits[0].tolist()]
        cases[kind] = {"shapes": shapes, "logits": numbers, "traces": traces}

    with torch.inference_mode():
        model, shapes = _model("llada", "llada", ("LLaDAConfig", "LLaDAModelLM"))
        sampler = importlib.import_module("llada.generate").generate
        run = partial(sampler, model, prompt, mask_id=MASK)
        runs = {
            "blocks of 4, one a step": (run, {"gen_length": 8, "block_length": 4, "steps": 8}),
            "whole, three steps": (run, {"gen_length": 8, "block_length": 8, "steps": 3}),
        }
        case("llada", model, shapes, model(text).logits, runs)

        model, shapes = _model("Dream", "dream", ("DreamConfig", "DreamModel"))
        settings = importlib.import_module("dream.generation_utils").DreamGenerationConfig
        ids = {"mask_token_id": MASK, "pad_token_id": 95, "bos_token_id": 95, "eos_token_id": END}

        def dream(model: Any = model, **plan: Any) -> Any:
            return model.diffusion_generate(prompt, settings(**ids, **plan))

        plan = {"steps": 5, "max_new_tokens": 8, "temperature": 0.0}
        algorithms = ("maskgit_plus", "topk_margin", "entropy")
        runs = {alg: (dream, dict(alg=alg, **plan)) for alg in algorithms}
        case("Dream", model, shapes, model(text, "full").logits, runs)

        names = "Fast_dLLM_QwenConfig", "Fast_dLLM_QwenForCausalLM"
        model, shapes = _model("Fast_dLLM_Qwen", "fastv2", names)

        def fast(model: Any = model, **plan: Any) -> Any:
            return model.generate(prompt, mask_id=MASK, stop_token=-1, **plan)[0]

        plan = {"max_new_tokens": 32, "threshold": 0.3, "small_block_size": 8, "block_size": 32}
        logits = model(text, block_size=BLOCK).logits
        case("Fast_dLLM_Qwen", model, shapes, logits, {"threshold": (fast, plan)})

        _flash_attention()  # not before: others would use it
        model, shapes = _model("sdar", "sdar", ("SDARConfig", "SDARForCausalLM"))
        sampler = importlib.import_module("sdar.generate").block_diffusion_generate
        plan = {
            "gen_length": 8,
            "block_length": BLOCK,
            "denoising_steps": 4,
            "top_k": 1,
            "remasking_strategy": "sequential",
        }
        run = partial(sampler, model, {"input_ids": prompt}, MASK)
        logits = model(text, _block_causal(len(TOKENS), BLOCK)).logits
        case("sdar", model, shapes, logits, {"sequential": (run, plan)})
    page = {
        "command": "python -m tests.models.golden_denoisers FOLDER",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "references": REFERENCES,
        "cases": cases,
    }
    PAGE.write_text(json.dumps(page, separators=(",", ":")).replace("],[", "],\n[") + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
