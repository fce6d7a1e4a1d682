"""A signal's exception comes out of whichever line runs: here, out of each in turn."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


def interrupted_at_each_line(action: Callable[[], None], module: str) -> Iterator[int]:
    """Do it once for each line of the module that it runs, up to that line, and give the line's place in the order."""
    for step in range(_interrupted_at(-1, action, module)):
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):  # of a file whose `with` had not begun
            try:
                _interrupted_at(step, action, module)
            except SystemExit:
                gc.collect(1)  # what has just been made; all would be seconds behind a thousand tests
        yield step


def _interrupted_at(step: int, action: Callable[[], None], module: str) -> int:
    """Returns how many lines ran; none is interrupted at -1."""
    count = 0

    def line(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        if event == "line":
            count += 1
            if count == step + 1:
                sys.settrace(None)
                raise SystemExit(143)
        return line

    def call(frame: FrameType, event: str, argument: object) -> Any:
        return line if frame.f_code.co_filename.endswith(f"/{module}") else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        action()
    finally:
        sys.settrace(before)
    return count
