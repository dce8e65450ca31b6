"""GGUF files: header, tensors as stored, names, the order of rotary rows, damage."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tests.helpers.tiny_model import FAMILIES, random_tensors, save_gguf, tiny_config

from paceline.errors import ModelError
from paceline.models import gguf as module
from paceline.models.gguf import GGUFFile
from paceline.models.weights import canonical_name, gguf_weights

Kind = gguf.GGMLQuantizationType
# Types of entries in a header.
UINT8, UINT32, FLOAT32, BOOL, STRING, ARRAY, UINT64 = 0, 4, 6, 7, 8, 9, 10


@pytest.mark.parametrize("family", FAMILIES)
def test_config_and_weights_survive_the_round_trip(family: Any, tmp_path: Path) -> None:
    config, tensors = tiny_config(family), random_tensors(tiny_config(family))
    file = GGUFFile(save_gguf(tmp_path / "m.gguf", config))
    stored = replace(config, family="llama") if family == "mistral" else config
    assert replace(file.config, norm_eps=config.norm_eps) == stored
    assert file.config.norm_eps == pytest.approx(config.norm_eps)
    weights = gguf_weights(file)
    for name, values in tensors.items():
        assert canonical_name(name) in weights
        found = weights[canonical_name(name)]
        assert found.dtype == np.float32
        assert found.flags.writeable
        tolerance = np.abs(values).max() / 127 if values.ndim == 2 else 0
        np.testing.assert_allclose(found, values, rtol=0, atol=tolerance)
    assert ("head" in weights) != config.tied_embeddings


def test_frequency_divisors_come_from_their_tensor(tmp_path: Path) -> None:
    config = replace(tiny_config(), rope_divisors=(1.0, 2.0, 4.0, 8.0))
    file = GGUFFile(save_gguf(tmp_path / "m.gguf", config))
    assert file.config.rope_divisors == config.rope_divisors


def test_fingerprint_depends_on_content_alone(tmp_path: Path) -> None:
    config = tiny_config()
    first, second = (GGUFFile(save_gguf(tmp_path / f"{x}.gguf", config)) for x in "ab")
    other = GGUFFile(save_gguf(tmp_path / "c.gguf", config, random_tensors(config, seed=1)))
    assert first.fingerprint == second.fingerprint != other.fingerprint


def test_an_unknown_tensor_is_named(tmp_path: Path) -> None:
    weights = gguf_weights(GGUFFile(save_gguf(tmp_path / "m.gguf", tiny_config())))
    for name in ("layers.9.up", "layers.0.nonsense", "nonsense", ""):
        assert name not in weights
        with pytest.raises(ModelError, match="no tensor"):
            weights[name]


def test_block_formats_are_those_of_the_package() -> None:
    for kind, (block, size) in gguf.GGML_QUANT_SIZES.items():
        assert module._TYPES.get(int(kind), (kind.name, block, size)) == (kind.name, block, size)
    assert {int(kind) for kind in gguf.GGML_QUANT_SIZES} <= set(module._TYPES) | {40, 41}


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q8_0", "Q5_1"])
def test_blocks_are_views_of_the_file(kind: str, tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)
    blocks = gguf.quantize(values, Kind[kind])
    path = write(tmp_path / "m.gguf", tensors=[("a", (64, 5), int(Kind[kind]), blocks.tobytes())])
    file = GGUFFile(path)
    found, rows = file.stored("a")
    assert (found, rows.shape, rows.dtype) == (kind, (5, blocks.nbytes // 5), np.uint8)
    assert rows.tobytes() == blocks.tobytes()
    assert not rows.flags.owndata
    assert not rows.flags.writeable
    np.testing.assert_array_equal(file.read("a"), gguf.dequantize(blocks, Kind[kind]))


def test_other_shapes(tmp_path: Path) -> None:
    cube = np.arange(96, dtype=np.float32).reshape(2, 3, 16)
    tensors = [("v", (16,), 0, bytes(64)), ("c", (16, 3, 2), 0, cube.tobytes())]
    file = GGUFFile(write(tmp_path / "m.gguf", tensors=tensors))
    assert file.stored("v")[1].shape == (1, 64)
    assert file.stored("c")[1].shape == (6, 64)
    np.testing.assert_array_equal(file.read("c"), cube)


def test_large_tensors_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The peak is that of the floats and one piece, whose decoding takes several times its room."""
    values = np.random.default_rng(0).standard_normal((4096, 512)).astype(np.float32)
    blocks = gguf.quantize(values, Kind.Q5_0)
    path = write(tmp_path / "m.gguf", tensors=[("a", (512, 4096), 6, blocks.tobytes())])
    peaks = []
    for piece in (1 << 16, 1 << 30):
        monkeypatch.setattr(module, "_PIECE", piece)
        file = GGUFFile(path)
        tracemalloc.start()
        found = file.read("a")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        np.testing.assert_array_equal(found, gguf.dequantize(blocks, Kind.Q5_0))
    assert peaks[0] < 1.5 * values.nbytes < 3 * values.nbytes < peaks[1]


