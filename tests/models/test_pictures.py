"""Pictures: decoded within limits, and resized as Pillow does, to the last bit."""

from __future__ import annotations

import io
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from PIL import Image

from paceline.errors import ModelError, PromptError
from paceline.models.families import hf_config
from paceline.models.pictures import Picture, resized
from paceline.models.towers import Tower, Vision
from paceline.models.vision import gguf_vision, hf_vision

_HALF = (0.5, 0.5, 0.5)
_TOWER = Tower("siglip", 1, 32, 2, 64, 16, 8, 1e-6, "gelu", True)
VISION = Vision(_TOWER, "idefics3", 2, 64, _HALF, _HALF, "bicubic")


def noise(height: int, width: int, channels: int = 3) -> np.ndarray:
    rng = np.random.default_rng(height * 1000 + width)
    return rng.integers(0, 256, (height, width, channels), dtype=np.uint8)


def file_of(image: Image.Image, kind: str = "PNG", **more: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **more)
    return out.getvalue()


@pytest.mark.parametrize("name", ["bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize(
    ("begin", "end"), [((37, 61), (24, 24)), ((20, 13), (48, 50)), ((1, 1), (8, 8))]
)
def test_resizing_has_the_bits_of_pillow(
    name: str, begin: tuple[int, int], end: tuple[int, int]
) -> None:
    pixels = noise(*begin)
    method = Image.Resampling[name.upper()]
    theirs = np.asarray(Image.fromarray(pixels).resize(end[::-1], method))
    np.testing.assert_array_equal(resized(pixels, *end, name), theirs)


def test_patches_are_pixels_channel_by_channel_and_normalised() -> None:
    pixels = noise(16, 16)
    patches = Picture(pixels).patches(VISION)
    assert patches.shape == (4, 192)
    expected = (pixels[8:, :8].astype(np.float64) / 255 - 0.5) / 0.5
    np.testing.assert_array_equal(
        patches[2].reshape(3, 8, 8), expected.transpose(2, 0, 1).astype(np.float32)
    )
    tower = replace(_TOWER, kind="clip", patch=5, image=17)  # 3 x 3 patches, 75 of 96 numbers
    patches = Picture(pixels).patches(replace(VISION, tower=tower, side=3))
    assert patches.shape == (10, 96)
    assert not patches[0].any()
    assert not patches[:, 75:].any()
    assert patches[1:, :75].any(axis=1).all()


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_files_without_loss_have_their_pixels(kind: str, tmp_path: Path) -> None:
    pixels = noise(9, 7)
    data = file_of(Image.fromarray(pixels), kind, lossless=True)
    np.testing.assert_array_equal(Picture.of(data).pixels, pixels)
    (tmp_path / "a.png").write_bytes(data)
    np.testing.assert_array_equal(Picture.open(tmp_path / "a.png").pixels, pixels)


def test_a_jpeg_lies_as_exif_says() -> None:
    image, exif = Image.fromarray(np.zeros((8, 16, 3), np.uint8)), Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    assert Picture.of(file_of(image, "JPEG", exif=exif)).pixels.shape == (16, 8, 3)
    assert Picture.of(file_of(image, "JPEG")).pixels.shape == (8, 16, 3)


def test_what_is_clear_is_white() -> None:
    clear = np.zeros((2, 2, 4), np.uint8)
    clear[0, 0] = 10, 20, 30, 255
    clear[0, 1] = 0, 0, 0, 51
    pixels = Picture.of(file_of(Image.fromarray(clear))).pixels
    assert pixels[0, 0].tolist() == [10, 20, 30]
    assert pixels[0, 1].tolist() == [204, 204, 204]
    assert pixels[1, 1].tolist() == [255, 255, 255]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "CMYK", "I;16"])
def test_every_mode_becomes_red_green_and_blue(mode: str) -> None:
    if mode == "I;16":
        data = file_of(Image.fromarray(np.full((3, 5), 0x8000, np.uint16)))
    else:
        grey = Image.fromarray(np.full((3, 5), 255, np.uint8)).convert(mode)
        data = file_of(grey, "JPEG" if mode == "CMYK" else "PNG")
    pixels = Picture.of(data).pixels
    assert (pixels.shape, pixels.dtype) == ((3, 5, 3), np.uint8)
    assert (pixels >= (126 if mode == "I;16" else 250)).all()


