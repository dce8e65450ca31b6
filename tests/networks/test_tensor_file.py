"""Files of trained tensors: a disk that fills up leaves what was there."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from paceline.errors import InvalidOption
from paceline.networks.weights import write_tensors

TENSORS = {"a": np.arange(1000, dtype=np.float32)}


def test_what_is_written_is_read_and_the_part_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_tensors(path, TENSORS, {"model": "x"})
    assert (load_file(path)["a"] == TENSORS["a"]).all()
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_named_and_leaves_the_earlier_file(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_tensors(path, TENSORS, {})
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(InvalidOption, match=r"cannot write .*a\.safetensors .*another --out"):
            write_tensors(path, {"a": -TENSORS["a"]}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=r"cannot write .*nowhere.*No such file"):
        write_tensors(tmp_path / "nowhere" / "a.safetensors", TENSORS, {})
