"""Tiny models that see, of random numbers, by transformers: on disk, and to compare with."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from safetensors.numpy import load_file
from tests.helpers.tiny_model import tiny_tokenizer

IMAGE = 7
"""Id of the token that stands where a row of a picture does."""

_LLAMA = {
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_GEMMA = _LLAMA | {
    "model_type": "gemma3_text",
    "head_dim": 32,
    "sliding_window": 64,
    "query_pre_attn_scalar": 32,
}
# Heads and blocks of no whole group, as the larger SigLIP has.
_TOWER = {
    "hidden_size": 96,
    "intermediate_size": 100,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
_MARKS = (
    "<fake_token_around_image>",
    "<global-img>",
    "<image>",
    "<start_of_image>",
    "<image_soft_token>",
    "<end_of_image>",
)
_TEMPLATE = """\
{%- for message in messages %}<|im_start|>{{ message.role }}:
{%- if message.content is string %}{{ message.content }}
{%- else %}
{%- for part in message.content %}
{%- if part.type == 'image' %}PLACE{% else %}{{ part.text }}{% endif %}
{%- endfor %}
{%- endif %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant:{% endif %}"""
_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "smolvlm": ("SmolVLM", {"scale_factor": 2, "image_token_id": IMAGE}),
    "idefics3": ("Idefics3", {"scale_factor": 2, "image_token_id": IMAGE}),
    "llava": ("Llava", {"image_token_index": IMAGE, "image_seq_length": 16}),
    "dinov2": ("Llava", {"image_token_index": IMAGE, "image_seq_length": 16}),
    "gemma3": ("Gemma3", {"mm_tokens_per_image": 4, "image_token_index": IMAGE}),
}
KINDS = tuple(_KINDS)
_SIDES = {
    "smolvlm": "smolvlm_vision",
    "idefics3": "idefics3_vision",
    "llava": "clip_vision_model",
    "dinov2": "dinov2",
    "gemma3": "siglip_vision_model",
}


def seeing(kind: str, directory: Path, image: int = IMAGE, **changes: Any) -> Any:
    """Save a model of `KINDS` there, and return it as transformers has it.

    `image` is the id of the token that stands for a row, `changes` those of the text's config.
    """
    name, more = _KINDS[kind]
    more = {key: image if key.startswith("image_token") else each for key, each in more.items()}
    text = (_GEMMA if kind == "gemma3" else _LLAMA) | changes
    tower = {**_TOWER, "model_type": _SIDES[kind]}
    tower |= {"mlp_ratio": 4} if kind == "dinov2" else {}
    config = getattr(transformers, f"{name}Config")(text_config=text, vision_config=tower, **more)
    torch.manual_seed(3)
    with torch.no_grad():
        model = getattr(transformers, f"{name}ForConditionalGeneration")(config).float().eval()
        for label, each in model.named_parameters():
            each.normal_(0, 0.1)
            if each.ndim == 1 and "bias" not in label and kind != "gemma3":
                each += 1
    model.save_pretrained(directory)
    return model


def talking(kind: str, directory: Path) -> Any:
    """The same, with a tokenizer and a chat template that shows pictures."""
    core = tiny_tokenizer(320)
    core.add_special_tokens(list(_MARKS))
    row = "<image_soft_token>" if kind == "gemma3" else "<image>"
    sizes = {"vocab_size": 336, "max_position_embeddings": 512, "eos_token_id": 2}
    sizes |= {"sliding_window": 32} if kind == "gemma3" else {}  # pictures stand behind it
    model = seeing(kind, directory, core.token_to_id(row), **sizes)
    core.save(str(directory / "tokenizer.json"))
    place = "<start_of_image>" if kind == "gemma3" else "<image>"
    said = {"chat_template": _TEMPLATE.replace("PLACE", place), "eos_token": "<|im_end|>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(said))
    return model


def pixels_of(patches: np.ndarray, grid: int, patch: int) -> torch.Tensor:
    """Return rows of patches as the picture, `[1, 3, height, width]`."""
    rows = patches[-(grid**2) :, : 3 * patch**2].reshape(grid, grid, 3, patch, patch)
    picture = rows.transpose(2, 0, 3, 1, 4).reshape(1, 3, grid * patch, grid * patch)
    return torch.from_numpy(np.ascontiguousarray(picture))


_PARTS = {
    "layer_norm1": "ln1",
    "layer_norm2": "ln2",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_out",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
}
_NAMES = [
    (re.compile(r".*vision_model\.embeddings\.patch_embedding\.(\w+)"), r"v.patch_embd.\1"),
    (re.compile(r".*vision_model\.embeddings\.position_embedding\.(\w+)"), r"v.position_embd.\1"),
    (re.compile(r".*vision_model\.post_layernorm\.(\w+)"), r"v.post_ln.\1"),
    (re.compile(r".*modality_projection\.proj\.(\w+)"), r"mm.model.fc.\1"),
    *(
        (
            re.compile(rf".*encoder\.layers\.(\d+)\.{re.escape(theirs)}\.(\w+)"),
            rf"v.blk.\1.{own}.\2",
        )
        for theirs, own in _PARTS.items()
    ),
]


def save_mmproj(directory: Path, file: Path, **changes: Any) -> Path:
    """Write what reads pictures of a saved SmolVLM as llama.cpp's converter does."""
    config = json.loads((directory / "config.json").read_text())
    tower = config["vision_config"]
    writer = gguf.GGUFWriter(file, "clip")
    writer.add_string("clip.projector_type", "idefics3")
    writer.add_bool("clip.use_gelu", True)
    numbers = {
        "image_size": tower["image_size"],
        "patch_size": tower["patch_size"],
        "embedding_length": tower["hidden_size"],
        "feed_forward_length": tower["intermediate_size"],
        "block_count": tower["num_hidden_layers"],
        "attention.head_count": tower["num_attention_heads"],
        "projection_dim": config["text_config"]["hidden_size"],
        "projector.scale_factor": config["scale_factor"],
        **changes,
    }
    for name, value in numbers.items():
        writer.add_uint32(f"clip.vision.{name}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    for name in ("mean", "std"):
        writer.add_array(f"clip.vision.image_{name}", [0.5, 0.5, 0.5])
    for name, values in load_file(directory / "model.safetensors").items():
        for theirs, own in _NAMES:
            if theirs.fullmatch(name):
                writer.add_tensor(theirs.sub(own, name), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
