"""Models of tasks on disk: Hugging Face directories of Llama with a card.

Their words are those of the tasks. `config.json` of a denoiser has one more entry.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from paceline.core.cache import whole_file, write_atomically
from paceline.errors import InvalidOption
from paceline.lab.training.card import Card, page, table
from paceline.lab.training.denoisers.rows import EOS, MASK, PAD, SPECIAL, UNKNOWN, vocabulary
from paceline.lab.training.model import TrainableModel, drawn
from paceline.lab.training.recipe import DenoiserRecipe, ExpertRecipe
from paceline.models.families import hf_config
from paceline.models.source import DirectorySource

CONTEXT = 256  # far beyond what is trained

LICENCE = "Apache-2.0: weights and training data are of this project"


def denoiser(recipe: DenoiserRecipe, generator: torch.Generator) -> TrainableModel:
    """Return a denoiser with weights at random."""
    width, ffn = recipe.width, recipe.ffn
    config = hf_config(config_json(recipe), (EOS,))
    parts = [("gate", ffn, width), ("up", ffn, width), ("down", width, ffn)]
    return TrainableModel(config, drawn(config, parts, generator))


def config_json(recipe: DenoiserRecipe) -> dict[str, Any]:
    """Return the config: that of Llama and, as "denoiser", what its rows see and say.

    - mask_token_id: of masked places;
    - attention: "full", "block" or "order";
    - shift: whether mask rows say the next token; they say their own here;
    - block_size: null, since blocks of any of `BLOCKS` were trained;
    - autoregressive: clean rows that see what is before them only say the next token.
    """
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **llama_json(recipe, recipe.ffn),
        "denoiser": {
            "mask_token_id": MASK,
            "attention": recipe.kind,
            "shift": False,
            "block_size": None,
            "autoregressive": recipe.kind == "block",
        },
    }


def llama_json(recipe: DenoiserRecipe | ExpertRecipe, ffn: int) -> dict[str, Any]:
    """Return what configs of models over the words of the tasks have in common."""
    heads = recipe.width // recipe.head
    return {
        "vocab_size": len(vocabulary()),
        "hidden_size": recipe.width,
        "intermediate_size": ffn,
        "num_hidden_layers": recipe.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": recipe.head,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
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


def save_model(
    out: Path,
    config: Mapping[str, Any],
    named: Mapping[str, Tensor],
    card: Card,
    title: str,
    middle: Sequence[str],
) -> None:
    """Write a model directory with float16 weights, and its card as `card.json` and `README.md`.

    Args:
        named: tensors by their names in Hugging Face checkpoints.
        title, middle: of the page, as `page` takes them.

    Raises:
        InvalidOption: it cannot be written.
    """
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    texts = {
        "config.json": as_json(config),
        "generation_config.json": as_json({"eos_token_id": EOS, "pad_token_id": PAD}),
        "tokenizer.json": tokenizer_json() + "\n",
        "tokenizer_config.json": as_json(
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
        "card.json": as_json(card),
        "README.md": page(card, title, ".", middle),
    }
    write_folder(out, texts, named, {})


def write_folder(
    out: Path, texts: Mapping[str, str], named: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> Path:
    """Write text files and, as float16, the weights, whose path is returned.

    These come last, so that a directory that lacks some of it has none.

    Raises:
        InvalidOption: it cannot be written.
    """
    halves = {name: each.half().contiguous() for name, each in named.items()}
    weights = out / "model.safetensors"
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            write_atomically(out / name, text)
        with whole_file(weights) as part:
            part.write_bytes(save(halves, {"format": "pt", **metadata}))
    except OSError as error:
        raise InvalidOption(
            f"cannot write {out} ({error.strerror or error}): free space or give another --out"
        ) from error
    return weights


def as_json(value: Any) -> str:
    return json.dumps(value, indent=1) + "\n"


def load_denoiser(path: Path) -> tuple[TrainableModel, DenoiserRecipe]:
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
    model, weights = denoiser(recipe, torch.Generator()), source.weights()
    model.load({name: torch.from_numpy(weights[name]) for name in model.own})
    return model, recipe


def save_denoiser(out: Path, model: TrainableModel, recipe: DenoiserRecipe, card: Card) -> None:
    """Write a model directory; see `save_model`.

    The `held_out` of the card has shares of right answers by way and task.
    """
    held = card["held_out"]
    right: Mapping[str, Mapping[str, float]] = held["right"]
    tasks = next(iter(right.values()))
    rows = [(task, *(f"{right[way][task]:.0%}" for way in right)) for task in tasks]
    middle = [
        "## Right answers",
        f"{held['cases']} held-out cases a task, one token per forward, greedy.",
        table(("task", *right), rows),
    ]
    title = f"A denoiser, {recipe.kind} attention"
    save_model(out, config_json(recipe), model.hf_tensors(), card, title, middle)
