"""Tables in memory as workers have those of an artifact."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from numpy.typing import NDArray


def map_copy(path: Path) -> NDArray[Any]:
    """The bytes of a file, copied into memory that processes can share, and mapped from there."""
    from veltair.profiles.runtime.huge_pages import map_memory

    memory = os.memfd_create(path.name, os.MFD_CLOEXEC)
    try:
        with path.open("rb") as file:
            while os.sendfile(memory, file.fileno(), None, 1 << 30):
                pass
        return map_memory(memory)
    finally:
        os.close(memory)
