"""Batches of requests in files: answers of the library alone, resumed after any end."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
from io import FileIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion
from tests.helpers import table_engines as engines
from tests.helpers.serving import CHAT, TEXT, served

from paceline.core import cache
from paceline.engine.engine import Engine, Event
from paceline.errors import EngineFailed, InvalidOption
from paceline.methods.prompt_lookup import PromptLookup
from paceline.serving.batch import BatchRun, open_output, read_lines

Json = dict[str, Any]
CHATS, TEXTS = "/v1/chat/completions", "/v1/completions"


def line(id: str, url: str = CHATS, **body: Any) -> Json:
    return {"custom_id": id, "method": "POST", "url": url, "body": body}


def write(path: Path, lines: list[Json]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8")
    return path


def requests(count: int) -> list[Json]:
    rng = random.Random(1)
    out = []
    for place in range(count):
        extra = {"temperature": rng.choice([0, 1.0]), "ignore_eos": True, "max_tokens": 9}
        if place % 3:
            out.append(line(f"r{place}", **(CHAT | extra | {"n": rng.choice([1, 2])})))
        else:
            out.append(line(f"r{place}", TEXTS, **(TEXT | extra)))
    return out


def decode(source: Path, out: Path, stop: int = 10**9, drafter: Any = None) -> list[Json]:
    """Answer what the output lacks; take no more lines after so many answers."""
    file, done = open_output(out)
    lines = [each for each in read_lines(source) if each.key not in done]
    counts: list[int] = []
    with file:
        run = BatchRun(served(engines.make(drafter=drafter)), file)
        for count in run.run(lines, lambda: sum(counts) >= stop):
            counts.append(count)
    return [json.loads(text) for text in out.read_text("utf-8").splitlines()]


def timeless(lines: list[Json]) -> dict[str, Any]:
    for each in lines:
        each["response"]["body"].pop("created", None)
        for extra in ("metrics", "usage"):  # drafts and cached tokens may differ
            each["response"]["body"].pop(extra, None)
    return {each["custom_id"]: each for each in lines}


def test_answers_are_openais_and_those_of_drafts_off(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", requests(12))
    lines = decode(source, tmp_path / "out.jsonl")
    assert {each["custom_id"] for each in lines} == {f"r{place}" for place in range(12)}
    for each in lines:
        assert each["error"] is None
        assert each["response"]["status_code"] == 200
        kind = ChatCompletion if int(each["custom_id"][1:]) % 3 else Completion
        kind.model_validate(each["response"]["body"])
    drafted = decode(source, tmp_path / "drafted.jsonl", drafter=PromptLookup())
    assert timeless(drafted) == timeless(lines)


def test_errors_are_answers_of_their_lines(tmp_path: Path) -> None:
    bad = [
        line("url", "/v1/embeddings", input="x"),
        line("stream", **CHAT, stream=True),
        line("range", **CHAT | {"temperature": 9}),
        line("model", **CHAT | {"model": "gpt"}),
        line("body") | {"body": "text"},
        line("list") | {"url": ["x"]},
        line("half", **CHAT | {"messages": [{"role": "user", "content": "\ud800"}]}),
        line("bans", **CHAT | {"logit_bias": {str(t): -100 for t in range(320)}, "top_k": 1}),
    ]
    source = write(tmp_path / "in.jsonl", [*bad, line("good", **CHAT)])
    found = {each["custom_id"]: each["response"] for each in decode(source, tmp_path / "out")}
    assert found.pop("good")["status_code"] == 200
    found.pop("bans")
    assert {id: each["status_code"] for id, each in found.items()} == {
        "url": 400,
        "stream": 400,
        "range": 400,
        "model": 404,
        "body": 400,
        "list": 400,
        "half": 400,
    }
    assert "temperature" in found["range"]["body"]["error"]["message"]


FAULTS = {
    '{"custom_id": "a"': ("invalid_json_line", "line 3 is no JSON"),
    "[" * 100_000: ("invalid_json_line", "line 3 is no JSON"),
    "[1]": ("missing_custom_id", "line 3 has no custom_id"),
    '{"custom_id": 7}': ("missing_custom_id", "line 3 has no custom_id"),
    '{"custom_id": "\\ud800"}': ("invalid_custom_id", "line 3 has half a character"),
    '{"custom_id": "first"}': ("duplicate_custom_id", "line 3 has the custom_id 'first' of line 1"),
}


@pytest.mark.parametrize("text", FAULTS, ids=lambda text: text[:24])
def test_a_line_that_cannot_be_told_apart_is_an_error_of_its_own(tmp_path: Path, text: str) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    good = [json.dumps(line(id, **CHAT)) for id in ("first", "last")]
    source.write_text(f"{good[0]}\n\n{text}\n{good[1]}")
    records = {each["custom_id"]: each for each in decode(source, out)}
    assert set(records) == {"first", None, "last"}
    assert {records[id]["response"]["status_code"] for id in ("first", "last")} == {200}
    code, message = FAULTS[text]
    error = records[None]["error"]
    assert records[None]["response"] is None
    assert (error["code"], error["line"], error["param"]) == (code, 3, None)
    assert error["message"].startswith(message)
    before = out.read_bytes()
    decode(source, out)  # which answers nothing again
    assert out.read_bytes() == before
    mended = json.dumps(line("mended", **CHAT))
    source.write_text(f"{good[0]}\n\n{mended}\n{good[1]}")
    assert [each["custom_id"] for each in decode(source, out)[3:]] == ["mended"]


def test_an_input_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="cannot be read"):
        read_lines(tmp_path / "none")
    with pytest.raises(InvalidOption, match="more than 1024 MiB"):
        read_lines(Path("/dev/zero"))


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for text in ("my notes\nthe rest", '{"custom_id": null}\n', "[]\n", "[" * 100_000 + "\n"):
        out.write_text(text)
        with pytest.raises(InvalidOption, match="something else"):
            open_output(out)
        assert out.read_text() == text
    with pytest.raises(InvalidOption, match="cannot be written"):
        open_output(tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no such device")
def test_devices_hold_no_lines_and_are_not_read(tmp_path: Path) -> None:
    """A full one would give zeros without end."""
    source = write(tmp_path / "in", requests(2))
    with pytest.raises(InvalidOption, match="No space left on device"):
        decode(source, Path("/dev/full"))


def test_an_output_has_one_writer(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_bytes(b'{"custom_id": "a", "id": "b"}\n{"cust')
    whole = b'{"custom_id": "a", "id": "b"}\n'
    command = [sys.executable, "-c", HOLDER, str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(InvalidOption, match="written by another run"):
            open_output(out)
        assert out.read_bytes() == whole + b"half"  # it cut nothing off
    finally:
        process.kill()
        process.communicate()
    file, done = open_output(out)  # the lock died with its owner
    file.close()
    assert done == {"a"}
    assert out.read_bytes() == whole


HOLDER = """
import sys, time
from pathlib import Path
from paceline.serving.batch import open_output

