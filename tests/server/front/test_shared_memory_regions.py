"""SharedMemoryRegions of shared memory that clients name: what is read and written, and what never is."""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veltair.errors import RequestError, TooLargeError, UnsupportedError
from veltair.profiles.artifact.strings import Strings
from veltair.server.front.shared_memory_regions import FOLDER, MAX_REGIONS, SharedMemoryRegions
from veltair.server.protocol.infer_request import NamedTensor, TensorLocation
from veltair.server.protocol.tensor_values import tensor_bytes

CONTENT = np.random.default_rng(1).bytes(4096)
LIMIT = 1 << 20


@pytest.fixture
def key() -> Iterator[str]:
    """Shared memory that holds CONTENT."""
    path = FOLDER / f"veltair-test-{os.getpid()}-{secrets.token_hex(4)}"
    path.write_bytes(CONTENT)
    yield f"/{path.name}"
    path.unlink(missing_ok=True)


@pytest.fixture
def regions(key: str) -> Iterator[SharedMemoryRegions]:
    """With one region, `all` of CONTENT from byte 96 on, 4000 of them."""
    made = SharedMemoryRegions(LIMIT, allowed=True)
    made.register("all", key, 96, 4000)
    yield made
    made.close()


def placed(offset: int, size: int, region: str = "all") -> NamedTensor:
    return NamedTensor("x", "UINT8", (size,), TensorLocation(region, offset, size))


def test_a_region_is_read_where_it_was_registered_and_inputs_that_came_along_stay(regions: SharedMemoryRegions) -> None:
    came = NamedTensor("y", "UINT8", (1,), b"\x05")
    first, second, third = regions.read_inputs([placed(0, 8), came, placed(3000, 1000)])
    assert first.data == CONTENT[96:104] and second is came and third.data == CONTENT[3096:]
    assert regions.read_inputs([came]) == [came]


@given(offset=st.integers(0, 5000) | st.integers(0, 2**63 - 1), size=st.integers(0, 5000) | st.integers(0, 2**63 - 1))
def test_nothing_outside_of_a_region_is_read(offset: int, size: int) -> None:
    path = FOLDER / f"veltair-test-{os.getpid()}-{secrets.token_hex(4)}"
    path.write_bytes(CONTENT)
    regions = SharedMemoryRegions(LIMIT, allowed=True)
    try:
        regions.register("part", path.name, 1000, 2000)
        if offset + size <= 2000:
            (found,) = regions.read_inputs([placed(offset, size, "part")])
            assert found.data == CONTENT[1000 + offset : 1000 + offset + size]
        else:
            with pytest.raises(RequestError):
                regions.read_inputs([placed(offset, size, "part")])
    finally:
        regions.close()
        path.unlink()


def test_outputs_are_written_where_they_were_asked_and_nowhere_else(regions: SharedMemoryRegions, key: str) -> None:
    values, texts = np.arange(6, dtype=np.float32).reshape(2, 3), Strings.from_values([b"ab", b"c"])
    raw = bytes(tensor_bytes(texts))
    places = {"a": TensorLocation("all", 100, 32), "b": TensorLocation("all", 4000 - len(raw), len(raw))}
    regions.check_outputs(places)
    stored = regions.write_outputs({"a": values, "b": texts, "c": values}, places)
    assert stored == {"a": TensorLocation("all", 100, 24), "b": places["b"]}
    now = (FOLDER / key[1:]).read_bytes()
    assert now[196:220] == values.tobytes() and now[4096 - len(raw) :] == raw
    assert now[:196] == CONTENT[:196] and now[220 : 4096 - len(raw)] == CONTENT[220 : 4096 - len(raw)]
    with pytest.raises(RequestError, match="takes 24 bytes, its shared memory has 23"):
        regions.write_outputs({"a": values}, {"a": TensorLocation("all", 0, 23)})
    with pytest.raises(RequestError, match="outside of region 'all'"):
        regions.check_outputs({"a": TensorLocation("all", 3990, 24)})


def test_memory_that_its_owner_cuts_is_an_error_and_grows_no_more(regions: SharedMemoryRegions, key: str) -> None:
    path = FOLDER / key[1:]
    os.truncate(path, 200)
    with pytest.raises(RequestError, match="has become shorter"):
        regions.read_inputs([placed(0, 1000)])
    with pytest.raises(RequestError, match="has become shorter"):
        regions.write_outputs({"a": np.zeros(250, np.float32)}, {"a": TensorLocation("all", 0, 1000)})
    assert path.stat().st_size == 200
    assert regions.read_inputs([placed(0, 104)])[0].data == CONTENT[96:200]


