"""LoRA adapters against transformers with merged weights, PEFT, and files that are wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.helpers.tiny_model import save_directory, save_gguf, tiny_config
from tests.models.test_families import TOKENS, logits, original, write

import paceline
from paceline.core.target import Rows
from paceline.errors import InvalidOption, ModelError
from paceline.models.adapters import Factors, merged
from paceline.models.gguf import dequantize
from paceline.models.safetensors import SafetensorsFiles
from paceline.models.source import AdaptedSource, DirectorySource, resolve
from paceline.runtimes.cpu.matrices import Formats
from paceline.runtimes.cpu.target import CpuTarget
from paceline.runtimes.torch.target import TorchTarget

RANK, ALPHA = 4, 12
Tensors = dict[str, torch.Tensor]


def adapt(
    model: Any,
    path: Path,
    wanted: str = r"(_proj|in_proj_qkv|in_proj_z|out_proj|w[123])$",
    size: float = 0.15,
    **config: Any,
) -> Path:
    """Save a random adapter of a model's linear layers, as PEFT does; RANK 7 of value matrices."""
    torch.manual_seed(7)
    path.mkdir()
    tensors: Tensors = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and re.search(wanted, name):
            out, inputs = module.weight.shape
            rank = 7 if name.endswith(".v_proj") else RANK
            tensors[f"{name}.lora_A.weight"] = size * torch.randn(rank, inputs)
            tensors[f"{name}.lora_B.weight"] = size * torch.randn(out, rank)
    save_peft(path, tensors, {"rank_pattern": {"v_proj": 7}} | config)
    return path


def save_peft(path: Path, tensors: Tensors, config: dict[str, Any]) -> None:
    save_file(
        {f"base_model.model.{name}": each.contiguous() for name, each in tensors.items()},
        path / "adapter_model.safetensors",
    )
    said = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none"}
    said |= {"task_type": "CAUSAL_LM", "target_modules": ["q_proj"]}
    (path / "adapter_config.json").write_text(json.dumps(said | config))


def merge(model: Any, path: Path, scale: float = 1.0) -> None:
    """Add an adapter to the weights of a model of transformers, in float64."""
    tensors = load_file(path / "adapter_model.safetensors")
    config = json.loads((path / "adapter_config.json").read_text())
    for name, down in tensors.items():
        if ".lora_A." not in name:
            continue
        up = tensors[name.replace("lora_A", "lora_B")]
        alpha = config.get("alpha_pattern", {}).get("v_proj") if ".v_proj." in name else None
        root = len(down) ** 0.5 if config.get("use_rslora") else len(down)
        module = model.get_submodule(name.removeprefix("base_model.model.").split(".lora_A")[0])
        more = scale * (alpha or ALPHA) / root * up.double() @ down.double()
        with torch.no_grad():
            module.weight.copy_(module.weight.double() + more)


def expected_of(model: Any) -> npt.NDArray[Any]:
    with torch.inference_mode():
        found: npt.NDArray[Any] = model(torch.tensor([TOKENS])).logits[0, 5:].numpy()
    return found


def close(found: npt.NDArray[Any], expected: npt.NDArray[Any], bound: float = 1e-5) -> bool:
    return bool(np.abs(found - expected).max() < bound * np.abs(expected).max())


CASES = ["llama", "qwen2", "qwen3", "qwen3.5", "mixtral", "gemma3", "phi3"]


@pytest.mark.parametrize("case", CASES)
def test_an_adapter_gives_the_logits_of_merged_weights(case: str, tmp_path: Path) -> None:
    model = original(case, tmp_path / "base")
    path = adapt(model, tmp_path / "adapter", alpha_pattern={"v_proj": 5})
    base = DirectorySource(tmp_path / "base")
    plain = logits(base.config, base.weights())
    merge(model, path, 0.5)
    expected = expected_of(model)
    source = AdaptedSource(base, [f"{path}=0.5"])
    assert close(logits(source.config, source.weights()), expected)
    target = TorchTarget(source.config, source.weights())
    cache = target.open()
    target.prefill(cache, TOKENS[:-1])
    [output] = target.forward([Rows.draft(cache, TOKENS[-1:])])
    assert close(output.logits, expected[-1:])
    # Without it, or at another scale, the comparison fails.
    whole = AdaptedSource(base, [str(path)])
    assert not close(plain, expected, 1e-2)
    assert not close(logits(whole.config, whole.weights()), expected, 1e-2)
    assert len({base.fingerprint, source.fingerprint, whole.fingerprint}) == 3
    assert source.name == "base+adapter=0.5"


