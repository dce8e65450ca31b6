"""Published EAGLE-3 heads: read in every layout, they compute what their authors' code does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers import tiny_model as tiny

pytest.importorskip("torch")

import torch
from tests.networks.heads import LAYOUTS, Head, Oracle, random_head, write

from paceline.core.target import Rows
from paceline.errors import InvalidOption, ModelError, PacelineError
from paceline.models.config import FINAL
from paceline.models.source import DirectorySource
from paceline.networks.published import open_head
from paceline.networks.published.wirings import WiringChanges
from paceline.networks.runner import Branch, ContextUpdate
from paceline.networks.weights import Trained
from paceline.runtimes.cpu.target import CpuTarget
from paceline.runtimes.torch.target import TorchTarget

CONFIG = tiny.tiny_config("llama", layers=8)
TOKENS = [5, 17, 200, 31, 8, 90, 4, 251, 60]
DRAFTED = [33, 7, 120]
WIRINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "own-boundaries": {"boundaries": (1, 5, 8)},
    "norm-before-residual": {"norm_before_residual": True},
    "norm-output": {"norm_output": True},
    "norm-before-fc": {"norm_before_fc": True},
    "eagle-3.1": {"fc_norm": True, "norm_output": True},
    "own-embedding": {"own_embedding": True, "width": 32},
    "qwen3": {"qk_norm": True},
    "biased": {"biases": True},
    "two-layers": {"layers": 2},
    "five-parts": {"parts": 5, "boundaries": (1, 2, 4, 6, 7)},
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> DirectorySource:
    return DirectorySource(tiny.save_directory(tmp_path_factory.mktemp("model"), CONFIG))


@pytest.fixture(params=[CpuTarget, TorchTarget])
def target(request: pytest.FixtureRequest, source: DirectorySource) -> CpuTarget | TorchTarget:
    return request.param(source.config, source.weights(), precision="fp32")  # type: ignore[no-any-return]


def states(source: DirectorySource, places: tuple[int, ...]) -> np.ndarray:
    """Hidden states at boundaries side by side, as transformers computes them."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(source.path, dtype=torch.float32)
    before: list[torch.Tensor] = []
    model.model.norm.register_forward_hook(lambda _, given, __: before.append(given[0]))
    with torch.inference_mode():
        found = model(torch.tensor([TOKENS]), output_hidden_states=True).hidden_states
    known = [*found[:-1], before[0], found[-1]]  # the last one is normed
    return np.concatenate([known[each][0].numpy() for each in places], axis=1)


def chain(
    target: CpuTarget | TorchTarget, path: Path, source: DirectorySource, **changes: Any
) -> np.ndarray:
    """Logits of a head after the last token but one, and after each that is drafted."""
    head = open_head(path)
    assert head is not None
    head = head.changed(WiringChanges(**changes), CONFIG.layers)
    trained = head.fit(source.config, source.weights(), source.fingerprint)
    places = target.read_boundaries(head.boundaries(CONFIG.layers))
    cache = target.open()
    [output] = target.forward([Rows.draft(cache, TOKENS, features=True)])  # type: ignore[list-item]
    assert output.features is not None
    parts = output.features.reshape(len(TOKENS), -1, CONFIG.hidden_size)[:, places]
    runner = target.run_network(trained)
    update = ContextUpdate(runner.open(), parts.reshape(len(TOKENS), -1)[:-1], TOKENS[1:])
    [branch] = runner.start([update])
    found: list[Branch] = [branch]
    for token in DRAFTED:
        found += runner.advance([(found[-1], [token])])
    return np.concatenate([each.logits for each in found])


def wanted(head: Head, source: DirectorySource, **flags: bool) -> np.ndarray:
    places = head.boundaries or (2, 4, 5)
    oracle = Oracle(head, source.weights()["embed"], **flags)
    return oracle.draft(states(source, places)[:-1], TOKENS[1:], DRAFTED)


def apart(mine: np.ndarray, theirs: np.ndarray) -> float:
    assert mine.shape == theirs.shape
    return float(np.abs(mine - theirs).max() / np.abs(theirs).max())


@pytest.mark.parametrize("wiring", WIRINGS)
def test_computes_what_the_equations_say(
    tmp_path: Path, source: DirectorySource, target: CpuTarget | TorchTarget, wiring: str
) -> None:
    head = random_head(CONFIG, **WIRINGS[wiring])
    path = write(head, "speculators", tmp_path / "head")
    assert apart(chain(target, path, source), wanted(head, source)) < 1e-5


