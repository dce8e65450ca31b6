"""The server simulated (`simulate.py`): nothing is wrong, and every planted fault is found."""

from __future__ import annotations

import pytest
from tests.serving.faults import FAULTS, WITHIN
from tests.serving.simulate import Wrong, main, simulate

SEEDS = 300


def lives(seeds: range) -> None:
    for seed in seeds:
        simulate(seed)


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_every_life_of_a_server_keeps_its_promises(first: int, survived: list[str]) -> None:
    lives(range(first, first + 50))
    survived.clear()  # drafters fail on purpose


def test_a_seed_is_one_life(survived: list[str]) -> None:
    assert [simulate(seed) for seed in range(9)] == [simulate(seed) for seed in range(9)]
    survived.clear()


@pytest.mark.parametrize("name", FAULTS)
def test_every_planted_fault_is_found(
    name: str, monkeypatch: pytest.MonkeyPatch, survived: list[str]
) -> None:
    FAULTS[name].plant(monkeypatch)
    with pytest.raises(Wrong):
        lives(range(WITHIN))
    survived.clear()


def test_the_command_counts_what_it_saw_and_names_the_seed_that_is_wrong(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, survived: list[str]
) -> None:
    assert main(["--seeds", "3", "--first", "7", "--json"]) == 0
    assert '"seeds": 3' in capsys.readouterr().out
    FAULTS["usage counts a token too many"].plant(monkeypatch)
    assert main(["--seeds", "9"]) == 1
    assert "seed 0: usage of the answer differs" in capsys.readouterr().err
    survived.clear()
