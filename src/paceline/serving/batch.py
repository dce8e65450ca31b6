"""Requests from a file, answers to a file, in OpenAI's batch format.

A line of the input is `{"custom_id", "method": "POST", "url", "body"}`, a line of the output
`{"id", "custom_id", "response": {"status_code", "request_id", "body"}, "error"}`; the response has
"ignored" too, a list of fields, if the answer does not heed some. Output is only appended to, in
whole lines, so that a run that was killed goes on where it ended. A line without an id of its own
is answered with `"error": {"code", "message", "param", "line"}` and no response.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

from paceline.core.cache import append, open_lines
from paceline.core.options import check_text
from paceline.errors import EngineFailed, InvalidOption, PacelineError
from paceline.serving.http import described, encoded
from paceline.serving.model import ServedModel, find_name
from paceline.serving.objects import Answer
from paceline.serving.plan import Plan, guarded
from paceline.serving.protocol import BadRequest, decode
from paceline.serving.routes import BATCHED
from paceline.serving.worker import Delivery, Outbox, ServingCore

Json = dict[str, Any]
_FAULTY = "batch_req_line_"
_LARGEST = 8 * 1024 * 1024  # bytes of a line, as of a body
_WHOLE = 2**30  # of a file: /dev/zero has no end


class Fault(NamedTuple):
    """Why a line is no request that can be told from the others; `code` is OpenAI's."""

    code: str
    message: str


class Line(NamedTuple):
    """A request of the input; `url` and `body` are checked when its turn comes.

    `key` is its custom_id, or, of a line with a fault, a name made from its number and text.
    """

    key: str
    number: int
    method: Any = None
    url: Any = None
    body: Any = None
    fault: Fault | None = None

    @property
    def seed(self) -> int:
        """The seed where the body gives none, the same in every run."""
        return int.from_bytes(hashlib.sha256(self.key.encode()).digest()[:6], "little")

    @property
    def id(self) -> str:
        return hashlib.sha256(self.key.encode()).hexdigest()[:24]


def read_lines(path: Path) -> list[Line]:
    """Read the input; InvalidOption if it cannot be read."""
    try:
        with path.open("rb") as file:
            raw = file.read(_WHOLE + 1)
    except OSError as error:
        raise InvalidOption(f"{path} cannot be read ({error}): give a JSONL file") from error
    if len(raw) > _WHOLE:
        raise InvalidOption(f"{path} has more than {_WHOLE >> 20} MiB: give it in parts")
    found: dict[str, int] = {}
    return [
        _line(number, text, found)
        for number, text in enumerate(raw.splitlines(), 1)
        if text.strip()
    ]


def _line(number: int, text: bytes, found: dict[str, int]) -> Line:
    # `found` has the numbers of ids.
    def faulty(code: str, message: str) -> Line:
        fault = Fault(code, f"line {number} {message}")
        return Line(f"{_FAULTY}{number}:{hashlib.sha256(text).hexdigest()}", number, fault=fault)

    if len(text) > _LARGEST:
        return faulty("line_too_large", f"has more than {_LARGEST} bytes: send less")
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        return faulty("invalid_json_line", f"is no JSON ({error}): mend it")
    id = fields.get("custom_id") if isinstance(fields, dict) else None
    if not isinstance(id, str) or not id:
        return faulty("missing_custom_id", "has no custom_id: give it a text of its own")
    try:
        check_text("custom_id", id)
    except PacelineError:
        return faulty("invalid_custom_id", "has half a character in its custom_id: mend it")
    if id in found:
        message = f"has the custom_id {id[:100]!r} of line {found[id]}: rename one"
        return faulty("duplicate_custom_id", message)
    found[id] = number
    return Line(id, number, fields.get("method"), fields.get("url"), fields.get("body"))


def open_output(path: Path) -> tuple[FileIO, set[str]]:
    """Return the output, locked until it is closed or the process ends, and ids of its lines.

    Raises InvalidOption as `open_lines`, and if the file holds something else.
    """

    def ids(lines: list[bytes]) -> set[str]:
        try:
            return {_answered(json.loads(line)) for line in lines}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InvalidOption(
                f"{path} holds something else than answers: give another file"
            ) from error

    return open_lines(path, ids)


def _answered(record: Json) -> str:
    id = record["custom_id"] if record["custom_id"] is not None else record["id"]
    return str(id)


Maker = Callable[[str, Mapping[int, Counter[int]]], Answer]


