"""`train denoiser text`: what its rows see, a model that borrows and drafts, resumption, errors."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from tests.cli.conftest import Command, one_line
from tests.helpers import tiny_model as tiny
from tests.helpers.training_commands import stopped_and_taken_up, written

import paceline
from paceline.core.target import Rows, Target
from paceline.errors import InvalidOption, ModelError
from paceline.lab.training.chains import Chains, Read
from paceline.lab.training.data import Shards, Text
from paceline.lab.training.denoisers.text import (
    TextDenoiserTask,
    free_token,
    of_draft_lm,
    of_target,
)
from paceline.lab.training.denoisers.text import trunk as made
from paceline.lab.training.model import TrainableModel
from paceline.lab.training.recipe import TextDenoiserRecipe
from paceline.methods.networks.draft_lm import DraftLM
from paceline.models.source import resolve
from paceline.networks.base import drafter_config
from paceline.networks.weights import Trained, save_network
from paceline.registry import loading

PROMPT = "the quick brown fox"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny.save_directory(tmp_path / "model", tiny.tiny_config(layers=3))


@pytest.fixture
def data(tmp_path: Path, model: Path) -> Path:
    texts = [Text(i, np.arange(20, 44) + i % 3, 5) for i in range(90)]  # easy to learn
    return written(tmp_path / "data", model, texts)


def arguments(model: Path, data: Path, out: Path, *more: str) -> tuple[str, ...]:
    sizes = "--steps 4 --batch 8 --layers 2 --depth 3 --groups 4 --training-precision fp32"
    names = ("--model", str(model), "--data", str(data), "--out", str(out))
    return ("train", "denoiser", "text", *names, *sizes.split(), "--threads", "1", *more)


def trunk(model: Path) -> TrainableModel:
    source = resolve(str(model))
    weights = source.weights()
    return made(source.config, weights, of_target(source.config, weights, 2))


def test_it_borrows_learns_and_drafts_with_the_text_of_plain_decoding(
    command: Command, model: Path, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "denoiser"
    done = command(*arguments(model, data, out, "--steps", "60", "--json"))
    assert done.code == 0, done.err
    assert json.loads(done.out)["finished"] is True
    card = json.loads((out / "model.json").read_text())
    losses = [each["training"] for each in card["losses"]]
    assert losses[-1] < losses[0] / 2
    assert card["held_out"]["acceptance"][0] > 0.9
    source, target = resolve(str(out)), resolve(str(model))
    config = source.config
    assert (config.layers, config.vocab_size) == (2, target.config.vocab_size)
    assert config.denoises is not None
    assert config.denoises.mask == free_token(target)
    np.testing.assert_array_equal(source.weights()["embed"], target.weights()["embed"])
    assert source.tokenizer().fingerprint == target.tokenizer().fingerprint
    own = tmp_path / "denoiser" / "model.safetensors"
    assert own.stat().st_size < 2 * sum(p.numel() for p in trunk(model).own.values()) + 8000
    prompts = [PROMPT, "12 34", "def f(x)"]
    plain = paceline.load(str(model), drafter="none", precision="fp32")
    for name, verifier in (("deer", "coupled"), ("diffuspec", "coupled"), ("deer", "rejection")):
        engine = paceline.load(
            str(model),
            drafter=name,
            draft_model=str(out),
            verifier=verifier,
            precision="fp32",
            nodes=4,
        )
        for prompt in prompts:
            wanted = plain.generate(prompt, max_new_tokens=20).token_ids
            assert engine.generate(prompt, max_new_tokens=20).token_ids == wanted
        found = engine.generate(prompts, max_new_tokens=20)
        wanted = [plain.generate(each, max_new_tokens=20).token_ids for each in prompts]
        assert [each.token_ids for each in found] == wanted


def test_its_rows_in_the_engine_are_those_of_the_training(
    command: Command, model: Path, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "denoiser"
    assert command(*arguments(model, data, out)).code == 0
    loaded = loading.load_model(str(out), runtime="torch")
    target: Target = loaded.target  # type: ignore[assignment]
    own = trunk(model)
    weights = loaded.source.weights()
    with torch.no_grad():
        for name, each in own.own.items():
            each.copy_(torch.from_numpy(weights[name]))
        text = np.array([5, 9, 17, 23, 9, 42, 7, 7, 7])
        mask = loaded.source.config.denoises.mask  # type: ignore[union-attr]
        read = Read(own, [Chains(text, np.array([5]))])
        masks = own.embed(torch.tensor([mask])).expand(2, -1)
        behind = read.chains(own, masks, causal=False)
        both = torch.cat([read.hidden[read.rows(0, first=0)], behind])
        trained = own.logits(both).numpy()
        causal = own.logits(read.chains(own, masks, causal=True)).numpy()
    tokens = np.array([*text[:6], mask, mask])
    sees = np.tri(8, dtype=np.bool_)
    sees[6:] = True
    block = Rows.block(target.open(), tokens, np.arange(8), sees, wanted=np.array([5, 6, 7]))
    [found] = target.forward([block])
    np.testing.assert_allclose(found.logits, trained, atol=2e-4)
    assert abs(causal[0] - trained[1]).max() > 1e-3  # a group that does not see itself differs


def test_ctrl_c_saves_and_the_same_command_goes_on_to_the_same_weights(
    command: Command, model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert command(*arguments(model, data, whole)).code == 0
    stopped_and_taken_up(command, monkeypatch, arguments(model, data, parts))
    one, other = (resolve(str(each)).weights() for each in (whole, parts))
    for name in trunk(model).own:
        np.testing.assert_array_equal(one[name], other[name])


def test_it_begins_as_a_draft_lm(command: Command, model: Path, data: Path, tmp_path: Path) -> None:
    source, path = resolve(str(model)), tmp_path / "draft-lm.safetensors"
    network = DraftLM(drafter_config(source.config), layers=2, ffn_size=32)
    rng = np.random.default_rng
    given = {
        name: rng(seed).normal(size=shape).astype(np.float16).astype(np.float32)
        for seed, (name, shape) in enumerate(network.shapes().items())
    }
    metadata = {"model": source.fingerprint}
    save_network(path, Trained(network, given, np.arange(9), metadata))
    begin = of_draft_lm(path, source.fingerprint)
    for index, (part, names) in product(range(2), (("qkv", "qkv"), ("gate_up", ("gate", "up")))):
        both = np.concatenate([begin[f"layers.{index}.{name}"] for name in names])
        np.testing.assert_array_equal(both, given[f"layer.{index}.{part}"])
    np.testing.assert_array_equal(begin["layers.1.o"], given["layer.1.o.residual"])
    own = made(source.config, source.weights(), begin)
    assert set(own.own) == set(trunk(model).own)
    done = command(*arguments(model, data, tmp_path / "denoiser", "--from", str(path)))
    assert done.code == 0, done.err
    assert resolve(str(tmp_path / "denoiser")).config.ffn_size == 32
    with pytest.raises(InvalidOption, match="no draft-lm of this model"):
        of_draft_lm(path, "other")


def test_near_places_weigh_more_and_groups_are_of_every_size(model: Path, data: Path) -> None:
    recipe = TextDenoiserRecipe(mask=3, depth=3, groups=4, decay=0.0, training_precision="fp32")
    texts = Shards(data).read()
    run = TextDenoiserTask(trunk(model), texts, recipe, str(model))
    sizes = set()
    genuine = run._said

    def said(texts: list[Text], depth: int, draws: np.random.Generator):
        sizes.add(depth)
        logits, labels = genuine(texts, depth, draws)
        said.first = (
            -logits.detach()[:, 0]
            .log_softmax(-1)[  # type: ignore[attr-defined]
                torch.arange(len(labels)), torch.from_numpy(labels[:, 0])
            ]
            .mean()
        )
        return logits, labels

    run._said = said  # type: ignore[assignment, method-assign]
    for step in range(20):
        [(_, loss)] = run.losses(texts[:2], step)
        # A decay of 0 leaves the first place alone.
        assert loss == pytest.approx(float(said.first), rel=1e-5)  # type: ignore[attr-defined]
    assert sizes == {1, 2, 3}


def test_what_it_cannot_learn_from_ends_in_one_line(
    command: Command, model: Path, data: Path, tmp_path: Path
) -> None:
    for more, says in (
        (("--layers", "9"), "layers must be 3 or fewer"),
        (("--own", "4"), "are of tasks"),
        (("--depth", "0"), "depth must be 1 or more"),
    ):
        done = command(*arguments(model, data, tmp_path / "x", *more))
        assert one_line(done)
        assert says in done.err


def test_a_lender_that_has_changed_is_refused(
    command: Command, model: Path, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "denoiser"
    assert command(*arguments(model, data, out)).code == 0
    config = json.loads((out / "config.json").read_text())
    config["embedding_of"]["fingerprint"] = "other"
    (out / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="train it again"):
        resolve(str(out)).weights()
