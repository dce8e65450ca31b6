"""An engine on the CPU runtime when memory runs out: said in one line, and as good as new after."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import tiny_model as tiny
from tests.runtimes import tiny_cpu

from paceline.core.target import RuntimeOptions
from paceline.engine.engine import Engine
from paceline.errors import OutOfMemory, PacelineError
from paceline.native.packed import Packed
from paceline.native.program import Program
from paceline.registry.loading import load_model, make_engine

PROMPT = [7, 8, 9, 7, 8, 9, 7, 8]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    model = tiny.save_directory(tmp_path / "model", tiny_cpu.config())
    options = RuntimeOptions(kv_tokens=128, prefix_tokens=0)
    loaded = load_model(options, model=str(model), runtime="cpu")
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
    genuine, calls = Program.run, 0

    def run(self: Any, *arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            raise OutOfMemory("no memory for a forward of this size: send fewer requests")
        genuine(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Program, "run", run)
        with pytest.raises(OutOfMemory, match="of this size"):
            answer(engine)
    assert engine.pending == 0
    assert room(engine) == (4, 4), "nothing stays taken"
    assert answer(engine) == before


def test_weights_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def matrix(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Packed, "matrix", matrix)
    with pytest.raises(OutOfMemory, match="no memory to load the model"):
        tiny_cpu.target()


REAL = """
import resource
import numpy as np
from tests.runtimes import tiny_cpu
from paceline.core import tree
from paceline.errors import OutOfMemory
from paceline.core.target import Rows
target = tiny_cpu.target(shape=tiny_cpu.config(vocab_size=60_000))
cache = target.open()
target.prefill(cache, list(range(40)))
before = target.forward([Rows.draft(cache, [5])])[0].logits.copy()
other = target.open()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**23, resource.RLIM_INFINITY))
try:
    target.forward([Rows.draft(other, [5], tree.chain(list(range(200))))])
    print("it fitted")
except OutOfMemory as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(np.array_equal(target.forward([Rows.draft(cache, [5])])[0].logits, before))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="no such limit here")
def test_when_the_system_gives_no_more_memory() -> None:
    done = subprocess.run([sys.executable, "-c", REAL], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    refused, same = done.stdout.splitlines()
    assert "no memory for a forward of this size" in refused
    assert same == "True", "the logits are those of before"


def test_a_signal_after_the_last_target_is_gone_is_caught() -> None:
    code = (
        "import gc, signal, threading\n"
        "from tests.runtimes import tiny_cpu\n"
        "held = [tiny_cpu.target('fp32')]\n"
        "end = threading.Thread(target=lambda: (held.clear(), gc.collect()))\n"
        "end.start(), end.join()\n"
        "signal.signal(signal.SIGINT, lambda *_: print('caught'))\n"
        "signal.raise_signal(signal.SIGINT)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "caught\n"), done.stderr