def test_unreadable_types_are_named(tmp_path: Path) -> None:
    tensors = [("odd", (32,), 99, bytes(32)), ("ints", (32,), int(Kind.I8), bytes(32))]
    tensors.append(("scaled", (64,), int(Kind.NVFP4), bytes(36)))
    file = GGUFFile(write(tmp_path / "m.gguf", tensors=tensors))
    with pytest.raises(ModelError, match="'odd' as type 99"):
        file.stored("odd")
    with pytest.raises(ModelError, match="'scaled' as NVFP4"):
        file.stored("scaled")
    assert file.stored("ints")[0] == "I8"
    with pytest.raises(ModelError, match="'ints' as I8"):
        file.read("ints")


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = save_gguf(tmp_path / "m.gguf", tiny_config()).read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in [0, 3, 10, 100, 1000, *range(2000, len(whole) - 32, 4001), len(whole) - 33]:
        cut.write_bytes(whole[:size])
        with pytest.raises(ModelError, match=r"cut\.gguf"):
            GGUFFile(cut)


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def array(kind: int, count: int, content: bytes) -> bytes:
    return struct.pack("<IQ", kind, count) + content


Tensor = tuple[str, tuple[int, ...], int, bytes]


def content(
    entries: list[tuple[str, int, bytes]] | None = None,
    tensors: list[Tensor] | None = None,
    *,
    version: int = 3,
    counts: tuple[int, int] | None = None,
    offsets: list[int] | None = None,
) -> bytes:
    """Return a GGUF file; what is given replaces what would be right."""
    entries, tensors = entries or [], tensors or []
    out = b"GGUF" + struct.pack("<IQQ", version, *(counts or (len(tensors), len(entries))))
    for key, kind, value in entries:
        out += string(key) + struct.pack("<I", kind) + value
    data = b""
    for index, (name, shape, kind, raw) in enumerate(tensors):
        at = len(data) if offsets is None else offsets[index]
        out += string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, at)
        data += raw + bytes(-len(raw) % 32)
    return out + bytes(-len(out) % 32) + data


def write(path: Path, **parts: Any) -> Path:
    path.write_bytes(content(**parts))
    return path


def uint(value: int) -> bytes:
    return struct.pack("<I", value)


NUMBERS = array(UINT8, 3, bytes([1, 2, 3]))
NEST = array(ARRAY, 2, NUMBERS + array(STRING, 2, string("a") + string("b")))
ROW = ("t", (32,), 0, bytes(128))
HUGE = 2**64 - 1


