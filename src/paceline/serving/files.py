"""Files and batches over HTTP, in a folder: a batch goes on after a restart."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import uuid
from io import FileIO
from itertools import islice
from pathlib import Path
from time import time
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, to_builtins

from paceline.core.cache import Locked, write_atomically
from paceline.errors import EngineFailed, PacelineError
from paceline.serving.admission import Closed
from paceline.serving.batch import Line, asked, open_output, read_lines, recorded, refused
from paceline.serving.forms import form_parts
from paceline.serving.protocol import BadRequest
from paceline.serving.worker import Outbox

Json = dict[str, Any]
_log = logging.getLogger("paceline.serving")
_FOLDER = 1024 * 1024 * 1024  # and of all
_LINES = 50_000  # most of a batch
_DAY = 24 * 3600
_OPEN = ("validating", "in_progress", "finalizing", "cancelling")
_ENDED = ("completed", "failed", "cancelled")
_GOOD = b'"response":{"status_code":200,'  # stands in records of answers; texts have it escaped


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

    def add(self, data: bytes | memoryview, name: str, purpose: str, id: str | None = None) -> Json:
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
        if id.startswith(f"{kind}-") and id.replace("-", "").isalnum():
            with contextlib.suppress(OSError):
                record: Json = json.loads(path.read_text(encoding="utf-8"))
                return record
        raise BadRequest(f"id: there is no {kind} {id[:100]!r}", "id", 404)

    def all(self, kind: str) -> list[Json]:
        """Return all records, the eldest first."""
        found = []
        for each in self.path("").glob(f"{kind}-*.json"):
            with contextlib.suppress(BadRequest):  # deleted meanwhile
                found.append(self.get(each.stem, kind))
        return sorted(found, key=lambda each: (each["created_at"], each["id"]))

    def delete(self, id: str) -> Json:
        self.get(id)
        for kind in ("json", "data"):
            self.path(f"{id}.{kind}").unlink(missing_ok=True)
        return {"id": id, "object": "file", "deleted": True}

    def upload(self, body: bytes, kind: str) -> Json:
        """Keep the file of a form, of which nothing is copied; BadRequest names what is wrong."""
        parts = {name: (file, value) for name, file, value in form_parts(body, kind)}
        if "file" not in parts:
            raise BadRequest("file: it is missing: send a form with purpose and file", "file")
        if "purpose" not in parts or bytes(parts["purpose"][1][:100]).strip() != b"batch":
            raise BadRequest("purpose: it must be batch: nothing else is done here", "purpose")
        name, data = parts["file"]
        return self.add(data, name or "file", "batch")


class Batches:
    """Runs batches beside other requests, on half of the engine's places."""

    def __init__(self, service: Any, files: Files) -> None:
        """`service` decodes: see `app.Service`."""
        self._service, self._files = service, files
        self._most = max(1, service.settings.max_batch // 2)
        self._places = asyncio.Semaphore(self._most)
        self.running: dict[str, tuple[Json, asyncio.Task[None]]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def create(self, body: BatchRequest) -> Json:
        """Begin a batch; from any thread, once the server is open."""
        self._files.get(body.input_file_id)
        names = "errors output_file_id error_file_id " + " ".join(
            f"{each}_at" for each in ("in_progress", "expired", *_OPEN[2:], *_ENDED)
        )
        now = int(time())
        batch = {"id": f"batch-{uuid.uuid4().hex}", "object": "batch", **to_builtins(body)}
        batch |= dict.fromkeys(names.split()) | {"status": "validating", "created_at": now}
        counts = {"total": 0, "completed": 0, "failed": 0}
        batch |= {"expires_at": now + _DAY, "request_counts": counts}
        self._files.save(batch)
        assert self._loop is not None  # it is open
        self._loop.call_soon_threadsafe(self._start, {**batch})
        return batch

    def get(self, id: str) -> Json:
        """Return a batch as it is now; BadRequest (404) if there is none."""
        running = self.running.get(id)
        return self._files.get(id, "batch") if running is None else running[0]

    def cancel(self, id: str) -> Json:
        """End a batch with what is answered; BadRequest (404, 409), or Closed."""
        batch = self.get(id)
        if batch["status"] in ("finalizing", *_ENDED):
            said = f"batch: it is {batch['status']}: nothing is left to cancel"
            raise BadRequest(said, None, 409)
        if id not in self.running:
            raise Closed("the server begins or ends: try again later")
        if batch["status"] != "cancelling":
            self._turn(batch, "cancelling")
            self.running[id][1].cancel()
        return batch

    def open(self) -> None:
        """Go on with what was begun before. Called in the event loop."""
        self._loop = asyncio.get_running_loop()
        with contextlib.suppress(BadRequest):  # without a folder
            for batch in self._files.all("batch"):
                if batch["status"] in _OPEN:
                    self._start(batch)

    def close(self) -> None:
        """Stop; the next server goes on."""
        running, self.running = self.running, {}
        for _, task in running.values():
            task.cancel()

    def _start(self, batch: Json) -> None:
        if self._service.gate.closed is None:  # or the next server does
            task = asyncio.get_running_loop().create_task(self._run(batch))
            self.running[batch["id"]] = batch, task

    def _turn(self, batch: Json, status: str, **fields: Any) -> None:
        batch |= {"status": status, f"{status}_at": int(time()), **fields}
        self._files.save(batch)

    async def _run(self, batch: Json) -> None:
        id = batch["id"]
        try:
            try:
                await self._answer(batch)
            except asyncio.CancelledError:
                if batch["status"] != "cancelling":  # the server ends
                    raise
            if batch["status"] == "failed" or id not in self.running:
                return
            status = "cancelled" if batch["status"] == "cancelling" else "completed"
            if status == "completed":
                self._turn(batch, "finalizing")
            await asyncio.to_thread(self._end, batch, status)
        except EngineFailed:  # the next server goes on
            return
        except Exception as error:  # such as a full disk: the batch says so
            _log.exception("batch %s failed", id)
            wrong = {"code": "server_error", "message": str(error), "line": None, "param": None}
            self._turn(batch, "failed", errors={"object": "list", "data": [wrong]})
        finally:
            self.running.pop(id, None)

    async def _answer(self, batch: Json) -> None:
        # Answers what is not answered, unless a line is wrong.
        part = self._files.path(f"{batch['id']}.part")
        lines, errors = await asyncio.to_thread(self._read, batch)
        if errors:
            self._turn(batch, "failed", errors={"object": "list", "data": errors})
            return
        if batch["status"] == "validating":
            self._turn(batch, "in_progress")
        while (opened := await asyncio.to_thread(_opened, part)) is None:
            await asyncio.sleep(0.2)  # until the server before has ended
        file, done = opened
        left = (each for each in lines if each.key not in done)
        counts = batch["request_counts"]

        async def some() -> None:
            for line in left:
                async with self._places:
                    record = await self._record(line)
                counts["completed" if _GOOD in record else "failed"] += 1
                while record:
                    record = record[file.write(record) :]

        with file:
            if batch["status"] == "cancelling":
                return
            good, bad = _parted(part)
            counts |= {"total": len(lines), "completed": len(good), "failed": len(bad)}
            tasks = [asyncio.ensure_future(some()) for _ in range(self._most)]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)

    def _read(self, batch: Json) -> tuple[list[Line], list[Json]]:
        # The lines of a batch, and what is wrong with them.
        path = self._files.path(f"{batch['input_file_id']}.data")
        data = path.read_bytes() if path.is_file() else b""
        if data.count(b"\n") + data.count(b"\r") > 2 * _LINES:
            said = f"the file has too many lines: give {_LINES} at most"
            return [], [{"code": "too_many_lines", "message": said, "line": None, "param": None}]
        lines = read_lines(path)
        wrong = (error for each in lines if (error := _wrong(each, batch)) is not None)
        return lines, list(islice(wrong, 1000))

    def _end(self, batch: Json, status: str) -> None:
        id, part = batch["id"], self._files.path(f"{batch['id']}.part")
        good, bad = _parted(part)
        batch["request_counts"] |= {"completed": len(good), "failed": len(bad)}
        for kind, some in (("output", good), ("error", bad)):
            if some:
                file_id = f"file-{kind}{id.removeprefix('batch-')}"
                self._files.add(b"".join(some), f"{id}_{kind}.jsonl", "batch_output", file_id)
                batch[f"{kind}_file_id"] = file_id
        self._turn(batch, status)
        part.unlink(missing_ok=True)

    async def _record(self, line: Line) -> bytes:
        outbox = Outbox()
        worker, hosted = None, None
        name = line.body.get("model") if isinstance(line.body, dict) else None
        try:
            found = self._service.hosting.find(name)
            model = await self._service.hosting.take(found)
            hosted, worker = found, found.worker
            planned, make = await asyncio.to_thread(asked, model, line)
            answer = make(line.id, outbox.accepted)
            outbox.jobs = planned.jobs(outbox)
            worker.submit(outbox.jobs)
            while not answer.done:
                for place, event in await outbox.get(60.0):
                    if event.error is not None:
                        raise event.error
                    answer.feed(place, event)
                    self._service.spare(worker, answer, place, outbox)
            return recorded(line, 200, answer.whole(), planned.notes.left)
        except PacelineError as error:
            if isinstance(error, EngineFailed) and self._service.gate.closed is not None:
                raise  # for good: the next server asks again
            return refused(line, error)
        finally:
            if hosted is not None and worker is not None:
                worker.cancel(outbox.jobs)
                self._service.hosting.give(hosted)


def _opened(path: Path) -> tuple[FileIO, set[str]] | None:
    with contextlib.suppress(Locked):
        return open_output(path)
    return None


def _wrong(line: Line, batch: Json) -> Json | None:
    if line.fault is not None:
        return {**line.fault._asdict(), "line": line.number, "param": None}
    if line.url == batch["endpoint"] and line.method == "POST":
        return None
    said = f"line {line.number}: it must be POST and {batch['endpoint']}, as the batch"
    return {"code": "mismatched_url", "message": said, "line": line.number, "param": "url"}


def _parted(path: Path) -> tuple[list[bytes], list[bytes]]:
    # Records of answers, and of errors.
    made = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [e for e in made if _GOOD in e], [e for e in made if _GOOD not in e]
