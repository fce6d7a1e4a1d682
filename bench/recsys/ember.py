"""Embedding operations: Ember's ladder on each family, look-ups in large tables beside torch and FBGEMM, and pages.

    python -m bench.recsys.ember prepare DIR    compiles everything; writes 5.2 GB of tables
    python -m bench.recsys.ember measure DIR [--torch PYTHON] [--json FILE]

`ladder`: emb-opt0 to 3 (Ember, Table 4) on one core, each with the better of 0 and 16 rows ahead. emb-opt0 is scalar as
it is written, and LLVM turns into vectors what it can analyse: sums and copies, not dot products. Sums are of two
tables' worth of segments of Ember's RM1, RM2 and RM3 in one table of 16K rows, ids drawn by Zipf's law with exponent 0,
0.8 and 1.2 (locality L0, L1, L2). Graphs and triples have the sizes of Ember's Table 2 (products' rows cut to 1M),
uniform neighbours, and at most SEGMENTS segments a run. Blocks are of a tensor of 4096 tokens.
`tables`: FBGEMM's shape, 10 tables of 4M rows of 32, 100 look-ups; and RM2's, 32 tables of 500K rows of 64, 120
look-ups; fp32, uniform ids. torch (EmbeddingBag) and FBGEMM (its inference TBE, bounds checks off) run in a Python of
their own on the same pages of the same file. `rows_read` is rows.c, which only reads the same rows, at
places that were worked out before, and stores nothing: no limit, since kernels that fetch rows ahead can be faster.
`pages`: random rows of 2 GB in pages of 4 KB and of 2 MB, by distance.
`storages`: FBGEMM's shape with rows in fp32, in fp16 and in bytes with scale and bias, in turn.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.paths import result_path
from bench.recsys.embedding_tables import ID_SETS, SHAPES, in_turn, timed
from bench.recsys.ember_kernels import (
    DISTANCES,
    LADDER,
    PAGES_BATCH,
    PAGES_BYTES,
    PAGES_LOOKUPS,
    POINTS,
    STORED,
    ladder,
    prepare,
)
from bench.recsys.shared_tables import map_copy
from bench.recsys.torch_tables import TorchProcess


class KernelTimer:
    """Times kernels on chosen cores, with the runtime alone."""

    def __init__(self, folder: Path) -> None:
        from tvm import runtime

        from veltair.machine.topology import usable_machine
        from veltair.profiles.runtime.pinned_threads import PinnedThreads

        self.folder, self.cores = folder, usable_machine().cores
        self.pool, self._load = PinnedThreads(self.cores), runtime.load_module
        self.rows = ctypes.CDLL(str(folder / "rows.so")).rows_read
        self.rows.restype = ctypes.c_float

    def run(self, name: str, *arrays: Any) -> Callable[[], Any]:
        import tvm_ffi

        code = self._load(str(self.folder / f"{name}.so"))["main"]
        tensors = [tvm_ffi.from_dlpack(array) for array in arrays]

        def run() -> Any:
            with self.pool.kept_awake():
                code(*tensors)
            return arrays[-1]

        return run

    def ladder(self) -> list[dict[str, Any]]:
        from veltair.profiles.runtime.executor import aligned_zeros

        self.pool.move_to(self.cores[:1])
        found = []
        for number, (family, case, sizes, program) in enumerate(ladder()):
            rows, segments = sizes["rows"], sizes["segments"]
            lookups, chance = segments * sizes["lookups"], np.random.default_rng(number)
            likely = 1 / np.arange(1, rows + 1) ** (sizes["skew"] / 10)
            order = chance.permutation(rows)
            values: dict[str, Any] = {
                "ids": order[chance.choice(rows, lookups, p=likely / likely.sum())],
                "offsets": np.arange(segments + 1) * sizes["lookups"],
                "weights": chance.random(lookups, np.float32),
                "kinds": chance.integers(0, 51, segments),
            }
            values |= {"heads": values["ids"], "tails": chance.integers(0, rows, segments)}
            arrays = []
            for memory in program.memories[:-1]:
                shape = memory.shape if memory.shape[0] > 0 else values[memory.name].shape
                arrays.append(aligned_zeros(shape, memory.dtype))
                arrays[-1][...] = values.get(memory.name, 0.5)
            out = aligned_zeros([segments, *program.memories[-1].shape[1:]], "float32")
            runs = [self.run(f"ladder{number}-{level}-{ahead}", *arrays, out) for level, ahead in LADDER]
            first = runs[0]().copy()
            for run in runs:  # all give the same
                assert np.abs(run() - first).max() <= 1e-4 * np.abs(first).max()
            turns = np.median([[timed(run, 0.04) for run in runs] for _ in range(3)], 0).tolist()
            named = {f"emb-opt{level}, {ahead} ahead": t for (level, ahead), t in zip(LADDER, turns, strict=True)}
            gains = [
                turns[0] / min(t for (n, _), t in zip(LADDER, turns, strict=True) if n == level) for level in range(4)
            ]
            found.append({"family": family, "case": case, **sizes, "ms": named, "gains": gains})
            print(f"{family:13} {case:12}", *(f"{gain:6.2f}x" for gain in gains), f"  {min(turns):.3f} ms", flush=True)
        return found

    def tables(self, peer: TorchProcess | None, rounds: int = 3) -> dict[str, Any]:
        from veltair.profiles.runtime.executor import aligned_copy, aligned_zeros
        from veltair.profiles.runtime.huge_pages import huge_page_bytes

        memory = map_copy(self.folder / "tables.bin")
        found: dict[str, Any] = {"bytes": memory.size, "bytes_in_large_pages": huge_page_bytes(memory)}
        print(f"{found['bytes_in_large_pages'] / memory.size:.0%} of the tables in pages of 2 MB")
        free = list(self.cores)
        helpers = ThreadPoolExecutor(len(free), initializer=lambda: os.sched_setaffinity(0, (free.pop(),)))
        for number, (name, (tables, rows, dim, lookups, batch)) in enumerate(SHAPES.items()):
            region = memory.view(np.float32)[: tables * rows * dim].reshape(tables, rows, dim)
            sets = np.load(self.folder / f"ids{number}.npy")
            outs = [aligned_zeros((batch, dim), "float32") for _ in range(tables)]
            ids = [[aligned_copy(one) for one in some] for some in sets]
            candidates = [
                in_turn(*(self.run(f"tables{number}-{p}", *some, *region, *outs) for some in ids))
                for p in range(len(POINTS))
            ]
            places = [aligned_copy((some + np.arange(tables)[:, None, None] * rows).reshape(-1)) for some in sets]
            moved = tables * batch * lookups * dim * 4
            for threads in (1, len(self.cores)):
                self.pool.move_to(self.cores[:threads])
                alone = np.median([[timed(run, 0.03) for run in candidates] for _ in range(3)], 0).tolist()
                best = int(np.argmin(alone))

                def read(ahead: int, threads: int = threads, region: Any = region, places: Any = places) -> Any:
                    def reads(some: Any) -> None:
                        parts = np.array_split(some, threads)
                        list(helpers.map(self._read, *zip(*((region, p, ahead) for p in parts), strict=True)))

                    return in_turn(*(partial(reads, some) for some in places))

                reads_ms = {ahead: timed(read(ahead), 0.1) for ahead in (0, 8, 16, 32)}
                fastest = min(reads_ms, key=lambda ahead: reads_ms[ahead])
                turns: list[dict[str, float]] = []
                for _ in range(rounds):
                    turn = {"veltair": timed(candidates[best], 0.3), "rows_read": timed(read(fastest), 0.3)}
                    turns.append(turn | (peer.measure(number, threads) if peer else {}))
                ms = {key: float(np.median([turn[key] for turn in turns])) for key in turns[0]}
                if peer:  # the same sums
                    total = sum(float(out.astype(np.float64).sum()) for out in outputs_of(candidates[best], sets, outs))
                    assert abs(total - peer.total) <= 1e-4 * abs(total) + 1.0
                rate = {key: moved / value / 1e6 for key, value in ms.items()}
                found[f"{name}, {threads} threads"] = {
                    "ms": ms,
                    "gb_s": rate,
                    "over_rows_read": ms["rows_read"] / ms["veltair"],
                    "point": POINTS[best],
                    "points_ms": alone,
                    "rows_read_by_distance_ms": reads_ms,
                }
                speeds = (f"{key} {value:.2f} GB/s" for key, value in rate.items())
                print(f"{name}, {threads} threads:", *speeds, POINTS[best], flush=True)
        return found

    def _read(self, region: Any, places: Any, ahead: int) -> None:
        sizes = map(ctypes.c_size_t, (len(places), region.shape[-1] // 16, ahead))
        self.rows(ctypes.c_void_p(region.ctypes.data), ctypes.c_void_p(places.ctypes.data), *sizes)

    def pages(self) -> dict[str, Any]:
        """Returns GB/s by page size, threads and distance."""
        from veltair.profiles.runtime.executor import aligned_copy, aligned_zeros

        found: dict[str, Any] = {}
        chance = np.random.default_rng(2)
        rows = PAGES_BYTES // 128
        ids = [aligned_copy(chance.integers(0, rows, (PAGES_BATCH, PAGES_LOOKUPS))) for _ in range(ID_SETS)]
        out = aligned_zeros((PAGES_BATCH, 32), "float32")
        for size, advice in (("4 KB", mmap.MADV_NOHUGEPAGE), ("2 MB", mmap.MADV_HUGEPAGE)):
            table = allocate(PAGES_BYTES, advice).view(np.float32).reshape(rows, 32)
            table[...] = 0.5
            for threads in (1, len(self.cores)):
                self.pool.move_to(self.cores[:threads])
                for ahead in DISTANCES:
                    runs = in_turn(*(self.run(f"pages{ahead}", some, table, out) for some in ids))
                    moved = PAGES_BATCH * PAGES_LOOKUPS * 128
                    found.setdefault(f"{size}, {threads} threads", {})[ahead] = moved / timed(runs, 0.2) / 1e6
            del table
        for name, rates in found.items():
            print(f"{name}:", *(f"{ahead}: {rate:.2f}" for ahead, rate in rates.items()), "GB/s", flush=True)
        return found

    def storages(self, rounds: int = 3) -> dict[str, Any]:
        """Returns medians in ms by threads and storage, after a check of the first table's sums."""
        from veltair.profiles.runtime.executor import aligned_copy, aligned_zeros
        from veltair.profiles.runtime.huge_pages import huge_page_bytes

        tables, rows, dim, lookups, batch = next(iter(SHAPES.values()))
        ids = np.load(self.folder / "ids0.npy")
        outs = [aligned_zeros((batch, dim), "float32") for _ in range(tables)]
        sets = [[aligned_copy(one) for one in some] for some in ids]
        regions, runs = {}, {}
        for storage in ("fp32", "fp16", "int8"):
            some = np.load(self.folder / f"rows-{storage}.npy")
            table = allocate(rows * some[0].nbytes * tables, mmap.MADV_HUGEPAGE).view(some.dtype)
            region = regions[storage] = table.reshape(tables, rows, -1)
            for first in range(0, rows, len(some)):
                region[:, first : first + len(some)] = some[: rows - first]
            runs[storage] = [
                in_turn(*(self.run(f"{storage}-{place}", *one, *region, *outs) for one in sets))
                for place in range(len(STORED))
            ]
        found: dict[str, Any] = {"shape": [tables, rows, dim, lookups, batch]}
        found["in_large_pages"] = {name: huge_page_bytes(region) / region.nbytes for name, region in regions.items()}
        for threads in (1, len(self.cores)):
            self.pool.move_to(self.cores[:threads])
            best = {name: min(some, key=lambda run: timed(run, 0.05)) for name, some in runs.items()}
            turns = [[timed(run, 0.3) for run in best.values()] for _ in range(rounds)]
            ms = dict(zip(best, np.median(turns, 0).tolist(), strict=True))
            found[f"{threads} threads"] = ms
            print(f"{threads} threads:", *(f"{name} {value:.2f} ms" for name, value in ms.items()), flush=True)
        for storage, region in regions.items():
            self.run(f"{storage}-0", *sets[0], *region, *outs)()
            want = np.load(self.folder / f"sums-{storage}.npy")
            assert np.abs(outs[0] - want).max() <= 1e-5 * np.abs(want).max(), storage
        return found


