"""Fidelity: figures of known distributions, and logits of both sides on a tiny model."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.helpers import tiny_model as tiny
from tests.runtimes import tiny_cpu

from benchmarks import fidelity
from paceline.core.target import Rows
from paceline.errors import EngineFailed, InvalidOption
from paceline.lab.audit.named import scripts
from paceline.lab.audit.remote import JsonlEngine

LOGITS = """
import sys
sys.path.insert(0, SCRIPTS)
from answering import claim_output, serve
import numpy as np
lines = claim_output()
def logits(tokens, path):
    np.save(path, np.random.default_rng(len(tokens)).normal(size=(len(tokens), 320)).astype("f4"))
    return len(tokens)
serve(lines, {"engine": "fake"}, None, None, logits=GIVEN)
"""


def engine(folder: Path, given: str = "logits") -> JsonlEngine:
    path = folder / f"{given}.py"
    path.write_text(
        LOGITS.replace("SCRIPTS", repr(str(scripts()))).replace("GIVEN", given), encoding="utf-8"
    )
    return JsonlEngine([sys.executable, str(path)])


def rows(*distributions: list[float]) -> np.ndarray:
    return (np.log(np.array(distributions)) + 3).astype(np.float32)


def test_kl_and_agreement_of_known_distributions() -> None:
    one = rows([0.5, 0.25, 0.25], [0.2, 0.7, 0.1])
    assert fidelity.compare(one, one + 5) == {
        **{"rows": 2, "top_1": 1, "kl_mean": pytest.approx(0, abs=1e-6)},
        **{"kl_median": pytest.approx(0, abs=1e-6), "kl_99": pytest.approx(0, abs=1e-6)},
    }
    other = rows([0.25, 0.5, 0.25], [0.2, 0.7, 0.1])
    found = fidelity.compare(one, other)
    assert found["top_1"] == 0.5
    assert found["kl_mean"] == pytest.approx(0.25 * math.log(2) / 2, abs=1e-6)
    with pytest.raises(InvalidOption, match="different shapes"):
        fidelity.compare(one, other[:1])


def test_perplexity_is_of_the_tokens_that_follow() -> None:
    logits = rows(*[[0.5, 0.25, 0.25]] * 130)
    assert fidelity.perplexity(logits, [2] + [0] * 129) == pytest.approx(2)
    assert fidelity.perplexity(logits, [0] + [1] * 129) == pytest.approx(4)
    assert fidelity.perplexity(logits[:3], [2, 0, 1]) == pytest.approx(math.sqrt(8))


def test_own_logits_are_those_of_plain_steps() -> None:
    target = tiny_cpu.target("fp32")
    tokens = np.random.default_rng(0).integers(3, 300, 150).tolist()
    found = fidelity.own_logits(target, tokens)
    cache = target.open()
    for token, row in zip(tokens, found, strict=True):
        [output] = target.forward([Rows.draft(cache, [token])])
        assert np.array_equal(output.logits[0], row)
        target.keep(cache, 1, ())
    assert target.memory.free < target.memory.blocks
    target.release(cache)
    assert target.memory.free == target.memory.blocks, "nothing else is held"


def test_an_engine_without_logits_says_so(tmp_path: Path) -> None:
    able = engine(tmp_path)
    assert fidelity.peer_logits(able, [1, 2, 3]).shape == (3, 320)
    able.close()
    unable = engine(tmp_path, "None")
    with pytest.raises(EngineFailed, match=r"no request of this kind: \['logits'\]"):
        fidelity.peer_logits(unable, [1, 2, 3])
    unable.close()


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fidelity, "start", lambda *_: engine(tmp_path))
    model = tiny.save_directory(tmp_path / "model", tiny_cpu.config())
    text = tmp_path / "text.md"
    text.write_text("the quick brown fox jumps over the lazy dog " * 30, encoding="utf-8")
    line = ["--model", str(model), "--text", str(text), "--tokens", "40", "--reference"]
    assert fidelity.main([*line, "--out", str(tmp_path / "out.json")]) == 0
    assert "perplexity, llama.cpp" in capsys.readouterr().out
    found = json.loads((tmp_path / "out.json").read_text("utf-8"))
    near, far = found["paceline_from_float32"], found["llama_cpp_from_float32"]
    assert near["rows"] == found["tokens"] == 40
    assert near["kl_mean"] < 0.05 < far["kl_mean"], "the fake's logits are noise"
    assert found["paceline_from_llama_cpp"]["kl_mean"] > 0.05
    for wrong, named in ((["--tokens", "9999"], "tokens"), (["--text", "absent.md"], "absent.md")):
        assert fidelity.main([*line, *wrong]) == 2
        assert named in capsys.readouterr().err
