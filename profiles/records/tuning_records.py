"""Tuning records: the measurements of every candidate of every workload, one JSON line each.

There is a file for each target (`avx512.jsonl`), which is only appended to. Some files ship with the package; what is
measured on this machine goes to the user's own folder. A workload that has records is not searched again.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec

from veltair.errors import UserError

SHIPPED = Path(__file__).parent
# Richest first: where a target has no record of a workload, its ancestors' are taken, since their code runs there.
TARGETS = ("amx", "avx512_bf16", "avx512", "avx2", "generic")
_NEEDS: Mapping[str, str] = {"amx": "amx_bf16", "avx512_bf16": "avx512_bf16", "avx512": "avx512", "avx2": "avx2"}
_NOT_INHERITED = {("amx", "avx512_bf16")}  # points of dot products say nothing about tiles
_TILED = ("matmul_int8 ", "conv2d_int8 ")  # workloads that got points of AMX tiles later than others

Positive: TypeAlias = Annotated[int, msgspec.Meta(gt=0)]

log = logging.getLogger(__name__)


class TuningRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One measured candidate.

    >>> TuningRecord("matmul x", 1, {"unroll": 4}, (900, 500), 4096, 8, ("avx2",), "a CPU", "0.1").best_ns
    500
    """

    workload: str  # LayerSpec.workload
    batch: Positive  # size of a dynamic batch that was timed; 1 where there is none
    point: dict[str, int | str]  # where in the workload's design space
    run_ns: tuple[Positive, ...]  # median ns on 1, 2, … cores; empty for a candidate that failed
    block_size: int  # bytes of working set of one parallel task
    parallelism: int  # parallel extent x unroll
    features: tuple[str, ...]  # instruction sets that the code generator was allowed
    cpu: str
    tvm: str
    error: str = ""  # why it failed: did not build, crashed, wrong result

    @property
    def best_ns(self) -> int:
        """The shortest time at any core count. Raises ValueError for a failed candidate, which has no time."""
        return min(self.run_ns)


def target_name(features: frozenset[str]) -> str:
    """The target whose records fit a CPU with these features (names of `veltair.machine.isa.CPU_FEATURES`)."""
    return next((name for name in TARGETS if _NEEDS.get(name) in features), "generic")


def user_folder() -> Path:
    """The folder of the records that are measured on this machine: `$XDG_DATA_HOME/veltair/records`."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share"
    return Path(base) / "veltair" / "records"


class RecordStore:
    """All records that apply to one target: the shipped ones, then the user's, in the order they were made. ::

    store = RecordStore(cpu_features())
    store.shipped(spec.workload) or store.own(spec.workload)
    """

    def __init__(
        self, features: frozenset[str], user: Path | None = None, shipped: Path = SHIPPED, *, fresh: bool = False
    ) -> None:
        """Read the records. With `fresh`, ignore them all; new ones are still appended to those that are there.

        Raises UserError for a file that cannot be read; a line in it that is no record is skipped with a warning.
        """
        self.target = target_name(features)
        self._own = (user_folder() if user is None else user) / f"{self.target}.jsonl"
        inherited = [n for n in TARGETS[TARGETS.index(self.target) :] if (self.target, n) not in _NOT_INHERITED]
        self._shipped = [] if fresh else [_by_workload(shipped / f"{name}.jsonl") for name in inherited]
        self._user = {} if fresh else _by_workload(self._own, features)

    def shipped(self, workload: str) -> tuple[TuningRecord, ...]:
        """The records of a workload that came with the package; such a workload counts as searched."""
        return next((tuple(found[workload]) for found in self._shipped if workload in found), ())

    def own(self, workload: str) -> tuple[TuningRecord, ...]:
        """The records of a workload that were measured on this machine; an interrupted search has left some."""
        return tuple(self._user.get(workload, ()))

    @property
    def everything(self) -> Mapping[str, Sequence[TuningRecord]]:
        """All records by workload, shipped and own: the search transfers points between similar workloads."""
        names = dict.fromkeys(name for found in (*self._shipped, self._user) for name in found)
        return {name: (*self.shipped(name), *self.own(name)) for name in names}

    def append(self, record: TuningRecord) -> None:
        """Append a record to the user's file at once, so that an interrupted search loses nothing of what it measured.

        Raises UserError where the folder cannot be written.
        """
        line = msgspec.json.encode(record) + b"\n"
        try:
            self._own.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._own, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)  # released by the close
                _cut_torn_line(descriptor)
                os.write(descriptor, line)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise UserError(f"{self._own}: cannot keep tuning records there ({error.strerror})") from None
        self._user.setdefault(record.workload, []).append(record)


def read_records(path: Path) -> Iterator[TuningRecord]:
    """The records of one file; none where there is no file. Raises UserError for a file that cannot be read.

    A line that is no record is left out with a warning: a last line without its line end, torn by an interrupted run,
    and lines that were altered or that another version wrote. Without a record a search takes longer, and nothing is
    wrong.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"{path}: cannot read tuning records ({error.strerror})") from None
    *lines, rest = raw.split(b"\n")
    broken = []
    for number, line in enumerate(lines, 1):
        try:
            yield msgspec.json.decode(line, type=TuningRecord)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            broken.append(f"{path}:{number}: expected a tuning record, one JSON object a line: {error}")
    if broken:
        more = f"; {len(broken) - 1} more lines of the file are none" if len(broken) > 1 else ""
        log.warning("%s; skipped%s: their layers are searched again", broken[0], more)
    if rest:
        log.warning("%s:%d: the last record is cut short by an interrupted run; skipped", path, len(lines) + 1)


def _by_workload(path: Path, features: frozenset[str] = frozenset()) -> dict[str, list[TuningRecord]]:
    """The records of a file that count on a CPU with these features.

    Those of 8-bit products from before there were tiles for them do not where the CPU has such tiles, and those of the
    first such tiles, whose points counted "blocks", nowhere.
    """
    found: dict[str, list[TuningRecord]] = {}
    for record in read_records(path):
        before_tiles = "amx_int8" in features and "amx_int8" not in record.features
        older = before_tiles or (record.point.get("unit") == "amx" and "blocks" in record.point)
        if not (older and record.workload.startswith(_TILED)):
            found.setdefault(record.workload, []).append(record)
    return found


def _cut_torn_line(descriptor: int) -> None:
    """Drop what stands behind the last line end, so that the next record starts on a line of its own."""
    end = size = os.fstat(descriptor).st_size
    while end:
        start = max(0, end - 4096)
        at = os.pread(descriptor, end - start, start).rfind(b"\n")
        if at >= 0:
            end = start + at + 1
            break
        end = start
    if end < size:
        os.ftruncate(descriptor, end)
