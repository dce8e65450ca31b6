"""Cards of weights that ship: what files say of themselves, read without their tensors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.networks.cases import DRAFT_VOCABULARY, NETWORKS, module
from tests.networks.runners import trained_of

from paceline.cli.app import run
from paceline.cli.methods import shipped_lines
from paceline.errors import InvalidOption
from paceline.methods.ppd.prompt_tokens import PromptTokens, save_prompt_tokens
from paceline.networks.weights import (
    load_network,
    read_card,
    read_metadata,
    save_network,
    shipped_cards,
)

SAYS = {
    "model": "0123",
    "model_name": "tiny",
    "command": "paceline train drafter hydra",
    "data": json.dumps({"seed": "0", "new_tokens": "160"}),
    "tokens": "1234",
    "block_efficiency": "1.7603",
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "hydra-tiny.safetensors"
    save_network(place, replace(trained_of(module(NETWORKS["hydra"]())), metadata=SAYS))
    return place


def test_a_card_says_what_the_file_holds(path: Path) -> None:
    card, trained = read_card(path), load_network(path)
    assert (card.file, card.bytes, card.kind) == (path.name, path.stat().st_size, "hydra")
    assert card.settings == trained.network.settings()
    assert card.parameters == sum(each.size for each in trained.parameters.values())
    assert card.draft_vocabulary == DRAFT_VOCABULARY
    assert card.metadata == {**SAYS, "data": {"seed": "0", "new_tokens": "160"}}
    page = "\n".join(shipped_lines([card]))
    for text in ("hydra: steps 4", "1234 tokens", "block efficiency 1.760", "new tokens 160"):
        assert text in page
    assert SAYS["command"] in page


def test_prompt_tokens_and_heads_have_cards_too(tmp_path: Path) -> None:
    prompts = tmp_path / "ppd.safetensors"
    rows = np.ones((2, 6), np.float32)
    save_prompt_tokens(prompts, PromptTokens(rows, np.array([[0.5], [0.3]]), {"model": "0123"}))
    head = tmp_path / "judge.safetensors"
    share = {"value": 0.7, "low": 0.6, "high": 0.8}
    held = json.dumps({"examples": 9, "majority": 0.5, "accuracy": share})
    save_file({"weight": rows[0]}, head, {"kind": "judge", "held_out": held})
    cards = [read_card(prompts), read_card(head)]
    assert [(card.kind, card.settings, card.draft_vocabulary) for card in cards] == [
        ("ppd", {}, None),
        ("judge", {}, None),
    ]
    assert "9 examples: majority 0.500, accuracy 0.700 (0.600 to 0.800)" in "\n".join(
        shipped_lines(cards)
    )


def test_provenance_is_read_from_the_head_of_a_file(path: Path, tmp_path: Path) -> None:
    assert SAYS.items() <= read_metadata(path).items()
    with pytest.raises(InvalidOption, match=r"there is no file .*gone"):
        read_metadata(tmp_path / "gone")
    path.write_bytes(path.read_bytes()[:-9])
    for read in (read_metadata, read_card):
        with pytest.raises(InvalidOption, match=r"hydra-tiny\.safetensors holds no .* damaged"):
            read(path)


@pytest.mark.parametrize("metadata", [None, {"network": "{}"}, {"network": '{"network": 3}'}])
def test_files_that_do_not_say_what_they_are_are_refused(
    metadata: dict[str, str] | None, tmp_path: Path
) -> None:
    path = tmp_path / "foreign.safetensors"
    save_file({"x": np.zeros(3, np.float32)}, path, metadata)
    with pytest.raises(InvalidOption, match="does not say what it holds"):
        read_card(path)


def test_the_command_prints_all_that_ships(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["methods", "--weights"]) == 0
    page = capsys.readouterr().out
    assert run(["methods", "--weights", "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert [entry["file"] for entry in entries] == [card.file for card in shipped_cards()]
    assert {"eagle3", "hydra"} <= {entry["kind"] for entry in entries}
    for entry in entries:
        assert entry["file"] in page
        assert entry["metadata"]["command"] in page
        small = entry["file"].endswith("-smollm2-135m.safetensors")
        name = "smollm2-135m" if small else "qwen2.5-coder-1.5b-instruct-q4_k_m"
        assert entry["metadata"]["model_name"] == name
        assert entry["bytes"] < 20 * 2**20
    assert run(["methods", "--weights", "--markdown"]) == 2