@pytest.mark.parametrize("layout", LAYOUTS)
def test_reads_every_layout(
    tmp_path: Path, source: DirectorySource, target: CpuTarget | TorchTarget, layout: str
) -> None:
    head = random_head(CONFIG, boundaries=(2, 4, 6), norm_before_residual=layout == "GGUF")
    path = write(head, layout, tmp_path / "head")
    opened = open_head(path)
    assert opened is not None
    assert opened.layout == layout.removesuffix(".bin")
    assert opened.draft_vocabulary == len(head.ids)
    np.testing.assert_array_equal(fitted(path, source).draft_ids, head.ids)
    assert apart(chain(target, path, source), wanted(head, source)) < 1e-5


@pytest.mark.parametrize("wiring", ["norm_output", "norm_before_residual"])
def test_another_wiring_is_another_head(
    tmp_path: Path, source: DirectorySource, wiring: str
) -> None:
    """Control: an oracle that is wired otherwise is far away."""
    head = random_head(CONFIG)
    path = write(head, "speculators", tmp_path / "head")
    target = CpuTarget(source.config, source.weights(), precision="fp32")
    found = chain(target, path, source)
    assert apart(found, wanted(head, source, **{wiring: True})) > 1e-2


def test_other_boundaries_are_another_head(tmp_path: Path, source: DirectorySource) -> None:
    """Control: ids counted on by one, states after the norm for those before it, another token."""
    head = random_head(CONFIG, boundaries=(2, 5, 8))
    path = write(head, "speculators", tmp_path / "head")
    target = CpuTarget(source.config, source.weights(), precision="fp32")
    assert apart(chain(target, path, source), wanted(head, source)) < 1e-5
    assert apart(chain(target, path, source, shift=-1), wanted(head, source)) > 1e-2
    shifted = replace(head, boundaries=(1, 4, 7))
    assert apart(chain(target, path, source, shift=-1), wanted(shifted, source)) < 1e-5
    after = wanted(replace(head, boundaries=(2, 5, 9)), source)  # the last of `states` is normed
    assert apart(chain(target, path, source), after) > 1e-2
    oracle = Oracle(head, source.weights()["embed"])
    own = oracle.draft(states(source, (2, 5, 8))[:-1], TOKENS[:-1], DRAFTED)
    assert apart(chain(target, path, source), own) > 1e-2


def test_ids_that_begin_with_one_are_of_outputs(tmp_path: Path, source: DirectorySource) -> None:
    head = random_head(CONFIG, boundaries=(1, 4, 6))
    sgl, spec = (write(head, each, tmp_path / each) for each in ("SafeAILab", "speculators"))
    found = [each for each in (open_head(sgl), open_head(spec)) if each is not None]
    assert [each.boundaries(CONFIG.layers) for each in found] == [(2, 5, 7), (1, 4, 6)]
    assert ["boundaries" in each.wiring.doubts for each in found] == [True, False]


def test_reads_the_last_hidden_state(tmp_path: Path, source: DirectorySource) -> None:
    head = random_head(CONFIG, parts=1, use_aux_hidden_state=False)
    target = CpuTarget(source.config, source.weights(), precision="fp32")
    path = write(head, "SafeAILab", tmp_path / "head")
    opened = open_head(path)
    assert opened is not None
    assert opened.boundaries(CONFIG.layers) == (FINAL,)
    normed = replace(head, boundaries=(9,))
    assert apart(chain(target, path, source), wanted(normed, source)) < 1e-5


@pytest.mark.parametrize("form", ["offsets", "ids", "unsorted"])
def test_maps_tokens_in_any_form(tmp_path: Path, source: DirectorySource, form: str) -> None:
    head = random_head(CONFIG)
    if form == "unsorted":
        order = np.random.default_rng(1).permutation(len(head.ids))
        tensors = {**head.tensors, "lm_head.weight": head.tensors["lm_head.weight"][order]}
        head = replace(head, ids=head.ids[order], tensors=tensors)
    path = write(head, "speculators", tmp_path / "head")
    if form == "ids":
        from safetensors.numpy import load_file, save_file

        file = path / "model.safetensors"
        save_file({**load_file(file), "d2t": head.ids}, file)
    found = fitted(path, source)
    np.testing.assert_array_equal(found.draft_ids, np.sort(head.ids))
    rows = head.tensors["lm_head.weight"][np.argsort(head.ids)]
    np.testing.assert_array_equal(found.parameters["head"], rows)


