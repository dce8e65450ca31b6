"""Diffusion checkpoints under their official names: facts, tensors, logits, reference traces."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file
from tests.helpers.tiny_model import save_directory, save_gguf, tiny_config
from tests.models.golden_denoisers import BLOCK, CONFIGS, END, MASK, PAGE, PROMPT, TOKENS, weights
from tokenizers import pre_tokenizers

from paceline.core.target import Rows
from paceline.core.types import CanvasTraits
from paceline.errors import InvalidOption, ModelError
from paceline.models.safetensors import SafetensorsFiles
from paceline.models.source import DirectorySource, resolve
from paceline.models.tokenizer import tokenizer_from_directory
from paceline.registry.loading import load_model
from paceline.runtimes.cpu.target import CpuTarget
from paceline.runtimes.reference.target import ReferenceTarget
from paceline.runtimes.torch.target import TorchTarget

GOLDEN: dict[str, Any] = json.loads(PAGE.read_text())["cases"]
RUNTIMES = ("cpu", "torch")
FAMILIES = tuple(CONFIGS)
# The model of transformers that each is a renaming of, and what its config must say.
TRUNKS: dict[str, tuple[str, dict[str, Any]]] = {
    "llada": ("llama", {}),
    "Dream": ("qwen2", {}),
    "sdar": ("qwen3", {"head_dim": 32}),
    "Fast_dLLM_Qwen": ("qwen2", {}),
    "wedlm": ("qwen3", {"head_dim": 32}),
}
# Names in LLaDA, of what Llama calls otherwise.
LLADA = {
    "model.transformer.wte.weight": "model.embed_tokens.weight",
    "model.transformer.ln_f.weight": "model.norm.weight",
    "model.transformer.ff_out.weight": "lm_head.weight",
}
LLADA_PARTS = {
    "attn_norm": "input_layernorm",
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ff_norm": "post_attention_layernorm",
    "ff_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "ff_out": "mlp.down_proj",
}


def trunk_name(name: str) -> str:
    if not name.startswith("model.transformer."):
        return name
    if name in LLADA:
        return LLADA[name]
    index, part, kind = name.removeprefix("model.transformer.blocks.").split(".")
    return f"model.layers.{index}.{LLADA_PARTS[part]}.{kind}"


def shapes(family: str) -> dict[str, tuple[int, ...]]:
    """Official names; WeDLM's are those of SDAR, whose trunk is the same."""
    found = GOLDEN["sdar" if family == "wedlm" else family]["shapes"]
    return {name: tuple(shape) for name, shape in found.items()}


def save(path: Path, family: str, **changes: Any) -> Path:
    """A checkpoint, with what differs in its config; None leaves an entry out."""
    entries = {**CONFIGS[family], **changes}
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(
        json.dumps({name: each for name, each in entries.items() if each is not None})
    )
    save_file(weights(shapes(family).items()), path / "model.safetensors")
    return path


def target(runtime: str, source: DirectorySource, precision: str = "fp32") -> Any:
    config, tensors = source.config, source.weights()
    if runtime == "torch":
        return TorchTarget(config, tensors, precision=precision)
    if runtime == "reference":
        return ReferenceTarget(config, tensors, precision)
    return CpuTarget(config, tensors, precision, kv_tokens=256, kv_precision="fp32")


def mask(kind: str, rows: int) -> npt.NDArray[np.bool_]:
    """What each of so many tokens sees; `order` fills the last before the others."""
    places = np.arange(rows)
    if kind == "full":
        return np.ones((rows, rows), dtype=bool)
    if kind == "block":
        return places[:, None] // BLOCK >= places[None] // BLOCK
    order = np.roll(places, 5)
    rank = np.argsort(order)
    return rank[:, None] >= rank[None]


