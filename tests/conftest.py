"""The kernels of this processor, compiled before any test looks for them in a cache of its own;
and a watch over errors of drafters, which an engine survives."""

from __future__ import annotations

import inspect
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from paceline.native import build, library

_BESIDE = Path(build.__file__).parent / "lib"  # ignored by git; names hold the sources' hash


# Hypothesis keeps failing examples and what it read of the sources: not among the sources.
os.environ.setdefault(
    "HYPOTHESIS_STORAGE_DIRECTORY", str(Path(tempfile.gettempdir()) / "paceline-hypothesis")
)
# A loaded machine fails no example.
settings.register_profile("paceline", deadline=None)
settings.load_profile("paceline")
# Threads of tiny models wait for each other longer than they work, and most of all where workers
# of xdist share the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")


_THREADS = os.environ["OMP_NUM_THREADS"]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    # Processes of later tests would compute with other threads, so with other bits.
    left, os.environ["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS"), _THREADS
    assert left == _THREADS, f"{item.nodeid} leaves OMP_NUM_THREADS={left} behind"


def pytest_runtest_setup() -> None:
    if "torch" in sys.modules:  # a model that was loaded before took all cores
        sys.modules["torch"].set_num_threads(1)


def pytest_configure() -> None:
    _on_device(os.environ.get("PACELINE_TEST_DEVICE", "cpu"))
    library.library()
    found = library.found()
    if found is None or (_BESIDE / found[1].name).exists():
        return
    _BESIDE.mkdir(exist_ok=True)
    part = _BESIDE / f"{found[1].name}.{os.getpid()}"
    shutil.copy(found[1], part)
    part.replace(_BESIDE / found[1].name)


def _on_device(name: str) -> None:
    # PACELINE_TEST_DEVICE=cuda runs the tests of the torch runtime there.
    if name == "cpu":
        return
    from paceline.runtimes.torch.target import TorchTarget

    signature = inspect.signature(TorchTarget.__init__)
    assert list(signature.parameters)[-2:] == ["device", "precision"]
    TorchTarget.__init__.__defaults__ = (name, "fp32")


class _Notes(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture(autouse=True)
def survived() -> Iterator[list[str]]:
    """What engines have survived: a broken drafter would pass for plain decoding unseen.

    A test that expects errors clears the list.
    """
    notes, logger = _Notes(), logging.getLogger("paceline.engine")
    logger.addHandler(notes)
    yield notes.messages
    logger.removeHandler(notes)
    assert notes.messages == []
