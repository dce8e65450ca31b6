"""Denoisers on disk: Hugging Face directories of Llama, with one more entry in `config.json`."""

from __future__ import annotations

import json
import platform
import resource
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from paceline.core.cache import whole_file, write_atomically
from paceline.errors import InvalidOption
from paceline.models.config import ModelConfig
from paceline.models.families.base import HF_PARTS
from paceline.models.source import DirectorySource
from paceline.training.denoisers.module import NORM_EPS, ROPE_BASE, DenoiserModule, DenoiserRecipe
from paceline.training.denoisers.rows import EOS, MASK, PAD, SPECIAL, UNKNOWN, vocabulary
from paceline.training.denoisers.run import JUDGED, DenoiserTraining

CONTEXT = 256  # far beyond what is trained


def config_json(recipe: DenoiserRecipe) -> dict[str, Any]:
    """Return the config: that of Llama and, as "denoiser", what its rows see and say.

    - mask_token_id: of masked places;
    - attention: "full", "block" or "order";
    - shift: whether mask rows say the next token; they say their own here;
    - block_size: null, since blocks of any of `BLOCKS` were trained;
    - autoregressive: clean rows that see what is before them only say the next token.
    """
    block = recipe.kind == "block"
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **llama_json(recipe.width, recipe.ffn, recipe.layers, recipe.head),
        "denoiser": {
            "mask_token_id": MASK,
            "attention": recipe.kind,
            "shift": False,
            "block_size": None,
            "autoregressive": block,
        },
    }


def llama_json(width: int, ffn: int, layers: int, head: int) -> dict[str, Any]:
    """Return what configs of models over the words of the tasks have in common."""
    return {
        "vocab_size": len(vocabulary()),
        "hidden_size": width,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": width // head,
        "num_key_value_heads": width // head,
        "head_dim": head,
        "hidden_act": "silu",
        "rms_norm_eps": NORM_EPS,
        "rope_theta": ROPE_BASE,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "torch_dtype": "float16",
    }


