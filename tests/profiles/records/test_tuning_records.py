from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from veltair.errors import UserError
from veltair.profiles.records.tuning_records import RecordStore, TuningRecord, read_records, target_name

AVX512 = frozenset({"avx2", "avx512"})


def record(workload: str = "conv2d 1", tile: int = 1, run_ns: tuple[int, ...] = (20, 10)) -> TuningRecord:
    return TuningRecord(workload, 1, {"tile": tile}, run_ns, 64, 8, ("avx2", "avx512"), "a cpu", "0.27")


def store(root: Path, features: frozenset[str] = AVX512) -> RecordStore:
    return RecordStore(features, user=root / "user", shipped=root / "shipped")


def test_the_richest_target_that_the_cpu_has() -> None:
    assert target_name(frozenset({"avx2", "avx512", "amx_bf16"})) == "amx"
    assert target_name(AVX512 | {"avx512_bf16"}) == "avx512_bf16"
    assert target_name(AVX512) == "avx512"
    assert target_name(frozenset({"avx2"})) == "avx2"
    assert target_name(frozenset()) == "generic"


def test_what_was_appended_is_found_again_in_order(tmp_path: Path) -> None:
    first = store(tmp_path)
    for tile in (1, 2, 3):
        first.append(record(tile=tile))
    first.append(record("conv2d 2"))
    again = store(tmp_path)
    assert [r.point["tile"] for r in again.own("conv2d 1")] == [1, 2, 3]
    assert again.own("conv2d 2") == first.own("conv2d 2") == (record("conv2d 2"),)
    assert again.own("conv2d 3") == () == again.shipped("conv2d 1")


def test_targets_do_not_share_what_was_measured_here(tmp_path: Path) -> None:
    store(tmp_path).append(record())
    assert store(tmp_path, frozenset({"avx2"})).own("conv2d 1") == ()


def test_shipped_records_of_a_lesser_target_serve_where_the_own_has_none(tmp_path: Path) -> None:
    for name, tile in (("avx2", 2), ("avx512", 5)):
        made = RecordStore(AVX512 if name == "avx512" else frozenset({"avx2"}), user=tmp_path / "shipped")
        made.append(record(tile=tile))
        if name == "avx2":
            made.append(record("conv2d 2", tile=7))
    amx = store(tmp_path, AVX512 | {"amx_bf16"})
    assert [r.point["tile"] for r in amx.shipped("conv2d 1")] == [5]
    assert [r.point["tile"] for r in amx.shipped("conv2d 2")] == [7]


def test_dot_products_and_tiles_do_not_share_records(tmp_path: Path) -> None:
    dots, tiles = AVX512 | {"avx512_bf16"}, AVX512 | {"avx512_bf16", "amx_bf16"}
    for features, tile in ((dots, 2), (tiles, 5)):
        RecordStore(features, user=tmp_path / "shipped").append(record(f"{tile}", tile=tile))
    RecordStore(AVX512, user=tmp_path / "shipped").append(record("conv2d 1"))
    for features, own in ((dots, "2"), (tiles, "5")):
        assert store(tmp_path, features).everything.keys() == {own, "conv2d 1"}


def test_own_records_from_before_the_tiles_of_integers_do_not_count_where_there_are_some(tmp_path: Path) -> None:
    before = AVX512 | {"amx_bf16"}
    for workload in ("conv2d_int8 1", "matmul_int8 1", "depthwise_int8 1", "conv2d_bf16 1"):
        store(tmp_path, before).append(record(workload))
    assert len(store(tmp_path, before).everything) == 4
    tiles = store(tmp_path, before | {"amx_int8"})
    assert tiles.everything.keys() == {"depthwise_int8 1", "conv2d_bf16 1"}
    again = TuningRecord("conv2d_int8 1", 1, {"unit": "amx"}, (5,), 64, 8, ("amx_int8", "avx2"), "a cpu", "0.27")
    tiles.append(again)
    assert store(tmp_path, before | {"amx_int8"}).own("conv2d_int8 1") == (again,)
    first = TuningRecord("matmul_int8 1", 1, {"unit": "amx", "blocks": 4}, (5,), 64, 8, ("amx_int8",), "a cpu", "0.27")
    tiles.append(first)
    assert store(tmp_path, before | {"amx_int8"}).own("matmul_int8 1") == ()