file, _ = open_output(Path(sys.argv[1]))
file.write(b"half")
file.flush()
print("locked", flush=True)
time.sleep(60)
"""


def test_a_run_that_was_stopped_goes_on(tmp_path: Path) -> None:
    source, out = write(tmp_path / "in", requests(40)), tmp_path / "out"
    first = decode(source, out, stop=5)
    assert 5 <= len(first) < 40
    with out.open("ab", buffering=0) as file:
        file.write(b'{"custom_id": "r39", "resp')
    whole = decode(source, out)
    assert whole[: len(first)] == first
    assert timeless(whole) == timeless(decode(source, tmp_path / "undisturbed"))
    assert len(whole) == 40


def test_an_engine_that_fails_answers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = write(tmp_path / "in", requests(12)), tmp_path / "out"
    step, steps = Engine.step, iter(range(100))

    def failing(engine: Engine) -> list[Event]:
        if next(steps) == 11:
            raise RuntimeError("lost")
        return step(engine)

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "step", failing)
        with pytest.raises(EngineFailed):
            decode(source, out)
    whole = decode(source, out)
    assert {each["response"]["status_code"] for each in whole} == {200}
    assert timeless(whole) == timeless(decode(source, tmp_path / "undisturbed"))


def test_one_bad_answer_of_several_ends_its_line_alone(tmp_path: Path) -> None:
    model = engines.MODEL
    bad = tuple(engines.TOKENIZER.prompt("dog", raw=True))

    def logits(context: tuple[int, ...]) -> Any:
        row = model.logits(context)
        spoilt = len(context) > len(bad) + 2 and context[: len(bad)] == bad  # all three decode
        return row * np.nan if spoilt else row

    lines = [line("bad", TEXTS, **(TEXT | {"prompt": "dog", "n": 3}))]
    lines.append(line("good", TEXTS, **(TEXT | {"seed": 4})))
    file, _ = open_output(tmp_path / "out")
    with file:
        run = BatchRun(served(engines.make(engines.Target(logits))), file)
        source = write(tmp_path / "in", lines)
        assert sum(run.run(list(read_lines(source)), lambda: False)) == 2
    found = {
        each["custom_id"]: each["response"] for each in map(json.loads, (tmp_path / "out").open())
    }
    assert {id: each["status_code"] for id, each in found.items()} == {"bad": 400, "good": 200}
    assert found["good"]["body"]["seed"] == 4


def test_windows_locks_a_byte_that_is_never_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked: list[int] = []

    def locking(descriptor: int, mode: int, size: int) -> None:
        locked.append(os.lseek(descriptor, 0, os.SEEK_CUR))

    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(locking=locking, LK_NBLCK=2))
    with FileIO(tmp_path / "out", "a+") as file, monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "win32")
        assert cache._lock(file)
    assert locked == [cache._FAR]


PROGRAM = """
import resource, sys
from pathlib import Path
from tests.helpers.serve_tables import Slow
from tests.helpers import table_engines as engines
from tests.helpers.serving import served
from paceline.serving.batch import BatchRun, open_output, read_lines

