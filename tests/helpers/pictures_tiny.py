"""pictures-tiny: a model that sees, small enough to be trained here in minutes and to ship.

A picture has one square, of one of six colours at one of nine places; asked "what", the model says
of each picture in a prompt what is in it. `python -m tests.helpers.pictures_tiny` trains it anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paceline.models.pictures import Picture

FOLDER = Path(__file__).parent.parent / "data" / "pictures-tiny"

COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 170, 60),
    "blue": (40, 70, 220),
    "yellow": (240, 220, 40),
    "black": (10, 10, 10),
    "white": (250, 250, 250),
}
LINES, COLUMNS = ("top", "middle", "bottom"), ("left", "centre", "right")
SIDE, PATCH, ROWS = 24, 4, 36

_SPECIAL = ("<unk>", "<s>", "<end>", "<image>", "<user>", "<model>")
_WORDS = (*_SPECIAL, *COLOURS, *LINES, *COLUMNS, "what")
_IMAGE, _END = _SPECIAL.index("<image>"), _SPECIAL.index("<end>")
_TEMPLATE = """\
{%- for message in messages %}{{ '<user>' if message.role == 'user' else '<model>' }}
{%- if message.content is string %} {{ message.content }}
{%- else %}{%- for part in message.content %}
{%- if part.type == 'image' %} <image>{% else %} {{ part.text }}{% endif %}
{%- endfor %}{%- endif %}{%- endfor %} <model>"""


class Seen(NamedTuple):
    """A picture, and what the model should say of it."""

    picture: Picture
    said: str


def drawn(rng: np.random.Generator) -> Seen:
    """Draw a picture, a function of the generator's state."""
    colour, (line, column) = list(COLOURS)[rng.integers(6)], rng.integers(3, size=2)
    pixels = np.full((SIDE, SIDE, 3), rng.integers(90, 170), np.int64)
    y, x = (8 * each + int(rng.integers(3)) for each in (line, column))
    pixels[y : y + 6, x : x + 6] = COLOURS[colour]
    pixels += rng.integers(-10, 11, pixels.shape)
    said = f"{colour} {LINES[line]} {COLUMNS[column]}"
    return Seen(Picture(np.clip(pixels, 0, 255).astype(np.uint8)), said)


def asked(*pictures: Picture) -> list[dict[str, Any]]:
    """A chat that asks about pictures."""
    parts: list[dict[str, Any]] = [{"type": "image", "image": each} for each in pictures]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "what"}]}]


def train(steps: int = 1500, batch: int = 32) -> None:
    """Train it, report the share of right answers to fresh pictures, and write the folder."""
    import torch
    import transformers

    torch.manual_seed(0)
    text = {
        "model_type": "llama",
        "vocab_size": len(_WORDS),
        "hidden_size": 96,
        "intermediate_size": 192,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "max_position_embeddings": 512,
        "bos_token_id": 1,
        "eos_token_id": _END,
        "pad_token_id": 0,
    }
    tower = {
        "model_type": "dinov2",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "mlp_ratio": 2,
        "image_size": SIDE,
        "patch_size": PATCH,
        "layerscale_value": 1.0,
    }
    config = transformers.LlavaConfig(
        text_config=text,
        vision_config=tower,
        image_token_index=_IMAGE,
        image_seq_length=ROWS,
        vision_feature_layer=-1,
    )
    model: Any = transformers.LlavaForConditionalGeneration(config).float()
    rng = np.random.default_rng(0)
    rate = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    course = torch.optim.lr_scheduler.OneCycleLR(rate, 2e-3, steps)
    for step in range(steps):
        loss = _loss(model, [drawn(rng) for _ in range(batch * (1 + step % 2))], 1 + step % 2)
        rate.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        rate.step()
        course.step()
        if step % 50 == 49:
            print(step + 1, f"{float(loss.detach()):.4f}", flush=True)
    _save(model.half())


def _loss(model: Any, seen: list[Seen], together: int) -> Any:
    # Of answers about so many pictures at once.
    import torch

    ids, labels = [], []
    for first in range(0, len(seen), together):
        words = " ".join(each.said for each in seen[first : first + together]).split()
        prompt = [4, *[_IMAGE] * ROWS * together, _WORDS.index("what"), 5]
        answer = [*map(_WORDS.index, words), _END]
        ids.append(prompt + answer)
        labels.append([-100] * len(prompt) + answer)
    out = model(
        input_ids=torch.tensor(ids),
        attention_mask=torch.ones(len(ids), len(ids[0]), dtype=torch.int64),
        pixel_values=torch.stack([_pixels(each.picture) for each in seen]),
        labels=torch.tensor(labels),
    )
    return out.loss


def _pixels(picture: Picture) -> Any:
    import torch

    mean, std = np.array((0.485, 0.456, 0.406)), np.array((0.229, 0.224, 0.225))
    normed = (picture.pixels / 255 - mean) / std
    return torch.from_numpy(normed.astype(np.float32).transpose(2, 0, 1).copy())


def _save(model: Any) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    model.save_pretrained(FOLDER)
    vocabulary = {word: index for index, word in enumerate(_WORDS)}
    core = Tokenizer(WordLevel(vocabulary, unk_token=_SPECIAL[0]))
    core.pre_tokenizer = WhitespaceSplit()
    core.add_special_tokens(list(_SPECIAL))
    core.save(str(FOLDER / "tokenizer.json"))
    said = {"chat_template": _TEMPLATE, "eos_token": "<end>"}
    (FOLDER / "tokenizer_config.json").write_text(json.dumps(said, indent=1) + "\n")


if __name__ == "__main__":
    train()