def test_all_records_of_a_workload_stand_together(tmp_path: Path) -> None:
    RecordStore(AVX512, user=tmp_path / "shipped").append(record(tile=1))
    RecordStore(frozenset({"avx2"}), user=tmp_path / "shipped").append(record("conv2d 2", tile=2))
    both = store(tmp_path)
    both.append(record(tile=3))
    both.append(record("conv2d 3", tile=4))
    tiles = {name: [r.point["tile"] for r in found] for name, found in both.everything.items()}
    assert tiles == {"conv2d 1": [1, 3], "conv2d 2": [2], "conv2d 3": [4]}


def test_a_torn_last_line_is_skipped_with_a_note_and_cut_by_the_next_append(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store(tmp_path).append(record(tile=1))
    path = tmp_path / "user" / "avx512.jsonl"
    path.write_bytes(path.read_bytes() + b'{"workload":"conv2d 1","bat')
    with caplog.at_level(logging.WARNING):
        interrupted = store(tmp_path)
    assert f"{path}:2: the last record is cut short" in caplog.text
    interrupted.append(record(tile=2))
    assert [r.point["tile"] for r in read_records(path)] == [1, 2]


def test_a_torn_line_longer_than_a_page_is_cut(tmp_path: Path) -> None:
    fresh = store(tmp_path)
    fresh.append(record(tile=1))
    path = tmp_path / "user" / "avx512.jsonl"
    path.write_bytes(path.read_bytes() + b"x" * 10_000)
    fresh.append(record(tile=2))
    assert [r.point["tile"] for r in read_records(path)] == [1, 2]


RECORD = msgspec.json.decode(msgspec.json.encode(record()))


@pytest.mark.parametrize(
    "line",
    [
        b"{}",
        b"not json",
        b'{"workload": 5}',
        b"[1]",
        b"",
        b"\xff\xfe",
        b'{"workload":"a","colour":"red"}',
        *(msgspec.json.encode(RECORD | altered) for altered in ({"run_ns": [0]}, {"run_ns": [-5]}, {"batch": 0})),
    ],
)
def test_any_other_broken_line_is_named_by_file_and_line_and_skipped(
    tmp_path: Path, line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    store(tmp_path).append(record(tile=1))
    path = tmp_path / "user" / "avx512.jsonl"
    path.write_bytes(path.read_bytes() + line + b"\n" + line + b"\n")
    store(tmp_path).append(record(tile=2))
    caplog.clear()
    assert [r.point["tile"] for r in store(tmp_path).own("conv2d 1")] == [1, 2]
    (told,) = caplog.messages
    assert told.startswith(f"{path}:2: expected a tuning record") and "1 more lines of the file are none" in told


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    fresh = store(tmp_path)
    (tmp_path / "user").write_text("a file where the folder should be")
    with pytest.raises(UserError, match=r"user.avx512\.jsonl: cannot keep tuning records there"):
        fresh.append(record())
    with pytest.raises(UserError, match=r"user.avx512\.jsonl: cannot read tuning records"):
        store(tmp_path)


APPEND = """
import sys
from pathlib import Path
from veltair.profiles.records.tuning_records import RecordStore, TuningRecord

own = RecordStore(frozenset({"avx512"}), user=Path(sys.argv[1], "user"), shipped=Path(sys.argv[1], "shipped"))
for tile in range(200):
    own.append(TuningRecord(sys.argv[2], 1, {"tile": tile}, (20, 10), 64, 8, ("avx512",), "a cpu", "0.27"))
"""


def test_two_processes_append_side_by_side(tmp_path: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", APPEND, str(tmp_path), name]) for name in ("a", "b")]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    both = store(tmp_path)
    assert [r.point["tile"] for r in both.own("a")] == list(range(200)) == [r.point["tile"] for r in both.own("b")]
