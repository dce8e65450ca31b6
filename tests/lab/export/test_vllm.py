"""Exported drafters are what vLLM loads, and compute there what they compute here."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers.target_contract import all_rows

pytest.importorskip("torch")

import torch
from safetensors.torch import load_file
from tests.helpers import tiny_model as tiny
from tests.lab.export import drafters, vllm_equations
from torch import Tensor

from paceline.core import tree as trees
from paceline.core.target import Rows, RuntimeOptions
from paceline.core.types import IntArray
from paceline.errors import InvalidOption
from paceline.lab.export.layout import Layout, write_layout
from paceline.lab.export.vllm import NETWORKS, vllm_layout
from paceline.lab.training.module import DraftModule
from paceline.models.config import feature_layers
from paceline.models.source import DirectorySource, resolve
from paceline.models.weights import canonical_name
from paceline.networks import weights as weights_module
from paceline.networks.catalogue import names
from paceline.networks.weights import load_network
from paceline.runtimes.torch.target import TorchTarget

TIME = 9
TENSORS = "model.safetensors"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> DirectorySource:
    return drafters.target(tmp_path_factory.mktemp("target"))


def weights_of(tmp_path: Path, name: str, target: DirectorySource, vocabulary: int) -> Path:
    net = drafters.network(name, target)
    return drafters.save(tmp_path / f"{name}.safetensors", net, target.fingerprint, vocabulary)


def exported(
    weights: Path, target: DirectorySource
) -> tuple[Layout, dict[str, Any], dict[str, Tensor]]:
    """The layout, and config and tensors as they are read back from the folder."""
    layout, out = vllm_layout(str(weights), str(target.path)), weights.with_suffix("")
    write_layout(layout, out)
    assert sorted(path.name for path in out.iterdir()) == ["config.json", TENSORS]
    return layout, json.loads((out / "config.json").read_text()), load_file(out / TENSORS)


def ours(weights: Path, target: DirectorySource) -> DraftModule:
    """The trained module, in float64."""
    trained = load_network(weights)
    matrices = target.weights()
    tied = target.config.tied_embeddings
    embedding = matrices["embed"]
    head = embedding if tied else matrices["head"]
    rows = torch.from_numpy(head[trained.draft_ids])
    module = DraftModule(trained.network, torch.from_numpy(embedding), rows, torch.Generator())
    module.load({name: torch.from_numpy(array) for name, array in trained.parameters.items()})
    return module.double()


def texts(target: DirectorySource) -> tuple[Tensor, Tensor]:
    """Features, whose axes differ as real ones do, and tokens."""
    generator = torch.Generator().manual_seed(3)
    width = target.config.hidden_size
    features = torch.randn(1, TIME, 4 * width, generator=generator).double()
    features *= torch.logspace(-1, 1, 4 * width).double()
    return features, torch.randint(target.config.vocab_size, (1, TIME), generator=generator)


def same_law(theirs: Tensor, logits: Tensor, ids: IntArray, elsewhere: float) -> None:
    """Theirs over the whole vocabulary, ours over what can be drafted."""
    expected = torch.full_like(theirs, elsewhere)
    expected[:, ids] = logits
    torch.testing.assert_close(theirs, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("family", ["qwen3", "mistral"])  # tied with wide heads, and neither
@pytest.mark.parametrize("vocabulary", [200, 320])
def test_eagle3_drafts_in_vllm_what_it_drafts_here(
    tmp_path: Path, family: str, vocabulary: int
) -> None:
    target = drafters.target(tmp_path / "target", family)
    weights = weights_of(tmp_path, "eagle3", target, vocabulary)
    _, config, tensors = exported(weights, target)
    module, ids = ours(weights, target), load_network(weights).draft_ids
    features, tokens = texts(target)
    with torch.no_grad():
        expected = torch.stack(module(features, tokens), dim=2)[0]
    exact = {n: t.double() if t.is_floating_point() else t for n, t in tensors.items()}
    width, steps = target.config.hidden_size, module.network.steps
    for at in range(TIME - steps):
        theirs = vllm_equations.Eagle3(config, exact, module.get_buffer("embedding")).draft(
            features[0, : at + 1, : 3 * width],
            tokens[0, 1 : at + 2],
            tokens[0, at + 2 : at + 1 + steps],
        )
        same_law(theirs, expected[at], ids, elsewhere=-math.inf)


@pytest.mark.parametrize("vocabulary", [200, 320])
def test_medusa_drafts_in_vllm_what_it_drafts_here(
    tmp_path: Path, target: DirectorySource, vocabulary: int
) -> None:
    weights = weights_of(tmp_path, "medusa", target, vocabulary)
    _, config, tensors = exported(weights, target)
    module, ids = ours(weights, target), load_network(weights).draft_ids
    features, tokens = texts(target)
    with torch.no_grad():
        expected = torch.stack(module(features, tokens), dim=2)[0]
    exact = {n: t.double() if t.is_floating_point() else t for n, t in tensors.items()}
    for at in range(TIME):
        hidden = features[0, at, -target.config.hidden_size :]
        theirs = vllm_equations.medusa(config, exact, hidden)
        same_law(theirs, expected[at], ids, elsewhere=0.0)


@pytest.mark.parametrize(
    ("name", "vocabulary"), [("draft-lm", 200), ("draft-lm", 320), ("s2d", 320)]
)
def test_a_trained_draft_model_is_a_llama(
    tmp_path: Path, target: DirectorySource, name: str, vocabulary: int
) -> None:
    """Read back by the loader of models, and run as any other; of `s2d` every exit, too."""
    weights, out = weights_of(tmp_path, name, target, vocabulary), tmp_path / "out"
    layout = vllm_layout(str(weights), str(target.path))
    write_layout(layout, out)
    model = TorchTarget.load(DirectorySource(out), RuntimeOptions(precision="fp32"))
    module, ids = ours(weights, target), load_network(weights).draft_ids
    features, tokens = texts(target)
    with torch.no_grad():
        expected = module(features, tokens)[0][0, : TIME - 1].float()
    chain = trees.chain(tokens[0, 2:].tolist())
    cache = model.open()
    model.prefill(cache, tokens[0, :1].tolist())
    [output] = model.forward([Rows.draft(cache, tokens[0, 1:2].tolist(), chain)])
    theirs = torch.from_numpy(output.logits)
    torch.testing.assert_close(theirs[:, ids], expected, rtol=1e-3, atol=1e-3)
    assert (theirs[:, np.delete(np.arange(320), ids)] == 0).all()
    with torch.no_grad():
        exits = module.draft(features, tokens).exits
    for layers, logits in enumerate(exits, 1):
        empty = model.open()
        block = all_rows(empty, tokens[0].tolist())
        [cut] = model.forward([block], tuple(range(layers)))
        shallow, wanted = torch.from_numpy(cut.logits)[1:, ids], logits[0][0, : TIME - 1].float()
        torch.testing.assert_close(shallow, wanted, rtol=1e-3, atol=1e-3)
    assert len(exits) == (name == "s2d")
    assert DirectorySource(out).tokenizer().fingerprint == target.tokenizer().fingerprint
    assert layout.method == "draft_model"


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("eagle3", "fc.weight"),
        ("eagle3", "layers.0.hidden_norm.weight"),
        ("eagle3", "layers.0.self_attn.k_proj.weight"),
        ("eagle3", "layers.0.mlp.up_proj.weight"),
        ("eagle3", "d2t"),
        ("medusa", "blocks.1.layers.0.weight"),
        ("medusa", "lm_head.weight"),
    ],
)
def test_the_comparison_sees_every_tensor(
    tmp_path: Path, target: DirectorySource, name: str, changed: str
) -> None:
    """Negative control: rows in another order, and vLLM's equations draft something else."""
    weights = weights_of(tmp_path, name, target, 200)
    _, config, tensors = exported(weights, target)
    features, tokens = texts(target)
    embedding = torch.from_numpy(target.weights()["embed"])
    width = target.config.hidden_size

    def run(given: dict[str, Tensor]) -> Tensor:
        if name == "medusa":
            return vllm_equations.medusa(config, given, features[0, 3, -width:].float())
        auxiliary = features[0, :4, : 3 * width].float()
        model = vllm_equations.Eagle3(config, given, embedding)
        return model.draft(auxiliary, tokens[0, 1:5], tokens[0, 5:7])

    other = run({**tensors, changed: tensors[changed].roll(1, 0)})
    assert not torch.allclose(run(tensors), other, atol=1e-3)