@pytest.mark.parametrize("config", [{}, {"use_rslora": True}, {"alpha_pattern": {"v_proj": 3}}])
def test_peft_itself_gives_these_logits(config: dict[str, Any], tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model = original("llama", tmp_path / "base")
    everything = r"(_proj|embed_tokens|lm_head)$"
    path = adapt(model, tmp_path / "adapter", everything, 0.1, **config)
    said = json.loads((path / "adapter_config.json").read_text())
    tensors = load_file(path / "adapter_model.safetensors")
    torch.manual_seed(3)
    place = "base_model.model.model.embed_tokens.lora_embedding"
    tensors[f"{place}_A"], tensors[f"{place}_B"] = (
        0.1 * torch.randn(RANK, 96),
        torch.randn(64, RANK),
    )
    save_file(tensors, path / "adapter_model.safetensors")
    names = {each.split(".lora_")[0].rpartition(".")[2] for each in tensors}
    (path / "adapter_config.json").write_text(json.dumps(said | {"target_modules": sorted(names)}))
    adapted = peft.PeftModel.from_pretrained(model, str(path)).double()
    source = AdaptedSource(DirectorySource(tmp_path / "base"), [str(path)])
    assert close(logits(source.config, source.weights()), expected_of(adapted))


def test_adapters_are_added_in_order(tmp_path: Path) -> None:
    model = original("llama", tmp_path / "base")
    paths = [adapt(model, tmp_path / name, size=size) for name, size in (("a", 0.2), ("b", 0.1))]
    for path in paths:
        merge(model, path)
    source = AdaptedSource(DirectorySource(tmp_path / "base"), [str(path) for path in paths])
    assert close(logits(source.config, source.weights()), expected_of(model))


def as_gguf(path: Path, out: Path, arch: str, turn: int = 0, **entries: Any) -> Path:
    """Write an adapter as llama.cpp's converter does; query and key rows interleaved by `turn`."""
    names = {"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output"}
    names |= {each: f"ffn_{each}" for each in ("gate", "up", "down")}
    writer = gguf.GGUFWriter(out, arch)
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", ALPHA)
    for name, value in entries.items():
        writer.add_string(name, value)
    files = SafetensorsFiles(path / "adapter_model.safetensors")
    for name in files.index():
        _, layer, part, which = re.findall(r"(layers)\.(\d+)\.\w+\.(\w+)_proj\.lora_(\w)", name)[0]
        array = files.read(name)
        if turn and part in ("q", "k") and which == "B":
            halves = array.reshape(-1, 2, turn // 2, array.shape[1])
            array = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(array.shape)
        writer.add_tensor(f"blk.{layer}.{names[part]}.weight.lora_{which.lower()}", array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


@pytest.mark.parametrize(("case", "turn"), [("llama", 16), ("qwen2", 0)])
def test_both_forms_are_the_same_adapter(case: str, turn: int, tmp_path: Path) -> None:
    model = original(case, tmp_path / "base")
    path = adapt(model, tmp_path / "adapter", rank_pattern={}, wanted=r"[^v]_proj$")
    base = DirectorySource(tmp_path / "base")
    found = []
    for each in (path, as_gguf(path, tmp_path / "adapter.gguf", case, turn)):
        source = AdaptedSource(base, [str(each)])
        found.append(logits(source.config, source.weights()))
    assert np.array_equal(*found)


def test_a_merged_matrix_has_the_bits_of_fused_sums() -> None:
    draw = np.random.default_rng(5)
    base, down, up = (draw.standard_normal(s, np.float32) for s in ((70, 64), (40, 64), (70, 40)))
    total = np.zeros((70, 64), np.float32)
    for k in range(40):  # by float64, whose second rounding is seen once in 2^29
        total = (total + up[:, k, None].astype(float) * down[k]).astype(np.float32)
    found = merged(base, Factors(down, up, 0.75))
    assert np.array_equal(found, base + np.float32(0.75) * total)


def test_what_is_quantised_is_held_in_eight_bits(tmp_path: Path) -> None:
    path = adapt(original("qwen2", tmp_path / "twin"), tmp_path / "adapter", "q_proj$")
    twin = DirectorySource(tmp_path / "twin")
    write(tmp_path / "base.gguf", twin.config, twin.weights(), "Q4_0", {})
    base = resolve(str(tmp_path / "base.gguf"))
    source = AdaptedSource(base, [str(path)])
    formats = Formats(source.weights(), "file")
    kind, blocks = formats.blocks("layers.0.q")
    assert kind == "Q8_0"
    assert formats.quantized("layers.0.q")
    wanted = source.weights()["layers.0.q"]
    assert np.abs(dequantize(kind, blocks) - wanted).max() <= np.abs(wanted).max() / 250
    assert formats.blocks("layers.0.k")[0] == "Q4_0"
    assert np.array_equal(
        formats.blocks("layers.0.k")[1], base.weights().stored("layers.0.k").blocks
    )
    CpuTarget(source.config, source.weights(), "file")


def test_texts_with_drafts_are_those_without(tmp_path: Path) -> None:
    save_directory(tmp_path / "base", tiny_config("qwen2"))
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "base", dtype=torch.float32
    )
    path = str(adapt(model, tmp_path / "adapter", r"[^v]_proj$", rank_pattern={}))
    texts = []
    for drafter, given in (("none", path), ("suffix-automaton>quantised", path), ("none", None)):
        engine = paceline.load(
            str(tmp_path / "base"), adapter=given, drafter=drafter, precision="fp32", progress=False
        )
        params = paceline.SamplingParams(max_new_tokens=48, temperature=0.8, seed=3)
        texts.append(engine.generate("the quick brown fox", params).token_ids)
        assert ("adapter" in engine.config["model"]) == (given is not None)
    assert texts[0] == texts[1] != texts[2]


Change = Callable[[Tensors, dict[str, Any]], object]
Q = "model.layers.1.self_attn.q_proj"
WRONG: dict[str, tuple[Change, str]] = {
    "unknown module": (
        lambda t, c: t.update(
            {f"model.layers.9.x_proj.lora_{p}": t[f"{Q}.lora_{p}.weight"] + 0 for p in "AB"}
        ),
        r"changes model.layers.9.x_proj.weight, which base has not: give its own base",
    ),
    "half": (lambda t, c: t.pop(f"{Q}.lora_B.weight"), "has half of what changes"),
    "rank": (lambda t, c: c.update(r=5), "has rank 4 and 4 for .* and 5 in its config"),
    "width": (
        lambda t, c: t.update({f"{Q}.lora_A.weight": torch.ones(4, 32)}),
        r"is for .*q_proj.weight of \(64, 32\), not \(64, 64\)",
    ),
    "height": (
        lambda t, c: t.update({f"{Q}.lora_B.weight": torch.ones(96, 4)}), r"of \(96, 64\), not"),
    "not finite": (
        lambda t, c: t.update({f"{Q}.lora_B.weight": torch.full((64, 4), torch.inf)}),
        "not finite",
    ),
    "dora": (
        lambda t, c: t.update({f"{Q}.lora_magnitude_vector": torch.ones(64)}), "by DoRA: merge"),
    "dora said": (lambda t, c: c.update(use_dora=True), "asks for use_dora"),
    "modules": (lambda t, c: c.update(modules_to_save=["lm_head"]), "asks for modules_to_save"),
    "saved": (
        lambda t, c: t.update({"lm_head.weight": torch.ones(96, 64)}), "otherwise than by factors"),
    "bias": (lambda t, c: c.update(bias="all"), "asks for bias"),
    "init": (lambda t, c: c.update(init_lora_weights="pissa"), "began as pissa, which changes"),
    "transposed": (lambda t, c: c.update(fan_in_fan_out=True), "asks for fan_in_fan_out"),
    "new field": (lambda t, c: c.update(use_tomorrow=1), "asks for use_tomorrow"),
    "kind": (lambda t, c: c.update(peft_type="PROMPT_TUNING"), "is of kind PROMPT_TUNING"),
    "alpha": (lambda t, c: c.update(lora_alpha="much"), "has no numbers r and lora_alpha"),
    "none": (lambda t, c: t.clear(), "holds no matrices"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_what_would_change_results_silently_is_refused(wrong: str, tmp_path: Path) -> None:
    model = original("llama", tmp_path / "base")
    path = adapt(model, tmp_path / "adapter", "[^v]_proj$", rank_pattern={})
    change, message = WRONG[wrong]
    tensors = {
        name.removeprefix("base_model.model."): each
        for name, each in load_file(path / "adapter_model.safetensors").items()
    }
    config: dict[str, Any] = {}
    base = DirectorySource(tmp_path / "base")
    save_peft(path, tensors, config)
    AdaptedSource(base, [str(path)])  # it was right
    change(tensors, config)
    save_peft(path, tensors, config)
    with pytest.raises(ModelError, match=message) as raised:
        AdaptedSource(base, [str(path)])
    assert "\n" not in str(raised.value)


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    save_directory(tmp_path / "base", tiny_config("llama"))
    save_gguf(tmp_path / "base.gguf", tiny_config("qwen2"))
    (tmp_path / "empty").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "adapter_config.json").write_text("[")
    (tmp_path / "pickled").mkdir()
    (tmp_path / "pickled" / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    base = DirectorySource(tmp_path / "base")
    model = original("qwen2", tmp_path / "other")
    path = adapt(model, tmp_path / "adapter", "[^v]_proj$", rank_pattern={})
    file = as_gguf(path, tmp_path / "adapter.gguf", "qwen2")
    tokens = as_gguf(path, tmp_path / "t.gguf", "llama", **{"adapter.alora.invocation_tokens": "x"})
    for given, message in {
        tmp_path / "nowhere": "is no adapter: give its GGUF file, or the folder of PEFT",
        tmp_path / "empty": "is no adapter",
        tmp_path / "base.gguf": "is a GGUF file but no LoRA adapter",
        tmp_path / "damaged": "has a damaged adapter_config.json",
        tmp_path / "pickled": "has no adapter_model.safetensors",
        f"{path}=half": "has scale 'half': give --adapter PATH=NUMBER",
        file: "is for qwen2, and base is not: give the model that it was trained on",
        tokens: "acts behind its own tokens alone",
    }.items():
        with pytest.raises(ModelError, match=re.escape(message)):
            AdaptedSource(base, [str(given)])
    with pytest.raises(InvalidOption, match="merges no adapter"):
        paceline.load(str(tmp_path / "other"), adapter=[str(path)], runtime="transformers")


def test_heads_in_another_order_are_refused(tmp_path: Path) -> None:
    path = adapt(original("qwen3.5", tmp_path / "twin"), tmp_path / "adapter", "(qkv|o_proj)$")
    twin = DirectorySource(tmp_path / "twin")
    write(tmp_path / "base.gguf", twin.config, twin.weights(), "F32", {})
    with pytest.raises(ModelError, match="order otherwise: give the adapter in the form that base"):
        AdaptedSource(resolve(str(tmp_path / "base.gguf")), [str(path)])


def test_a_tied_head_is_refused(tmp_path: Path) -> None:
    model = original("llama-tied", tmp_path / "base")
    path = adapt(model, tmp_path / "adapter", "lm_head")
    with pytest.raises(ModelError, match="which base uses for embedding and head both"):
        AdaptedSource(DirectorySource(tmp_path / "base"), [str(path)])