def test_the_first_frame_is_the_picture() -> None:
    levels = np.full((2, 4, 4, 3), 9, np.uint8)
    levels[1] = 200
    first, second = map(Image.fromarray, levels)
    data = file_of(first, "PNG", save_all=True, append_images=[second])
    assert (Picture.of(data).pixels == 9).all()


@pytest.mark.parametrize("side", [5000, 20_000])
def test_large_files_are_refused_before_they_are_decoded(
    side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = file_of(Image.fromarray(np.zeros((100, 100, 3), np.uint8)))
    with pytest.raises(PromptError, match="more than 20 bytes"):
        Picture.of(data, most_bytes=20)
    with pytest.raises(PromptError, match="more than 9999 pixels"):
        Picture.of(data, most_pixels=9999)
    assert Picture.of(data, most_bytes=len(data), most_pixels=10_000).pixels.shape == (100, 100, 3)
    bomb = bytearray(file_of(Image.fromarray(np.zeros((1, 1, 3), np.uint8))))
    bomb[16:24] = side.to_bytes(4, "big") * 2
    bomb[29:33] = zlib.crc32(bytes(bomb[12:29])).to_bytes(4, "big")

    def decoded(*_: Any) -> None:
        raise AssertionError("it was decoded")

    monkeypatch.setattr(Image.Image, "convert", decoded)
    with pytest.raises(PromptError, match="more than 16777216 pixels"):
        Picture.of(bytes(bomb))


@pytest.mark.parametrize("cut", [9, 40, 200])
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_truncated_files_are_damaged(kind: str, cut: int) -> None:
    data = file_of(Image.fromarray(noise(40, 40)), kind)
    with pytest.raises(PromptError, match=r"is damaged|is no PNG"):
        Picture.of(data[:cut])


@pytest.mark.parametrize("data", [b"", b"GIF89a", b"RIFF1234WAVE", b"<svg/>"])
def test_other_files_are_no_pictures(data: bytes) -> None:
    with pytest.raises(PromptError, match=r"a\.png is no PNG, JPEG or WebP"):
        Picture.of(data, "a.png")


def test_a_mislabelled_file_is_read_as_what_it_is_and_a_missing_one_is_named(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.jpg").write_bytes(file_of(Image.fromarray(noise(3, 3))))
    assert Picture.open(tmp_path / "a.jpg").pixels.shape == (3, 3, 3)
    with pytest.raises(PromptError, match="cannot read picture"):
        Picture.open(tmp_path / "none.png")


def test_keys_are_of_pixels_shape_and_settings() -> None:
    pixels = noise(4, 6)
    other = pixels.copy()
    other[3, 5, 2] ^= 1
    shapes = [pixels, other, pixels.reshape(6, 4, 3)]
    keys = {Picture(each).key(settings) for each in shapes for settings in (b"a", b"b")}
    assert len(keys) == 6
    assert Picture(pixels.copy()).key(b"a") == Picture(pixels).key(b"a")


_SIGLIP = {
    "model_type": "siglip_vision_model",
    "hidden_size": 64,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
}
_GEMMA = {
    "model_type": "gemma3",
    "text_config": {"hidden_size": 32},
    "vision_config": _SIGLIP,
    "mm_tokens_per_image": 4,
}


def test_configs_without_a_side_that_sees_have_none() -> None:
    assert hf_vision({"model_type": "llama"}, {}, 64) is None


def test_what_configs_leave_out_is_as_usual() -> None:
    vision = hf_vision(_GEMMA, {"image_mean": [0.1, 0.2, 0.3], "resample": 2}, 64)
    assert vision is not None
    assert (vision.rows, vision.side, vision.together) == (4, 2, True)
    assert (vision.mean, vision.std, vision.filter) == ((0.1, 0.2, 0.3), _HALF, "bilinear")
    assert (vision.tower.eps, vision.tower.curve, vision.tower.layers) == (1e-6, "gelu", 12)


# What checkpoints' files say, of which much is left out.
_FILES: dict[str, dict[str, Any]] = {
    "gemma3": {
        "mm_tokens_per_image": 256,
        "text_config": {
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "model_type": "gemma3_text",
            "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
        "vision_config": {
            "hidden_size": 1152,
            "image_size": 896,
            "intermediate_size": 4304,
            "model_type": "siglip_vision_model",
            "num_attention_heads": 16,
            "num_hidden_layers": 27,
            "patch_size": 14,
        },
    },
    "llava": {
        "image_token_index": 32000,
        "projector_hidden_act": "gelu",
        "text_config": {
            "max_position_embeddings": 4096,
            "model_type": "llama",
            "vocab_size": 32064,
        },
        "vision_config": {
            "hidden_size": 1024,
            "image_size": 336,
            "intermediate_size": 4096,
            "model_type": "clip_vision_model",
            "num_attention_heads": 16,
            "num_hidden_layers": 24,
            "patch_size": 14,
        },
    },
    "idefics3": {
        "scale_factor": 2,
        "text_config": {"model_type": "llama"},
        "vision_config": {"image_size": 364, "model_type": "idefics3", "patch_size": 14},
    },
    "smolvlm": {
        "scale_factor": 4,
        "text_config": {"model_type": "llama"},
        "vision_config": {
            "hidden_size": 768,
            "image_size": 512,
            "model_type": "smolvlm",
            "num_attention_heads": 12,
            "patch_size": 16,
        },
    },
}


@pytest.mark.parametrize("kind", _FILES)
def test_what_files_leave_out_is_as_transformers_has_it(kind: str) -> None:
    said = {"model_type": kind, **_FILES[kind]}
    names = {"gemma3": "Gemma3", "llava": "Llava", "idefics3": "Idefics3", "smolvlm": "SmolVLM"}
    theirs = getattr(transformers, f"{names[kind]}Config")(**_FILES[kind])
    whole = theirs.to_dict()
    whole["vision_config"]["model_type"] = said["vision_config"]["model_type"]
    if kind in ("idefics3", "smolvlm"):  # whose wrappers have other usual ends
        whole["text_config"]["rms_norm_eps"] = 1e-6
    found, expected = hf_config(said), hf_config(whole)
    assert found == expected
    width = found.hidden_size
    assert hf_vision(said, {}, width) == hf_vision(whole, {}, width)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "qwen2_vl"}, "qwen2_vl .* only projectors idefics3, gemma3, mlp"),
        ({"vision_config": _SIGLIP | {"model_type": "pixtral"}}, r"\(pixtral\) does not run"),
        ({"vision_config": _SIGLIP | {"hidden_act": "silu"}}, "activation silu"),
        ({"vision_config": _SIGLIP | {"hidden_size": 40}}, "width 40"),
        ({"mm_tokens_per_image": 9}, "no squares"),
        ({"mm_tokens_per_image": None}, "does not say"),
        ({"model_type": "llava", "vision_feature_layer": [-2, -5]}, "several layers"),
        (
            {"model_type": "llava", "vision_feature_select_strategy": "full"},
            "or the class row",
        ),
    ],
)
def test_configs_that_do_not_run_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        hf_vision(_GEMMA | changes, {}, 64)


