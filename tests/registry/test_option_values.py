"""Every option of every method, with odd values: one line, or a short request runs to its end."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.helpers.canvases import decode
from tests.helpers.tiny_model import save_directory, tiny_config

from paceline.drafters.resources import Loaded
from paceline.errors import PacelineError
from paceline.proof.table_denoiser import TableDenoiser, random_joint
from paceline.registry import table as registry
from paceline.registry.loading import load_model, make_engine
from paceline.registry.samplers import make_plan, make_sampler

VALUES = ("nan", "inf", "-inf", "-1", "0", "1", "1e308", "1000000000", "x", "")
SECONDS = 10


@contextmanager
def soon() -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError(f"over {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def options_of(made: Any) -> list[str]:
    """What a method says when it is given an option that it lacks."""
    with pytest.raises(PacelineError) as error:
        made("zzz=1")
    found = re.search(r"has no option 'zzz': use (.*)", str(error.value))
    return re.split(r", | or ", found[1]) if found else []


def refused(run: Any, text: str) -> bool:
    """Whether it was refused; else it has run to its end."""
    told = None
    with soon():
        try:
            run()
        except PacelineError as error:
            told = str(error)
    assert told is None or "\n" not in told, text
    return told is not None


CANVAS = [each.name for each in registry.methods() if each.kind == "sampler"]
INSIDE = {"wedlm": ">entropy"}
WRAPS = ("cfg", "credit", "prophet", "revise", "remask", "freedave", "speculative")


@pytest.mark.parametrize("name", CANVAS)
def test_samplers(name: str) -> None:
    inner = INSIDE.get(name, ">counts" if name in WRAPS else "")
    order = name in ("wedlm", "assd")
    facts: dict[str, Any] = {"attention": "order" if order else "full", "autoregressive": True}
    target = TableDenoiser(random_joint(3, 4, 0), **facts)
    decode(target, f"{name}{inner}", temperature=1.0)
    count = 0
    options = options_of(lambda text: make_sampler(f"{name}:{text}{inner}"))
    for option in options:
        for value in VALUES:
            text = f"{name}:{option}={value}{inner}"
            count += refused(lambda text=text: decode(target, text, temperature=1.0), text)
    assert count >= 3 * len(options), "NaN, no number, and nothing at all"


@pytest.mark.parametrize("name", [m.name for m in registry.methods() if m.kind == "cache"])
def test_caches(name: str) -> None:
    target = TableDenoiser(random_joint(3, 4, 0))
    for option in options_of(lambda text: make_plan(f"{name}:{text}")):
        for value in VALUES:
            text = f"{name}:{option}={value}"
            refused(lambda text=text: decode(target, "counts", cache=text, block=2), text)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Loaded, str, str]:
    root = tmp_path_factory.mktemp("models")
    for name in ("target", "draft", "denoiser"):
        save_directory(root / name, tiny_config())
    config = json.loads((root / "denoiser" / "config.json").read_text())
    config["denoiser"] = {"mask_token_id": 300, "attention": "block", "autoregressive": True}
    (root / "denoiser" / "config.json").write_text(json.dumps(config))
    return load_model(str(root / "target")), str(root / "draft"), str(root / "denoiser")


KINDS = ("drafter", "verifier", "controller")
METHODS = [(each.kind, each.name) for each in registry.methods() if each.kind in KINDS]


@pytest.mark.parametrize(("kind", "name"), METHODS)
def test_methods_of_drafts(models: tuple[Loaded, str, str], kind: str, name: str) -> None:
    target, small, denoiser = models
    sizes = {} if kind == "controller" else {"nodes": 4, "depth": 2}
    given: dict[str, Any] = {"drafter": "prompt-lookup"} if kind != "drafter" else {}

    def run(text: str, **more: Any) -> None:
        asked: dict[str, Any] = {**given, kind: text, **sizes, "progress": False, **more}
        done = make_engine(target, **asked).generate("the quick dog the quick", max_new_tokens=3)
        assert done.stats.drafter_errors == 0, text

    chosen: dict[str, Any] = {}
    for draft in (None, small, denoiser):
        chosen = {} if draft is None else {"draft_model": draft}
        try:
            run(name, **chosen)
        except PacelineError:  # it needs another, or weights
            continue
        break
    for option in options_of(lambda text: run(f"{name}:{text}", **chosen)):
        for value in VALUES:
            text = f"{name}:{option}={value}"
            refused(lambda text=text: run(text, **chosen), text)
