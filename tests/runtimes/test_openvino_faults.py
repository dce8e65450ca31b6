"""An engine on the CPU runtime when memory runs out: said in one line, and as good as new after."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.helpers import tiny_model as tiny
from tests.runtimes import tiny_openvino

pytest.importorskip("openvino")

from paceline.core.target import RuntimeOptions
from paceline.engine.engine import Engine
from paceline.errors import OutOfMemory, PacelineError
from paceline.native.library import has_int8_products
from paceline.native.program import Program
from paceline.registry.loading import load_model, make_engine
from paceline.runtimes.cpu import target as openvino
from paceline.runtimes.cpu.openvino.requests import Instance

PROMPT = [7, 8, 9, 7, 8, 9, 7, 8]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    model = tiny.save_directory(tmp_path / "model", tiny_openvino.config())
    options = RuntimeOptions(kv_tokens=128, prefix_tokens=0)
    loaded = load_model(str(model), runtime="openvino", options=options)
    return make_engine(loaded, drafter="recycling", nodes=4, depth=4)


def answer(engine: Engine) -> tuple[int, ...]:
    return engine.generate(PROMPT, max_new_tokens=12, ignore_eos=True).token_ids


def room(engine: Engine) -> tuple[int, int]:
    memory: Any = engine.decoder.target.memory  # type: ignore[attr-defined]
    return memory.free, memory.blocks


def test_a_request_larger_than_the_cache(engine: Engine) -> None:
    before = answer(engine)
    with pytest.raises(PacelineError) as raised:
        engine.generate([5] * 200, max_new_tokens=40, ignore_eos=True)
    assert len(str(raised.value).splitlines()) == 1
    assert engine.pending == 0
    assert answer(engine) == before
    assert room(engine) == (4, 4)


@pytest.mark.parametrize("call", [1, 2, 3, 6])
def test_a_forward_without_memory(
    call: int, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the prompt's, at the first of decoding, in the middle."""
    before = answer(engine)
    kind: Any = Program if has_int8_products() else Instance
    genuine, calls = kind.run, 0

    def run(self: Any, *arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            raise OutOfMemory("no memory for a forward of this size: send fewer requests")
        genuine(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(kind, "run", run)
        with pytest.raises(OutOfMemory, match="of this size"):
            answer(engine)
    assert engine.pending == 0
    assert room(engine) == (4, 4), "nothing stays taken"
    assert answer(engine) == before


def test_weights_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_prepared(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(openvino, "load_prepared", load_prepared)
    source: Any = SimpleNamespace(config=tiny_openvino.config())
    with pytest.raises(OutOfMemory, match="no memory to load the model"):
        openvino.OpenVinoTarget.load(source)
