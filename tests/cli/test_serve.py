"""`paceline serve`: its options, its file, its keys; the server itself is stood in for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.helpers.tiny_model import save_gguf, tiny_config

from paceline.cli.app import run
from paceline.runtimes.cpu.target import KV_TOKENS
from paceline.serving import logs, server

Call = dict[str, Any]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    calls: list[Call] = []

    def serve(settings: Any, keys: Any, load: Any, models: Any = ()) -> None:
        calls.append({"settings": settings, "keys": keys, "load": load, "models": models})

    monkeypatch.setattr(server, "serve", serve)
    monkeypatch.setattr(logs, "set_up", lambda text: None)
    monkeypatch.delenv("PACELINE_API_KEY", raising=False)
    return calls


def test_flags_are_stronger_than_the_file(served: list[Call], tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('port = 9000\nmax-batch = 3\nserved_name = ["a", "b"]\nstrict = true\n')
    assert run(["serve", "--config", str(file), "--port", "9001"]) == 0
    settings = served[0]["settings"]
    assert (settings.port, settings.max_batch, settings.strict) == (9001, 3, True)
    assert settings.served_name == ["a", "b"]


def test_keys_come_from_file_and_environment(
    served: list[Call], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys"
    file.write_text("one\ntwo\n")
    monkeypatch.setenv("PACELINE_API_KEY", "three")
    assert run(["serve", "--api-key-file", str(file)]) == 0
    assert served[0]["keys"] == ("three", "one", "two")


@pytest.mark.parametrize(
    ("content", "arguments", "said"),
    [
        ("prot = 1", ["--config", "FILE"], "sets prot"),
        ("port = ", ["--config", "FILE"], "cannot be read"),
        ("", ["--config", "FILE.no"], "cannot be read"),
        ("", ["--api-key-file", "FILE"], "no key"),
        ("", ["--api-key-file", "FILE.no"], "cannot be read"),
        ("k\xe9y", ["--api-key-file", "FILE"], "ASCII"),
        ("", ["--port", "70000"], "port must be"),
        ("", ["--shutdown-timeout", "-1"], "--shutdown-timeout must be"),
        ("", ["--drafter", "nothing"], "nothing"),
    ],
)
def test_mistakes_are_named(
    served: list[Call],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: str,
    arguments: list[str],
    said: str,
) -> None:
    file = tmp_path / "file"
    file.write_text(content)
    given = [each.replace("FILE", str(file)) for each in arguments]
    assert run(["serve", *given]) == 2
    assert said in capsys.readouterr().err
    assert served == []


def test_a_missing_package_is_named(
    served: list[Call], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "paceline.serving.server", None)
    monkeypatch.delattr("paceline.serving.server")
    assert run(["serve"]) == 2
    assert "paceline[serve]" in capsys.readouterr().err


def test_several_models_have_names_and_options_of_their_own(
    served: list[Call], tmp_path: Path
) -> None:
    for name in "abc":
        save_gguf(tmp_path / f"{name}.gguf", tiny_config("qwen2"))
    file = tmp_path / "serve.toml"
    file.write_text(
        f"memory = 2\ndrafter = 'none'\n[models.mine]\nmodel = '{tmp_path}/b.gguf'\n"
        "max-context = 64\ndrafter = 'suffix-automaton'\n[models.first]\nthreads = 1\n"
        f"[models.drafted]\nmodel = '{tmp_path}/b.gguf'\ndrafter = 'draft-model'\n"
        f"kv-tokens = 4096\nkv-precision = 'fp32'\ndraft-model = '{tmp_path}/a.gguf'\n"
    )
    model = ["--model", f"first={tmp_path}/a.gguf", "--model", f"{tmp_path}/c.gguf"]
    assert run(["serve", *model, "--config", str(file)]) == 0
    found = {each.names[0]: each for each in served[0]["models"]}
    assert list(found) == ["first", "c", "mine", "drafted"]
    config = tiny_config("qwen2")
    cached = 2 * config.layers * config.kv_heads * config.head_dim * 2
    files = {name: (tmp_path / f"{name}.gguf").stat().st_size for name in "abc"}
    assert found["c"].size == files["c"] + KV_TOKENS * cached
    # Fewer tokens, wider numbers, and a draft model that is named.
    assert found["drafted"].size == files["b"] + files["a"] + 2 * 4096 * 2 * cached
    assert all(each.model is None for each in found.values())
    mine, first = found["mine"].load(), found["first"].load()
    assert (mine.name, mine.context, first.context) == ("mine", 64, 256)
    assert mine.engine.config["drafter"] == "suffix-automaton"
    assert first.engine.config["drafter"] == "none"
    assert served[0]["load"] is None


def test_one_model_may_have_a_name(served: list[Call], tmp_path: Path) -> None:
    save_gguf(tmp_path / "a=b.gguf", tiny_config("qwen2"))
    for given, name in ((f"x={tmp_path}/a=b.gguf", "x"), (f"{tmp_path}/a=b.gguf", "a=b")):
        assert run(["serve", "--drafter", "none", "--model", given]) == 0
        assert served[-1]["load"]().name == name


@pytest.mark.parametrize(
    ("content", "arguments", "said"),
    [
        ("", "--model A --model nowhere.gguf", "unknown model 'nowhere.gguf'"),
        ("", "--model A --model A", "two models are named a: give --model NAME=MODEL"),
        ("", "--model A --model b=A --memory 0.00001", "--memory 1e-05 is too little for a"),
        ("", "--model A --memory 1", "--memory is for several models"),
        ("", "--model A --model b=A --served-name x", "--served-name is for one model"),
        ("", "--model A --model b=A --adapter x", "--adapter is for one model"),
        ("models = 1", "--config FILE", "sets models, which are tables: write [models.NAME]"),
        ("[models.x]\nprot = 1", "--config FILE", "sets prot of model x"),
        ("[models.x]\nthreads = 1", "--config FILE", "[models.x] names no model"),
        ("[models.x]\nthreads = 'many'", "--config FILE", "Invalid value for '--threads'"),
        ("[models.x]\nmodel = 'A'\ndrafter = 'what'", "--config FILE", "what"),
    ],
)
def test_mistakes_of_models_are_named(
    served: list[Call],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: str,
    arguments: str,
    said: str,
) -> None:
    save_gguf(tmp_path / "a.gguf", tiny_config("qwen2"))
    (tmp_path / "file").write_text(content.replace("A", f"{tmp_path}/a.gguf"))
    names = {"A": f"{tmp_path}/a.gguf", "b=A": f"b={tmp_path}/a.gguf", "FILE": f"{tmp_path}/file"}
    assert run(["serve", *(names.get(each, each) for each in arguments.split())]) == 2
    assert said in capsys.readouterr().err
    assert served == []


@pytest.mark.real
def test_the_model_is_loaded_under_its_names(served: list[Call]) -> None:
    assert run(["serve", "--drafter", "none", "--served-name", "mine"]) == 0
    model = served[0]["load"]()
    assert model.name == "mine"
    assert model.fingerprint == served[0]["load"]().fingerprint
    assert model.fingerprint.startswith("fp_")