def test_shares_what_is_the_targets(tmp_path: Path, source: DirectorySource) -> None:
    head = random_head(CONFIG)
    table = source.weights()["embed"]
    near = table * (1 + 0.01 * np.sign(table))  # as in another precision
    own = {"lm_head.weight": table[head.ids], "embed_tokens.weight": near}
    path = write(replace(head, tensors={**head.tensors, **own}), "speculators", tmp_path / "head")
    assert not {"embed", "head"} & set(fitted(path, source).parameters)
    assert "head" in fitted(write(head, "GGUF", tmp_path / "own"), source).parameters


def fitted(path: Path, source: DirectorySource) -> Trained:
    head = open_head(path)
    assert head is not None
    return head.fit(source.config, source.weights(), source.fingerprint)


def broken(tmp_path: Path, what: str) -> Path:
    """A head of another model, or half a head."""
    config = {
        "width": replace(CONFIG, hidden_size=96),
        "vocabulary": replace(CONFIG, vocab_size=400),
    }.get(what, CONFIG)
    boundaries = (2, 4, 9) if what == "boundaries" else None
    head = random_head(config, boundaries=boundaries, width=32 if what == "embedding" else 64)
    path, tensors = tmp_path / "head", dict(head.tensors)
    if what == "tensor":
        del tensors["layers.0.mlp.up_proj.weight"]
    elif what == "shape":
        tensors["fc.weight"] = tensors["fc.weight"][:, :-64]
    elif what == "unknown":
        tensors["prefix_gru.weight"] = tensors["norm.weight"]
    elif what == "ids":
        head = replace(head, ids=head.ids + 200, layer={**head.layer, "vocab_size": 600})
    write(replace(head, tensors=tensors), "speculators", path)
    if what == "ids":
        said = json.loads((path / "config.json").read_text())
        said["transformer_layer_config"]["vocab_size"] = CONFIG.vocab_size
        (path / "config.json").write_text(json.dumps(said))
    elif what == "cut":
        file = path / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-500])
    elif what == "config":
        said = json.loads((path / "config.json").read_text())
        del said["transformer_layer_config"]["hidden_size"]
        (path / "config.json").write_text(json.dumps(said))
    elif what == "kind":
        (path / "config.json").write_text(json.dumps({"architectures": ["DFlash2DraftModel"]}))
    return path


@pytest.mark.parametrize(
    ("what", "said"),
    {
        "width": "made for another model.*width 96, and the model has 64",
        "vocabulary": "made for another model.*vocabulary of 400, and the model has 320",
        "boundaries": r"states \(2, 4, 9\), and the model has 8 layers",
        "embedding": "embeddings of width 32, and the model has 64",
        "tensor": "no tensor for layers.0.up.*download it again",
        "shape": "fc.weight is 64x128 and not 64x192",
        "unknown": "prefix_gru.weight is unknown",
        "ids": "d2t does not map to",
        "cut": "cut short",
        "config": "hidden_size.*download it again",
        "kind": "kind DFlash2, XPress or DFly, which is not read.*EAGLE-3",
    }.items(),
)
def test_says_what_does_not_fit(
    tmp_path: Path, source: DirectorySource, what: str, said: str
) -> None:
    path = broken(tmp_path, what)
    with pytest.raises(PacelineError, match=said) as found:
        fitted(path, source)
    assert "\n" not in str(found.value)


def test_other_files_are_no_heads(tmp_path: Path, source: DirectorySource) -> None:
    assert open_head(source.path) is None
    assert open_head(tmp_path / "nothing.safetensors") is None


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("run",))


@pytest.mark.parametrize("what", ["code", "garbage", "old"])
def test_pickles_hold_tensors_alone(
    tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(random_head(CONFIG), "SafeAILab.bin", tmp_path / "head")
    file = path / "pytorch_model.bin"
    if what == "code":
        torch.save({"fc.weight": Evil()}, file)
    elif what == "old":
        torch.save({"fc.weight": torch.zeros(2)}, file, _use_new_zipfile_serialization=False)
    else:
        file.write_bytes(file.read_bytes()[:-3000])
    with pytest.raises(ModelError, match="convert it to safetensors"):
        open_head(path)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("change", [{"boundaries": "1.2"}, {"boundaries": "a.b.c"}])
def test_settings_are_checked(tmp_path: Path, change: dict[str, str]) -> None:
    head = open_head(write(random_head(CONFIG), "GGUF", tmp_path / "head"))
    assert head is not None
    with pytest.raises(InvalidOption, match=r"3 numbers, such as 2\.4\.5"):
        head.changed(WiringChanges(**change), CONFIG.layers)  # type: ignore[arg-type]
