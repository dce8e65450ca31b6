"""`paceline index`: a text or token file becomes a datastore to draft from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import options as o
from paceline.cli.output import print_json, progress_bar, remark
from paceline.errors import InvalidOption

if TYPE_CHECKING:
    from paceline.methods.datastore.drafter import Tokens
    from paceline.models.text import Tokenizer

_PIECE = 1 << 18
"""Bytes of text that are tokenised at a time."""

Source = Annotated[Path, typer.Argument(help="UTF-8 text, or token ids as a .npy file.")]
Out = Annotated[Path, "Directory of the index; an earlier index is replaced."]


def index(
    file: Source, out: Out, model: o.Model = "smollm2-135m", as_json: o.AsJson = False
) -> None:
    """Index a text, so that --drafter datastore can draft what it says."""
    from paceline.methods.datastore import drafter as suffix_array
    from paceline.models.source import resolve

    begin = perf_counter()
    suffix_array.check_place(out)  # before an hour of work
    if not file.is_file():
        raise InvalidOption(f"{file} is no file: give a text or a .npy file of token ids")
    tokenizer = resolve(model).tokenizer()
    if file.suffix == ".npy":
        tokens = _token_file(file)
    else:
        with _progress("reading", file.stat().st_size) as advance:
            tokens = _tokenise(file, tokenizer, advance)
    with _progress("sorting", suffix_array.ROUNDS) as advance:
        suffix_array.build(
            tokens, out, tokenizer.vocab_size, tokenizer.fingerprint, lambda: advance(1)
        )
    size = sum(part.stat().st_size for part in out.iterdir())
    seconds = perf_counter() - begin
    if as_json:
        print_json(
            {"path": str(out), "tokens": len(tokens), "bytes": size, "seconds": round(seconds, 3)}
        )
    else:
        remark(f"{len(tokens)} tokens, {size / 1e6:.1f} MB, {seconds:.1f} s")
        typer.echo(str(out))


def _token_file(file: Path) -> Tokens:
    import numpy as np

    try:
        tokens = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InvalidOption(f"{file} is no NumPy file: save token ids with numpy.save") from error
    if not isinstance(tokens, np.ndarray) or tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise InvalidOption(f"{file} holds no token ids: save one row of integers")
    for extreme in (tokens.min(), tokens.max()) if len(tokens) else ():
        if not 0 <= extreme <= np.iinfo(np.int32).max:
            raise InvalidOption(f"{file} holds {extreme}, which is no token id: save token ids")
    return tokens.astype(np.int32)


def _tokenise(file: Path, tokenizer: Tokenizer, advance: Callable[[int], None]) -> Tokens:
    import numpy as np

    parts = []
    offset = 0
    for piece in _pieces(file):
        try:
            text = piece.decode()
        except UnicodeDecodeError as error:
            raise InvalidOption(
                f"{file} is not UTF-8 at byte {offset + error.start}: convert it first"
            ) from error
        parts.append(np.array(tokenizer.encode(text), dtype=np.int32))
        offset += len(piece)
        advance(len(piece))
    if not parts:
        raise InvalidOption(f"{file} is empty: give a text")
    return np.concatenate(parts)


def _pieces(file: Path) -> Iterator[bytes]:
    # Pieces end before lines that begin without a space: byte-level tokenizers split there anyway.
    # Others may differ by a token there, which a datastore can bear.
    lines: list[bytes] = []
    size = 0
    with file.open("rb") as source:
        for line in source:
            if size >= _PIECE and not line[:1].isspace():
                yield b"".join(lines)
                lines, size = [], 0
            lines.append(line)
            size += len(line)
    if lines:
        yield b"".join(lines)


@contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    with progress_bar() as bar:
        task = bar.add_task(what, total=total)
        yield lambda amount: bar.advance(task, amount)