KEYS = {
    "a path": ("/etc/passwd", "must be a name as shm_open"),
    "the folder above": ("../etc/passwd", "must be a name as shm_open"),
    "a dot": ("/..", "must be a name as shm_open"),
    "nothing": ("", "must be a name as shm_open"),
    "NUL": ("/a\0b", "must be a name as shm_open"),
    "long": ("/" + "a" * 300, "must be a name as shm_open"),
    "not there": ("/veltair-test-not-there", "cannot be opened"),
}


@pytest.mark.parametrize("case", KEYS)
def test_a_key_that_names_no_shared_memory(regions: SharedMemoryRegions, case: str) -> None:
    name, message = KEYS[case]
    with pytest.raises(RequestError, match=message):
        regions.register("new", name, 0, 1)
    assert [region.name for region in regions.list_regions()] == ["all"]


def test_links_folders_and_pipes_are_no_memory(regions: SharedMemoryRegions) -> None:
    path = FOLDER / f"veltair-test-{os.getpid()}-{secrets.token_hex(4)}"
    makers = [lambda: path.symlink_to("/etc/passwd"), path.mkdir, lambda: os.mkfifo(path)]
    for make, remove in zip(makers, (path.unlink, path.rmdir, path.unlink), strict=True):
        make()
        try:
            with pytest.raises(RequestError, match=r"cannot be opened|expected 1 bytes of shared memory"):
                regions.register("new", path.name, 0, 1)
        finally:
            remove()


def test_what_a_registration_must_be(regions: SharedMemoryRegions, key: str) -> None:
    for name, offset, size, message in (
        ("all", 0, 8, "is registered already"),
        ("", 0, 8, "1 to 256 characters"),
        ("n" * 257, 0, 8, "1 to 256"),
        ("new", -1, 8, "no part of memory"),
        ("new", 0, 0, "no part of memory"),
        ("new", 4090, 8, "expected 4098 bytes of shared memory, found 4096"),
        ("new", 2**62, 2**62, "expected"),
    ):
        with pytest.raises(RequestError, match=message):
            regions.register(name, key, offset, size)
    for number in range(1, MAX_REGIONS):
        regions.register(str(number), key, 0, 8)
    with pytest.raises(RequestError, match="which is the most"):
        regions.register("one more", key, 0, 8)


def test_regions_come_and_go(regions: SharedMemoryRegions, key: str) -> None:
    regions.register("part", key, 8, 16)
    assert [region.description() for region in regions.list_regions("part")] == [
        {"name": "part", "key": key, "offset": 8, "byte_size": 16}
    ]
    files = Path("/proc/self/fd")
    held = len([*files.iterdir()])
    regions.unregister("part")
    regions.unregister("part")  # as Triton: nothing there is nothing to do
    assert len([*files.iterdir()]) == held - 1
    for ask in (lambda: regions.list_regions("part"), lambda: regions.read_inputs([placed(0, 1, "part")])):
        with pytest.raises(RequestError, match="no region 'part' is registered"):
            ask()
    regions.unregister()
    assert regions.list_regions() == []


def test_the_inputs_of_a_query_are_bounded_together(key: str) -> None:
    regions = SharedMemoryRegions(1000, allowed=True)
    regions.register("all", key, 0, 4096)
    regions.read_inputs([placed(0, 500), placed(0, 500)])
    with pytest.raises(TooLargeError, match="1001 bytes, 1000 are allowed"):
        regions.read_inputs([placed(0, 500), placed(0, 501)])
    regions.close()


def test_off_unless_allowed(key: str) -> None:
    regions = SharedMemoryRegions(LIMIT, allowed=False)
    calls = [
        lambda: regions.register("all", key, 0, 8),
        regions.unregister,
        regions.list_regions,
        lambda: regions.read_inputs([placed(0, 1)]),
        lambda: regions.check_outputs({"a": TensorLocation("all", 0, 1)}),
    ]
    for ask in calls:
        with pytest.raises(UnsupportedError, match="shared memory is off"):
            ask()