def tokenizer_json() -> str:
    """Return a tokenizer of words between spaces; a decoded text has single spaces."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    core = Tokenizer(WordLevel(vocabulary(), unk_token=SPECIAL[UNKNOWN]))
    core.pre_tokenizer = WhitespaceSplit()
    core.add_special_tokens(list(SPECIAL))
    text: str = core.to_str(pretty=True)
    return text


def tensors(module: DenoiserModule) -> dict[str, Tensor]:
    """Return the parameters by their names in Hugging Face checkpoints of Llama."""
    return {_hf_name(name): each.detach() for name, each in module.named_parameters()}


def _hf_name(name: str) -> str:
    if not name.startswith("layers."):
        return {"embedding": "model.embed_tokens.weight", "norm": "model.norm.weight"}[name]
    _, layer, part = name.split(".")
    return f"model.layers.{layer}.{HF_PARTS[part]}.weight"


def save_denoiser(out: Path, module: DenoiserModule, recipe: DenoiserRecipe, card: Any) -> None:
    """Write a model directory; see `save_model`."""
    save_model(out, config_json(recipe), tensors(module), card, markdown(card))


def save_model(out: Path, config: Any, named: Mapping[str, Tensor], card: Any, readme: str) -> None:
    """Write a model directory with float16 weights, and its card as `card.json` and `README.md`.

    The weights come last, so that a directory that lacks some of it has none.

    Args:
        named: tensors by their names in Hugging Face checkpoints.

    Raises:
        InvalidOption: it cannot be written.
    """
    halves = {name: each.half().contiguous() for name, each in named.items()}
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    texts = {
        "config.json": _json(config),
        "generation_config.json": _json({"eos_token_id": EOS, "pad_token_id": PAD}),
        "tokenizer.json": tokenizer_json() + "\n",
        "tokenizer_config.json": _json(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "model_max_length": CONTEXT,
                "eos_token": SPECIAL[EOS],
                "pad_token": SPECIAL[PAD],
                "mask_token": SPECIAL[MASK],
                "unk_token": SPECIAL[UNKNOWN],
                "chat_template": template,
            }
        ),
        "card.json": _json(card),
        "README.md": readme,
    }
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            write_atomically(out / name, text)
        with whole_file(out / "model.safetensors") as part:
            part.write_bytes(save(halves, {"format": "pt"}))
    except OSError as error:
        raise InvalidOption(
            f"cannot write {out} ({error.strerror or error}): free space or give another --out"
        ) from error


def _json(value: Any) -> str:
    return json.dumps(value, indent=1) + "\n"


def load_denoiser(path: Path) -> tuple[DenoiserModule, DenoiserRecipe]:
    """Read a directory that `save_denoiser` wrote, in float32; its recipe is that of the card.

    Raises:
        ModelError: it is no model directory.
        InvalidOption: it is no denoiser that was trained here.
    """
    source = DirectorySource(path)
    try:
        settings = json.loads((path / "card.json").read_text(encoding="utf-8"))["settings"]
        recipe = DenoiserRecipe(**settings)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidOption(
            f"{path} has no card of a denoiser: give a folder that paceline train denoiser wrote"
        ) from error
    config: ModelConfig = source.config
    module = DenoiserModule(recipe, config.vocab_size, torch.Generator())
    weights = source.weights()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(torch.from_numpy(weights[_canonical(name)]))
    return module, recipe


def _canonical(name: str) -> str:
    return "embed" if name == "embedding" else name


def card_of(
    run: DenoiserTraining, found: Mapping[str, Mapping[str, float]], command: str
) -> dict[str, Any]:
    """Return the card of a run; `found` are shares of right answers by decoding and task."""
    right = {name: dict(each) for name, each in found.items()}
    return card_of_run(run, {"cases": JUDGED, "right": right}, command)


def card_of_run(run: Any, held_out: Mapping[str, Any], command: str) -> dict[str, Any]:
    """Return the card of a run that has a module and a recipe of some kind."""
    course = run.course
    return {
        "kind": run.recipe.kind,
        "licence": "Apache-2.0: weights and training data are of this project",
        "command": command,
        "parameters": sum(each.numel() for each in run.module.parameters()),
        "settings": asdict(run.recipe),
        "held_out": dict(held_out),
        "losses": [asdict(point) for point in course.points],
        "cost": {
            "machine": f"{platform.machine()}, {platform.system()}",
            "seconds": course.seconds,
            "tokens": course.tokens,
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        },
    }


def markdown(card: Mapping[str, Any]) -> str:
    """Render a card."""
    held = card["held_out"]
    ways = list(held["right"])
    rows = [
        f"| {task} | " + " | ".join(f"{held['right'][way][task]:.0%}" for way in ways) + " |"
        for task in held["right"][ways[0]]
    ]
    return page(
        card,
        f"A denoiser, {card['kind']} attention",
        [
            "## Right answers",
            "",
            f"{held['cases']} held-out cases a task, one token per forward, greedy.",
            "",
            "| task | " + " | ".join(ways) + " |",
            "|---|" + "---|" * len(ways),
            *rows,
        ],
    )


def page(card: Mapping[str, Any], title: str, middle: list[str]) -> str:
    """Render the head of a card, some lines of its own, and its training."""
    cost = card["cost"]
    settings = [f"| {key} | {value} |" for key, value in card["settings"].items()]
    return "\n".join(
        [
            f"# {title}",
            "",
            f"{card['parameters']:,} parameters. Licence: {card['licence']}.",
            "",
            f"```\n{card['command']}\n```",
            "",
            *middle,
            "",
            "## Training",
            "",
            "| setting | value |",
            "|---|---|",
            *settings,
            "",
            f"{cost['seconds'] / 3600:.2f} h on {cost['machine']}: {cost['tokens']:,} tokens of "
            f"prompts and answers, at most {cost['peak_bytes'] / 2**30:.2f} GiB of memory.",
            "",
        ]
    )
