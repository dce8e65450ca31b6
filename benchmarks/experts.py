"""What a mixture of experts reads per token: pages that a forward touches beside the experts used.

    python benchmarks/experts.py --folder /tmp/experts --layers 4

Writes a random GGUF file of the shape of Qwen 3.6 35B-A3B (256 experts of 512, 8 and a shared one
used; types as in Q4_K_M files; few layers, a small vocabulary), and a dense one whose feed-forward
block is as wide as the experts that a token uses. Bytes are those of pages whose accessed bit the
processor set during one forward of one row: Linux clears the bits by /proc/self/clear_refs and adds
them up in /proc/self/smaps. Times are of forwards of one row, the two files by turns. Needs gguf.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import median
from time import perf_counter

import gguf
import numpy as np
import numpy.typing as npt

from paceline.core.target import Rows as Request
from paceline.core.target import RuntimeOptions
from paceline.lab.measure.machine import dumps, machine
from paceline.models.source import resolve
from paceline.native.library import CMatrix, library
from paceline.runtimes.cpu.target import CpuTarget

VOCABULARY, WIDTH, COUNT, USED, INNER = 4096, 2048, 256, 8, 512
HEADS, KV_HEADS, HEAD, KEY_HEADS, VALUE_HEADS, STATE, TAPS = 16, 2, 256, 16, 32, 128, 4
_Q4, _Q6 = gguf.GGMLQuantizationType.Q4_K, gguf.GGMLQuantizationType.Q6_K
# By type: where a block has its scale, and what it times the root of the width is.
_SCALES = {_Q4: (0, 1 / 190), _Q6: (208, 1 / 1370)}
_LEAST = 7.5  # a Q4_K block's mean, in steps of its scale


def shapes(layers: int, experts: bool) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every tensor; of a dense model without `experts`."""
    keys, values, ffn = KEY_HEADS * STATE, VALUE_HEADS * STATE, (USED + 1) * INNER
    out: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (VOCABULARY, WIDTH),
        "output.weight": (VOCABULARY, WIDTH),
        "output_norm.weight": (WIDTH,),
    }
    for index in range(layers):
        layer: dict[str, tuple[int, ...]] = {"attn_norm": (WIDTH,), "post_attention_norm": (WIDTH,)}
        if index % 4 == 3:
            layer |= {"attn_q": (2 * HEADS * HEAD, WIDTH), "attn_output": (WIDTH, HEADS * HEAD)}
            layer |= {f"attn_{part}": (KV_HEADS * HEAD, WIDTH) for part in "kv"}
            layer |= {f"attn_{part}_norm": (HEAD,) for part in "qk"}
        else:
            layer |= {"attn_qkv": (2 * keys + values, WIDTH), "attn_gate": (values, WIDTH)}
            layer |= {"ssm_alpha": (VALUE_HEADS, WIDTH), "ssm_beta": (VALUE_HEADS, WIDTH)}
            layer |= {"ssm_conv1d": (2 * keys + values, TAPS), "ssm_norm": (STATE,)}
            layer |= {"ssm_out": (WIDTH, values), "ssm_a": (VALUE_HEADS,)}
            out[f"blk.{index}.ssm_dt.bias"] = (VALUE_HEADS,)
        if experts:
            layer |= {"ffn_gate_inp": (COUNT, WIDTH), "ffn_gate_inp_shexp": (WIDTH,)}
            layer |= _blocks("_exps", (COUNT,), INNER) | _blocks("_shexp", (), INNER)
        else:
            layer |= _blocks("", (), ffn)
        for name, shape in layer.items():
            out[f"blk.{index}.{name}{'' if name == 'ssm_a' else '.weight'}"] = shape
    return out


def _blocks(end: str, count: tuple[int, ...], inner: int) -> dict[str, tuple[int, ...]]:
    out = {f"ffn_{part}{end}": (*count, inner, WIDTH) for part in ("gate", "up")}
    return {**out, f"ffn_down{end}": (*count, WIDTH, inner)}


