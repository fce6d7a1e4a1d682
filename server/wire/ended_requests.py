"""What I/O threads have counted: taken from them, with the ids of the requests where there is an access log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.machine.native_library import array_address
from veltair.server.wire import native

TAKEN_AT_ONCE = 1 << 16  # counts


def take_ended(
    library: Any, wire: int, threads: int, *, with_ids: bool
) -> Iterator[tuple[NDArray[np.void], NDArray[np.void] | None]]:
    """The queries (`native.ENDED`) that have ended since the last time, and their ids, of each thread that has some."""
    for thread in range(threads):
        ended = np.empty(TAKEN_AT_ONCE, native.ENDED)
        ids = np.empty(TAKEN_AT_ONCE, native.ENDED_ID) if with_ids else None
        where = array_address(ended), None if ids is None else array_address(ids)
        taken = library.wire_take_counts(wire, thread, *where, TAKEN_AT_ONCE)
        if taken:
            yield ended[:taken], None if ids is None else ids[:taken]


def shown_ids(ids: NDArray[np.void]) -> list[str]:
    r"""The ids as their clients gave them, cut at 127 bytes.

    >>> shown_ids(np.array([(2, b"a7xx"), (0, b"")], native.ENDED_ID))
    ['a7', '']
    """
    sizes, texts = ids["size"].tolist(), ids["text"].tolist()
    return [text[:size].decode("utf-8", "replace") for size, text in zip(sizes, texts, strict=True)]