def test_eagle3_has_the_names_and_shapes_of_the_speculators_layout(
    tmp_path: Path, target: DirectorySource
) -> None:
    weights = weights_of(tmp_path, "eagle3", target, 200)
    layout, config, tensors = exported(weights, target)
    shape, ffn = target.config, 40
    width, wide = shape.hidden_size, shape.heads * shape.head_dim
    narrow = shape.kv_heads * shape.head_dim
    assert {name: tuple(each.shape) for name, each in tensors.items()} == {
        "fc.weight": (width, 3 * width),
        "layers.0.input_layernorm.weight": (width,),
        "layers.0.hidden_norm.weight": (width,),
        "layers.0.self_attn.q_proj.weight": (wide, 2 * width),
        "layers.0.self_attn.k_proj.weight": (narrow, 2 * width),
        "layers.0.self_attn.v_proj.weight": (narrow, 2 * width),
        "layers.0.self_attn.o_proj.weight": (width, wide),
        "layers.0.post_attention_layernorm.weight": (width,),
        "layers.0.mlp.gate_proj.weight": (ffn, width),
        "layers.0.mlp.up_proj.weight": (ffn, width),
        "layers.0.mlp.down_proj.weight": (width, ffn),
        "norm.weight": (width,),
        "lm_head.weight": (200, width),
        "d2t": (200,),
        "t2d": (320,),
    }
    trained = load_network(weights)
    ids = torch.from_numpy(trained.draft_ids)
    assert tensors["d2t"].dtype == torch.int64
    assert torch.equal(tensors["d2t"] + torch.arange(200), ids)
    assert tensors["t2d"].dtype == torch.bool
    assert torch.equal(tensors["t2d"].nonzero().flatten(), ids)
    assert config["eagle_aux_hidden_state_layer_ids"] == list(feature_layers(drafters.LAYERS))
    assert config["norm_before_residual"] is False  # vLLM's default is true
    assert config["draft_vocab_size"] == 200
    proposal = config["speculators_config"]["proposal_methods"][0]
    assert proposal["speculative_tokens"] == trained.network.depth == layout.depth
    assert config["speculators_config"]["verifier"] == {
        "name_or_path": str(target.path),
        "architectures": ["Qwen3ForCausalLM"],
    }
    assert config["transformer_layer_config"]["model_type"] == "llama"
    assert config["transformer_layer_config"]["num_hidden_layers"] == 1