def write(path: Path, layers: int, experts: bool) -> Path:
    """Write such a file of random weights, unless it is there; returns `path`."""
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    arch = "qwen35moe" if experts else "qwen35"
    writer = gguf.GGUFWriter(path.with_suffix(".part"), arch)
    sizes = {"context_length": 4096, "embedding_length": WIDTH, "block_count": layers}
    sizes |= {"attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS}
    sizes |= {"attention.key_length": HEAD, "attention.value_length": HEAD}
    sizes |= {"rope.dimension_count": HEAD // 4, "full_attention_interval": 4}
    sizes |= {"ssm.conv_kernel": TAPS, "ssm.state_size": STATE, "ssm.group_count": KEY_HEADS}
    sizes |= {"ssm.time_step_rank": VALUE_HEADS, "ssm.inner_size": VALUE_HEADS * STATE}
    if experts:
        sizes |= {"expert_count": COUNT, "expert_used_count": USED}
        sizes |= {"expert_feed_forward_length": INNER}
        sizes |= {"expert_shared_feed_forward_length": INNER}
    else:
        sizes |= {"feed_forward_length": (USED + 1) * INNER}
    for name, size in sizes.items():
        writer.add_uint32(f"{arch}.{name}", size)
    writer.add_float32(f"{arch}.rope.freq_base", 1e7)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(VOCABULARY)
    rng = np.random.default_rng(0)
    for name, shape in shapes(layers, experts).items():
        fine = name.startswith("output.") or "attn_v" in name
        fine |= "ffn_down" in name and int(name.split(".")[1]) % 2 == 1
        small = len(shape) == 1 or any(part in name for part in ("ssm_", "gate_inp"))
        if small and "ssm_out" not in name:
            writer.add_tensor(name, _numbers(rng, name, shape))
        else:
            kind = _Q6 if fine else _Q4
            writer.add_tensor(name, _codes(rng, kind, shape), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.with_suffix(".part").replace(path)


def _numbers(
    rng: np.random.Generator, name: str, shape: tuple[int, ...]
) -> npt.NDArray[np.float32]:
    values = rng.standard_normal(shape).astype(np.float32)
    if name.endswith("ssm_a"):
        return -np.exp(values)
    if "norm" in name:
        return 1 + values / 10
    return values / np.float32(shape[-1] ** 0.5)


def _codes(
    rng: np.random.Generator, kind: gguf.GGMLQuantizationType, shape: tuple[int, ...]
) -> npt.NDArray[np.uint8]:
    per, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (*shape[:-1], shape[-1] // per, size), dtype=np.uint8)
    at, scale = _SCALES[kind]
    steps = np.array([scale / np.sqrt(shape[-1])] * 2) * (1, _LEAST)
    both = steps.astype(np.float16).view(np.uint8)
    blocks[..., at : at + 2] = both[:2]
    if kind is _Q4:
        blocks[..., at + 2 : at + 4] = both[2:]
    return blocks.reshape(*shape[:-1], -1)


class Pages:
    """Pages of matrices that were read since a moment."""

    def __init__(self, matrices: Mapping[str, CMatrix]) -> None:
        """Bind the matrices by name; each becomes a mapping of its own."""
        loaded = library()
        assert loaded is not None
        self._spans = sorted(
            (each.tiles, loaded.paceline_packed_bytes(each.kind, each.outputs, each.inputs), name)
            for name, each in matrices.items()
        )
        self._libc = ctypes.CDLL(None, use_errno=True)

    def sizes(self) -> dict[str, int]:
        """Return bytes of every matrix as it is packed."""
        return {name: size for _, size, name in self._spans}

    def read_by(self, forward: Callable[[], object]) -> dict[str, int]:
        """Run `forward` and return the bytes of every matrix in pages that it read."""
        Path("/proc/self/clear_refs").write_text("1")
        # A change of rights drops what processors remember of a page; and neighbours with other
        # rights are counted apart.
        self._protect(lambda number: 0)
        self._protect(lambda number: mmap.PROT_READ | (mmap.PROT_EXEC if number % 2 else 0))
        forward()
        found = dict(_referenced(Path("/proc/self/smaps").read_text().splitlines()))
        return {name: found[at] for at, _, name in self._spans}

    def _protect(self, rights: Callable[[int], int]) -> None:
        for number, (at, size, name) in enumerate(self._spans):
            whole = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
            if self._libc.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(whole), rights(number)):
                raise OSError(ctypes.get_errno(), f"cannot change the rights of {name}")


def _referenced(lines: Iterable[str]) -> Iterable[tuple[int, int]]:
    # Begin of every mapping, and its bytes in pages that were accessed.
    begin = 0
    for line in lines:
        first, _, rest = line.partition(" ")
        if "-" in first:
            begin = int(first.partition("-")[0], 16)
        elif first == "Referenced:":
            yield begin, int(rest.split()[0]) * 1024


class Decoding:
    """A model that reads tokens of a fixed text one by one."""

    def __init__(self, path: Path, threads: int | None) -> None:
        self.target = CpuTarget.load(resolve(str(path)), RuntimeOptions(threads=threads))
        self._cache = self.target.open()
        self._text = iter(np.random.default_rng(1).integers(0, VOCABULARY, 4000).tolist())
        self.target.prefill(self._cache, [next(self._text) for _ in range(32)])

    def step(self) -> float:
        """Read a token and return the seconds that it took."""
        begin = perf_counter()
        self.target.forward([Request.draft(self._cache, [next(self._text)])])
        self.target.keep(self._cache, 1, ())
        return perf_counter() - begin


def count(decoding: Decoding, tokens: int) -> dict[str, float]:
    """Count what some tokens read, each by itself; ratios are those of the worst."""
    pages, target = Pages(decoding.target.matrices._matrices), decoding.target
    sizes = pages.sizes()
    found = []
    for _ in range(tokens):
        read = pages.read_by(decoding.step)
        used = {
            f"layers.{layer}.experts.{expert}"
            for layer, weights in enumerate(target.routes())
            for expert in np.flatnonzero(weights[0])
        }
        experts = {name: name.rpartition(".")[0] for name in sizes if ".experts." in name}
        wanted = [name for name, expert in experts.items() if expert in used]
        stored = sum(target.matrices.blocks(name)[1].nbytes for name in wanted)
        of_experts = sum(read[name] for name in experts)
        found.append((of_experts, of_experts / stored, sum(read.values())))
    of_experts, ratio, of_all = np.max(found, axis=0)
    return {
        "experts_mib": float(of_experts) / 2**20,
        "experts_to_those_used": float(ratio),
        "all_mib": float(of_all) / 2**20,
        "all_of_the_file_mib": sum(sizes.values()) / 2**20,
    }


def main() -> None:
    """Print both measurements."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True, help="of the files, 2 GB")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=16, help="whose pages are counted")
    parser.add_argument("--steps", type=int, default=300, help="of each file, timed")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    files = [
        write(given.folder / f"{name}-{given.layers}.gguf", given.layers, experts)
        for name, experts in (("experts", True), ("dense", False))
    ]
    both = [Decoding(path, given.threads) for path in files]
    seconds = [[each.step() for each in both] for _ in range(given.steps)]
    experts, dense = np.median(seconds, axis=0) * 1000
    found = {
        "machine": machine(),
        "pages": count(both[0], given.tokens),
        "ms_per_token": float(experts),
        "dense_ms_per_token": float(dense),
        "ms_to_dense_ms": median(one / other for one, other in seconds),
        "dense_mib": sum(Pages(both[1].target.matrices._matrices).sizes().values()) / 2**20,
    }
    print(dumps(found, indent=2))


if __name__ == "__main__":
    main()
