"""A Llama that is trained in minutes: its shape, its training, and the folder that it leaves."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from paceline.core.cache import make_dir

WIDTH, LAYERS, HEAD, FFN = 64, 3, 32, 192


def config_json(
    vocabulary: int, context: int, begin: int | None = None, end: int | None = None
) -> dict[str, Any]:
    """Return its config.json."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": WIDTH,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": WIDTH // HEAD,
        "num_key_value_heads": WIDTH // HEAD,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": context,
        "tie_word_embeddings": True,
        "bos_token_id": begin,
        "eos_token_id": end,
    }


def fresh(config: dict[str, Any], seed: int, device: str = "cpu") -> Any:
    """Return a `TrainableModel` of random numbers."""
    import torch

    from paceline.lab.training.model import TrainableModel, drawn
    from paceline.models.families import hf_config

    end = config["eos_token_id"]
    known = hf_config(config, () if end is None else (end,))
    parts = [("gate", FFN, WIDTH), ("up", FFN, WIDTH), ("down", WIDTH, FFN)]
    start = drawn(known, parts, torch.Generator().manual_seed(seed))
    model = TrainableModel(known, {name: each.to(device) for name, each in start.items()})
    model._place = torch.device(device), torch.float32
    return model


def learn(
    model: Any,
    steps: int,
    loss_of: Callable[[int], Any],
    keep: Callable[[int, int], None],
    every: int,
) -> None:
    """Update a model, and say the loss now and then.

    Args:
        loss_of: the loss of a step.
        keep: is told steps and seconds, once in `every` steps and at the end.
    """
    from paceline.lab.training.optimisers import optimisers, update
    from paceline.lab.training.recipe import cosine

    rated, begin = optimisers(model.own, 0.02, 3e-3), perf_counter()
    for step in range(steps):
        for optimiser, peak in rated:
            rate = cosine(step, peak=peak, steps=steps, warm=steps // 20)
            optimiser.param_groups[0]["lr"] = rate
        loss = loss_of(step)
        update(model.own.values(), rated, loss, 1.0)
        last, took = step == steps - 1, perf_counter() - begin
        if step % (every // 10) == 0 or last:
            print(f"{step}: {loss.item():.4f} after {took:.0f} s", file=sys.stderr, flush=True)
        if step % every == every - 1 or last:
            keep(step + 1, round(took))


def write(folder: Path, model: Any, config: dict[str, Any], learned: dict[str, Any]) -> None:
    """Write a model, and what it learned so far, which is also printed."""
    from safetensors.torch import save_file

    make_dir(folder)
    tensors = {name: each.cpu() for name, each in model.hf_tensors().items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "training.json").write_text(json.dumps(learned, indent=1))
    print(json.dumps(learned), flush=True)


def trained_on(folder: Path) -> dict[str, Any]:
    """Return what `write` was told of a model."""
    found: dict[str, Any] = json.loads((folder / "training.json").read_text())
    return found
