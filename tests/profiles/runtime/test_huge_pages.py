"""Weights are mapped whole, privately, and in large pages where this kernel has them."""

from __future__ import annotations

import ctypes
import fcntl
import os
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from veltair.machine.memory import huge_page_mode
from veltair.profiles.runtime import huge_pages as pages


def mapped(path: Path) -> NDArray[np.uint8]:
    with path.open("rb") as file:
        return pages.map_memory(file.fileno())


def test_the_bytes_are_the_files_and_writes_stay_private(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    content = np.random.default_rng(0).integers(0, 256, 3 * pages.PAGE_BYTES + 1234, np.uint8)
    path.write_bytes(content.tobytes())
    memory = mapped(path)
    np.testing.assert_array_equal(memory, content)
    assert memory.ctypes.data % pages.PAGE_BYTES == 0
    memory[5] += 1
    np.testing.assert_array_equal(mapped(path), content)
    assert path.read_bytes() == content.tobytes()


def test_a_mapping_ends_with_its_array(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(bytes(1 << 20))
    memory = mapped(path)
    view = memory[10:].view(np.int8)
    del memory
    assert not view.any()  # a view holds the mapping
    assert str(path) in Path("/proc/self/maps").read_text("utf-8")
    del view
    assert str(path) not in Path("/proc/self/maps").read_text("utf-8")


@pytest.mark.parametrize(("offset", "size"), [(0, 8192), (4096, 4096), (100, 8092), (64, 10), (0, 0)])
def test_what_lies_behind_a_part_of_a_file_can_be_read(tmp_path: Path, offset: int, size: int) -> None:
    """Kernels may read past the end of a tensor, whose file ends with a page."""
    content = np.random.default_rng(0).integers(0, 256, 8192, np.uint8)
    (tmp_path / "tensor").write_bytes(content.tobytes())
    with (tmp_path / "tensor").open("rb") as file:
        part = pages.map_part(file.fileno(), offset, size, 8192)
    assert np.array_equal(part, content[offset : offset + size])
    if size:
        behind = np.frombuffer((ctypes.c_uint8 * 8192).from_address(part.ctypes.data + size), np.uint8)
        assert not behind[-(8192 - (len(content) - offset - size)) :].any()


def test_no_weights_at_all(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").touch()
    assert mapped(tmp_path / "weights.bin").size == 0


def test_sealed_memory_that_was_written_in_small_pages_comes_in_large_ones() -> None:
    if not pages.has_huge_pages():
        pytest.skip(f"shared memory here has no large pages (transparent huge pages: {huge_page_mode()})")
    descriptor = os.memfd_create("weights", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        for _ in range(3 * pages.PAGE_BYTES // 4096):
            os.write(descriptor, b"\7" * 4096)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        reader = pages.map_memory(descriptor, writable=False)  # as the artifact loader
        assert pages.huge_page_bytes(reader) == reader.size
        memory = pages.map_memory(descriptor)  # as a worker
        assert pages.huge_page_bytes(memory) == memory.size
        assert (memory == 7).all()
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("size", [100, pages.PAGE_BYTES - 1, pages.PAGE_BYTES, 3 * pages.PAGE_BYTES + 1])
def test_memory_of_activations_is_zeroed_and_large_where_it_fills_a_page(size: int) -> None:
    memory = np.frombuffer(pages.zeroed_memory(size), np.uint8)
    assert memory.size >= size and not memory.any()
    memory = np.frombuffer(pages.zeroed_memory(size), np.uint8)
    memory[:] = 1
    if huge_page_mode() not in ("never", "absent"):
        assert (pages.huge_page_bytes(memory) == memory.size) == (size >= pages.PAGE_BYTES)