def test_every_kind_of_entry_is_read(tmp_path: Path) -> None:
    entries = [
        ("u", UINT32, uint(7)),
        ("f", FLOAT32, struct.pack("<f", 0.5)),
        ("b", BOOL, b"\1"),
        ("s", STRING, string("é")),
        ("broken", STRING, string(b"\xff")),
        ("none", ARRAY, array(UINT8, 0, b"")),
        ("nest", ARRAY, NEST),
        ("general.alignment", UINT32, uint(32)),
    ]
    found = GGUFFile(write(tmp_path / "m.gguf", entries=entries, tensors=[ROW])).metadata
    assert (found["u"], found["f"], found["b"], found["s"]) == (7, 0.5, True, "é")
    assert (found["broken"], found["none"].tolist()) == ("\ufffd", [])
    assert (found["nest"][0].tolist(), found["nest"][1]) == ([1, 2, 3], ["a", "b"])


def deep(depth: int) -> bytes:
    return NUMBERS if depth == 1 else array(ARRAY, 1, deep(depth - 1))


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (b"", "it is empty"),
        (b"not a model at all", "not a GGUF file"),
        (b"GGUF", "ends inside"),
        (content(version=1), "unknown version 1"),
        (content(version=99), "unknown version 99"),
        (content(version=3 << 24), "big-endian"),
        (content(counts=(2**60, 0)), "tensors"),
        (content(counts=(0, HUGE)), "entries"),
        (content([("k", STRING, struct.pack("<Q", 2**63))]), "ends inside"),
        (content([("k", ARRAY, array(UINT32, 2**62, b""))]), "numbers"),
        (content([("k", ARRAY, array(STRING, HUGE, b""))]), "strings"),
        (content([("k", ARRAY, array(STRING, 1, struct.pack("<Q", HUGE)))]), "ends inside"),
        (content([("k", ARRAY, array(ARRAY, HUGE, b""))]), "arrays"),
        (content([("k", ARRAY, deep(5))]), "more than 4 arrays"),
        (content([("k", ARRAY, array(13, 1, bytes(64)))]), "unknown array type 13"),
        (content([("k", 13, bytes(64))]), "unknown value type 13"),
        (content([("k", UINT32, uint(1))] * 2), "entry 'k' occurs twice"),
        (content(tensors=[ROW, ROW]), "tensor 't' occurs twice"),
        (content(tensors=[("t", (), 0, bytes(32))]), "'t' has 0 dimensions"),
        (content(tensors=[("t", (1, 1, 1, 1, 1), 0, bytes(32))]), "'t' has 5 dimensions"),
        (content(tensors=[("t", (32, 0), 0, bytes(32))]), "'t' has no numbers"),
        (content(tensors=[("t", (2**62, 2**62, 8), 0, bytes(32))]), "ends before tensor 't'"),
        (content(tensors=[("t", (2**32, 2**32), 99, b""), ROW], offsets=[0, 64]), "tensor 't'"),
        (content(tensors=[("t", (33,), 8, bytes(64))]), "rows of 33, no whole blocks of Q8_0"),
        (content(tensors=[("a\nb", (33,), 8, bytes(64))]), r"a\\nb"),
        (content(tensors=[ROW], offsets=[4]), "'t' is not aligned"),
        (content(tensors=[ROW], offsets=[32]), "ends before tensor 't'"),
        (content(tensors=[ROW], offsets=[2**64 - 32]), "ends before tensor 't'"),
        *(
            (content([("general.alignment", kind, value)], [ROW]), f"alignment {what}")
            for kind, value, what in [
                (UINT32, uint(0), "0"),
                (UINT32, uint(48), "48"),
                (UINT32, uint(2**31), "2147483648"),
                (UINT64, struct.pack("<Q", 2**63), "9223372036854775808"),
                (FLOAT32, struct.pack("<f", 32), "32.0"),
                (BOOL, b"\1", "True"),
                (STRING, string("32"), "of kind str"),
                (ARRAY, NUMBERS, "of kind ndarray"),
            ]
        ),
    ],
)
def test_nonsense_is_refused_by_name(bad: bytes, named: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(bad)
    with pytest.raises(ModelError, match=rf"bad\.gguf.*{named}") as caught:
        GGUFFile(path)
    assert "\n" not in str(caught.value)


def test_the_deepest_arrays_that_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", entries=[("k", ARRAY, deep(4))])
    assert GGUFFile(path).metadata["k"][0][0][0].tolist() == [1, 2, 3]


EXTREMES = (0, 1, 2, 2**7, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, HUGE)


def mutated(rng: random.Random, base: bytes, others: list[bytes]) -> bytes:
    data = bytearray(base)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at, kind = rng.randrange(4, max(5, len(data))), rng.randrange(6)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at:]
        elif kind == 2:  # an integer field set to an extreme, most of them lie in the header
            width = rng.choice((4, 8))
            data[at : at + width] = (rng.choice(EXTREMES) % 256**width).to_bytes(width, "little")
        elif kind == 3:
            other = rng.choice(others)
            begin = rng.randrange(len(other))
            data[at:at] = other[begin : begin + rng.randrange(64)]
        elif kind == 4:
            del data[at : at + rng.randrange(64)]
        else:
            data[at : at + 8] = rng.randbytes(8)
    return bytes(data)