def logits(made: Any, tokens: list[int], kind: str) -> npt.NDArray[Any]:
    """Of every token; rows of attention `order` go in their order, as WeDLM's engine sends them."""
    sees, order = mask(kind, len(tokens)), np.arange(len(tokens))
    if kind == "order":
        order = np.argsort(sees.sum(1))
    cache = made.open()
    block = Rows.block(cache, np.array(tokens)[order], order, sees[np.ix_(order, order)])
    [output] = made.forward([block])
    found = np.empty_like(output.logits)
    found[order] = output.logits
    made.release(cache)
    return found


def trunk(family: str, wide: bool = False) -> Any:
    kind, more = TRUNKS[family]
    entries = {**CONFIGS["Dream"], **more, "attn_implementation": "sdpa"}
    del entries["architectures"], entries["model_type"]
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(kind, **entries)
    ).eval()
    state = {
        trunk_name(name): torch.from_numpy(each)
        for name, each in weights(shapes(family).items()).items()
    }
    model.load_state_dict(state, strict=True)
    return model.double() if wide else model.float()


def trunk_logits(model: Any, kind: str) -> npt.NDArray[Any]:
    """With an explicit mask of four dimensions."""
    dtype = next(model.parameters()).dtype
    sees = torch.from_numpy(mask(kind, len(TOKENS)))
    added = torch.zeros(sees.shape, dtype=dtype).masked_fill(~sees, torch.finfo(dtype).min)
    with torch.inference_mode():
        return model(torch.tensor([TOKENS]), attention_mask=added[None, None]).logits[0].numpy()