def test_a_whole_vocabulary_needs_no_maps(tmp_path: Path, target: DirectorySource) -> None:
    """vLLM refuses a map where it expects none."""
    _, config, tensors = exported(weights_of(tmp_path, "eagle3", target, 320), target)
    assert not {"d2t", "t2d"} & tensors.keys()
    assert config["draft_vocab_size"] == 320


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_draft_model_is_the_same_model_again(tmp_path: Path, family: str) -> None:
    config = tiny.tiny_config(family)
    source = resolve(str(tiny.save_gguf(tmp_path / "model.gguf", config)))
    out = tmp_path / "out"
    write_layout(vllm_layout(str(source.path), str(source.path)), out)
    again = DirectorySource(out)
    ends = source.tokenizer().eos_token_ids
    assert again.config == replace(source.config, eos_token_ids=ends)
    before, after = source.weights(), again.weights()
    named = tiny.shapes(source.config)
    assert set(load_file(out / TENSORS)) == set(named)
    for name in named:
        known = canonical_name(name)
        np.testing.assert_array_equal(before[known], after[known])
    assert again.tokenizer().fingerprint == source.tokenizer().fingerprint
    assert again.tokenizer().chat_template == source.tokenizer().chat_template
    assert again.tokenizer().eos_token_ids == source.tokenizer().eos_token_ids
    assert again.tokenizer().special_tokens == source.tokenizer().special_tokens


