"""`bench batches` over folders of benches: its table, its result file, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Command, one_line
from tests.lab.measure.test_batch_law import BATCHES, bench

from paceline.errors import InvalidOption
from paceline.lab.measure import results
from paceline.lab.measure.batch_law import laws, read, table


def write(folder: Path, content: Any) -> Path:
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps(content))
    return folder


def test_the_command_reads_folders_and_records(command: Command, tmp_path: Path) -> None:
    folders = [write(tmp_path / str(b), bench(b, 1.5 - 0.1 * n)) for n, b in enumerate(BATCHES)]
    kept = tmp_path / "batches-law.json"
    outcome = command("bench", "batches", *map(str, folders), "--record", str(kept))
    assert outcome.code == 0
    columns, rows = table(laws(read(folders)))
    assert outcome.out.strip() == results.table(columns, rows).strip()
    assert columns[2:] == [*(f"batch {b}" for b in BATCHES), *columns[-3:]]
    assert rows[1][:4] == ["fast", "speed-up", "1.50", "1.40"]
    assert rows[1][-3:] == ["-0.10", "-0.10 to -0.10", "100%"]
    assert results.load(tmp_path)["batches-law"]["rows"] == rows
    told = json.loads(command("bench", "batches", *map(str, folders), "--json").out)
    assert told["laws"][1]["per_doubling"]["value"] == pytest.approx(-0.1)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (bench(2, 1.0, limit=5), "differs from .* in limit"),
        ({**bench(2, 1.0), "complete": False}, "is not finished"),
        ({"rows": []}, "is no result of paceline bench"),
    ],
)
def test_other_benches_are_refused(
    command: Command, tmp_path: Path, second: Any, message: str
) -> None:
    folders = [write(tmp_path / "a", bench(1, 1.0)), write(tmp_path / "b", second)]
    with pytest.raises(InvalidOption, match=message):
        read(folders)
    assert one_line(command("bench", "batches", *map(str, folders)))
