"""Speech beside other engines: paragraphs, turns, and rows of times and wrong words."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import pytest
from tests.helpers.tiny_whisper import save_whisper
from tests.listening.test_windows import engine, noise

from paceline.audio.mel import RATE
from paceline.listening.live import Live
from paceline.listening.timestamps import Segment
from paceline.listening.windows import Listener, Listening
from paceline.native.library import candidates

live = importlib.import_module("benchmarks.speech.live")
ways = importlib.import_module("benchmarks.speech.same")
speech = importlib.import_module("benchmarks.speech.__main__")
WORKER = Path(__file__).parents[2] / "benchmarks/speech/worker.py"


def test_paragraphs_are_cut_between_sentences() -> None:
    text = (
        "A first sentence of some length. " * 5 + "\n\nshort\n\n" + "B is said; and then more. " * 9
    )
    found = speech.paragraphs(text, longest=100)
    assert all(len(each) <= 100 for each in found)
    assert all(each.endswith((".", ";")) for each in found)
    assert "short" not in found
    assert " ".join(found).replace("short", "") == " ".join(text.replace("short", "").split())


def test_engines_take_turns_and_rows_are_beside_the_first() -> None:
    order: list[str] = []

    def engine(name: str, seconds: float) -> speech.Transcriber:
        def write(path: Path) -> tuple[str, float]:
            order.append(name)
            return f"{name} of {path.stem}", seconds

        return write

    engines = {"paceline": engine("paceline", 2.0), "other": engine("other", 3.0)}
    texts, seconds = speech.compare(engines, [Path("a.wav"), Path("b.wav")], rounds=2)
    assert order[:4] == ["paceline", "other", "other", "paceline"]
    assert texts["other"] == ["other of a", "other of b"], "of the first round alone"
    assert seconds == {"paceline": [4.0, 4.0], "other": [6.0, 6.0]}
    rows = speech.table({"paceline": (1, 200), "other": (4, 200)}, seconds, spoken=100.0)
    assert rows[0] == ["paceline", 0.04, "", 0.5, 200]
    assert rows[1] == ["other", 0.06, "1.50 [1.50, 1.50]", 2.0, 200]


def test_a_worker_says_what_it_cannot() -> None:
    asked = json.dumps({"kind": "transcribe", "engine": "none", "path": "x.wav"})
    done = subprocess.run(
        [sys.executable, str(WORKER)],
        input=asked + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert "KeyError" in json.loads(done.stdout)["error"]


def test_sound_comes_while_steps_work() -> None:
    sound, found = noise(6.0, seed=2), []
    for cost, drafted in ((0.2, True), (0.2, False), (2.5, True)):
        ticks = (cost * each for each in range(1000))
        run = live.LiveRun()
        captions = Live(Listener(own := engine()), Listening("en"))
        told = live.follow(run, captions, own, sound, drafted, ticks.__next__)
        assert [word.word for word in told]
        assert [word.at for word in told] == sorted(word.at for word in told)
        found.append((told, run))
        captions.let_go()
    (with_draft, drafted), (without, plain), (late, slow) = found
    assert with_draft == without
    assert drafted.tokens == plain.tokens == plain.forwards
    assert drafted.forwards < plain.forwards
    # Noise is written down seven times, at all temperatures. The first step begins at 1 s; a slow
    # one ends behind the sound, and the next has all the rest.
    assert plain.seconds == pytest.approx([7 * 0.2] * len(plain.seconds))
    assert slow.seconds == pytest.approx([7 * 2.5] * 2)
    assert late[-1].at == pytest.approx(1 + 2 * 7 * 2.5)
    plain.late = [1.0, 2.0, 3.0]
    cells = live.figures(plain, 6.0)
    assert cells[:3] == [1.0, 1.4, 1.4]
    assert cells[3] == pytest.approx(1.4 * len(plain.seconds) / 6, abs=0.01)
    assert cells[4] == 2.0


def test_a_word_is_late_from_its_end_on() -> None:
    segments = [Segment(1.0, 3.0, (1,)), Segment(4.0, 4.5, (2,))]
    said = live.spoken(segments, {(1,): "ab cdef gh", (2,): "Over."}.__getitem__)
    assert [word for word, _ in said] == ["ab", "cdef", "gh", "Over."]
    assert [at for _, at in said] == [1.5, 2.5, 3.0, 4.5]
    told = [live.Told(*each) for each in (("Ab,", 3.0), ("no", 3.0), ("gh", 3.5), ("over", 6.0))]
    assert live.delays(told, said) == [1.5, 0.5, 1.5]


def test_no_sounds_and_no_environment_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    options = ["--sounds", str(tmp_path), "--model", "x"]
    assert speech.main(["compare", *options]) == 2
    assert "make.py speech" in capsys.readouterr().err
    monkeypatch.setattr(speech, "interpreter", lambda name: Path(sys.executable))
    assert speech.main(["compare", *options]) == 2
    assert "has no WAV files" in capsys.readouterr().err


@pytest.fixture(scope="module")
def noises(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A folder of sounds, and a Whisper."""
    folder, rng = tmp_path_factory.mktemp("noises"), np.random.default_rng(0)
    with wave.open(str(folder / "0.wav"), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes((rng.normal(size=13 * RATE) * 3000).astype("<i2").tobytes())
    return str(folder), str(save_whisper(tmp_path_factory.mktemp("whisper")))


def test_one_sound_has_one_text_and_what_is_wrong_is_found(
    noises: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, model = noises
    (tmp_path / "docs/results/data").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ways, "_STEPS", 2)
    monkeypatch.setattr(ways, "FEW", 4)
    isa = candidates()[-1]
    words = f"same --sounds {folder} --model {model} --seconds 1 --count 12 --nodes 4 --isa {isa}"
    assert speech.main([*words.split(), "--record", "same"]) == 0, capsys.readouterr().err
    found = json.loads((tmp_path / "docs/results/data/same.json").read_text())
    rows = {(row[0], row[1]): row for row in found["rows"]}
    assert rows["drafts of recycling", 0.0][2:4] == [12, 12]
    assert rows["a batch of 8, texts give way", 0.7][2:4] == [12, 12]
    assert rows[f"alone, on {isa}", 0.7][2:] == [12, 12, 1.0, None, None]
    assert rows["another seed", 0.7][3] < rows["another seed", 0.7][2] == 4
    assert rows["drafts of recycling", 0.0][4] > 1, "drafts save forwards"


def test_an_instruction_set_that_there_is_not_is_one_line(
    noises: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, model = noises
    words = f"same --sounds {folder} --model {model} --seconds 1 --count 1 --isa mmx"
    assert speech.main(words.split()) == 2
    assert "instruction set 'mmx'" in capsys.readouterr().err


def test_texts_that_differ_are_told() -> None:
    named = ways.ways(["recycling"], 0.0)
    one, other = ((1, 2),), ((1, 3),)
    found = {way.name: ways.Written([one, other], seconds=1.0) for way in named}
    found["a batch of 8"].texts = [one, one]
    _, faults = ways.rows(named, found, 1.0, 0.0)
    assert faults == [
        "recycling, what is near the best: no text differs, so that a difference is not found",
        "a batch of 8: 1 of 2 texts differ",
        "a batch of 8, texts give way: no text gave way to another",
    ]
