"""Checkpoints that were quantised for other engines: numbers, types, refusals.

Packers are written from the published formulas. GPTQ: word i of a column holds inputs 8i to 8i + 7,
the lowest bits first; zero points are packed so along outputs, in the first format less one; a
number is (code - zero) * scale of the group that `g_idx` names. AWQ (gemm): word j of a row holds
outputs 8j + 0, 2, 4, 6, 1, 3, 5, 7, the lowest bits first, zero points likewise.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.helpers import tiny_model as tiny

from paceline.core.target import Rows
from paceline.core.tree import chain
from paceline.core.types import LogitArray
from paceline.errors import ModelError
from paceline.models.gguf import dequantize
from paceline.models.quantised import Made, QuantisedFiles
from paceline.models.safetensors import SafetensorsFiles
from paceline.models.source import DirectorySource
from paceline.runtimes.cpu.matrices import Formats
from paceline.runtimes.cpu.target import CpuTarget
from paceline.runtimes.reference.formats import matrix
from paceline.runtimes.reference.target import ReferenceTarget

OUT, IN, GROUP = 48, 256, 64
FILE = "model.safetensors"
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
Tensors = dict[str, torch.Tensor]


def packed(codes: np.ndarray, bits: int = 4, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """Codes `[n, m]` in words `[n, m * bits / 32]`; bits i of a word hold code `order[i]`."""
    each = 32 // bits
    places = order or tuple(range(each))
    wide = codes.astype(np.uint32).reshape(len(codes), -1, each)
    words = np.zeros(wide.shape[:2], np.uint32)
    for i, place in enumerate(places):
        words |= wide[:, :, place] << np.uint32(bits * i)
    return torch.from_numpy(words.view(np.int32))


class Drawn:
    """Codes and zero points, scales of fp16, and the numbers that they make."""

    def __init__(
        self,
        bits: int = 4,
        *,
        symmetric: bool = False,
        shuffled: bool = False,
        shape: tuple[int, ...] = (OUT, IN),
        group: int = GROUP,
        seed: int = 0,
    ) -> None:
        rng = np.random.default_rng([bits, seed])
        self.bits, most = bits, (1 << bits) - 1
        self.codes = rng.integers(0, most + 1, shape)
        zeros = rng.integers(1, most + 1, (shape[0], shape[1] // group))
        self.zeros = np.full_like(zeros, most // 2 + 1) if symmetric else zeros
        self.scales = rng.uniform(0.001, 0.02, self.zeros.shape).astype(np.float16)
        self.groups = np.arange(shape[1]) // group
        if shuffled:
            self.groups = rng.permutation(self.groups)
        at = (slice(None), self.groups)
        self.numbers = (self.codes - self.zeros[at]).astype(np.float32) * self.scales[at]

    def gptq(self, less: int = 1) -> Tensors:
        return {
            "m.qweight": packed(self.codes, self.bits).T.contiguous(),
            "m.qzeros": packed(self.zeros.T - less, self.bits),
            "m.scales": torch.from_numpy(self.scales.T.copy()),
            "m.g_idx": torch.from_numpy(self.groups.astype(np.int32)),
        }

    def awq(self, order: tuple[int, ...] = ORDER) -> Tensors:
        return {
            "m.qweight": packed(self.codes.T, order=order),
            "m.qzeros": packed(self.zeros.T, order=order),
            "m.scales": torch.from_numpy(self.scales.T.copy()),
        }

    def compressed(self, *, symmetric: bool = False) -> Tensors:
        # The offset that makes its codes signed is that of its zero points too.
        zeros = {"m.weight_zero_point": packed(self.zeros.T, self.bits).T.contiguous()}
        return {
            "m.weight_packed": packed(self.codes, self.bits),
            "m.weight_scale": torch.from_numpy(self.scales),
            "m.weight_shape": torch.tensor(self.codes.shape),
            **({} if symmetric else zeros),
        }


GPTQ = {"quant_method": "gptq", "bits": 4}
AWQ = {"quant_method": "awq", "version": "gemm", "bits": 4}
COMPRESSED = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
FP8 = {"quant_method": "fp8", "weight_block_size": [32, 64]}


def opened(path: Path, tensors: Tensors, said: dict[str, Any]) -> QuantisedFiles:
    save_file({name: each.contiguous() for name, each in tensors.items()}, path / FILE)
    return QuantisedFiles(SafetensorsFiles(path), path, said)


def check(files: QuantisedFiles, numbers: LogitArray, kind: str, name: str = "m.weight") -> None:
    """A matrix has these numbers as floats and as blocks, whole and by rows."""
    rows = numbers.reshape(-1, numbers.shape[-1])
    assert files.shape(name) == numbers.shape
    np.testing.assert_array_equal(files.read(name), numbers)
    found, blocks = files.stored(name)
    assert found == kind
    assert isinstance(blocks, Made)
    assert len(blocks) == len(rows)
    for chosen in (slice(None), np.array([5, 2, 5])):
        np.testing.assert_array_equal(floats(kind, blocks[chosen]), rows[chosen])
    part = slice(3, 15, 2)
    np.testing.assert_array_equal(floats(kind, blocks.part(part)[:]), rows[part])
    np.testing.assert_array_equal(files.read(name, part), rows[part])


def floats(kind: str, blocks: np.ndarray) -> LogitArray:
    if kind in ("F32", "I8_K"):
        read = matrix(kind, np.ascontiguousarray(blocks))
        numbers = read.numbers.astype(np.float32)
        return (numbers if read.scales is None else numbers * read.scales[..., None]).reshape(
            len(blocks), -1
        )
    return dequantize(kind, np.ascontiguousarray(blocks))


@pytest.mark.parametrize(
    ("bits", "symmetric", "kind"),
    [(4, True, "Q4_0"), (4, False, "Q5_0"), (2, False, "Q4_0"), (8, True, "Q8_0")],
)
@pytest.mark.parametrize("form", ["gptq", "gptq_v2"])
def test_gptq(bits: int, symmetric: bool, kind: str, form: str, tmp_path: Path) -> None:
    drawn, less = Drawn(bits, symmetric=symmetric), int(form == "gptq")
    said = {**GPTQ, "checkpoint_format": form}
    check(opened(tmp_path, drawn.gptq(less), said), drawn.numbers, kind)


def test_zero_points_of_the_first_gptq_are_one_less(tmp_path: Path) -> None:
    drawn, said = Drawn(), {**GPTQ, "checkpoint_format": "gptq_v2"}
    wrong = opened(tmp_path, drawn.gptq(less=1), said)
    assert not np.array_equal(wrong.read("m.weight"), drawn.numbers)
    files = opened(tmp_path, drawn.gptq(less=0), GPTQ)
    for read in (files.read, files.stored):
        with pytest.raises(ModelError, match="zero points of 0 or 16"):
            read("m.weight")


def test_gptq_in_no_order_is_read_as_floats(tmp_path: Path) -> None:
    drawn = Drawn(shuffled=True)
    files = opened(tmp_path, drawn.gptq(), GPTQ)
    check(files, drawn.numbers, "F32")
    assert not files.exact
    assert opened(tmp_path, Drawn().gptq(), GPTQ).exact


def test_awq(tmp_path: Path) -> None:
    drawn = Drawn()
    check(opened(tmp_path, drawn.awq(), AWQ), drawn.numbers, "Q5_0")
    other = opened(tmp_path, drawn.awq(tuple(range(8))), AWQ)
    assert not np.array_equal(other.read("m.weight"), drawn.numbers)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_compressed_tensors_packed(bits: int, tmp_path: Path) -> None:
    drawn = Drawn(bits, symmetric=True)
    kind = "Q8_0" if bits == 8 else "Q4_0"
    for symmetric in (False, True):
        check(
            opened(tmp_path, drawn.compressed(symmetric=symmetric), COMPRESSED),
            drawn.numbers,
            kind,
        )
    drawn = Drawn(bits)
    kind = {2: "Q4_0", 4: "Q5_0", 8: "F32"}[bits]
    check(opened(tmp_path, drawn.compressed(), COMPRESSED), drawn.numbers, kind)


def test_scales_that_fp16_has_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    drawn = Drawn(symmetric=True)
    scales = np.random.default_rng(0).uniform(0.001, 0.02, (OUT, 1)).astype(np.float32)
    tensors = drawn.compressed(symmetric=True)
    numbers = (drawn.codes - 8).astype(np.float32) * scales
    tensors["m.weight_scale"] = torch.from_numpy(scales)
    check(opened(tmp_path, tensors, COMPRESSED), numbers, "I8_K")
    assert "more memory" not in caplog.text
    tensors["m.weight_scale"] = torch.from_numpy(np.repeat(scales, 4, axis=1))
    files = opened(tmp_path, tensors, COMPRESSED)
    check(files, numbers, "F32")
    assert files.exact
    assert "m.weight takes more memory than the file" in caplog.text


@pytest.mark.parametrize("by", [(OUT, 1), (1,), (OUT, 4)])
def test_whole_bytes(by: tuple[int, ...], tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    codes = rng.integers(-128, 128, (OUT, IN)).astype(np.int8)
    scales = torch.from_numpy(rng.uniform(0.001, 0.02, by)).bfloat16()
    wide = scales.float().numpy().reshape(by if len(by) == 2 else (1, 1))
    numbers = codes.astype(np.float32) * np.repeat(wide, IN // wide.shape[1], axis=1)
    tensors = {"m.weight": torch.from_numpy(codes), "m.weight_scale": scales}
    check(opened(tmp_path, tensors, {**COMPRESSED, "format": "int-quantized"}), numbers, "Q8_0")
    with pytest.raises(ModelError, match="I8 with scales"):  # where two of MXFP4 are in a byte
        opened(tmp_path, tensors, FP8).read("m.weight")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_floats_of_eight_bits_are_those_of_torch(dtype: torch.dtype, tmp_path: Path) -> None:
    values = torch.arange(256, dtype=torch.uint8).view(dtype).reshape(8, 32)
    tensors = {"m.weight": values, "m.weight_scale": torch.ones(())}
    found = opened(tmp_path, tensors, {"quant_method": "fp8"}).read("m.weight")
    np.testing.assert_array_equal(found, values.float().numpy())


def test_fp8_by_blocks_is_that_of_transformers(tmp_path: Path) -> None:
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    torch.manual_seed(0)
    values = torch.randn(64, IN).to(torch.float8_e4m3fn)
    for scales in (torch.rand(2, 4), torch.rand(64, 1), torch.rand(1, 1)):
        judge = Fp8Dequantize(None)._dequantize_one(values, scales).numpy()
        files = opened(tmp_path, {"m.weight": values, "m.weight_scale_inv": scales}, FP8)
        check(files, judge, "F32")
        assert not files.exact


def test_blocks_may_be_cut_at_the_ends(tmp_path: Path) -> None:
    values = torch.randn(70, 130).to(torch.float8_e4m3fn)
    scales = torch.rand(3, 3)
    wide = scales.repeat_interleave(32, 0)[:70].repeat_interleave(64, 1)[:, :130]
    tensors = {"m.weight": values, "m.weight_scale_inv": scales}
    found = opened(tmp_path, tensors, FP8).read("m.weight")
    np.testing.assert_array_equal(found, (values.float() * wide).numpy())
    with pytest.raises(ModelError, match="parts of m that do not fit"):
        opened(tmp_path, tensors, {**FP8, "weight_block_size": [32, 128]}).read("m.weight")


@pytest.mark.parametrize("rows", [(6, 20), (20,)])
def test_mxfp4_is_that_of_transformers(rows: tuple[int, ...], tmp_path: Path) -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    rng = np.random.default_rng(2)
    blocks = torch.from_numpy(rng.integers(0, 256, (*rows, IN // 32, 16), dtype=np.uint8))
    scales = torch.from_numpy(rng.integers(100, 140, (*rows, IN // 32), dtype=np.uint8))
    many = blocks.reshape(-1, rows[-1], IN // 32, 16), scales.reshape(-1, rows[-1], IN // 32)
    judge = convert_moe_packed_tensors(*many, dtype=torch.float32).transpose(1, 2)
    numbers = judge.reshape(*rows, IN).numpy()
    said = {"quant_method": "mxfp4"}
    files = opened(tmp_path, {"experts_blocks": blocks, "experts_scales": scales}, said)
    check(files, numbers, "MXFP4", "experts")
    assert files.index() == ["experts"]
    assert files.exact
    if len(rows) == 1:  # compressed-tensors has the same under other names
        tensors = {"m.weight_packed": blocks.reshape(*rows, -1), "m.weight_scale": scales}
        check(opened(tmp_path, tensors, COMPRESSED), numbers, "MXFP4")


GROUPS = {"config_groups": {"group_0": {"weights": {"strategy": "tensor_group"}}}}


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"bits": 4}, "of no name"),
        ({"quant_method": "bitsandbytes"}, "bitsandbytes"),
        ({"quant_method": "hqq"}, "hqq"),
        ({**GPTQ, "checkpoint_format": "marlin"}, "marlin"),
        ({**GPTQ, "dynamic": {"+:.*": {"bits": 8}}}, "dynamic"),
        ({**GPTQ, "rotation": "hadamard"}, "rotation"),
        ({**AWQ, "version": "gemv"}, "gemv"),
        ({**COMPRESSED, "format": "nvfp4-pack-quantized"}, "nvfp4"),
        ({**COMPRESSED, "sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse-24"),
        ({**COMPRESSED, "transform_config": {"config_groups": {}}}, "transform_config"),
        ({**COMPRESSED, "kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme"),
        ({**COMPRESSED, **GROUPS}, "tensor_group"),
    ],
)
def test_other_ways_are_refused_by_name(said: dict[str, Any], named: str, tmp_path: Path) -> None:
    path = tiny.save_directory(tmp_path, tiny.tiny_config())
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "quantization_config": said}))
    with pytest.raises(ModelError, match=f"{named}.*give a GGUF file of the model"):
        DirectorySource(path).config  # noqa: B018 (raises)


def test_modules_may_be_left_as_they_were(tmp_path: Path) -> None:
    said = {**GPTQ, "dynamic": {"-:.*router": {}}}
    files = opened(tmp_path, {**Drawn().gptq(), "router.weight": torch.ones(4, 32)}, said)
    assert files.stored("router.weight")[0] == "F32"
    assert sorted(files.index()) == ["m.weight", "router.weight"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("m.pre_quant_scale", "one with m.pre_quant_scale"),
        ("m.weight_global_scale", "one with m.weight_global_scale"),
        ("self_attn.k_scale", "rounds its cache"),
    ],
)
def test_tensors_that_change_numbers_are_refused(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=said):
        opened(tmp_path, {**Drawn().compressed(), name: torch.ones(1)}, COMPRESSED)


def test_scales_of_activations_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    opened(tmp_path, {**Drawn().compressed(), "m.input_scale": torch.ones(1)}, COMPRESSED)
    assert "1 scales of activations are left aside" in caplog.text


def cut(tensors: Tensors, name: str, to: torch.Tensor | None = None) -> Tensors:
    rest = {each: v for each, v in tensors.items() if each != name}
    return rest if to is None else {**rest, name: to}


@pytest.mark.parametrize(
    ("tensors", "said", "named"),
    [
        (cut(Drawn().gptq(), "m.g_idx"), GPTQ, "no tensor m.g_idx"),
        (cut(Drawn().gptq(), "m.g_idx", torch.arange(IN) % 96), GPTQ, "m.g_idx of type I64"),
        (cut(Drawn().gptq(), "m.g_idx", torch.full((IN,), 9).int()), GPTQ, "do not fit"),
        (cut(Drawn().gptq(), "m.g_idx", torch.zeros(IN // 2).int()), GPTQ, "do not fit"),
        (cut(Drawn().gptq(), "m.qweight", torch.zeros(24, OUT).int()), GPTQ, "of 3 bits"),
        (cut(Drawn().gptq(), "m.scales", torch.ones(4, 8)), GPTQ, "do not fit"),
        (cut(Drawn().awq(), "m.scales", torch.ones(3, OUT)), AWQ, "do not fit"),
        (cut(Drawn().awq(), "m.qzeros"), AWQ, "no tensor m.qzeros"),
        (cut(Drawn().awq(), "m.scales"), AWQ, "no tensor m.scales"),
        (cut(Drawn().compressed(), "m.weight_scale"), COMPRESSED, "no tensor m.weight_scale"),
        (cut(Drawn().compressed(), "m.weight_scale", torch.ones(OUT, 3)), COMPRESSED, "do not fit"),
        (cut(Drawn().compressed(), "m.weight_packed", torch.zeros(OUT, 40).int()), COMPRESSED, "5"),
        (
            {"m.weight": torch.ones(32, 32), "m.weight_scale": torch.ones(1)},
            COMPRESSED,
            "F32 with scales",
        ),
    ],
)
def test_parts_that_do_not_fit(
    tensors: Tensors, said: dict[str, Any], named: str, tmp_path: Path
) -> None:
    files = opened(tmp_path, tensors, said)
    with pytest.raises(ModelError, match=named):
        files.stored("m.weight")


def packs(way: str, drawn: Drawn) -> Tensors:
    """One matrix as GPTQ, AWQ or compressed-tensors has it; AWQ with outputs in order is wrong."""
    if way == "awq, outputs in order":
        return drawn.awq(tuple(range(8)))
    makes = {"gptq": drawn.gptq, "awq": drawn.awq, "compressed-tensors": drawn.compressed}
    return makes[way]()


def saved(way: str, path: Path) -> tuple[DirectorySource, DirectorySource]:
    """A model with quantised projections, and the plain one that it stands for."""
    config = tiny.tiny_config("qwen3")
    plain, theirs = tiny.random_tensors(config), {}
    for seed, (name, values) in enumerate(plain.items()):
        if not name.endswith("_proj.weight"):
            theirs[name] = torch.from_numpy(values)
            continue
        drawn = Drawn(shape=values.shape, group=32, seed=seed)
        plain[name] = drawn.numbers
        for part, tensor in packs(way, drawn).items():
            theirs[name.replace("weight", part.removeprefix("m."))] = tensor
    mine = tiny.save_directory(path / "plain", config, plain)
    other = tiny.save_directory(path / "quantised", config, plain)
    said = {"gptq": GPTQ, "compressed-tensors": COMPRESSED}.get(way, AWQ)
    whole = {**json.loads((other / "config.json").read_text()), "quantization_config": said}
    (other / "config.json").write_text(json.dumps(whole))
    save_file({name: each.contiguous() for name, each in theirs.items()}, other / FILE)
    return DirectorySource(other), DirectorySource(mine)


def logits_of(source: DirectorySource, precision: str, runtime: Any = CpuTarget) -> LogitArray:
    """Of four drafted tokens behind twelve."""
    target = runtime(source.config, source.weights(), precision)
    sequence = target.open()
    target.prefill(sequence, list(range(5, 17)))
    [found] = target.forward([Rows.draft(sequence, [20], chain([21, 22, 23]))])
    return found.logits.copy()


@pytest.mark.parametrize("way", ["gptq", "awq", "compressed-tensors"])
def test_a_model_runs_as_its_floats(way: str, tmp_path: Path) -> None:
    """Through all names and orders, its numbers are those of a plain one, and so are its logits."""
    source, whole = saved(way, tmp_path)
    assert (source.precision, whole.precision) == ("file", "int8")
    assert source.config == whole.config
    formats, weights = Formats(source.weights(), source.precision), whole.weights()
    for part in ("q", "k", "v", "o", "gate", "up", "down"):
        name = f"layers.1.{part}"
        kind, blocks = formats.blocks(name)
        assert kind == "Q5_0"
        np.testing.assert_array_equal(dequantize(kind, blocks), weights[name])
        np.testing.assert_array_equal(source.weights()[name], weights[name])
    assert not source.weights().stored("layers.0.q").mapped
    wanted = logits_of(whole, "fp32")
    np.testing.assert_array_equal(logits_of(source, "fp32"), wanted)
    found = logits_of(source, "file")
    np.testing.assert_array_equal(found, logits_of(source, "file", ReferenceTarget))
    assert 0 < np.abs(found - wanted).max() < 0.03 * np.abs(wanted).max()  # activations are rounded


def test_a_model_in_another_order_is_another(tmp_path: Path) -> None:
    source, whole = saved("awq, outputs in order", tmp_path)
    wanted = logits_of(whole, "fp32")
    assert np.abs(logits_of(source, "fp32") - wanted).max() > 0.1 * np.abs(wanted).max()


def test_files_are_opened_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source, _ = saved("gptq", tmp_path)
    tensors = load_file(source.path / FILE) | {
        "model.layers.0.mlp.up_proj.act_scale": torch.ones(1)
    }
    save_file(tensors, source.path / FILE)
    assert source.precision == "file"
    source.weights()["layers.0.up"]
    source.weights()["layers.1.up"]
    assert caplog.text.count("left aside") == 1


WAYS: dict[str, tuple[dict[str, Any], str]] = {
    "pack-quantized": ({"num_bits": 4, "strategy": "group", "group_size": GROUP}, "Q4_0"),
    "asymmetric": (
        {"num_bits": 4, "strategy": "group", "group_size": GROUP, "symmetric": False},
        "Q5_0",
    ),
    "int-quantized": ({"num_bits": 8, "strategy": "channel"}, "Q8_0"),
    "float-quantized": (
        {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [32, 64]},
        "F32",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_compressed_tensors_writes(way: str, tmp_path: Path) -> None:
    """That package compresses, and its own numbers, which it rounds to bfloat16, are ours."""
    package = pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors import BaseCompressor

    said, kind = WAYS[way]
    form = "pack-quantized" if way == "asymmetric" else way
    scheme = package.quantization.QuantizationScheme(
        targets=["Linear"], weights=package.quantization.QuantizationArgs(**said)
    )
    by = {"channel": (OUT, 1), "block": (2, 4)}.get(said["strategy"], (OUT, IN // GROUP))
    torch.manual_seed(0)
    tensors = {
        "weight": torch.randn(OUT, IN).bfloat16(),
        "weight_scale": (0.2 + torch.rand(by)).bfloat16(),
        "weight_zero_point": torch.zeros(by, dtype=torch.int8),
    }
    if way == "asymmetric":
        tensors["weight_zero_point"] = torch.randint(-8, 8, by, dtype=torch.int8)
    judge = BaseCompressor.get_value_from_registry(form)
    small = judge.compress(dict(tensors), scheme)
    wanted = judge.decompress(dict(small), scheme)["weight"]
    settings = {"weights": {"block_structure": said.get("block_structure")}}
    config = {**COMPRESSED, "format": form, "config_groups": {"group_0": settings}}
    files = opened(tmp_path, {f"m.{name}": each for name, each in small.items()}, config)
    check(files, files.read("m.weight"), kind)
    assert torch.equal(torch.from_numpy(files.read("m.weight")).bfloat16(), wanted.bfloat16())


def test_awq_as_compressed_tensors_converts_it(tmp_path: Path) -> None:
    module = pytest.importorskip("compressed_tensors.entrypoints.convert.converters.autoawq")
    awq = Drawn().awq()
    wanted = opened(tmp_path, awq, AWQ).read("m.weight")
    converted = module.AutoAWQConverter(bits=4, group_size=GROUP).process(dict(awq))
    np.testing.assert_array_equal(opened(tmp_path, converted, COMPRESSED).read("m.weight"), wanted)
