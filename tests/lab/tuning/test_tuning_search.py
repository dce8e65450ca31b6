"""The study: its journal, what it remembers, and journals that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("optuna")

from tests.lab.tuning.simulated import TOKENS, stats

from paceline.errors import ModelError
from paceline.lab.measure.report import BASELINE
from paceline.lab.measure.run import Record, Run
from paceline.lab.tuning.search import Search
from paceline.lab.tuning.space import DEFAULT, Space

SPACE = Space()


def record(prompt: int, name: str, seconds: float) -> Record:
    runs = {BASELINE: Run([], stats(TOKENS)), name: Run([], stats(seconds))}
    return Record(prompt, str(prompt), "any", runs)


def test_evidence_and_trials_outlive_the_process(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.journal"
    first = Search(path, "one", 6)
    [done, cut, lost] = first.cohort(3)
    first.evidence.add(record(0, done.configuration.name, 80))
    first.finish(done, 1.25, 6)
    first.finish(cut, 1.0, 2)

    second = Search(path, "one", 6)  # the third trial was never ended, as after a crash
    row = second.evidence.row(done.configuration.name)
    assert row is not None
    assert row["speedup"] == pytest.approx(1.25)
    names = [each.configuration.name for each in second.cohort(1000)]
    assert sorted([done.configuration.name, *names]) == sorted(SPACE.everything)
    assert {cut.configuration.name, lost.configuration.name} <= set(names)


def test_every_drafter_is_tried_before_sizes_are_varied(tmp_path: Path) -> None:
    first = Search(tmp_path / "a.journal", "one", 6).cohort(len(SPACE.drafters) + 3)
    drafters = [each.configuration.drafter for each in first]
    assert set(drafters[: len(SPACE.drafters)]) == set(SPACE.drafters)
    assert first[0].configuration == DEFAULT


def test_studies_of_other_names_know_nothing_of_each_other(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    one = Search(path, "one", 6)
    one.evidence.add(record(0, "recycling, cost-model", 80))
    assert Search(path, "two", 6).evidence.names == []
    assert Search(path, "one", 6).evidence.names == ["recycling, cost-model"]


@pytest.mark.parametrize(
    "content",
    [b"mine\n", b"[]\n", b'{"op_code": 99}\n{}\n', b"\xff\xfe\x00\n" * 3, b'{"op_code": 0}\n'],
)
def test_a_journal_that_is_none_is_set_aside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    path = tmp_path / "a.journal"
    path.write_bytes(content)
    search = Search(path, "one", 6)
    assert len(search.cohort(2)) == 2
    assert (tmp_path / "a.journal.bad").read_bytes() == content
    [line] = capsys.readouterr().err.splitlines()
    assert "a.journal is set aside" in line


def test_a_journal_cut_short_by_a_crash_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    search = Search(path, "one", 6)
    search.evidence.add(record(0, "recycling, cost-model", 80))
    search.evidence.add(record(1, "recycling, cost-model", 80))
    path.write_bytes(path.read_bytes()[:-30])
    again = Search(path, "one", 6)
    row = again.evidence.row("recycling, cost-model")
    assert row is not None
    assert row["prompts"] == 1
    assert len(again.cohort(2)) == 2


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="cannot write to"):
        Search(tmp_path / "file" / "a.journal", "one", 6)
