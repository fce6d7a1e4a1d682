"""Weights are mapped whole, privately, and in large pages where this kernel has them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from veltair.machine.memory import huge_page_mode
from veltair.profiles.runtime import huge_pages as pages


def test_the_bytes_are_the_files_and_writes_stay_private(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    content = np.random.default_rng(0).integers(0, 256, 3 * pages.PAGE_BYTES + 1234, np.uint8)
    path.write_bytes(content.tobytes())
    memory = pages.map_file(path)
    np.testing.assert_array_equal(memory, content)
    assert memory.ctypes.data % pages.PAGE_BYTES == 0
    memory[5] += 1
    np.testing.assert_array_equal(pages.map_file(path), content)
    assert path.read_bytes() == content.tobytes()


def test_a_mapping_ends_with_its_array(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(bytes(1 << 20))
    memory = pages.map_file(path)
    view = memory[10:].view(np.int8)
    del memory
    assert not view.any()  # a view holds the mapping
    assert str(path) in Path("/proc/self/maps").read_text("utf-8")
    del view
    assert str(path) not in Path("/proc/self/maps").read_text("utf-8")


def test_no_weights_at_all(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").touch()
    assert pages.map_file(tmp_path / "weights.bin").size == 0
    assert pages.move_to_huge_pages(tmp_path / "weights.bin") == 0.0


def test_what_came_in_small_pages_is_read_again_in_large_ones(tmp_path: Path) -> None:
    if not pages.has_huge_pages(tmp_path):
        pytest.skip(f"files here have no large pages (transparent huge pages: {huge_page_mode()})")
    path = tmp_path / "weights.bin"
    with path.open("wb", buffering=0) as file:
        for _ in range(pages.WORTH_BYTES // 4096):
            file.write(b"\7" * 4096)
        os.fsync(file.fileno())
    assert pages.move_to_huge_pages(path) >= pages.ENOUGH
    assert (pages.map_file(path)[:: 1 << 16] == 7).all()


def test_a_folder_that_does_not_exist_offers_nothing(tmp_path: Path) -> None:
    assert pages.has_huge_pages(tmp_path / "none") is None


@pytest.mark.parametrize("size", [100, pages.PAGE_BYTES - 1, pages.PAGE_BYTES, 3 * pages.PAGE_BYTES + 1])
def test_memory_of_activations_is_zeroed_and_large_where_it_fills_a_page(size: int) -> None:
    memory = np.frombuffer(pages.zeroed_memory(size), np.uint8)
    assert memory.size >= size and not memory.any()
    memory = np.frombuffer(pages.zeroed_memory(size), np.uint8)
    memory[:] = 1
    if huge_page_mode() not in ("never", "absent"):
        assert (pages.huge_page_bytes(memory) == memory.size) == (size >= pages.PAGE_BYTES)