def asked(model: ServedModel, line: Line) -> tuple[Plan, Maker]:
    """Return the plan of a line without a fault, and what makes its answer.

    Raises PacelineError: the request is refused.
    """
    if line.method != "POST" or not isinstance(line.url, str) or line.url not in BATCHED:
        raise BadRequest(
            f"url: {line.method} {line.url} is not served here: use POST and one of "
            f"{', '.join(BATCHED)}",
            "url",
        )
    kind, plan, answer = BATCHED[line.url]
    body, ignored = decode(kind, guarded(json.dumps, line.body).encode())
    find_name(body.model, [model.names])
    model = model.under(getattr(body, "chat_template", None))
    if getattr(body, "stream", None):
        raise BadRequest("stream: a file has no streams: leave it out", "stream")
    if body.seed is None:
        body.seed = line.seed
    planned = guarded(plan, model, body)
    planned.notes.left[:0] = ignored
    return planned, partial(answer, model, planned, body)


def recorded(line: Line, status: int, body: Any, ignored: list[str] | None = None) -> bytes:
    """Return an answer as a line of the output, with places of what the request holds in vain."""
    response = {"status_code": status, "request_id": f"req_{line.id}", "body": body}
    response |= {"ignored": ignored} if ignored else {}
    return _record(f"batch_req_{line.id}", line.key, response, None)


def refused(line: Line, error: PacelineError) -> bytes:
    """Return an error as a line of the output."""
    return recorded(line, *described(error))


def _record(id: str, key: str | None, response: Json | None, error: Json | None) -> bytes:
    out = {"id": id, "custom_id": key, "response": response, "error": error}
    return encoded(out) + b"\n"


class BatchRun:
    """Decodes lines, as many at a time as the engine takes, and appends their answers."""

    def __init__(self, model: ServedModel, file: FileIO) -> None:
        """`file` is open for appending, without a buffer."""
        self._model = model
        self._file = file
        self._core = ServingCore(model.engine)
        self._lines: list[bytes] = []  # answers that are not in the file
        self._open: dict[Outbox, tuple[Line, Answer]] = {}
        self.failed = 0
        self.tokens = 0

    def run(self, lines: list[Line], stop: Callable[[], bool]) -> Iterator[int]:
        """Yield how many answers were written by each step; `stop` takes no more lines.

        Raises:
            InvalidOption: the file cannot be written. It holds the answers that were told.
            EngineFailed: the engine failed; the next run asks for what is left.
        """
        left = iter(lines)
        more = True
        most = self._model.engine.scheduler.limits.running
        while True:
            written = 0
            more = more and not stop()
            while more and len(self._open) < 2 * most:
                line = next(left, None)
                more = line is not None
                if line is not None and not self._submit(line):
                    written += 1
            if self._core.busy:
                written += self._step()
            if written:
                self._save()
            yield written
            if not self._open and not more:
                return

    def _submit(self, line: Line) -> bool:
        # False if it was refused, and so answered.
        if line.fault is not None:
            self.failed += 1
            fault = {**line.fault._asdict(), "param": None, "line": line.number}
            self._lines.append(_record(line.key, None, None, fault))
            return False
        try:
            planned, make = asked(self._model, line)
        except PacelineError as error:
            self._fail(line, error)
            return False
        outbox = Outbox()
        outbox.jobs = planned.jobs(outbox)
        self._open[outbox] = line, make(line.id, outbox.accepted)
        for job in outbox.jobs:
            self._core.submit(job)
        return True

    def _step(self) -> int:
        written = 0
        for delivery in self._core.turn():
            written += self._take(delivery)
        return written

    def _take(self, delivery: Delivery) -> int:
        job, event, _ = delivery
        if job.outbox not in self._open:
            return 0
        line, answer = self._open[job.outbox]
        if isinstance(event.error, EngineFailed):  # of no line, so the next run asks them again
            raise event.error
        if event.error is not None:
            for each in job.outbox.jobs:
                self._core.cancel(each)
            self._fail(line, event.error)
        else:
            job.outbox.put(job.place, event)
            for place, merged in job.outbox.take():
                answer.feed(place, merged)
                if answer.choices[place].repeats:
                    self._core.end(job.outbox.jobs[place])
            if not answer.done:
                return 0
            self.tokens += int(answer.usage()["completion_tokens"])
            self._lines.append(recorded(line, 200, answer.whole(), answer.plan.notes.left))
        del self._open[job.outbox]
        return 1

    def _fail(self, line: Line, error: PacelineError) -> None:
        self.failed += 1
        self._lines.append(refused(line, error))

    def _save(self) -> None:
        data = b"".join(self._lines)
        self._lines.clear()
        try:
            append(self._file, data)
        except OSError as error:
            raise InvalidOption(
                f"answers cannot be written ({error.strerror}): make room, and the same command "
                "goes on"
            ) from error
