"""`KernelCache`: what compiles keep for later ones, of this model or of others that share its layers.

Three kinds of entries, each found by a digest of all that it depends on (`cache_keys`):

- objects: a compiled kernel, by workload, point, shapes of the weights, instruction sets, LLVM target, the generated
  code, the version of TVM and the source of everything that generates code. An altered design space finds none.
- timings: the measured times of an object, by its content, its inputs and this machine (`cache_keys.machine_facts`).
- versions: that an object passed its check with weights of this content on this machine, so that a compile of the
  same file neither generates nor checks its kernels again before they are packed.

What cannot be kept costs a warning, never the compile.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from veltair.compiler.shared_library import ObjectCompiler, ObjectFile
from veltair.compiler.timing.latency_tables import JobTimes
from veltair.compiler.timing.modelled_interference import MemorySystem, measure_memory
from veltair.compiler.tuning.cache_keys import memory_key
from veltair.errors import UserError
from veltair.machine.cache_traffic import LoopLevel
from veltair.profiles.cache.cache_folder import CacheFolder
from veltair.types import CoreSet

log = logging.getLogger(__name__)
T = TypeVar("T")


class KeptVersion(msgspec.Struct, frozen=True):
    """A version that passed its check.

    >>> KeptVersion("00c0ffee", "00decade", block_size=4096, parallelism=8, reuse=()).parallelism
    8
    """

    object_key: str
    object_digest: str  # sha256 of the object file
    block_size: int
    parallelism: int
    reuse: tuple[tuple[LoopLevel, ...], ...]  # (batches); none where levels are not modelled


class KeptTimes(msgspec.Struct, frozen=True):
    """The times of an object, and when they were measured.

    >>> KeptTimes(JobTimes(alone_ns=((900.0, 500.0),), pressed_ns=()), measured_s=1_700_000_000).times.alone_ns[0][1]
    500.0
    """

    times: JobTimes
    measured_s: int  # since 1970


@dataclass(slots=True)
class CacheCounts:
    """What one compile took from the cache, and what it made.

    >>> CacheCounts(objects_reused=12).objects_built
    0
    """

    objects_built: int = 0
    objects_reused: int = 0
    tables_measured: int = 0
    tables_reused: int = 0
    oldest_s: int = 0  # when the oldest of the times was measured, since 1970; 0 before there are any

    @property
    def timed_since(self) -> str:
        """When the oldest of the times was measured, in UTC."""
        return datetime.fromtimestamp(self.oldest_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class KernelCache:
    """What one compile finds in the cache and adds to it. Without a folder nothing is found or kept. ::

    cache = KernelCache(CacheFolder(cache_path()))
    compile_model(onnx, out, cache=cache)
    print(cache.counts)
    """

    def __init__(self, folder: CacheFolder | None = None, *, fresh_timings: bool = False) -> None:
        """fresh_timings: measure all times again, and keep these."""
        self.counts = CacheCounts()
        self._folder = folder
        self._fresh_timings = fresh_timings
        self._writes = folder is not None
        self._taken: dict[Path, str] = {}  # keys of the objects that came from the cache, by where they were put
        self._wrong: set[str] = set()  # keys of the objects that were put back

    def compile(self, sources: Sequence[ObjectFile], keys: Sequence[str], target: Mapping[str, Any]) -> list[str]:
        """`compile_objects`, of what is neither in its place nor in the cache. keys: `object_key` of each source."""
        with ObjectCompiler(target) as compiler:
            begun = [self.begin(source, key, compiler) for source, key in zip(sources, keys, strict=True)]
            return [fault.result() for fault in begun]

    def begin(self, source: ObjectFile, key: str, compiler: ObjectCompiler) -> Future[str]:
        """Begin to compile it where that is to be done. Return what will be its fault."""
        if not source.path.exists() and (content := self._read("objects", key)) is not None:
            self._put(key, content, source.path)
        self.counts.objects_built += not source.path.exists()
        return compiler.begin(source)

    def put_back(self, path: Path) -> bool:
        """Forget an object that turned out wrong, and remove it from its place; False where it was built just now."""
        key = self._taken.pop(path, None)
        if key is None:
            return False
        self._wrong.add(key)
        path.unlink(missing_ok=True)
        self._attempt_write(lambda folder: folder.remove("objects", key))
        return True

    def keep_object(self, key: str, path: Path) -> str:
        """Keep an object file that passed its check, unless it came from here; return the sha256 of its content."""
        content = path.read_bytes()
        if path not in self._taken:
            self._write("objects", key, content)
        return hashlib.sha256(content).hexdigest()

    def find_version(self, key: str, path: Path) -> KeptVersion | None:
        """A version that passed its check, with its object file written to `path`."""
        kept = self._decode("versions", key, KeptVersion)
        content = self._read("objects", kept.object_key) if kept else None
        if kept is None or content is None or hashlib.sha256(content).hexdigest() != kept.object_digest:
            return None
        if not path.exists():
            self._put(kept.object_key, content, path)
        elif path.read_bytes() != content:  # the search has compiled it, to something else
            return None
        return kept

    def keep_version(self, key: str, version: KeptVersion) -> None:
        self._write("versions", key, msgspec.json.encode(version))

    def find_times(self, key: str) -> KeptTimes | None:
        """The times of an object on this machine."""
        return None if self._fresh_timings else self._decode("timings", key, KeptTimes)

    def keep_times(self, key: str, times: JobTimes) -> KeptTimes:
        kept = KeptTimes(times, int(time.time()))
        self._write("timings", key, msgspec.json.encode(kept))
        return kept

    def memory_system(self, cores: CoreSet) -> MemorySystem:
        """This machine's memory system, measured where no earlier compile has left it."""
        key = memory_key(cores)
        kept = None if self._fresh_timings else self._decode("timings", key, MemorySystem)
        if kept is None:
            kept = measure_memory(cores)
            self._write("timings", key, msgspec.json.encode(kept))
        return kept

    def _put(self, key: str, content: bytes, path: Path) -> None:
        path.write_bytes(content)
        self._taken[path] = key
        self.counts.objects_reused += 1

    def _decode(self, kind: str, key: str, of: type[T]) -> T | None:
        raw = self._read(kind, key)
        if raw is None:
            return None
        try:
            return msgspec.json.decode(raw, type=of)
        except msgspec.MsgspecError:  # of a version whose digest of the source is ours, but not its types: impossible
            return None

    def _read(self, kind: str, key: str) -> bytes | None:
        if self._folder is None or not key or key in self._wrong:
            return None
        try:
            return self._folder.read(kind, key)
        except (OSError, UserError) as error:
            self._give_up(error)
            self._folder = None
            return None

    def _write(self, kind: str, key: str, content: bytes) -> None:
        if key:
            self._attempt_write(lambda folder: folder.write(kind, key, content))

    def _attempt_write(self, write: Callable[[CacheFolder], None]) -> None:
        if self._folder is None or not self._writes:
            return
        try:
            write(self._folder)
        except (OSError, UserError) as error:
            self._give_up(error)
            self._writes = False

    def _give_up(self, error: OSError | UserError) -> None:
        assert self._folder is not None
        why = f"{self._folder.path}: {error.strerror}" if isinstance(error, OSError) else str(error)
        log.warning("compiled kernels are not kept for the next compile: %s", why)
