"""The package in examples/plugin, installed: a stranger's drafter and verifier, used and proved."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.tiny_model import save_directory, tiny_config

EXAMPLE = Path(__file__).parents[1] / "examples" / "plugin"

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def paceline(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """The command line, in an environment that has the plugin; returns what `--json` prints."""
    if importlib.util.find_spec("setuptools") is None:  # to import it here may meet distutils
        pytest.skip("the plugin is built with setuptools")
    place = tmp_path_factory.mktemp("plugin")
    shutil.copytree(EXAMPLE, place / "source")  # setuptools builds beside the sources
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", place / "site", place / "source"], check=True)
    paths = [str(place / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PACELINE_CACHE": str(place / "cache"),
    }

    def run(*arguments: str) -> Any:
        command = [sys.executable, "-m", "paceline", *arguments, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_its_methods_are_listed(paceline: Command) -> None:
    listed = {(each["kind"], each["method"]) for each in paceline("methods")}
    assert {("drafter", "last-bigram"), ("verifier", "mirrored")} <= listed


def test_it_drafts_and_verifies(paceline: Command, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    model = str(save_directory(tmp_path / "model", tiny_config()))
    asked = ("generate", "a b a b a b", "--raw", "--ignore-eos", "--max-new-tokens", "24")
    place = ("--model", model, "--runtime", "torch", "--temperature", "0.1", "--nodes", "3")
    plain, drafted = (
        paceline(*asked, *place, "--verifier", "mirrored", "--drafter", drafter)
        for drafter in ("none", "last-bigram")
    )
    assert drafted["token_ids"] == plain["token_ids"]
    assert drafted["config"]["drafter"] == "last-bigram"
    assert drafted["config"]["lossless"]
    assert drafted["stats"]["drafted_tokens"] > 0


def test_the_audit_proves_both(paceline: Command) -> None:
    report = paceline("audit", "inside", "--quick", "--verifier", "mirrored", "--jobs", "1")
    assert report["passed"]
    drafted_by = {row["draft_law"] for row in report["rows"] if row["exact"]}
    assert {"any tree", "likely chain", "last bigram"} <= drafted_by
