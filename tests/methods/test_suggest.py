"""`suggest` over the tiny network, from Python and from the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from tests.helpers.tiny_model import named_tensors, tiny_config, tiny_tokenizer

from paceline.cli.app import run
from paceline.core.target import Rows, RuntimeOptions
from paceline.drafters.resources import Loaded
from paceline.engine.engine import Engine
from paceline.errors import InvalidOption, PromptError, RuntimeUnavailable
from paceline.methods.superposed import suggest
from paceline.models.text import Tokenizer
from paceline.proof.tabular import TabularModel, TabularTarget
from paceline.registry import loading
from paceline.runtimes.torch.target import TorchTarget

CONFIG = replace(tiny_config(), hidden_size=32, head_dim=8, ffn_size=48)
TOKENIZER = Tokenizer(tiny_tokenizer(CONFIG.vocab_size), eos_token_ids=(2,))
PROMPT = "the quick brown fox"


def loaded(target: Any) -> Loaded:
    source: Any = SimpleNamespace(name="tiny", fingerprint="0123", sampling={})
    return Loaded(source, TOKENIZER, target, RuntimeOptions())


@pytest.fixture(scope="module")
def target() -> TorchTarget:
    return TorchTarget(CONFIG, named_tensors(CONFIG), precision="fp64")


@pytest.fixture
def engine(target: TorchTarget) -> Engine:
    return loading.make_engine(loaded(target), drafter="none")


def test_one_suggestion_without_n_grams_is_greedy_text(engine: Engine) -> None:
    found = suggest(engine, PROMPT, k=1, tokens=12)
    plain = engine.generate(PROMPT, raw=True, max_new_tokens=12)
    assert [each.token_ids for each in found.suggestions] == [plain.token_ids]
    assert found.suggestions[0].text == plain.text
    assert found.forwards == len(plain.token_ids)
    assert not found.lossless


def test_a_superposed_row_lies_between_its_tokens(target: TorchTarget) -> None:
    ids = TOKENIZER.encode(PROMPT)

    def logits(tokens: list[int], shares: list[float]) -> np.ndarray:
        cache = target.open()
        target.prefill(cache, ids)
        row = target.forward_superposed(cache, tokens, shares)
        assert cache.length == len(ids) + 1
        target.release(cache)
        return row

    cache = target.open()
    target.prefill(cache, ids)
    [plain] = target.forward([Rows.draft(cache, [7])])
    assert np.abs(logits([7], [1.0]) - plain.logits[0]).max() < 1e-12
    assert np.abs(logits([7, 9], [1.0, 0.0]) - plain.logits[0]).max() < 1e-12
    assert np.abs(logits([7, 9], [0.5, 0.5]) - plain.logits[0]).max() > 0.01
    near = np.abs(logits([7, 9], [0.999, 0.001]) - plain.logits[0]).max()
    assert 0 < near < np.abs(logits([7, 9], [0.9, 0.1]) - plain.logits[0]).max()


def test_a_corpus_steers(engine: Engine) -> None:
    first = suggest(engine, PROMPT, k=3, tokens=1).suggestions
    wanted = first[-1].text
    assert TOKENIZER.encode(PROMPT + wanted)[-1:] == list(first[-1].token_ids)
    steered = suggest(engine, PROMPT, k=3, tokens=1, corpus=[PROMPT + wanted]).suggestions
    assert steered[0].text == wanted


def test_bad_input(engine: Engine) -> None:
    for options, message in (
        ({"k": 0}, "k must be from 1"),
        ({"k": 10**6}, "k must be from 1"),
        ({"tokens": 0}, "tokens must be"),
        ({"alpha": 1.5}, "alpha must be"),
        ({"alpha": float("nan")}, "alpha must be"),
    ):
        with pytest.raises(InvalidOption, match=message):
            suggest(engine, PROMPT, **options)  # type: ignore[arg-type]
    with pytest.raises(PromptError, match="empty"):
        suggest(engine, "")
    with pytest.raises(PromptError, match="the context holds 256"):
        suggest(engine, PROMPT, tokens=256)
    table: Any = TabularTarget(TabularModel(320, 1, seed=1).logits, 320)
    with pytest.raises(RuntimeUnavailable, match="tabular runtime takes no embeddings"):
        suggest(loading.make_engine(loaded(table), drafter="none"), PROMPT)


@pytest.fixture
def fake(target: TorchTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "load_model", lambda *_, **__: loaded(target))


@pytest.mark.usefixtures("fake")
def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["suggest", PROMPT, "--json", "--tokens", "4", "--k", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["forwards"] == 4
    assert not found["lossless"]
    assert len(found["suggestions"]) == 2
    assert run(["suggest", PROMPT, "--tokens", "4"]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 3
    assert "lossy" in captured.err

    empty = tmp_path / "empty.txt"
    empty.write_text(" \n")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    for name in ("empty.txt", "bytes.txt", "absent.txt"):
        assert run(["suggest", PROMPT, "--corpus", str(tmp_path / name)]) == 2
        error = capsys.readouterr().err
        assert len(error.splitlines()) == 1
        assert name in error