def test_networks_that_vllm_does_not_run_are_refused_with_those_it_does(
    tmp_path: Path, target: DirectorySource
) -> None:
    for name in set(names()) - NETWORKS.keys():
        weights = weights_of(tmp_path, name, target, 200)
        with pytest.raises(
            InvalidOption, match=f"'{name}', which vLLM does not.*eagle3, medusa, draft-lm"
        ):
            vllm_layout(str(weights), str(target.path))


def test_weights_for_another_model_are_refused(tmp_path: Path, target: DirectorySource) -> None:
    net = drafters.network("medusa", target)
    weights = drafters.save(tmp_path / "other.safetensors", net, "0123")
    with pytest.raises(InvalidOption, match=r"trained for tiny, and not for .* --model"):
        vllm_layout(str(weights), str(target.path))


def test_a_shallow_target_is_refused(tmp_path: Path) -> None:
    target = drafters.target(tmp_path / "target", layers=6)
    with pytest.raises(InvalidOption, match=r"6 layers, .* 7 or more"):
        vllm_layout(str(weights_of(tmp_path, "eagle3", target, 200)), str(target.path))


def test_a_draft_model_with_other_tokens_is_refused(
    tmp_path: Path, target: DirectorySource
) -> None:
    other = tiny.save_directory(tmp_path / "other", tiny.tiny_config(vocab_size=300))
    with pytest.raises(InvalidOption, match="different vocabularies"):
        vllm_layout(str(other), str(target.path))


def test_scaled_rotary_positions_are_refused(tmp_path: Path) -> None:
    path = tiny.save_directory(tmp_path / "long", tiny.tiny_config())
    entries = json.loads((path / "config.json").read_text())
    entries["rope_scaling"] = {"rope_type": "linear", "factor": 2.0}
    (path / "config.json").write_text(json.dumps(entries))
    with pytest.raises(InvalidOption, match="scaled rotary positions"):
        vllm_layout(str(path), str(path))


def small(**more: object) -> Layout:
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3)}
    return Layout("eagle3", 3, {"x": 1}, tensors, {"made": "here"}, **more)  # type: ignore[arg-type]


def test_a_folder_with_content_is_written_over_only_by_force(tmp_path: Path) -> None:
    write_layout(small(), tmp_path)
    with pytest.raises(InvalidOption, match=r"not empty.*--force"):
        write_layout(small(), tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    write_layout(small(texts={"b.txt": "b"}), tmp_path, force=True)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "b.txt").read_text() == "b"


def test_other_weights_in_the_folder_would_be_loaded_too(tmp_path: Path) -> None:
    (tmp_path / "model-00001-of-00002.safetensors").write_text("")
    with pytest.raises(InvalidOption, match="holds other weights, model-00001"):
        write_layout(small(), tmp_path, force=True)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(InvalidOption, match=r"cannot write to .*choose another --out"):
        write_layout(small(), tmp_path / "out")


def test_a_full_disk_leaves_nothing_that_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_layout(small(), tmp_path)
    genuine = weights_module.save_file

    def full(tensors: object, path: Path, *rest: object) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(weights_module, "save_file", full)
    with pytest.raises(InvalidOption, match=r"No space left on device.*free space"):
        write_layout(small(), tmp_path, force=True)
    assert [path.name for path in tmp_path.iterdir()] == [TENSORS]  # the older one, whole
    monkeypatch.setattr(weights_module, "save_file", genuine)
    write_layout(small(), tmp_path, force=True)
    assert (tmp_path / "config.json").exists()
