"""The one OpenVINO core of this process."""

from __future__ import annotations

import functools

import openvino as ov


@functools.cache
def core() -> ov.Core:
    """The core, made once and never given up.

    A core's plugin gives the thread that makes it a larger stack for signals, and frees that memory
    when it ends, in whatever thread that happens: a later Ctrl-C would then run on freed memory.
    """
    return ov.Core()