source, out = map(Path, sys.argv[1:3])
most = int(sys.argv[3]) if sys.argv[3:] else resource.RLIM_INFINITY
resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
file, done = open_output(out)
lines = [each for each in read_lines(source) if each.key not in done]
with file:
    print("ready", flush=True)
    for _ in BatchRun(served(engines.make(Slow(0.001))), file).run(lines, lambda: False):
        pass
"""


def test_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    source, out = write(tmp_path / "in", requests(60)), tmp_path / "out"
    rng, kills = random.Random(3), 0
    while True:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(source), str(out)], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()
        try:
            assert process.wait(rng.uniform(0.02, 0.1) if kills < 6 else 60) == 0
            break
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
        finally:
            process.stdout.close()
    lines = [json.loads(text) for text in out.read_text("utf-8").splitlines()]
    assert len(lines) == 60
    assert timeless(lines) == timeless(decode(source, tmp_path / "undisturbed"))
    assert kills >= 3


def test_a_full_disk_keeps_what_was_written_and_the_rest_is_asked_again(tmp_path: Path) -> None:
    source, out = write(tmp_path / "in", requests(30)), tmp_path / "out"
    undisturbed = decode(source, tmp_path / "undisturbed")
    most = (tmp_path / "undisturbed").stat().st_size // 2
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(source), str(out), str(most)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "answers cannot be written (File too large): make room" in found.stderr
    assert out.stat().st_size == most  # in the middle of a line
    file, kept = open_output(out)
    file.close()
    assert 0 < len(kept) < 30
    assert timeless(decode(source, out)) == timeless(undisturbed)


class Small(FileIO):
    """A file on a disk without much room, which takes a part of what it is given."""

    left = 3000

    def write(self, data: Any) -> int:
        if not self.left:
            raise OSError(errno.ENOSPC, "No space left on device")
        part = bytes(data)[: min(self.left, 700)]
        self.left -= len(part)
        return super().write(part)


def test_a_file_that_takes_parts_gets_all_until_the_disk_is_full(tmp_path: Path) -> None:
    source, out = write(tmp_path / "in", requests(12)), tmp_path / "out"
    with Small(out, "ab") as small, pytest.raises(InvalidOption, match="No space left on device"):
        list(BatchRun(served(engines.make()), small).run(read_lines(source), lambda: False))
    assert out.stat().st_size == 3000
    file, kept = open_output(out)
    file.close()
    assert kept
    whole = decode(source, out)
    assert timeless(whole) == timeless(decode(source, tmp_path / "undisturbed"))