_MMPROJ = {
    "general.architecture": "clip",
    "clip.projector_type": "idefics3",
    "clip.use_gelu": True,
    "clip.vision.block_count": 2,
    "clip.vision.embedding_length": 64,
    "clip.vision.attention.head_count": 2,
    "clip.vision.feed_forward_length": 96,
    "clip.vision.image_size": 32,
    "clip.vision.patch_size": 8,
    "clip.vision.attention.layer_norm_epsilon": 1e-6,
    "clip.vision.image_mean": [0.5] * 3,
    "clip.vision.image_std": [0.5] * 3,
    "clip.vision.projection_dim": 32,
    "clip.vision.projector.scale_factor": 2,
}


def test_an_mmproj_says_its_shape() -> None:
    vision = gguf_vision(_MMPROJ, 32)
    assert (vision.projector, vision.rows, vision.together) == ("idefics3", 4, False)
    assert vision.tower.layers == 2
    assert gguf_vision(_MMPROJ | {"clip.projector_type": "gemma3"}, 32).together


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"general.architecture": "llama"}, "no mmproj"),
        ({"clip.projector_type": "qwen2vl_merger"}, "qwen2vl_merger .* idefics3, gemma3, mlp"),
        ({"clip.projector_type": "mlp"}, "give the Hugging Face directory"),
        ({"clip.use_silu": True}, "activation silu"),
        ({"clip.vision.projection_dim": 64}, "width 64, and the model reads 32"),
        ({"clip.vision.projector.scale_factor": 3}, "no squares of 3"),
        ({"clip.vision.image_std": [0.0] * 3}, "cannot be normalised"),
        ({"clip.vision.image_mean": 3}, "download it again"),
    ],
)
def test_mmproj_files_that_do_not_fit_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        gguf_vision(_MMPROJ | changes, 32)