def allocate(size: int, advice: int) -> Any:
    """Allocates zeroed bytes from the begin of a large page on, in pages as advised."""
    memory = mmap.mmap(-1, size + (2 << 20), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(advice)
    raw = np.frombuffer(memory, np.uint8)
    first = -raw.ctypes.data % (2 << 20)
    return raw[first : first + size]


def outputs_of(run: Callable[[], Any], sets: Any, outs: list[Any]) -> Iterator[Any]:
    """Yields the outputs after each set of ids."""
    for _ in sets:
        run()
        yield from outs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("prepare", "measure"))
    parser.add_argument("folder", type=Path, nargs="?", default=Path("ember-bench"))
    parser.add_argument("--parts", default="ladder,tables,pages,storages")
    parser.add_argument("--torch", metavar="PYTHON", help="a Python with torch and fbgemm-gpu-cpu")
    parser.add_argument("--json", type=result_path)
    options = parser.parse_args()
    if options.what == "prepare":
        prepare(options.folder)
    else:
        from veltair.machine.environment import describe_environment
        from veltair.machine.memory import huge_page_mode

        # Before the timer, which pins this thread to one core.
        found: dict[str, Any] = {"environment": asdict(describe_environment()) | {"huge_pages": huge_page_mode()}}
        timer, parts = KernelTimer(options.folder), options.parts.split(",")
        if "ladder" in parts:
            found["ladder"] = timer.ladder()
        if "tables" in parts:
            peer = TorchProcess(options.torch, options.folder) if options.torch else None
            found["tables"] = timer.tables(peer) | ({"peers": peer.versions} if peer else {})
            if peer:
                peer.close()
        if "pages" in parts:
            found["pages"] = timer.pages()
        if "storages" in parts:
            found["storages"] = timer.storages()
        if options.json:
            options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
