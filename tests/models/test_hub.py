"""Models of a hub, over loopback: which files a name means, and that all parts of them come."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub as hub
import pytest

from paceline.errors import ModelError
from paceline.models import hub as module
from paceline.models.source import resolve

COMMIT = "c" * 40
FILES = {
    "a/gguf": [
        *("README.md", "m-Q2_K.gguf", "m-Q4_K_M.gguf", "m-q8_0.gguf", "mmproj-Q4_K_M.gguf"),
        *("m-UD-Q4_K_XL.gguf", "sub/m-IQ4_XS.gguf", "m.imatrix.gguf"),
        *("m-F16-00001-of-00002.gguf", "m-F16-00002-of-00002.gguf"),
    ],
    "a/both": ["config.json", "model.safetensors", "m-Q4_0.gguf", "m-Q8_0.gguf"],
    "a/one": ["only-IQ2_M.gguf"],
    "a/directory": ["config.json", "model.safetensors", "tokenizer.json"],
}


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of a hub as its client asks for."""

    asked: list[str] = []  # noqa: RUF012

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0].strip("/")
        repo = next((each for each in FILES if f"{each}/" in f"{path}/"), None)
        headers = {"X-Repo-Commit": COMMIT}
        if repo is None:
            self.answer(404, b'{"error": "Repository not found"}', {"X-Error-Code": "RepoNotFound"})
        elif path.startswith(f"api/models/{repo}/tree"):
            told = [{"type": "file", "path": p, "size": 4, "oid": "0" * 40} for p in FILES[repo]]
            self.answer(200, json.dumps(told).encode(), headers)
        elif path.startswith("api/models/"):
            told = {"id": repo, "sha": COMMIT, "siblings": [{"rfilename": p} for p in FILES[repo]]}
            self.answer(200, json.dumps(told).encode(), headers)
        else:
            name = path.split("/", 4)[4]
            self.asked.append(name)
            body = name.encode()
            self.answer(200, body, {**headers, "ETag": f'"{hashlib.sha1(body).hexdigest()}"'})

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(autouse=True)
def loopback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    Hub.asked = []
    genuine_list, genuine_one, genuine_all = (
        hub.list_repo_files,
        hub.hf_hub_download,
        hub.snapshot_download,
    )
    api = hub.HfApi(endpoint=address)
    cache = str(tmp_path)
    given = {"endpoint": address, "cache_dir": cache}
    assert genuine_list is not None
    monkeypatch.setattr(hub, "list_repo_files", api.list_repo_files)
    monkeypatch.setattr(hub, "hf_hub_download", lambda *a: genuine_one(*a, **given))
    monkeypatch.setattr(hub, "snapshot_download", lambda *a, **k: genuine_all(*a, **k, **given))
    yield
    server.shutdown()
    server.server_close()


FOUND = {
    ("a/gguf", None): "m-Q4_K_M.gguf",
    ("a/gguf", "Q2_K"): "m-Q2_K.gguf",
    ("a/gguf", "q4_k_m"): "m-Q4_K_M.gguf",
    ("a/gguf", "Q8_0"): "m-q8_0.gguf",
    ("a/gguf", "UD-Q4_K_XL"): "m-UD-Q4_K_XL.gguf",
    ("a/gguf", "IQ4_XS"): "m-IQ4_XS.gguf",
    ("a/gguf", "F16"): "m-F16-00001-of-00002.gguf",
    ("a/both", "Q8_0"): "m-Q8_0.gguf",
    ("a/one", None): "only-IQ2_M.gguf",
}


def failure(reason: str) -> ModelError:
    return ModelError(reason)


@pytest.mark.parametrize("asked", FOUND, ids=str)
def test_a_quantisation_is_one_file(asked: tuple[str, str | None]) -> None:
    path = module.from_hub(*asked, failure)
    assert path.name == FOUND[asked]
    assert path.read_bytes().decode().endswith(path.name)
    fetched = {each for each in Hub.asked if each.endswith(".gguf")}
    assert len(fetched) == (2 if asked[1] == "F16" else 1)
    if asked[1] == "F16":
        assert path.with_name("m-F16-00002-of-00002.gguf").is_file()


@pytest.mark.parametrize("name", ["a/directory", "a/both"])
def test_safetensors_come_first(name: str) -> None:
    path = module.from_hub(name, None, failure)
    assert path.is_dir()
    assert {each.name for each in path.iterdir()} == {
        each for each in FILES[name] if not each.endswith(".gguf")
    }


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a/gguf:Q3_K", "no GGUF file of Q3_K there; its GGUF files: m-F16-00001-of-00002.gguf"),
        ("a/directory:Q4_0", "its GGUF files: none"),
        ("a/nothing", "unknown model 'a/nothing'"),
        ("a/b/c", "no such file"),
    ],
)
def test_what_is_not_there_is_named(name: str, said: str) -> None:
    with pytest.raises(ModelError, match=r"^unknown model [^\n]*$") as error:
        resolve(name)
    assert said in str(error.value)
