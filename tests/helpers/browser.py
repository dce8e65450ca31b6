"""Chromium without a window, driven over the pipe of its DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")


class Page:
    """One page. Promises that scripts return are awaited."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._rest = b""
        self._number = 0
        self._session: dict[str, str] = {}
        self.console: list[str] = []
        """What the page complained about."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params, **self._session}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def await_event(self, method: str) -> None:
        while self._next().get("method") != method:
            pass

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._read, 1 << 16)
            assert part, "the browser has ended"
            self._rest += part
        head, self._rest = self._rest.split(b"\0", 1)
        message: dict[str, Any] = json.loads(head)
        if message.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown"):
            self.console.append(json.dumps(message["params"]))
        return message

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.await_event("Page.loadEventFired")

    def run(self, script: str) -> Any:
        """Return the value of an expression, or of the promise that it is."""
        params = {"expression": script, "awaitPromise": True, "returnByValue": True}
        answer = self.call("Runtime.evaluate", **params)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait until an expression holds, looked at after every change of the page."""
        self.run(
            "new Promise((done, fail) => {"
            f"  const holds = () => {{ if ({condition}) {{ seen.disconnect(); done(); }} }};"
            "  const seen = new MutationObserver(holds);"
            "  seen.observe(document, {subtree: true, childList: true, characterData: true,"
            "    attributes: true});"
            f"  setTimeout(() => fail(new Error('never: ' + {json.dumps(condition)})), 20000);"
            "  holds(); })"
        )

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def press(self, key: str, modifiers: int = 0) -> None:
        """Press a key; `modifiers` is 8 for Shift."""
        code = {"Enter": 13, "Escape": 27, "Tab": 9}[key]
        names = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **names, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **names)

    def look(self, width: int, height: int, scheme: str = "light") -> None:
        """Set the size in pixels, and the colour scheme."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        wish = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=wish)

    def shoot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """Start a browser with its profile in `folder`."""
    assert PROGRAM is not None
    (to_read, to_write), (from_read, from_write) = os.pipe(), os.pipe()
    # The protocol wants descriptors 3 and 4, so a shell puts them there.
    command = f'exec "$0" "$@" 3<&{to_read} 4>&{from_write}'
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    # A microphone that beeps, and may be listened to.
    flags += [f"--use-fake-{part}-for-media-stream" for part in ("ui", "device")]
    flags += ["--remote-debugging-pipe", f"--user-data-dir={folder}", "--no-first-run"]
    process = subprocess.Popen(
        ["bash", "-c", command, PROGRAM, *flags],
        pass_fds=(to_read, from_write),
        stderr=subprocess.DEVNULL,
    )
    os.close(to_read)
    os.close(from_write)
    try:
        yield Page(to_write, from_read)
    finally:
        os.close(to_write)
        process.terminate()
        process.wait(20)
        os.close(from_read)
