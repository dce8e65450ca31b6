"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from paceline.core.cache import whole_file, write_atomically


def test_the_file_appears_when_all_of_it_is_there(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    with whole_file(path) as part:
        assert part.parent == tmp_path
        assert not part.exists()
        part.write_bytes(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_readers_see_the_old_file_until_then(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with whole_file(path) as part:
        part.write_bytes(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("error", [OSError, ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("written", [b"", b"half", None])
def test_what_fails_leaves_the_old_file_and_no_part(
    tmp_path: Path, error: type[BaseException], written: bytes | None
) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    raised = error("why")

    def fail() -> None:
        with whole_file(path) as part:
            if written is not None:
                part.write_bytes(written)
            raise raised

    with pytest.raises(error) as caught:
        fail()
    assert caught.value is raised
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_part_that_cannot_be_moved_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.mkdir()
    with pytest.raises(IsADirectoryError), whole_file(path) as part:
        part.write_bytes(b"new")
    assert list(tmp_path.iterdir()) == [path]


def test_a_part_that_was_never_written_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with pytest.raises(FileNotFoundError), whole_file(path):
        pass
    assert path.read_bytes() == b"old"


def test_the_first_error_is_the_one_that_is_raised(tmp_path: Path) -> None:
    """Not that of removing the part, which fails too where a file stands for the directory."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ZeroDivisionError), whole_file(tmp_path / "file" / "a.bin"):
        raise ZeroDivisionError


def test_writers_at_once_have_parts_of_their_own_and_the_last_wins(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    with whole_file(path) as first:
        first.write_bytes(b"first")
        with whole_file(path) as second:
            assert second != first
            second.write_bytes(b"second")
        assert path.read_bytes() == b"second"
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_many_threads_never_show_a_mixture(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    texts = [str(digit) * 20_000 for digit in range(4)]
    path.write_text(texts[0])
    failed: list[BaseException] = []

    def write(text: str) -> None:
        try:
            for _ in range(20):
                write_atomically(path, text)
        except BaseException as error:  # a thread's own error would be lost
            failed.append(error)

    threads = [threading.Thread(target=write, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert path.read_text() in texts
    assert not failed
    assert list(tmp_path.iterdir()) == [path]


def test_text_goes_where_no_directory_was(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "c.txt"
    write_atomically(path, "Grüße\n")
    assert path.read_text(encoding="utf-8") == "Grüße\n"


def test_text_is_as_readable_as_any_new_file(tmp_path: Path) -> None:
    """Folders that several people or containers share hold files that all of them can read."""
    before = os.umask(0o022)
    try:
        write_atomically(tmp_path / "a.txt", "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o644
