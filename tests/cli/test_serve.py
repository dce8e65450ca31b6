"""`paceline serve`: its options, its file, its keys; the server itself is stood in for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.cli.app import run
from paceline.serving import logs, server

Call = dict[str, Any]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    calls: list[Call] = []

    def serve(settings: Any, keys: Any, load: Any) -> None:
        calls.append({"settings": settings, "keys": keys, "load": load})

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


@pytest.mark.real
def test_the_model_is_loaded_under_its_names(served: list[Call]) -> None:
    assert run(["serve", "--drafter", "none", "--served-name", "mine"]) == 0
    model = served[0]["load"]()
    assert model.name == "mine"
    assert model.fingerprint == served[0]["load"]().fingerprint
    assert model.fingerprint.startswith("fp_")
