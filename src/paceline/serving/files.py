"""Files and batches over HTTP, in a folder: a batch goes on after a restart."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import uuid
from email.parser import BytesParser
from email.policy import HTTP
from io import FileIO
from pathlib import Path
from time import time
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, to_builtins

from paceline.core.cache import Locked, write_atomically
from paceline.errors import PacelineError
from paceline.serving.batch import (
    ROUTES,
    Line,
    asked,
    open_output,
    read_lines,
    recorded,
    refused,
)
from paceline.serving.protocol import BadRequest
from paceline.serving.worker import Outbox

Json = dict[str, Any]
_log = logging.getLogger("paceline.serving")
UPLOAD = 100 * 1024 * 1024  # most bytes of a file
_FOLDER = 1024 * 1024 * 1024  # and of all
_DAY = 24 * 3600
_OPEN = ("validating", "in_progress", "finalizing", "cancelling")
_ENDED = ("completed", "failed", "cancelled")


class BatchRequest(Struct, kw_only=True):
    input_file_id: Annotated[str, Meta(max_length=100)]
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/responses"]
    completion_window: Literal["24h"] = "24h"
    metadata: dict[str, str] | None = None


class Files:
    """Files and records of batches in a folder. Each record is one JSON file."""

    def __init__(self, folder: str | None) -> None:
        self._folder = None if folder is None else Path(folder)

    def path(self, name: str) -> Path:
        """Return where something is kept; BadRequest if the server keeps nothing."""
        if self._folder is None:
            raise BadRequest("the server keeps no files: start it with --files FOLDER", None, 501)
        return self._folder / name

    def add(self, data: bytes, name: str, purpose: str, id: str | None = None) -> Json:
        """Keep a file; BadRequest (413) if there is no room."""
        held = sum(each.stat().st_size for each in self.path("").glob("*"))
        if held + len(data) > _FOLDER:
            raise BadRequest("file: the server's folder is full: delete files", "file", 413)
        id = id or f"file-{uuid.uuid4().hex}"
        made = {"id": id, "object": "file", "bytes": len(data), "created_at": int(time())}
        made |= {"filename": name, "purpose": purpose, "status": "processed"}
        self.path("").mkdir(parents=True, exist_ok=True)
        self.path(f"{id}.data").write_bytes(data)
        self.save(made)
        return made

    def save(self, record: Json) -> None:
        write_atomically(self.path(f"{record['id']}.json"), json.dumps(record))

    def get(self, id: str, kind: str = "file") -> Json:
        """Return the record of a "file" or "batch"; BadRequest (404) if there is none."""
        path = self.path(f"{id}.json")
        if id.startswith(f"{kind}-") and id.replace("-", "").isalnum() and path.is_file():
            record: Json = json.loads(path.read_text(encoding="utf-8"))
            return record
        raise BadRequest(f"id: there is no {kind} {id[:100]!r}", "id", 404)

    def all(self, kind: str) -> list[Json]:
        """Return all records, the eldest first."""
        found = [json.loads(each.read_text()) for each in self.path("").glob(f"{kind}-*.json")]
        return sorted(found, key=lambda each: (each["created_at"], each["id"]))

    def delete(self, id: str) -> Json:
        self.get(id)
        for kind in ("json", "data"):
            self.path(f"{id}.{kind}").unlink(missing_ok=True)
        return {"id": id, "object": "file", "deleted": True}

    def upload(self, body: bytes, kind: str) -> Json:
        """Keep the file of a form; BadRequest names what is wrong."""
        head = b"content-type: " + kind.encode() + b"\r\n\r\n"
        form: Any = BytesParser(policy=HTTP).parsebytes(head + body)
        parts = {p.get_param("name", header="content-disposition"): p for p in form.iter_parts()}
        if "file" not in parts:
            raise BadRequest("file: it is missing: send a form with purpose and file", "file")
        purpose = parts["purpose"].get_payload(decode=True) if "purpose" in parts else b""
        if purpose.strip() != b"batch":
            raise BadRequest("purpose: it must be batch: nothing else is done here", "purpose")
        file = parts["file"]
        data = file.get_payload(decode=True) or b""
        return self.add(data, file.get_filename() or "file", "batch")


class Batches:
    """Runs batches beside other requests, on half of the engine's places."""

    def __init__(self, service: Any, files: Files) -> None:
        """`service` decodes: see `app.Service`."""
        self._service, self._files = service, files
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def create(self, body: BatchRequest) -> Json:
        self._files.get(body.input_file_id)
        names = "errors output_file_id error_file_id " + " ".join(
            f"{each}_at" for each in ("in_progress", "expired", *_OPEN[2:], *_ENDED)
        )
        now = int(time())
        batch = {"id": f"batch-{uuid.uuid4().hex}", "object": "batch", **to_builtins(body)}
        batch |= dict.fromkeys(names.split()) | {"status": "validating", "created_at": now}
        batch |= {"expires_at": now + _DAY, "request_counts": _counts(0, [])}
        self._files.save(batch)
        self._start(batch)
        return batch

    def cancel(self, id: str) -> Json:
        batch = self._files.get(id, "batch")
        if batch["status"] in _ENDED:
            said = f"batch: it is {batch['status']}: nothing is left to cancel"
            raise BadRequest(said, None, 409)
        self._turn(batch, "cancelling")
        self._tasks[id].cancel()
        return batch

    def open(self) -> None:
        """Go on with what was begun before."""
        with contextlib.suppress(BadRequest):  # without a folder
            for batch in self._files.all("batch"):
                if batch["status"] in _OPEN:
                    self._start(batch)

    def close(self) -> None:
        """Stop; the next start goes on."""
        tasks, self._tasks = self._tasks, {}
        for task in tasks.values():
            task.cancel()

    def _start(self, batch: Json) -> None:
        self._tasks[batch["id"]] = asyncio.get_running_loop().create_task(self._run(batch))

    def _turn(self, batch: Json, status: str, **fields: Any) -> None:
        batch |= {"status": status, f"{status}_at": int(time()), **fields}
        self._files.save(batch)

    async def _run(self, batch: Json) -> None:
        id = batch["id"]
        part = self._files.path(f"{id}.part")
        try:
            lines = read_lines(self._files.path(f"{batch['input_file_id']}.data"))
            if errors := [error for each in lines if (error := _wrong(each, batch)) is not None]:
                self._turn(batch, "failed", errors={"object": "list", "data": errors})
                return
            if batch["status"] == "validating":
                self._turn(batch, "in_progress")
            while (opened := await asyncio.to_thread(_opened, part)) is None:
                await asyncio.sleep(0.2)  # until the server before has ended
            file, done = opened
            with file:
                left = [each for each in lines if each.key not in done]
                if batch["status"] != "cancelling":
                    await self._answer(batch, left, len(lines), file)
        except asyncio.CancelledError:
            if id not in self._tasks:  # the server ends
                raise
        except Exception as error:  # such as a full disk: the batch says so
            _log.exception("batch %s failed", id)
            wrong = {"code": "server_error", "message": str(error), "line": None, "param": None}
            self._turn(batch, "failed", errors={"object": "list", "data": [wrong]})
            return
        status = self._files.get(id, "batch")["status"]
        text = part.read_bytes() if part.exists() else b""
        made = [json.loads(each) for each in text.splitlines()]
        batch["request_counts"] = _counts(len(lines), made)
        for kind, good in (("output", True), ("error", False)):
            some = [each for each in made if (each["response"]["status_code"] == 200) == good]
            if some:
                data = "".join(json.dumps(each) + "\n" for each in some).encode()
                file_id = f"file-{kind}{id.removeprefix('batch-')}"
                self._files.add(data, f"{id}_{kind}.jsonl", "batch_output", file_id)
                batch[f"{kind}_file_id"] = file_id
        self._turn(batch, "cancelled" if status == "cancelling" else "completed")
        part.unlink(missing_ok=True)

    async def _answer(self, batch: Json, lines: list[Line], total: int, file: FileIO) -> None:
        counts = batch["request_counts"] = batch["request_counts"] | {"total": total}
        places = asyncio.Semaphore(max(1, self._service.settings.max_batch // 2))

        async def one(line: Line) -> None:
            async with places:
                record = await self._record(line)
            await asyncio.to_thread(file.write, record)
            counts["completed" if b'"status_code":200,' in record else "failed"] += 1
            self._files.save(batch)

        async with asyncio.TaskGroup() as group:
            for line in lines:
                group.create_task(one(line))

    async def _record(self, line: Line) -> bytes:
        outbox = Outbox()
        model = self._service.asked_for(None)
        try:
            planned, make = await asyncio.to_thread(asked, model, line)
            answer = make(line.id, outbox.accepted)
            outbox.jobs = planned.jobs(outbox)
            self._service.submit(outbox.jobs)
            while not answer.done:
                for place, event in await outbox.get(60.0):
                    if event.error is not None:
                        raise event.error
                    answer.feed(place, event)
            return recorded(line, 200, answer.whole())
        except PacelineError as error:
            return refused(line, error)
        finally:
            self._service.cancel(outbox.jobs)


def _opened(path: Path) -> tuple[FileIO, set[str]] | None:
    with contextlib.suppress(Locked):
        return open_output(path)
    return None


def _wrong(line: Line, batch: Json) -> Json | None:
    if line.fault is not None:
        return {**line.fault._asdict(), "line": line.number, "param": None}
    if line.url == batch["endpoint"] and line.method == "POST" and line.url in ROUTES:
        return None
    said = f"line {line.number}: it must be POST and {batch['endpoint']}, as the batch"
    return {"code": "mismatched_url", "message": said, "line": line.number, "param": "url"}


def _counts(total: int, made: list[Json]) -> Json:
    good = sum(each["response"]["status_code"] == 200 for each in made)
    return {"total": total, "completed": good, "failed": len(made) - good}
