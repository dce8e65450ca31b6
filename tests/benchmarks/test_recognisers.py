"""benchmarks/recognisers.py: misread pages, the twin, and a table of both kinds."""

from __future__ import annotations

import json
import sys
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest
import torch

from benchmarks import recognisers
from paceline.listening.agreement import edits_to
from paceline.methods.cppd.recogniser import CPPD, CPPDShape, save_recogniser

FONT = Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")
PAGE = "the cat sat on the mat and looked at the rain. " * 12


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    save_recogniser(tmp_path / "cppd.safetensors", CPPD(CPPDShape(32, tower=1, layers=1)))
    return tmp_path / "cppd.safetensors"


def test_pages_are_misread_at_a_rate() -> None:
    assert recognisers.misread(PAGE, 0.0) == PAGE
    for rate in (0.02, 0.1, 0.3):
        found = recognisers.misread(PAGE, rate)
        assert found == recognisers.misread(PAGE, rate)
        wrong = edits_to(found, PAGE)[-1] / len(PAGE)
        assert 0.3 * rate < wrong < 1.5 * rate
    assert recognisers.words_in("The cat's 2, -- mat!") == ["the", "cat", "2", "mat"]


def test_a_twin_reads_as_it_was_taught_and_learns(weights: Path) -> None:
    model = recognisers.load_recogniser(weights).eval()
    fonts, words = recognisers.load_fonts([FONT]), ["cat", "a1", "mat"]
    shown = recognisers.drawn(words, fonts, [0]).pictures
    right = recognisers.Spelling.of(words).classes

    def loss(twin: recognisers.Twin) -> float:
        before = torch.nn.functional.pad(right[:, :-1].clamp_min(0), (1, 0))
        with torch.no_grad():
            said = twin(model.tower(torch.from_numpy(shown).float()), before)
        return float(
            torch.nn.functional.cross_entropy(said.flatten(0, 1), right.flatten(), ignore_index=-1)
        )

    frozen = {name: each.clone() for name, each in model.state_dict().items()}
    new, taught = (
        recognisers.trained_twin(model, repeat((words, shown)), steps, rate=3e-3)
        for steps in (0, 60)
    )
    assert loss(taught) < 0.5 * loss(new)
    assert all(torch.equal(each, frozen[name]) for name, each in model.state_dict().items())
    read = taught.read(model.tower, shown)
    assert read == [taught.read(model.tower, each[None])[0] for each in shown]
    # What it said first is what it reads behind that, a pass a character.
    rows = model.tower(torch.from_numpy(shown[:1]).float())
    said = [0]
    while len(said) < 27 and (len(said) == 1 or said[-1]):
        with torch.no_grad():
            said.append(int(taught(rows, torch.tensor([said]))[0, -1].argmax()))
    assert recognisers.spelt(said[1:]) == read[0]


def test_a_real_recogniser_is_read_by_its_own_dictionary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[np.ndarray] = []

    class Session:
        def __init__(self, file: Path, options: object, providers: list[str]) -> None:
            assert options.intra_op_num_threads == 3  # type: ignore[attr-defined]

        def get_inputs(self) -> list[SimpleNamespace]:
            return [SimpleNamespace(name="x")]

        def run(self, _: None, given: dict[str, np.ndarray]) -> list[np.ndarray]:
            shown.append(given["x"])
            return [np.eye(6)[None, [0, 3, 3, 0, 3, 4, 2, 5]]]

    stub = SimpleNamespace(InferenceSession=Session, SessionOptions=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "onnxruntime", stub)
    (tmp_path / "ppocr_keys_v5.txt").write_text("blank\na\nb\nC\n-\n \n")
    pictures = np.full((1, 32, 128), 255, np.uint8)
    assert recognisers.pp_ocr(tmp_path / "a.onnx", 3)(pictures) == ["ccb"]
    assert shown[0].shape == (1, 3, 48, 192)
    assert (shown[0] == 1).all()


def test_words_are_read_in_all_ways(
    weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text(" ".join(f"w{each}" for each in range(40)))
    asked = ["--texts", str(tmp_path), "--cppd", str(weights), "--font", str(FONT)]
    others = ["--other", str(FONT.with_name("STIXGeneral.ttf"))]
    assert recognisers.main(["words", *asked, *others, "--twin-steps", "2", "--json"]) == 0
    columns, *rows = json.loads(capsys.readouterr().out)
    assert columns[2:4] == ["right, %", "right in other fonts, %"]
    assert [row[:2] for row in rows] == [["CPPD", 2], ["its autoregressive twin", 2]]
    assert recognisers.main(["words", *asked, "--twin-steps", "0", "--json"]) == 0
    columns, *rows = json.loads(capsys.readouterr().out)
    assert [len(each) for each in (columns, *rows)] == [4, 4, 4]


def test_pages_are_the_same_with_any_prediction(
    weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("The cat sat on the mat.")
    asked = ["--texts", str(tmp_path), "--cppd", str(weights), "--font", str(FONT)]
    sizes = ["--tokens", "8", "--drafter", "prompt-lookup"]
    assert recognisers.main(["pages", *asked, *sizes, "--json"]) == 0
    _, *rows = json.loads(capsys.readouterr().out)
    ways = {row[0]: row for row in rows}
    assert ways.keys() >= {"alone", "drafts of prompt-lookup", "read, 30% wrong", "read by CPPD"}
    assert all(row[1] == row[2] == 1 for row in rows)
    assert ways["alone"][3] == 1
    assert np.isfinite([row[3] for row in rows]).all()
