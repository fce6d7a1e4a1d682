"""Embedding operations: Ember's ladder on each family, look-ups in large tables beside torch and FBGEMM, and pages.

    python bench/ember.py prepare DIR                              compiles everything; writes 5.2 GB of tables
    python bench/ember.py measure DIR [--torch PYTHON] [--json FILE]

`ladder`: emb-opt0 to 3 (Ember, Table 4) on one core, each with the better of 0 and 16 rows ahead. emb-opt0 is scalar as
it is written, and LLVM turns into vectors what it sees through: sums and copies, not dot products. Sums are of two
tables' worth of segments of Ember's RM1, RM2 and RM3 in one table of 16K rows, ids drawn by Zipf's law with exponent 0,
0.8 and 1.2 (locality L0, L1, L2). Graphs and triples have the sizes of Ember's Table 2 (products' rows cut to 1M),
uniform neighbours, and at most SEGMENTS segments a run. Blocks are of a tensor of 4096 tokens.
`tables`: FBGEMM's shape, 10 tables of 4M rows of 32, 100 look-ups; and RM2's, 32 tables of 500K rows of 64, 120
look-ups; fp32, uniform ids. torch (EmbeddingBag) and FBGEMM (its inference TBE, bounds checks off) run in a Python of
their own on the same pages of the same file. `limit` is rows.c: the same rows at known places, nothing stored.
`pages`: random rows of 2 GB in pages of 4 KB and of 2 MB, by distance.
`storages`: FBGEMM's shape with rows in fp32, in fp16 and in bytes with scale and bias, in turn.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
SEGMENTS = 4096
IDS = 3  # sets of ids, in turn: a set that was just read lies in a cache
SHAPES = {
    "10 x 4M x 32, 100 look-ups": (10, 4_000_000, 32, 100, 256),
    "RM2: 32 x 500K x 64, 120 look-ups": (32, 500_000, 64, 120, 64),
}  # tables, rows, dim, look-ups, batch
POINTS = [
    {"ahead": ahead, "bags": bags, "along": along}
    for along in ("tables", "bags") for bags in (4, 16) for ahead in (0, 8, 16, 32)
]  # fmt: skip
REPEATED = 1 << 16  # different rows of a stored table
STORED = [point for point in POINTS if point["bags"] == 16]
PAGES_BYTES, PAGES_LOOKUPS, PAGES_BATCH = 2 << 30, 100, 1024
DISTANCES = (0, 4, 8, 16, 32)
LADDER = ((0, 0), (1, 0), (2, 0), (2, 16), (3, 0), (3, 16))  # level and distance


def ladder() -> Iterator[tuple[str, str, dict[str, int], Any]]:
    """Family, case, its sizes, and the program's maker."""
    from veltair.compiler.embedding import families
    from veltair.compiler.graph.layer_spec import Activation

    def table(name: str, rows: int, dim: int) -> Activation:
        return Activation(name, "float32", (rows, dim))

    for rm, (segments, dim, lookups) in {"RM1": (64, 32, 64), "RM2": (32, 64, 128), "RM3": (16, 128, 256)}.items():
        for level, skew in enumerate((0, 8, 12)):
            sizes = {"rows": 16_384, "dim": dim, "segments": 2 * segments, "lookups": lookups, "skew": skew}
            yield "sums", f"{rm} L{level}", sizes, families.sls(table("table", 16_384, dim), dim)
    graphs = {"arxiv": (169_343, 128, 7), "proteins": (132_534, 8, 299), "products": (1_000_000, 100, 25)}
    for name, (rows, dim, degree) in graphs.items():
        sizes = {"rows": rows, "dim": dim, "segments": SEGMENTS, "lookups": degree, "skew": 0}
        yield "graph (SpMM)", name, sizes, families.spmm(table("table", rows, dim), dim)
    for name, (rows, degree) in {"web-Google": (916_428, 6), "com-Youtube": (1_134_890, 5)}.items():
        sizes = {"rows": rows, "dim": 128, "segments": SEGMENTS, "lookups": degree, "skew": 0}
        yield "messages", name, sizes, families.message_passing(table("table", rows, 128), 128)
    sizes = {"rows": 93_773, "dim": 512, "segments": SEGMENTS, "lookups": 1, "skew": 0}
    triples = families.knowledge_graph(table("entities", 93_773, 512), table("relations", 51, 512), 512)
    yield "triples", "biokg", sizes, triples
    for block in (1, 2, 4, 8):
        sizes = {"rows": 4096 // block, "dim": 512 * block, "segments": 8192 // block, "lookups": 1, "skew": 0}
        tokens = table("table", 4096 // block, 512 * block)
        yield "blocks", f"{block} tokens", sizes, families.block_gather(tokens, 512 * block)


def prepare(folder: Path) -> None:
    import tvm

    from veltair.compiler.embedding import families
    from veltair.compiler.embedding.embedding_kernel import embedding_function
    from veltair.compiler.embedding.family_reference import sls
    from veltair.compiler.embedding.row_storage import DTYPES, STORAGES, encode_rows, row_items
    from veltair.compiler.graph.layer_spec import Activation, LayerSpec
    from veltair.compiler.kernels.rows.embedding_bag import EmbeddingBag
    from veltair.machine.isa import cpu_features, tvm_target

    folder.mkdir(parents=True, exist_ok=True)

    def library(code: Any, name: str) -> None:
        module = tvm.IRModule({"main": code.with_attr("global_symbol", "main")})
        tvm.compile(module, target=tvm.target.Target(tvm_target())).export_library(str(folder / f"{name}.so"))

    build = ["gcc", "-O3", "-march=native", "-shared", "-fPIC", HERE / "rows.c", "-o", folder / "rows.so"]
    subprocess.run(build, check=True)
    for number, (*_, program) in enumerate(ladder()):
        for level, ahead in LADDER:
            library(embedding_function(program, level, ahead, 8), f"ladder{number}-{level}-{ahead}")
    for ahead in DISTANCES:
        rows = Activation("table", "float32", (PAGES_BYTES // 128, 32))
        library(embedding_function(families.sls(rows, 32, lookups=PAGES_LOOKUPS), 3, ahead, 16), f"pages{ahead}")
    chance = np.random.default_rng(0)
    floats = max(tables * rows * dim for tables, rows, dim, *_ in SHAPES.values())
    piece = chance.standard_normal(1 << 22, np.float32)
    with (folder / "tables.bin").open("wb") as file:
        for start in range(0, floats, len(piece)):
            file.write(piece[: floats - start].data)

    def kernels(shape: tuple[int, ...], storage: str, points: list[dict[str, Any]], name: str) -> None:
        tables, rows, dim, lookups, batch = shape
        inputs = tuple(Activation(f"i{t}", "int64", (-1, lookups)) for t in range(tables))
        outputs = tuple(Activation(f"o{t}", "float32", (-1, dim)) for t in range(tables))
        row = np.zeros(row_items(dim, DTYPES[storage]), DTYPES[storage])
        weights = {f"table{t}": np.broadcast_to(row, (rows, len(row))) for t in range(tables)}
        spec = LayerSpec("sums", "embedding_bag", inputs, outputs, {"reduce": "sum"}, weights, 0, max_batch=batch)
        for place, point in enumerate(points):
            library(EmbeddingBag().build(spec, point, cpu_features()).function, f"{name}-{place}")

    for number, shape in enumerate(SHAPES.values()):
        tables, rows, _, lookups, batch = shape
        kernels(shape, "fp32", POINTS, f"tables{number}")
        np.save(folder / f"ids{number}.npy", chance.integers(0, rows, (IDS, tables, batch, lookups)))
    some, ids = chance.standard_normal((REPEATED, 32), np.float32), np.load(folder / "ids0.npy")[0, 0]
    for storage in STORAGES:
        kernels(next(iter(SHAPES.values())), storage, STORED, storage)
        np.save(folder / f"rows-{storage}.npy", encode_rows(some, storage))
        np.save(folder / f"sums-{storage}.npy", sls(ids % REPEATED, encode_rows(some, storage), None))


def timed(run: Callable[[], Any], budget_s: float) -> float:
    """Median, in ms."""
    run()
    times: list[float] = []
    end = time.perf_counter() + budget_s
    while len(times) < 5 or (time.perf_counter() < end and len(times) < 400):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return float(np.median(times) * 1e3)


def in_turn(*runs: Callable[[], Any]) -> Callable[[], Any]:
    state = [0]

    def run() -> Any:
        state[0] += 1
        return runs[state[0] % len(runs)]()

    return run


class Bench:
    """Kernels on chosen cores, with the runtime alone."""

    def __init__(self, folder: Path) -> None:
        from veltair.machine.topology import usable_machine
        from veltair.profiles.runtime.pinned_threads import CorePool
        from veltair.profiles.runtime.tvm_runtime import runtime

        self.folder, self.cores = folder, usable_machine().cores
        self.pool, self._load = CorePool(self.cores), runtime.load_module
        self.rows = ctypes.CDLL(str(folder / "rows.so")).rows_read
        self.rows.restype = ctypes.c_float

    def run(self, name: str, *arrays: Any) -> Callable[[], Any]:
        import tvm_ffi

        code = self._load(str(self.folder / f"{name}.so"))["main"]
        tensors = [tvm_ffi.from_dlpack(array) for array in arrays]

        def run() -> Any:
            with self.pool.awake():
                code(*tensors)
            return arrays[-1]

        return run

    def ladder(self) -> list[dict[str, Any]]:
        from veltair.profiles.runtime.executor import empty

        self.pool.point(self.cores[:1])
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
                arrays.append(empty(shape, memory.dtype))
                arrays[-1][...] = values.get(memory.name, 0.5)
            out = empty([segments, *program.memories[-1].shape[1:]], "float32")
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

    def tables(self, peer: Peer | None, rounds: int = 3) -> dict[str, Any]:
        from veltair.profiles.runtime.executor import aligned, empty
        from veltair.profiles.runtime.huge_pages import large_bytes, mapped, settle

        path = self.folder / "tables.bin"
        settle(path)
        memory = mapped(path)
        found: dict[str, Any] = {"bytes": memory.size, "bytes_in_large_pages": large_bytes(memory)}
        print(f"{found['bytes_in_large_pages'] / memory.size:.0%} of the tables in pages of 2 MB")
        free = list(self.cores)
        helpers = ThreadPoolExecutor(len(free), initializer=lambda: os.sched_setaffinity(0, (free.pop(),)))
        for number, (name, (tables, rows, dim, lookups, batch)) in enumerate(SHAPES.items()):
            region = memory.view(np.float32)[: tables * rows * dim].reshape(tables, rows, dim)
            sets = np.load(self.folder / f"ids{number}.npy")
            outs = [empty((batch, dim), "float32") for _ in range(tables)]
            ids = [[aligned(one) for one in some] for some in sets]
            candidates = [
                in_turn(*(self.run(f"tables{number}-{p}", *some, *region, *outs) for some in ids))
                for p in range(len(POINTS))
            ]
            places = [aligned((some + np.arange(tables)[:, None, None] * rows).reshape(-1)) for some in sets]
            moved = tables * batch * lookups * dim * 4
            for threads in (1, len(self.cores)):
                self.pool.point(self.cores[:threads])
                alone = np.median([[timed(run, 0.03) for run in candidates] for _ in range(3)], 0).tolist()
                best = int(np.argmin(alone))

                def limit(ahead: int, threads: int = threads, region: Any = region, places: Any = places) -> Any:
                    def reads(some: Any) -> None:
                        parts = np.array_split(some, threads)
                        list(helpers.map(self._read, *zip(*((region, p, ahead) for p in parts), strict=True)))

                    return in_turn(*(partial(reads, some) for some in places))

                limits = {ahead: timed(limit(ahead), 0.1) for ahead in (0, 8, 16, 32)}
                fastest = min(limits, key=lambda ahead: limits[ahead])
                turns: list[dict[str, float]] = []
                for _ in range(rounds):
                    turn = {"veltair": timed(candidates[best], 0.3), "limit": timed(limit(fastest), 0.3)}
                    turns.append(turn | (peer.measure(number, threads) if peer else {}))
                ms = {key: float(np.median([turn[key] for turn in turns])) for key in turns[0]}
                if peer:  # the same sums
                    total = sum(float(out.astype(np.float64).sum()) for out in outs_of(candidates[best], sets, outs))
                    assert abs(total - peer.total) <= 1e-4 * abs(total) + 1.0
                rate = {key: moved / value / 1e6 for key, value in ms.items()}
                found[f"{name}, {threads} threads"] = {
                    "ms": ms, "gb_s": rate, "of_limit": ms["limit"] / ms["veltair"], "point": POINTS[best],
                    "points_ms": alone, "limits_ms": limits,
                }  # fmt: skip
                speeds = (f"{key} {value:.2f} GB/s" for key, value in rate.items())
                print(f"{name}, {threads} threads:", *speeds, POINTS[best], flush=True)
        return found

    def _read(self, region: Any, places: Any, ahead: int) -> None:
        sizes = map(ctypes.c_size_t, (len(places), region.shape[-1] // 16, ahead))
        self.rows(ctypes.c_void_p(region.ctypes.data), ctypes.c_void_p(places.ctypes.data), *sizes)

    def pages(self) -> dict[str, Any]:
        """GB/s by size of page, threads and distance."""
        from veltair.profiles.runtime.executor import aligned, empty

        found: dict[str, Any] = {}
        chance = np.random.default_rng(2)
        rows = PAGES_BYTES // 128
        ids = [aligned(chance.integers(0, rows, (PAGES_BATCH, PAGES_LOOKUPS))) for _ in range(IDS)]
        out = empty((PAGES_BATCH, 32), "float32")
        for size, advice in (("4 KB", mmap.MADV_NOHUGEPAGE), ("2 MB", mmap.MADV_HUGEPAGE)):
            table = anonymous(PAGES_BYTES, advice).view(np.float32).reshape(rows, 32)
            table[...] = 0.5
            for threads in (1, len(self.cores)):
                self.pool.point(self.cores[:threads])
                for ahead in DISTANCES:
                    runs = in_turn(*(self.run(f"pages{ahead}", some, table, out) for some in ids))
                    moved = PAGES_BATCH * PAGES_LOOKUPS * 128
                    found.setdefault(f"{size}, {threads} threads", {})[ahead] = moved / timed(runs, 0.2) / 1e6
            del table
        for name, rates in found.items():
            print(f"{name}:", *(f"{ahead}: {rate:.2f}" for ahead, rate in rates.items()), "GB/s", flush=True)
        return found

    def storages(self, rounds: int = 3) -> dict[str, Any]:
        """Medians in ms by threads and storage, checked on the sums of the first table."""
        from veltair.profiles.runtime.executor import aligned, empty

        tables, rows, dim, lookups, batch = next(iter(SHAPES.values()))
        ids = np.load(self.folder / "ids0.npy")
        outs = [empty((batch, dim), "float32") for _ in range(tables)]
        sets = [[aligned(one) for one in some] for some in ids]
        regions, runs = {}, {}
        for storage in ("fp32", "fp16", "int8"):
            some = np.load(self.folder / f"rows-{storage}.npy")
            table = anonymous(rows * some[0].nbytes * tables, mmap.MADV_HUGEPAGE).view(some.dtype)
            region = regions[storage] = table.reshape(tables, rows, -1)
            for first in range(0, rows, len(some)):
                region[:, first : first + len(some)] = some[: rows - first]
            runs[storage] = [
                in_turn(*(self.run(f"{storage}-{place}", *one, *region, *outs) for one in sets))
                for place in range(len(STORED))
            ]
        found: dict[str, Any] = {"shape": [tables, rows, dim, lookups, batch]}
        for threads in (1, len(self.cores)):
            self.pool.point(self.cores[:threads])
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


def anonymous(size: int, advice: int) -> Any:
    """Zeroed bytes at the begin of a large page, in pages as advised."""
    memory = mmap.mmap(-1, size + (2 << 20), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(advice)
    raw = np.frombuffer(memory, np.uint8)
    first = -raw.ctypes.data % (2 << 20)
    return raw[first : first + size]


def outs_of(run: Callable[[], Any], sets: Any, outs: list[Any]) -> Iterator[Any]:
    """Outputs after each set of ids."""
    for _ in sets:
        run()
        yield from outs


class Peer:
    """torch and FBGEMM in a Python of their own."""

    def __init__(self, python: str, folder: Path) -> None:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen([python, __file__, "peer", str(folder)], text=True, **pipes)
        self.versions = self._ask("")
        self.total = 0.0

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin and self._process.stdout
        if line:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def measure(self, shape: int, threads: int) -> dict[str, float]:
        answer = self._ask(f"{shape} {threads}")
        self.total = answer.pop("total")
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def peer(folder: Path) -> None:
    """Answers "SHAPE THREADS" with medians in ms and the sum of all outputs."""
    import fbgemm_gpu
    import torch
    from fbgemm_gpu.split_embedding_configs import SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode, EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_inference import IntNBitTableBatchedEmbeddingBagsCodegen

    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # whoever starts it is pinned to one core
    memory = np.memmap(folder / "tables.bin", np.float32, "c")
    memory._mmap.madvise(mmap.MADV_HUGEPAGE)
    memory._mmap.madvise(22)  # MADV_POPULATE_READ
    runs: list[dict[str, Any]] = []
    for number, (tables, rows, dim, lookups, batch) in enumerate(SHAPES.values()):
        region = torch.from_numpy(memory[: tables * rows * dim])
        weights = region.view(tables, rows, dim)
        sets = [torch.from_numpy(some) for some in np.load(folder / f"ids{number}.npy")]
        each = torch.arange(0, batch * lookups, lookups)
        specs = [(f"t{t}", rows, dim, SparseType.FP32, EmbeddingLocation.HOST) for t in range(tables)]
        module = IntNBitTableBatchedEmbeddingBagsCodegen(
            specs, device="cpu", output_dtype=SparseType.FP32, bounds_check_mode=BoundsCheckMode.NONE
        )
        module.initialize_physical_weights_placements_and_offsets()
        module.initialize_logical_weights_placements_and_offsets()
        assert module.weights_offsets.tolist() == [t * rows * dim * 4 for t in range(tables)]
        module.weights_host, module.weight_initialized = region.view(torch.uint8), True
        module.host_size = region.numel() * 4
        all_offsets = torch.arange(0, tables * batch * lookups + 1, lookups)

        def torch_run(some: Any, weights: Any = weights, each: Any = each, tables: int = tables) -> Any:
            bag = torch.nn.functional.embedding_bag
            return [bag(some[t].view(-1), weights[t], each, mode="sum") for t in range(tables)]

        def fbgemm_run(some: Any, module: Any = module, offsets: Any = all_offsets) -> Any:
            return module(some.view(-1), offsets)

        runs.append({"torch": (torch_run, sets), "fbgemm": (fbgemm_run, sets)})
    versions = {"torch": torch.__version__, "fbgemm_gpu": fbgemm_gpu.__version__}
    print(json.dumps(versions), flush=True)
    with torch.inference_mode():
        for line in sys.stdin:
            shape, threads = map(int, line.split())
            torch.set_num_threads(threads)
            answer = {}
            for name, (run, sets) in runs[shape].items():
                answer[name] = timed(in_turn(*(partial(run, some) for some in sets)), 0.3)
            answer["total"] = sum(float(run(some).double().sum()) for some in sets)
            print(json.dumps(answer), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("prepare", "measure", "peer"))
    parser.add_argument("folder", type=Path, nargs="?", default=Path("ember-bench"))
    parser.add_argument("--parts", default="ladder,tables,pages,storages")
    parser.add_argument("--torch", metavar="PYTHON", help="a Python with torch and fbgemm-gpu-cpu")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.what == "peer":
        peer(options.folder)
    elif options.what == "prepare":
        prepare(options.folder)
    else:
        from veltair.machine.environment import describe_environment
        from veltair.machine.memory import huge_page_mode

        bench, parts = Bench(options.folder), options.parts.split(",")
        found: dict[str, Any] = {"environment": asdict(describe_environment()) | {"huge_pages": huge_page_mode()}}
        if "ladder" in parts:
            found["ladder"] = bench.ladder()
        if "tables" in parts:
            rival = Peer(options.torch, options.folder) if options.torch else None
            found["tables"] = bench.tables(rival) | ({"peers": rival.versions} if rival else {})
            if rival:
                rival.close()
        if "pages" in parts:
            found["pages"] = bench.pages()
        if "storages" in parts:
            found["storages"] = bench.storages()
        if options.json:
            options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