def bases() -> list[bytes]:
    entries = [
        ("general.alignment", UINT32, uint(32)),
        ("general.architecture", STRING, string("llama")),
        ("tokenizer.ggml.tokens", ARRAY, array(STRING, 3, b"".join(map(string, "abc")))),
        ("nest", ARRAY, NEST),
        ("n", UINT64, struct.pack("<Q", 5)),
    ]
    tensors = [ROW, ("m", (32, 4), 8, bytes(136)), ("h", (4, 2, 2), 1, bytes(32))]
    return [content(entries, tensors), content(entries), content([], tensors, version=2)]


def test_20_000_mutated_headers(tmp_path: Path) -> None:
    """Each is read, or refused in one line; nothing is allocated beyond a few times the file."""
    rng, path = random.Random(0), tmp_path / "bad.gguf"
    whole = bases()
    refused, worst = [], 0
    for index in range(20_000):
        raw = mutated(rng, rng.choice(whole), whole)
        path.unlink(missing_ok=True)  # writing over a mapped file takes far longer
        path.write_bytes(raw)
        if index % 4 == 0:  # tracing takes several times as long
            tracemalloc.start()
        try:
            read_all(path)
        except ModelError as error:
            refused.append(str(error))
        worst = max(worst, tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert 5_000 < len(refused) < 19_000
    assert not [message for message in refused if "\n" in message]
    assert worst < 512 * 1024  # measuring coverage takes some of it


def read_all(path: Path) -> None:
    file = GGUFFile(path)
    for name in file.tensors:
        file.stored(name)
        file.read(name)


def test_files_that_change_while_they_are_open(tmp_path: Path) -> None:
    def fresh() -> tuple[Path, GGUFFile]:
        path = write(tmp_path / "m.gguf", tensors=[ROW])
        return path, GGUFFile(path)

    path, file = fresh()
    path.unlink()  # what is mapped stays
    assert not file.read("t").any()
    assert file.fingerprint

    path, file = fresh()
    other = write(tmp_path / "other.gguf", tensors=[("t", (32,), 0, b"\1" * 128)])
    other.replace(path)
    assert not file.read("t").any()

    for change in (lambda p: p.write_bytes(b""), lambda p: p.open("ab").write(b"x")):
        path, file = fresh()
        change(path)
        with pytest.raises(ModelError, match="was changed while it was open"):
            file.read("t")

    path, file = fresh()  # cut, and no name leads there any more
    moved = path.rename(tmp_path / "moved.gguf")
    moved.write_bytes(b"")
    for read in (lambda: file.stored("t"), lambda: file.fingerprint):
        with pytest.raises(ModelError, match="was changed while it was open"):
            read()


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot read"):
        GGUFFile(tmp_path / "none.gguf")


def test_importing_models_imports_no_framework() -> None:
    heavy = "torch,transformers,openvino,gguf,jinja2,tokenizers,huggingface_hub"
    code = (
        "import sys, paceline.models.source, paceline.models.text\n"
        f"print([name for name in '{heavy}'.split(',') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
