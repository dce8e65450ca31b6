"""Published heads that are no EAGLE-3: read in every layout, they compute what they say.

EAGLE-1 beside a layer of transformers without its first norm, Medusa and the MLP speculator beside
modules of PyTorch put together as their papers say, P-EAGLE beside the module of speculators where
that can be imported, and beside an EAGLE-3 head that drafts its masks one after another.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import save_file
from tests.helpers import tiny_model as tiny
from tests.networks import test_published as published
from tests.networks.heads import Head, Oracle, random_head, with_maps, write
from tests.networks.test_published import CONFIG, DRAFTED, TOKENS, WIRINGS, apart, chain, states
from torch import Tensor, nn

import paceline
from paceline.core.types import SamplingParams
from paceline.errors import InvalidOption
from paceline.models.source import DirectorySource
from paceline.networks.published import open_head
from paceline.networks.published.head import PublishedHead
from paceline.networks.runner import ContextUpdate
from paceline.runtimes.cpu.target import CpuTarget
from paceline.runtimes.reference.target import ReferenceTarget
from paceline.runtimes.torch.target import TorchTarget

source, target = published.source, published.target
WIDTH, SLOTS, MASK, FINAL = CONFIG.hidden_size, 4, 9, 9  # `states` has the normed one at the end
Tensors = dict[str, Tensor]
RUNTIMES = (CpuTarget, TorchTarget)


def opened(path: Path) -> PublishedHead:
    head = open_head(path)
    assert head is not None
    return head


# P-EAGLE


def parallel(path: Path, **wiring: Any) -> Head:
    """Write a head, and return it."""
    head = random_head(CONFIG, own_embedding=True, **wiring)
    read = head.tensors["fc.weight"].shape[1]
    hidden = np.random.default_rng(2).standard_normal((1, 1, read)).astype(np.float32)
    head = replace(head, tensors={**head.tensors, "mask_hidden": hidden})
    write(head, "speculators", path)
    config = json.loads((path / "config.json").read_text())
    config |= {"speculators_model_type": "peagle", "architectures": ["PEagleSpeculator"]}
    config["mask_token_id"] = MASK
    config["speculators_config"]["proposal_methods"] = [{"speculative_tokens": SLOTS}]
    (path / "config.json").write_text(json.dumps(config))
    return head


@pytest.mark.parametrize("told", ["pard_token", "ptd_token_id"])
def test_peagle_under_the_name_of_eagle_3(
    tmp_path: Path, source: DirectorySource, told: str
) -> None:
    """The vector of masks tells it, in two dimensions here."""
    head = parallel(tmp_path / "head")
    flat = {"mask_hidden": head.tensors["mask_hidden"][0]}
    path = write(replace(head, tensors=head.tensors | flat), "SafeAILab", tmp_path / "other")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {told: str(MASK), "ttt_length": SLOTS}))
    assert opened(path).wiring.kind == "P-EAGLE"
    target = CpuTarget(source.config, source.weights(), precision="fp32")
    np.testing.assert_array_equal(
        *(slots(target, each, source) for each in (path, path.parent / "head"))
    )


def masked(head: Head, source: DirectorySource, *, carried: bool = False) -> np.ndarray:
    """Slots behind the root, in which the features of masks (wrong: the output) go on."""
    features = states(source, head.boundaries or (2, 4, 5))[:-1]
    hidden = head.tensors["mask_hidden"][0, 0]
    if carried:
        return Oracle(head, source.weights()["embed"]).draft(features, TOKENS[1:], [MASK] * 3)
    rows = np.concatenate([features, np.tile(hidden, (SLOTS - 1, 1))])
    tokens = [*TOKENS[1:], *[MASK] * (SLOTS - 1)]
    all_rows = [
        Oracle(head, source.weights()["embed"]).draft(rows[:end], tokens[:end], [])
        for end in range(len(features), len(rows) + 1)
    ]
    return np.concatenate(all_rows)


@pytest.mark.parametrize(
    "wiring", ["plain", "norm-before-fc", "eagle-3.1", "norm-before-residual", "two-layers"]
)
def test_peagle_foretells_in_one_pass(
    tmp_path: Path, source: DirectorySource, target: CpuTarget | TorchTarget, wiring: str
) -> None:
    head = parallel(tmp_path / "head", **WIRINGS[wiring])
    found = slots(target, tmp_path / "head", source)
    assert len(found) == SLOTS
    assert apart(found, masked(head, source)) < 1e-5
    assert apart(found[1:], masked(head, source, carried=True)[1:]) > 1e-2


def slots(target: Any, path: Path, source: DirectorySource) -> np.ndarray:
    """Logits of all slots behind the last token."""
    from tests.networks import test_blocks

    return test_blocks.block(target, path, source)


@pytest.mark.parametrize("wiring", ["plain", "norm-before-fc", "eagle-3.1", "two-layers"])
def test_peagle_is_that_of_speculators(
    tmp_path: Path, source: DirectorySource, wiring: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    core: Any = pytest.importorskip("speculators.models.peagle.core")
    from transformers import LlamaConfig

    head = parallel(tmp_path / "head", **WIRINGS[wiring])
    config = core.PEagleSpeculatorConfig(
        transformer_layer_config=LlamaConfig(**head.layer, attn_implementation="eager"),
        draft_vocab_size=len(head.ids),
        eagle_aux_hidden_state_layer_ids=list(head.boundaries or (2, 4, 5)),
        mask_token_id=MASK,
        **head.flags,
    )
    model = core.PEagleDraftModel(config).eval()
    tensors = {name: torch.from_numpy(each) for name, each in with_maps(head).items()}
    assert not model.load_state_dict(tensors, strict=False).unexpected_keys
    features, count = states(source, head.boundaries or (2, 4, 5))[:-1], len(TOKENS) - 1
    last, deep = torch.full((SLOTS - 1,), count - 1), torch.arange(1, SLOTS)
    asked = torch.cat([torch.arange(count), last]), torch.cat([torch.zeros(count).long(), deep])
    monkeypatch.setattr(core, "generate_cod_sample_indices", lambda **_: asked)
    monkeypatch.setattr(core, "compute_metrics", lambda **_: (0, {}))
    logits: list[Tensor] = []
    model.lm_head.register_forward_hook(lambda _, __, out: logits.append(out))
    rows, tokens = torch.zeros(1, count + SLOTS, features.shape[1]), torch.zeros(1, count + SLOTS)
    rows[0, :count], tokens[0, :count] = torch.from_numpy(features), torch.tensor(TOKENS[1:])
    hidden = torch.zeros(1, count + SLOTS, head.layer["hidden_size"])
    with torch.inference_mode():
        model(
            rows, tokens.long(), torch.zeros_like(tokens).long(), verifier_last_hidden_states=hidden
        )
    target = CpuTarget(source.config, source.weights(), precision="fp32")
    found = slots(target, tmp_path / "head", source)
    assert apart(found, logits[0][0, count - 1 :].numpy()) < 1e-5


# EAGLE-1


def eagle(path: Path, *, layers: int = 1, bias: bool = True) -> tuple[Tensors, dict[str, Any]]:
    """Write a head as its authors do, in a pickle, and return it; its config is a Llama's."""
    head = random_head(CONFIG, own_embedding=True, layers=layers, parts=1)
    generator = torch.Generator().manual_seed(4)
    tensors = {
        name: torch.from_numpy(each)
        for name, each in head.tensors.items()
        if not name.startswith(("lm_head", "norm.", "fc.")) and "hidden_norm" not in name
    }
    del tensors["layers.0.input_layernorm.weight"]
    narrow = tensors["layers.0.self_attn.q_proj.weight"].shape[0]
    for part, size in (("q", narrow), ("k", narrow // 2), ("v", narrow // 2)):
        tensors[f"layers.0.self_attn.{part}_proj.weight"] = draw(generator, size, WIDTH)
    tensors["fc.weight"] = draw(generator, WIDTH, 2 * WIDTH)
    if bias:
        tensors["fc.bias"] = draw(generator, WIDTH)
    path.mkdir(exist_ok=True)
    config = {**head.layer, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    (path / "config.json").write_text(json.dumps(config))
    torch.save(tensors, path / "pytorch_model.bin")
    return tensors, config


def draw(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator) / shape[-1] ** 0.5


def regressed(
    tensors: Tensors,
    config: dict[str, Any],
    head: Tensor,
    features: np.ndarray,
    *,
    swapped: bool = False,
    normed: bool = False,
) -> np.ndarray:
    """Logits after the context and each drafted token, by layers of transformers.

    Wrong: hidden state before the embedding in `fc`, a norm before the first attention.
    """
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

    said = LlamaConfig(**config, attn_implementation="eager")
    layers = [LlamaDecoderLayer(said, index) for index in range(said.num_hidden_layers)]
    if not normed:
        layers[0].input_layernorm = nn.Identity()
    for index, layer in enumerate(layers):
        begin = f"layers.{index}."
        own = {k.removeprefix(begin): v for k, v in tensors.items() if k.startswith(begin)}
        layer.load_state_dict(own, strict=not normed)
    turn = LlamaRotaryEmbedding(said)
    hidden, out = torch.from_numpy(features)[None], []
    with torch.inference_mode():
        for drafted in range(1 + len(DRAFTED)):
            tokens = [*TOKENS[1:], *DRAFTED[:drafted]]
            embedded = tensors["embed_tokens.weight"][torch.tensor([tokens])]
            parts = [hidden, embedded] if swapped else [embedded, hidden]
            x = nn.functional.linear(
                torch.cat(parts, dim=-1), tensors["fc.weight"], tensors.get("fc.bias")
            )
            count = len(tokens)
            places = torch.arange(count)[None]
            mask = torch.full((count, count), float("-inf")).triu(1)[None, None]
            for layer in layers:
                x = layer(x, attention_mask=mask, position_embeddings=turn(x, places))
            out.append(x[0, -1] @ head.T)
            hidden = torch.cat([hidden, x[:, -1:]], dim=1)
    return torch.stack(out).numpy()


@pytest.mark.parametrize("made", [{}, {"layers": 2}, {"bias": False}])
def test_eagle_is_layers_of_transformers(
    tmp_path: Path,
    source: DirectorySource,
    target: CpuTarget | TorchTarget,
    made: dict[str, Any],
) -> None:
    tensors, config = eagle(tmp_path / "head", **made)
    head = opened(tmp_path / "head")
    assert (head.wiring.kind, head.wiring.drafter) == ("EAGLE-1", "eagle")
    own = torch.from_numpy(source.weights()["embed"])  # the target's LM head
    features = states(source, (FINAL,))[:-1]
    found = chain(target, tmp_path / "head", source)
    assert apart(found, regressed(tensors, config, own, features)) < 1e-5
    for wrong in ("swapped", "normed"):
        assert apart(found, regressed(tensors, config, own, features, **{wrong: True})) > 1e-2
    before = states(source, (CONFIG.layers,))[:-1]
    assert apart(found, regressed(tensors, config, own, before)) > 1e-2


# Medusa


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + nn.functional.silu(self.linear(x))


def medusa(path: Path, layout: str, blocks: int = 1) -> nn.ModuleList:
    """Write three heads in a layout, and return them."""
    torch.manual_seed(6)
    heads = nn.ModuleList(
        nn.Sequential(
            *(Residual() for _ in range(blocks)), nn.Linear(WIDTH, CONFIG.vocab_size, bias=False)
        )
        for _ in range(3)
    )
    tensors, path = {k: v.contiguous() for k, v in heads.state_dict().items()}, path / "head"
    path.mkdir()
    config: dict[str, Any] = {"medusa_num_heads": 2, "base_model_name_or_path": "lmsys/vicuna"}
    if layout == "vLLM":
        config = {"architectures": ["MedusaModel"], "model_type": "medusa", "num_heads": 3}
        for i in range(3):
            for j in range(blocks):
                for kind in ("weight", "bias"):
                    tensors[f"blocks.{i}.layers.{j}.{kind}"] = tensors.pop(f"{i}.{j}.linear.{kind}")
            tensors[f"lm_heads.{i}.weight"] = tensors.pop(f"{i}.{blocks}.weight")
    (path / "config.json").write_text(json.dumps(config))
    files: dict[str, Callable[[], None]] = {
        "pt": lambda: torch.save(tensors, path / "medusa_lm_head.pt"),
        "safetensors": lambda: save_file(tensors, path / "medusa_lm_head.safetensors"),
        "vLLM": lambda: save_file(tensors, path / "model.safetensors"),
    }
    files[layout]()
    return heads


@pytest.mark.parametrize(("layout", "blocks"), [("pt", 1), ("safetensors", 2), ("vLLM", 1)])
def test_medusa_is_modules_of_torch(
    tmp_path: Path,
    source: DirectorySource,
    target: CpuTarget | TorchTarget,
    layout: str,
    blocks: int,
) -> None:
    heads = medusa(tmp_path, layout, blocks)
    head = opened(tmp_path / "head")
    assert (head.wiring.kind, head.wiring.drafter) == ("Medusa", "medusa")
    with torch.inference_mode():
        wanted, before = (
            torch.stack([each(torch.from_numpy(states(source, (at,))[-2])) for each in heads])
            for at in (FINAL, CONFIG.layers)
        )
    found = slots(target, tmp_path / "head", source)
    assert apart(found, wanted.numpy()) < 1e-5
    assert apart(found, before.numpy()) > 1e-2  # before the final norm
    assert apart(found[::-1], wanted.numpy()) > 1e-2


# MLP speculator

INNER = 96


class ShiftedNorm(nn.Module):
    def __init__(self, width: int, *, affine: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + torch.randn(width) / 4) if affine else None
        self.bias = nn.Parameter(torch.randn(width) / 4) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        x = x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
        return x if self.weight is None else self.weight * x + self.bias


class Speculator(nn.Module):
    """The equations of its authors; names of modules are those of the checkpoints."""

    def __init__(self, *, tied: bool, scaled: bool, steps: int = 4) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.steps, self.scaled, self.gelu = steps, scaled, nn.GELU()

        def each(*made: nn.Module) -> nn.ModuleList:  # steps that are tied have the last one
            return nn.ModuleList(made[min(step, len(made) - 1)] for step in range(steps))

        own, vocabulary = 1 if tied else steps, CONFIG.vocab_size
        self.emb = each(*(nn.Embedding(vocabulary, INNER) for _ in range(own)))
        first = nn.Linear(WIDTH, INNER, bias=False)
        rest = [nn.Linear(INNER, INNER, bias=False) for _ in range(1 if tied else steps - 1)]
        self.proj = each(first, *rest)
        self.head = each(*(nn.Linear(INNER, vocabulary, bias=False) for _ in range(own)))
        self.ln = each(*(ShiftedNorm(INNER) for _ in range(own)))
        self.ln0 = ShiftedNorm(WIDTH, affine=False)

    @torch.inference_mode()
    def draft(self, hidden: np.ndarray, tokens: list[int]) -> np.ndarray:
        kept = 0.5 ** (0.5 / self.steps)
        weight = ((1 - kept**2) * (INNER / 2)) ** 0.5
        state, out = torch.from_numpy(hidden), []
        state = self.ln0(state) / 2**0.5 if self.scaled else state
        for step, token in enumerate(tokens):
            z = self.emb[step](torch.tensor(token))
            mixed = torch.add(self.proj[step](state), z, alpha=weight / kept)
            state = self.gelu(self.ln[step](mixed))
            out.append(self.head[step](state))
        return torch.stack(out).numpy()


def speculator(path: Path, *, tied: bool = False, scaled: bool = True) -> Speculator:
    """Write one, of which tied tensors are there once, and return it."""
    made = Speculator(tied=tied, scaled=scaled)
    tensors = {f"speculator.{k}": v.contiguous() for k, v in dict(made.named_parameters()).items()}
    path.mkdir()
    save_file(tensors, path / "model.safetensors")
    config = {
        "architectures": ["MLPSpeculatorPreTrainedModel"],
        "model_type": "mlp_speculator",
        "emb_dim": WIDTH,
        "inner_dim": INNER,
        "n_predict": 4,
        "vocab_size": CONFIG.vocab_size,
        "tie_weights": tied,
        "scale_input": scaled,
    }
    (path / "config.json").write_text(json.dumps(config))
    return made


@pytest.mark.parametrize("made", [{}, {"tied": True}, {"scaled": False}])
def test_mlp_speculator_is_modules_of_torch(
    tmp_path: Path,
    source: DirectorySource,
    target: CpuTarget | TorchTarget,
    made: dict[str, Any],
) -> None:
    judge = speculator(tmp_path / "head", **made)
    head = opened(tmp_path / "head")
    assert (head.wiring.kind, head.wiring.drafter) == ("MLP speculator", "mlp-speculator")
    asked = [TOKENS[-1], *DRAFTED]
    hidden, before = (states(source, (at,))[-2] for at in (FINAL, CONFIG.layers))
    found, wanted = chain(target, tmp_path / "head", source), judge.draft(hidden, asked)
    assert apart(found, wanted) < 1e-5
    assert apart(found, judge.draft(before, asked)) > 1e-2  # before the final norm
    judge.scaled = not judge.scaled
    assert apart(found, judge.draft(hidden, asked)) > 1e-2
    judge.scaled, judge.gelu = not judge.scaled, nn.GELU(approximate="tanh")
    assert apart(found, judge.draft(hidden, asked)) > 1e-5
    judge.gelu, judge.steps = nn.GELU(), 3
    assert apart(found[:3], judge.draft(hidden, asked[:3])) > 1e-2
    if not made.get("tied"):
        judge.steps, judge.head = 4, nn.ModuleList([judge.head[0]] * 4)
        assert apart(found[1:], judge.draft(hidden, asked)[1:]) > 1e-2


def test_branches_of_any_depths_take_their_own_steps(
    tmp_path: Path, source: DirectorySource, target: CpuTarget | TorchTarget
) -> None:
    """Side by side in one call, where steps have weights of their own."""
    speculator(tmp_path / "head")
    trained = opened(tmp_path / "head").fit(source.config, source.weights(), "")
    runner = target.run_network(trained)
    features = states(source, (FINAL,))[:-1]
    [root] = runner.start([ContextUpdate(runner.open(), features, TOKENS[1:])])
    [first] = runner.advance([(root, [3])])
    together = runner.advance([(first, [5]), (root, [4]), (first, [6])])
    alone = [runner.advance([each])[0] for each in ((first, [5]), (root, [4]), (first, [6]))]
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(one.logits, other.logits, rtol=1e-5, atol=1e-6)
    assert together[1].step == 1
    assert apart(together[0].logits, together[1].logits) > 1e-2


def test_speculators_of_others_are_refused_by_name(tmp_path: Path) -> None:
    speculator(tmp_path / "head")
    file = tmp_path / "head" / "config.json"
    text = file.read_text()
    file.write_text(text.replace("MLPSpec", "ArcticMLPSpec"))
    with pytest.raises(InvalidOption, match="Arctic speculator, which is not read"):
        open_head(tmp_path / "head")
    file.write_text(text.replace('"n_predict"', '"predicts"'))
    with pytest.raises(InvalidOption, match=r"no whole MLP speculator .*n_predict"):
        open_head(tmp_path / "head")


# All of them


def write_one(kind: str, path: Path) -> Path:
    if kind == "P-EAGLE":
        parallel(path / "head")
    elif kind == "EAGLE-1":
        eagle(path / "head")
    elif kind == "MLP speculator":
        speculator(path / "head")
    else:
        medusa(path, "pt")
    return path / "head"


KINDS = ("P-EAGLE", "EAGLE-1", "Medusa", "MLP speculator")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_the_reference_drafts_the_same(
    tmp_path: Path, source: DirectorySource, kind: str, precision: str
) -> None:
    path = write_one(kind, tmp_path)
    logits = slots if kind in ("P-EAGLE", "Medusa") else chain
    both = [
        logits(runtime(source.config, source.weights(), precision), path, source)  # type: ignore[operator]
        for runtime in (CpuTarget, ReferenceTarget)
    ]
    np.testing.assert_array_equal(*both)


@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_those_without_drafts(tmp_path: Path, kind: str) -> None:
    """And `auto` takes the drafter of the head that is named."""
    model = str(tiny.save_directory(tmp_path / "model", CONFIG))
    path = write_one(kind, tmp_path)
    drafter = opened(path).wiring.drafter
    prompts = ["the quick brown", "def f(x)"]
    for params in (
        SamplingParams(max_new_tokens=24),
        SamplingParams(max_new_tokens=24, temperature=0.8, seed=3),
    ):
        plain = paceline.load(model, drafter="none", progress=False).generate(prompts, params)
        for named in (drafter, "auto"):
            engine = paceline.load(
                model, drafter=named, draft_model=str(path), nodes=4, depth=3, progress=False
            )
            found = engine.generate(prompts, params)
            assert [each.token_ids for each in found] == [each.token_ids for each in plain]
            assert sum(each.stats.drafted_tokens for each in found) > 0
    other = "hydra" if drafter == "eagle3" else "eagle3"
    with pytest.raises(InvalidOption, match=f"{kind}.*use --drafter {drafter}"):
        paceline.load(model, drafter=f"{other}:weights={path}", progress=False)


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        ("P-EAGLE", {"mask_hidden": None}, "no tensor for mask_hidden"),
        ("EAGLE-1", {"layers.0.self_attn.o_proj.weight": None}, "no tensor for layers.0.o"),
        ("EAGLE-1", {"enorm.weight": torch.ones(WIDTH)}, "enorm.weight is unknown"),
        ("Medusa", {"1.1.weight": None}, "no tensor for heads.1"),
        ("Medusa", {"1.0.linear.bias": torch.ones(3)}, "1.0.linear.bias is 3 and not 64"),
        ("Medusa", {"token_map": torch.ones(3)}, "token_map is unknown"),
        ("MLP speculator", {"speculator.proj.2.weight": None}, "no tensor for proj.2"),
        ("MLP speculator", {"speculator.ln.1.bias": torch.ones(3)}, "ln.1.bias is 3 and not 96"),
        ("MLP speculator", {"speculator.gate.0.weight": torch.ones(3)}, "gate.0.weight is unknown"),
    ],
)
def test_half_a_head_is_refused(
    tmp_path: Path, source: DirectorySource, kind: str, change: dict[str, Any], said: str
) -> None:
    from safetensors.torch import load_file

    path = write_one(kind, tmp_path)
    [file] = [each for each in path.iterdir() if each.name != "config.json"]
    safe = file.suffix == ".safetensors"
    tensors = load_file(file) if safe else torch.load(file)
    for name, each in change.items():
        tensors.pop(name, None)
        tensors |= {} if each is None else {name: each}
    if safe:
        save_file(tensors, file)
    else:
        torch.save(tensors, file)
    with pytest.raises(InvalidOption, match=said):
        opened(path).fit(source.config, source.weights(), source.fingerprint)


def test_a_mask_that_is_no_token_is_refused(tmp_path: Path) -> None:
    parallel(tmp_path / "head")
    file = tmp_path / "head" / "config.json"
    file.write_text(file.read_text().replace(f'"mask_token_id": {MASK}', '"mask_token_id": 999'))
    with pytest.raises(InvalidOption, match="mask 999 of 320 tokens"):
        open_head(tmp_path / "head")


def test_heads_of_another_model_are_refused(tmp_path: Path, source: DirectorySource) -> None:
    medusa(tmp_path, "pt")
    other = replace(source.config, vocab_size=400)
    with pytest.raises(InvalidOption, match=r"lmsys/vicuna.*vocabulary of 320, and the model"):
        opened(tmp_path / "head").fit(other, source.weights(), "")


def test_a_model_is_no_head(source: DirectorySource) -> None:
    assert open_head(source.path) is None
