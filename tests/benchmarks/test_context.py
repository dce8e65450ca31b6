"""The benchmark over contexts, on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.helpers import tiny_model as tiny
from tests.runtimes import tiny_cpu

from benchmarks import context
from paceline.errors import InvalidOption

TEXT = list(range(3, 203))


def test_rows_for_every_context_and_cache() -> None:
    targets = {kv: tiny_cpu.target("fp32", kv_precision=kv) for kv in ("fp32", "fp16")}
    rows = context.measure(targets, TEXT, (40, 200), 4, 2)
    assert [(row["context"], row["kv_precision"]) for row in rows] == [
        *((40, "fp32"), (40, "fp16"), (200, "fp32"), (200, "fp16"))
    ]
    for row in rows:
        assert row["plain_ms"] > 0
        assert row["drafted_ms_per_row"] == pytest.approx(row["drafted_ms"] / 4)
        assert row["worth_from"] == pytest.approx(row["drafted_ms"] / row["plain_ms"])
        assert row["prefill_ms_per_token"] > 0
        assert row["drafted_difference"] == 0
        assert (row["kl_to_fp32"] > 0) == (row["kv_precision"] == "fp16")
    for target in targets.values():
        assert target.memory.free == target.memory.blocks, "caches are given back"
    table = context.table(rows)
    assert len(table.splitlines()) == 5
    assert "worth from" in table


def test_a_context_that_does_not_fit_is_named() -> None:
    targets = {"fp32": tiny_cpu.target("fp32")}
    with pytest.raises(InvalidOption, match=r"context 250 .* use at most 224"):
        context.measure(targets, TEXT, (10, 250), 4, 1)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--contexts", "64,32"), "ascend"),
        (("--contexts", "a"), "a"),
        (("--rows", "1"), "--rows"),
        (("--kv", "fp8"), "fp8"),
        (("--model", "nothing"), "nothing"),
    ],
)
def test_refuses(
    arguments: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert context.main(arguments) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert named in line


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    model = tiny.save_directory(tmp_path / "model", tiny_cpu.config())
    given = ["--model", str(model), "--contexts", "16,64", "--kv", "fp32,fp16", "--rows", "4"]
    assert context.main([*given, "--rounds", "1", "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "fp16: 0.2 KiB a token" in shown
    assert "bit-exact" in shown
    found = json.loads((tmp_path / "out" / "context.json").read_text())
    assert len(found["rows"]) == 4
    assert found["caches"]["fp32"]["bytes_per_token"] == 512
    pytest.importorskip("matplotlib")
    assert (tmp_path / "out" / "context.svg").read_text().startswith("<?xml")
