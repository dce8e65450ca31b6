"""Compiled instances when memory is short: said, done without, and nothing else changes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("openvino")

from tests.helpers.bf16 import INT8_IS_EXACT, NOT_EXACT

from paceline.errors import OutOfMemory
from paceline.runtimes.cpu.openvino import requests as openvino_requests
from paceline.runtimes.cpu.openvino.attention import FIXED_SHAPES
from paceline.runtimes.cpu.openvino.requests import Instance, Requests, Shape

PLAIN = FIXED_SHAPES[0]


class Request:
    """Stands for a compiled request."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.runs = 0
        self.model_inputs: list[Any] = []

    def set_tensor(self, name: str, tensor: Any) -> None:
        pass

    def infer(self) -> None:
        self.runs += 1
        if self.error is not None:
            raise self.error


def requests(failing: dict[Shape | None, Exception], tried: list[Shape | None]) -> Requests:
    """Instances of which some cannot be compiled; 100 bytes each."""

    def compiled(shape: Shape | None) -> Any:
        tried.append(shape)
        if shape in failing:
            raise failing[shape]
        return Request()

    return Requests(compiled, FIXED_SHAPES, 100)


ERRORS = (MemoryError("std::bad_alloc"), MemoryError(), RuntimeError("first\nFailed to allocate 5"))


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_a_shape_that_does_not_fit_is_said_and_done_without(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[Shape | None] = []
    made = requests({FIXED_SHAPES[2]: error}, tried)
    general = made.get(PLAIN)
    made.complete()
    assert tried == [None, *FIXED_SHAPES[:3]], "it does not go on when memory is short"
    assert made.get(FIXED_SHAPES[1]) is not general
    assert made.get(FIXED_SHAPES[2]) is made.get(FIXED_SHAPES[5]) is general
    [message] = caplog.messages
    assert f"over {FIXED_SHAPES[2].dense} rows" in message
    assert "first" not in message
    made.complete()
    assert len(tried) == 4


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_a_model_that_does_not_fit_is_refused(error: Exception) -> None:
    with pytest.raises(OutOfMemory, match="no memory to load the model"):
        requests({None: error}, [])


def test_a_model_that_cannot_be_compiled_is_not_taken_for_one() -> None:
    with pytest.raises(RuntimeError, match="unknown operation"):
        requests({None: RuntimeError("unknown operation")}, [])


def test_the_background_thread_survives_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(openvino_requests, "_AFTER", 2)
    made = requests({PLAIN: MemoryError()}, [])
    general = made.get(PLAIN)
    for _ in range(5):
        assert made.get(PLAIN) is general
    made.complete()
    assert len(caplog.messages) == 1


def test_an_inference_without_memory_is_said_and_others_go_on() -> None:
    request = Request(RuntimeError("Check 'ptr' failed\nFailed to allocate 50356224 bytes"))
    instance = Instance(request)  # type: ignore[arg-type]
    with pytest.raises(OutOfMemory, match="a forward of this size"):
        instance.run({"input_ids": [1, 2, 3]})
    request.error = None
    instance.run({"input_ids": [1, 2, 3]})
    assert request.runs == 2


def test_other_errors_are_not_taken_for_memory() -> None:
    instance = Instance(Request(RuntimeError("shapes do not match")))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="shapes"):
        instance.run({"input_ids": [1]})


REAL = """
import logging, resource, sys
import numpy as np
from tests.runtimes import tiny_openvino
from paceline.core import tree
from paceline.errors import OutOfMemory
from paceline.core.target import Pass
logging.basicConfig(format="%(message)s")
shape = tiny_openvino.config(vocab_size=60_000)
target = tiny_openvino.target(shape=shape, attention=sys.argv[1])
cache = target.open()
target.prefill(cache, list(range(40)))
before = target.forward([Pass(cache, [5])])[0].logits.copy()
other = target.open()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**23, resource.RLIM_INFINITY))
target.warm_up()
try:
    target.forward([Pass(other, [5], tree.chain(list(range(200))))])
    print("it fitted")
except OutOfMemory as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(np.array_equal(target.forward([Pass(cache, [5])])[0].logits, before))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="no such limit here")
@pytest.mark.skipif(not INT8_IS_EXACT, reason=NOT_EXACT)
@pytest.mark.parametrize("attention", ["paths", "plugin"])
def test_when_the_system_gives_no_more_memory(attention: str) -> None:
    done = subprocess.run([sys.executable, "-c", REAL, attention], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if attention == "plugin":
        [line] = done.stderr.splitlines()
        assert "go on with the general one" in line
    refused, same = done.stdout.splitlines()
    assert "no memory for a forward of this size" in refused
    assert same == "True", "the logits are those of before"


def test_a_signal_after_the_last_target_is_gone_is_caught() -> None:
    """In a process of its own: it used to run on a stack that had been freed."""
    code = (
        "import gc, signal, threading\n"
        "from tests.runtimes import tiny_openvino\n"
        "held = [tiny_openvino.target('fp32')]\n"
        "end = threading.Thread(target=lambda: (held.clear(), gc.collect()))\n"
        "end.start(), end.join()\n"
        "signal.signal(signal.SIGINT, lambda *_: print('caught'))\n"
        "signal.raise_signal(signal.SIGINT)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "caught\n"), done.stderr