def differ(found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> float:
    """Of the largest."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def save_as_gguf(path: Path, family: str, **entries: Any) -> Path:
    """The tensors of `save` as llama.cpp's converter writes them; `entries` without their place."""
    config = DirectorySource(save(path.with_suffix(""), family)).config
    arch = {"llada": gguf.MODEL_ARCH.LLADA, "Dream": gguf.MODEL_ARCH.DREAM}[family]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    writer.add_context_length(config.max_context)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.layers)
    writer.add_feed_forward_length(config.ffn_size)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_base)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    said = {"causal": False, "shift": family == "Dream", "mask": MASK, **entries}
    if said["causal"] is not None:
        writer.add_causal_attention(said["causal"])
    if said["shift"] is not None:
        writer.add_diffusion_shift_logits(said["shift"])
    if said["mask"] is not None:
        writer.add_mask_token_id(said["mask"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet[: config.vocab_size - 4], "ab", "<|mask|>", "<|end|>", "<pad>"]
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (config.vocab_size - 3) + [3] * 3)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(END)
    names = gguf.get_tensor_name_map(arch, config.layers)
    for name, values in weights(shapes(family).items()).items():
        if family == "llada" and name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config.heads if "q_proj" in name else config.kv_heads
            halves = values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2)
            values = np.ascontiguousarray(halves).reshape(values.shape)
        known = names.get_name(name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(str(known), values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("runtime", ["cpu", "torch", "reference"])
@pytest.mark.parametrize("family", ["llada", "Dream"])
def test_a_gguf_file_is_the_model_of_its_directory(
    family: str, runtime: str, tmp_path: Path
) -> None:
    """To the bit, and that of transformers under the mask that its facts name."""
    source = resolve(str(save_as_gguf(tmp_path / "x.gguf", family)))
    twin = DirectorySource(tmp_path / "x")
    assert source.denoiser
    assert source.config.denoises == FACTS[family]
    found = logits(target(runtime, source), TOKENS, "full")  # type: ignore[arg-type]
    assert np.array_equal(found, logits(target(runtime, twin), TOKENS, "full"))
    if runtime != "reference":
        assert differ(found, trunk_logits(trunk(family), "full")) < 1e-5
        assert differ(found, trunk_logits(trunk(family), "block")) > 1e-3  # the control


def test_a_gguf_file_fills_a_canvas(tmp_path: Path) -> None:
    path = str(save_as_gguf(tmp_path / "x.gguf", "llada"))
    loaded = load_model(path, precision="fp32")
    assert loaded.target.capabilities.denoises == FACTS["llada"]
    with pytest.raises(InvalidOption, match="runtime 'transformers' fills no canvas"):
        load_model(path, runtime="transformers")


def test_what_a_gguf_file_of_a_denoiser_says_and_leaves_out(tmp_path: Path) -> None:
    def facts(family: str, options: Any = None, **entries: Any) -> CanvasTraits | None:
        path = save_as_gguf(tmp_path / "x.gguf", family, **entries)
        return resolve(str(path), denoiser=options).config.denoises

    for family in ("llada", "Dream"):
        said = facts(family, causal=None, shift=None)  # as the family does
        assert said is not None
        assert said == FACTS[family]
        other = facts(family, shift=not said.shifted)
        assert other is not None
        assert other.shifted != said.shifted
        with pytest.raises(InvalidOption, match="denoiser mask"):  # the family's is none of 96
            facts(family, mask=None)
        given = facts(family, "mask=7", mask=None)
        assert given is not None
        assert given.mask == 7
        with pytest.raises(ModelError, match="no denoiser"):
            facts(family, causal=True)
    path = save_gguf(tmp_path / "m.gguf", replace(tiny_config(), family="llada-moe"))
    with pytest.raises(ModelError, match="LLaDA-MoE models are mixtures"):
        resolve(str(path)).config  # noqa: B018


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def source(family: str, tmp_path_factory: pytest.TempPathFactory) -> DirectorySource:
    return DirectorySource(save(tmp_path_factory.mktemp("model") / family, family))


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("kind", ["full", "block", "order"])
def test_logits_are_those_of_the_trunk_with_an_explicit_mask(
    family: str, source: DirectorySource, runtime: str, kind: str
) -> None:
    expected = trunk_logits(trunk(family), kind)
    found = logits(target(runtime, source), TOKENS, kind)
    assert differ(found, expected) < 1e-5
    if runtime == "cpu":
        assert np.array_equal(found, logits(target("reference", source), TOKENS, kind))
    others = {"full", "block", "order"} - {kind}
    assert min(differ(found, trunk_logits(trunk(family), each)) for each in others) > 1e-2


@pytest.mark.parametrize("kind", ["full", "block", "order"])
def test_in_float64_they_agree_closer(
    family: str, source: DirectorySource, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That library norms and turns in float32, so both are written anew here."""
    model = trunk(family, wide=True)
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            monkeypatch.setattr(module, "forward", norm_of(module))
        if type(module).__name__.endswith("RotaryEmbedding"):
            monkeypatch.setattr(module, "forward", turns_of(source))
    found = logits(target("torch", source, "fp64"), TOKENS, kind)
    assert found.dtype == np.float64
    assert differ(found, trunk_logits(model, kind)) < 1e-12


def norm_of(module: Any) -> Callable[[Any], Any]:
    eps = module.variance_epsilon
    return lambda x: module.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def turns_of(source: DirectorySource) -> Callable[..., Any]:
    config = source.config

    def turns(x: Any, position_ids: Any, *_: Any, **__: Any) -> Any:
        steps = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
        angles = position_ids[..., None].double() * config.rope_base**-steps
        angles = torch.cat([angles, angles], -1)
        return angles.cos(), angles.sin()

    return turns


def test_rows_of_a_batch_are_those_alone_bit_for_bit(source: DirectorySource) -> None:
    made = target("cpu", source)
    texts = [TOKENS, TOKENS[3:], [MASK] * 5, TOKENS[::-1]]
    blocks = [
        Rows.block(made.open(), np.array(text), np.arange(len(text)), mask(kind, len(text)))
        for text, kind in zip(texts, ("full", "block", "full", "block"), strict=True)
    ]
    together = [each.logits.copy() for each in made.forward(blocks)]
    for block, expected in zip(blocks, together, strict=True):
        assert np.array_equal(made.forward([block])[0].logits, expected)


# --- reference implementations ----------------------------------------------------------------


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("name", GOLDEN)
def test_logits_are_those_of_the_reference(name: str, runtime: str, tmp_path: Path) -> None:
    source = DirectorySource(save(tmp_path, name))
    facts = source.config.denoises
    assert facts is not None
    expected = np.array(GOLDEN[name]["logits"])
    found = logits(target(runtime, source), TOKENS, facts.attention)
    assert differ(found, expected) < 1e-5


class Filling:
    """A canvas, the laws of its places, and what was read at each forward."""

    def __init__(self, made: Any, facts: CanvasTraits, tokens: list[int]) -> None:
        self.made, self.facts, self.tokens = made, facts, tokens
        self.reads: list[list[int]] = []

    @property
    def masked(self) -> list[int]:
        return [at for at, each in enumerate(self.tokens) if each == self.facts.mask]

    def laws(self, start: int = 0, attention: str = "full") -> npt.NDArray[np.float64]:
        """Softmax per place without the mask token; from `start` on is what the reference reads."""
        self.reads.append(self.tokens[start:])
        found = logits(self.made, self.tokens, attention).astype(np.float64)
        if self.facts.shifted:  # a row speaks of the next place
            found = np.concatenate([found[:1], found[:-1]])
        found[:, self.facts.mask] = -np.inf
        exp = np.exp(found - found.max(1, keepdims=True))
        return exp / exp.sum(1, keepdims=True)

    def fill(self, laws: npt.NDArray[np.float64], places: Any) -> None:
        for place in places:
            self.tokens[place] = int(laws[place].argmax())

    @property
    def trace(self) -> tuple[list[list[int]], list[int]]:
        return self.reads, self.tokens


def surest(places: list[int], scores: npt.NDArray[np.float64], count: int) -> list[int]:
    return sorted(places, key=lambda place: -scores[place])[:count]


def by_llada(fill: Filling, gen_length: int, block_length: int, steps: int) -> None:
    """Nie et al. 2025, low-confidence remasking: so many of the surest places a step."""
    steps //= gen_length // block_length
    fill.tokens += [MASK] * gen_length
    for end in range(len(PROMPT) + block_length, len(fill.tokens) + 1, block_length):
        for step in range(steps):
            laws = fill.laws()
            count = block_length // steps + (step < block_length % steps)
            places = [place for place in fill.masked if place < end]
            fill.fill(laws, surest(places, laws.max(1), count))


def by_dream(fill: Filling, alg: str, steps: int, max_new_tokens: int, temperature: float) -> None:
    """Ye et al. 2025: a share of the masked places a step, by confidence, margin or entropy."""
    fill.tokens += [MASK] * max_new_tokens
    times = np.linspace(1, 1e-3, steps + 1)
    for step in range(steps):
        laws = fill.laws()
        top = np.sort(laws, axis=1)
        scores = {
            "maskgit_plus": top[:, -1],
            "topk_margin": top[:, -1] - top[:, -2],
            "entropy": (laws * np.log(laws + 1e-10)).sum(1),
        }[alg]
        share = 1 - times[step + 1] / times[step] if step < steps - 1 else 1
        fill.fill(laws, surest(fill.masked, scores, int(len(fill.masked) * share)))


def by_sdar(fill: Filling, gen_length: int, block_length: int, **_: Any) -> None:
    """Cheng et al. 2025, sequential: the leftmost place a step, block by block on a cache."""
    begun = len(PROMPT) // block_length * block_length
    fill.reads.append(PROMPT[:begun])
    end = -(-(len(PROMPT) + gen_length) // block_length) * block_length
    for start in range(begun, end, block_length):
        fill.tokens += [MASK] * (start + block_length - len(fill.tokens))
        while fill.masked:
            fill.fill(fill.laws(start, "block"), fill.masked[:1])
        fill.reads.append(fill.tokens[start:])


def by_fast_dllm(
    fill: Filling, threshold: float, small_block_size: int, block_size: int, **_: Any
) -> None:
    """Wu et al. 2025: all sure places of a small block, at least one; then the next token."""
    fill.tokens += [MASK] * (block_size - len(PROMPT))
    for start in range(0, block_size, small_block_size):
        while places := [each for each in fill.masked if each < start + small_block_size]:
            laws = fill.laws()
            sure = [each for each in places if laws[each].max() > threshold]
            fill.fill(laws, sure or surest(places, laws.max(1), 1))
    fill.tokens.append(MASK)
    fill.reads.append(fill.tokens[:-1])
    last = logits(fill.made, fill.tokens[:-1], "full")[-1]
    fill.tokens[-1] = int(last.argmax())


RULES: dict[str, Callable[..., None]] = {
    "llada": by_llada,
    "Dream": by_dream,
    "sdar": by_sdar,
    "Fast_dLLM_Qwen": by_fast_dllm,
}
TRACES = [(name, trace) for name, case in GOLDEN.items() for trace in case["traces"]]


@pytest.mark.parametrize(("name", "trace"), TRACES)
def test_samplers_fill_as_the_reference_at_temperature_zero(
    name: str, trace: str, tmp_path: Path
) -> None:
    """Every token at every forward, from the facts of the checkpoint alone."""
    source, golden = DirectorySource(save(tmp_path, name)), GOLDEN[name]["traces"][trace]
    made, facts = target("cpu", source), source.config.denoises
    assert facts is not None
    filled = Filling(made, facts, list(PROMPT))
    RULES[name](filled, **golden["options"])
    assert filled.trace == (golden["reads"], golden["tokens"])
    # Negative control: the other shift fills otherwise.
    other = Filling(made, replace(facts, shifted=not facts.shifted), list(PROMPT))
    RULES[name](other, **golden["options"])
    assert other.tokens != golden["tokens"]


# --- facts ------------------------------------------------------------------------------------

FACTS = {
    "llada": CanvasTraits(MASK, "full"),
    "Dream": CanvasTraits(MASK, "full", shifted=True),
    "sdar": CanvasTraits(MASK, "block", BLOCK),
    "Fast_dLLM_Qwen": CanvasTraits(MASK, "block", BLOCK, shifted=True),
    "wedlm": CanvasTraits(MASK, "order", autoregressive=True),
}


def test_facts_come_from_the_config(family: str, source: DirectorySource) -> None:
    assert source.denoiser
    assert source.config.denoises == FACTS[family]
    for runtime in RUNTIMES:
        assert target(runtime, source).capabilities.denoises == FACTS[family]


OFFICIAL = {"llada": 126336, "Dream": 151666, "sdar": 151669, "Fast_dLLM_Qwen": 151665}


@pytest.mark.parametrize("name", OFFICIAL)
def test_the_mask_token_is_else_that_of_the_tokenizer_or_the_family(
    name: str, tmp_path: Path
) -> None:
    size = "embedding_size" if name == "llada" else "vocab_size"
    save(tmp_path, name, **{"mask_token_id": None, size: 152064})
    assert found(tmp_path).mask == OFFICIAL[name]
    assert (126348 in found(tmp_path).ends) == (name == "llada")
    added = {"content": "<|mask|>", "id": 90}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"mask_token": "<|mask|>"}))
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": [added]}))
    assert found(tmp_path).mask == 90
    (tmp_path / "tokenizer.json").unlink()
    named = {"mask_token": added, "added_tokens_decoder": {"91": {"content": "<|mask|>"}}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    assert found(tmp_path).mask == 91
    assert found(tmp_path, "mask=7").mask == 7


def found(path: Path, options: Any = None) -> CanvasTraits:
    facts = resolve(str(path), denoiser=options).config.denoises
    assert facts is not None
    return facts


def test_options_go_before_files(tmp_path: Path) -> None:
    save(tmp_path, "Dream")
    text = "mask=5, attention=block, block=8, shift=false, autoregressive=true"
    given = {
        "mask": 5,
        "attention": "block",
        "block": 8,
        "shift": False,
        "autoregressive": True,
    }
    expected = CanvasTraits(5, "block", 8, autoregressive=True)
    assert found(tmp_path, text) == found(tmp_path, given) == expected


def test_a_model_of_any_family_says_its_facts_itself(tmp_path: Path) -> None:
    own = {
        "mask_token_id": 9,
        "attention": "block",
        "shift": True,
        "block_size": 16,
        "autoregressive": True,
    }
    save_directory(tmp_path, tiny_config("llama"))
    path = tmp_path / "config.json"
    entries = json.loads(path.read_text())
    assert resolve(str(tmp_path)).config.denoises is None
    plain = {"mask": 9, "attention": "full"}
    assert found(tmp_path, plain) == CanvasTraits(9, "full")
    path.write_text(json.dumps({**entries, "denoiser": own}))
    assert found(tmp_path) == CanvasTraits(9, "block", 16, shifted=True, autoregressive=True)
    path.write_text(json.dumps({**entries, "denoiser": own | {"colour": 1}}))
    with pytest.raises(InvalidOption, match="no option 'colour'"):
        found(tmp_path)
    path.write_text(json.dumps({**entries, "denoiser": [1]}))
    with pytest.raises(InvalidOption, match=r"denoiser in config\.json must be an object"):
        found(tmp_path)


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"mask_token_id": None}, None, "mask must be a token of 96, not 151666"),
        ({}, "mask=96", "mask must be a token of 96, not 96"),
        ({}, "mask=-1", "mask must be a token id"),
        ({}, {"mask": True}, "mask must be a token id"),
        ({}, "attention=x", "attention must be full or block or order or causal, not 'x'"),
        ({}, "attention=block", r"denoiser's block: .*--denoiser block="),
        ({}, "attention=block,block=5", "block must be a divisor of the context of 64 tokens"),
        ({}, "block=0", "block must be a count"),
        ({}, "shift=1", "shift must be true or false"),
        ({}, "shape=1", "denoiser has no option 'shape': use mask, attention"),
        ({}, "mask", "no key=value"),
    ],
)
def test_wrong_and_missing_facts_are_named(
    changes: dict[str, Any], options: Any, message: str, tmp_path: Path
) -> None:
    save(tmp_path, "Dream", **changes)
    with pytest.raises(InvalidOption, match=message):
        found(tmp_path, options)


def test_a_mask_token_that_nothing_names_is_asked_for(tmp_path: Path) -> None:
    save(tmp_path, "wedlm", mask_token_id=None)
    with pytest.raises(InvalidOption, match=r"denoiser's mask: .*--denoiser mask="):
        found(tmp_path)
    assert found(tmp_path, "mask=4").mask == 4


def test_the_block_of_sdar_is_asked_for(tmp_path: Path) -> None:
    save(tmp_path, "sdar", block_size=None)
    with pytest.raises(InvalidOption, match=r"block.*--denoiser block="):
        load_model(str(tmp_path))
    assert found(tmp_path, "block=8").block == 8


# --- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("layer_norm_type", "default"),
        ("layer_norm_type", None),
        ("layer_norm_with_affine", False),
        ("block_type", "sequential"),
        ("activation_type", "swiglu"),
        ("alibi", True),
        ("rope", None),
        ("rope_scaling", {"type": "linear"}),
        ("scale_logits", True),
        ("include_bias", True),
        ("bias_for_layer_norm", True),
        ("attention_layer_norm", True),
        ("input_emb_norm", True),
        ("block_group_size", 2),
    ],
)
def test_what_llada_has_otherwise_is_refused_by_name(name: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"LLaDA models with {name} .* are not supported"):
        load_model(str(save(tmp_path, "llada", **{name: value})))


def test_an_incomplete_config_names_the_entry(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"llada model .*no entry 'd_model'"):
        load_model(str(save(tmp_path, "llada", d_model=None)))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"model_type": "lladamoe"}, "LLaDA-MoE models are mixtures"),
        ({"model_type": "diffusion_gemma"}, "DiffusionGemma starts from random tokens"),
        ({"model_type": "x", "architectures": ["MinistralDLM"]}, "Nemotron diffusion models"),
        ({"model_type": "nemotron_labs_diffusion"}, "Nemotron diffusion models"),
        (
            {"model_type": "x", "architectures": ["NemotronLabsDiffusionModel"]},
            "Nemotron diffusion models",
        ),
    ],
)
def test_other_denoisers_are_refused_in_a_sentence(
    entries: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(entries))
    with pytest.raises(ModelError, match=f"{message}.*: use "):
        load_model(str(tmp_path))


def test_the_runtime_transformers_refuses(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="runtime 'transformers' fills no canvas"):
        load_model(str(save(tmp_path, "llada")), runtime="transformers")


# --- tensors and tokenizers -------------------------------------------------------------------


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_every_tensor_is_read(
    family: str, source: DirectorySource, runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: set[str] = set()
    for method in ("read", "stored"):
        own = getattr(SafetensorsFiles, method)

        def noted(self: Any, name: str, own: Any = own) -> Any:
            read.add(name)
            return own(self, name)

        monkeypatch.setattr(SafetensorsFiles, method, noted)
    logits(target(runtime, source), TOKENS, "full")
    assert read == set(shapes(family))


def tensors_of(path: Path) -> Iterator[dict[str, Any]]:
    file = path / "model.safetensors"
    tensors = load_file(file)
    yield tensors
    save_file(tensors, file)


def test_tensors_too_many_or_too_few_are_named(family: str, tmp_path: Path) -> None:
    save(tmp_path, family)
    names = sorted(shapes(family))
    spare = names[-1].rpartition(".")[0] + ".scale"
    for tensors in tensors_of(tmp_path):
        tensors[spare] = np.ones(1, np.float32)
    with pytest.raises(ModelError, match=f"tensor {spare} is unknown"):
        DirectorySource(tmp_path).weights()
    for tensors in tensors_of(tmp_path):
        del tensors[spare], tensors[names[3]]
        # Which other code computes and stores.
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(8, np.float32)
    with pytest.raises(ModelError, match=f"tensor {names[3]} is missing"):
        DirectorySource(tmp_path).weights()


def test_a_config_of_the_other_trunk_is_seen(tmp_path: Path) -> None:
    save(tmp_path, "wedlm", qk_norm=False)
    with pytest.raises(ModelError, match=r"k_norm\.weight is unknown"):
        DirectorySource(tmp_path).weights()
    save(tmp_path, "wedlm", attention_bias=True)
    with pytest.raises(ModelError, match=r"k_proj\.bias is missing"):
        DirectorySource(tmp_path).weights()


TEXTS = (
    "Hello, world!  I'll say 1234\n\n x = [1,2]",
    "Ünïcode \u00e9 e\u0301 漢字 🙂",
    "<|im_start|>a|<MASK>|b",
)


def test_a_tokenizer_of_vocabulary_and_merges_is_that_of_transformers(tmp_path: Path) -> None:
    save(tmp_path, "Fast_dLLM_Qwen")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {each: index for index, each in enumerate(alphabet)}
    merges = [("l", "l"), ("H", "e"), ("He", "ll"), ("\u0120", "w"), ("1", "2")]
    for first, second in merges:
        vocabulary[first + second] = len(vocabulary)
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    lines = ["#version: 0.2", *(" ".join(each) for each in merges)]
    (tmp_path / "merges.txt").write_text("\n".join(lines) + "\n")
    flags = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
    added = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "|<MASK>|")
    start = len(vocabulary)
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "Qwen2Tokenizer",
                "eos_token": "<|im_end|>",
                "added_tokens_decoder": {
                    str(start + at): {"content": each, "special": True, **flags}
                    for at, each in enumerate(added)
                },
            }
        )
    )
    words = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    mine = tokenizer_from_directory(tmp_path, ())
    assert mine.eos_token_ids == (start + 2,)
    for text in TEXTS:
        ids = mine.encode(text)
        assert ids == words(text).input_ids
        assert mine.decode(ids, skip_special=False) == words.decode(ids)
    assert start + 3 in mine.encode(TEXTS[2])
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Other"}))
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        tokenizer_from_directory(tmp_path, ())
