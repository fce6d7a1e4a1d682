"""Builds the artifacts that the server's tests run: `python build_artifacts.py FOLDER`. Real kernels, tiny models.

mlp    x (-1, 16) float32 -> y (-1, 8) float32, batch up to 8: three dense layers, two code versions each
spin   turns, seed (1,) int32 -> state (1,) int32: LAYERS layers, each of which turns a congruential generator
       `turns` times; the sender thus chooses how long a query takes
spins  as spin, for a batch of up to 4, each row with its own turns
brittle  as spin, but a layer adds one to the seed, and fails once that + 15 exceeds `turns`, in the last of 16
       parallel parts; 0 turns never fail
words  name, text (-1, 1) strings, id (-1, 1) int64 -> digest (-1, 5) int32, batch up to 4: of both strings the length
       and the polynomial of base 31 in their bytes, and the id's low bits; a text takes up to 16 MB a row
crash  address, as spin's turns: a layer that reads from any address that the query names, and crashes
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import tvm
from tvm.script import tirx as T

from veltair.machine.isa import tvm_target
from veltair.machine.topology import usable_machine
from veltair.profiles.artifact.artifact_folder import KERNELS, MANIFEST, WEIGHTS, file_digest, write_artifact
from veltair.profiles.artifact.manifest import SCHEMA, Buffer, LayerEntry, Manifest, PackedLocation, Port, VersionEntry
from veltair.profiles.runtime.answer_check import store_answer

LAYERS = 64
MLP = (16, 32, 32, 8)
NAME_BYTES, TEXT_BYTES = 8, 1 << 24  # at most, in a row
CORES = len(usable_machine().cores)


def dense(name: str, k: int, n: int, *, by_row: bool) -> Any:
    if by_row:

        @T.prim_func
        def kernel(a: T.handle, w: T.handle, c: T.handle):
            T.func_attr({"global_symbol": name, "tirx.noalias": True})
            rows = T.int64()
            A = T.match_buffer(a, (rows, k), "float32")
            W = T.match_buffer(w, (k, n), "float32")
            C = T.match_buffer(c, (rows, n), "float32")
            for i in T.parallel(rows):
                for j in range(n):
                    C[i, j] = T.float32(0)
                    for t in range(k):
                        C[i, j] = C[i, j] + A[i, t] * W[t, j]
                    C[i, j] = T.max(C[i, j], T.float32(0))

        return kernel

    @T.prim_func
    def kernel(a: T.handle, w: T.handle, c: T.handle):
        T.func_attr({"global_symbol": name, "tirx.noalias": True})
        rows = T.int64()
        A = T.match_buffer(a, (rows, k), "float32")
        W = T.match_buffer(w, (k, n), "float32")
        C = T.match_buffer(c, (rows, n), "float32")
        for j in T.parallel(n):
            for i in range(rows):
                C[i, j] = T.float32(0)
                for t in range(k):
                    C[i, j] = C[i, j] + A[i, t] * W[t, j]
                C[i, j] = T.max(C[i, j], T.float32(0))

    return kernel


@T.prim_func
def spin(turns: T.handle, source: T.handle, target: T.handle):
    T.func_attr({"global_symbol": "spin", "tirx.noalias": True})
    N = T.match_buffer(turns, (1,), "int32")
    A = T.match_buffer(source, (1,), "int32")
    C = T.match_buffer(target, (1,), "int32")
    C[0] = A[0]
    for _ in range(N[0]):
        C[0] = C[0] * 1664525 + 1013904223


@T.prim_func
def spins(turns: T.handle, source: T.handle, target: T.handle):
    T.func_attr({"global_symbol": "spins", "tirx.noalias": True})
    rows = T.int64()
    N = T.match_buffer(turns, (rows, 1), "int32")
    A = T.match_buffer(source, (rows, 1), "int32")
    C = T.match_buffer(target, (rows, 1), "int32")
    for i in T.parallel(rows):
        C[i, 0] = A[i, 0]
        for _ in range(N[i, 0]):
            C[i, 0] = C[i, 0] * 1664525 + 1013904223


@T.prim_func
def brittle(turns: T.handle, source: T.handle, target: T.handle):
    T.func_attr({"global_symbol": "brittle", "tirx.noalias": True})
    N = T.match_buffer(turns, (1,), "int32")
    A = T.match_buffer(source, (1,), "int32")
    C = T.match_buffer(target, (1,), "int32")
    for i in T.parallel(16):
        assert N[0] == 0 or A[0] + i <= N[0], "too much for a brittle layer"
        if i == 0:
            C[0] = A[0] + 1


@T.prim_func
def crash(address: T.handle, source: T.handle, target: T.handle):
    T.func_attr({"global_symbol": "crash", "tirx.noalias": True})
    N = T.match_buffer(address, (1,), "int32")
    A = T.match_buffer(source, (1,), "int32")
    C = T.match_buffer(target, (1,), "int32")
    C[0] = A[T.int64(N[0]) * T.int64(1 << 32)]


@T.prim_func
def words(ends: T.handle, letters: T.handle, ids: T.handle, target: T.handle):
    T.func_attr({"global_symbol": "words", "tirx.noalias": True})
    rows = T.int64()
    E = T.match_buffer(ends, (rows * 2,), "int32")
    L = T.match_buffer(letters, (rows * (NAME_BYTES + TEXT_BYTES),), "uint8")
    N = T.match_buffer(ids, (rows,), "int64")
    C = T.match_buffer(target, (rows, 5), "int32")
    for i in T.parallel(rows):
        C[i, 4] = T.Cast("int32", N[i] & T.int64(0xFFFFFF))
        for f in range(2):
            begin: T.int32 = T.if_then_else(i > 0, E[f * rows + T.max(i - 1, T.int64(0))], 0)
            C[i, 2 * f] = E[f * rows + i] - begin
            C[i, 2 * f + 1] = 0
            for t in range(C[i, 2 * f]):
                C[i, 2 * f + 1] = C[i, 2 * f + 1] * 31 + T.Cast("int32", L[f * rows * NAME_BYTES + begin + t])


def versions(*symbols: str, arguments: tuple[int, ...], batches: int, solo_ns: int) -> tuple[VersionEntry, ...]:
    """Latency tables that scale with the cores and slow down with the level, as a profile would say."""
    table = tuple(
        tuple(tuple(round(solo_ns * (1 + batch) * level / (1 + core)) for core in range(CORES)) for level in (1.0, 2.0))
        for batch in range(batches)
    )
    return tuple(VersionEntry(symbol, arguments, 4096, 8, {}, table) for symbol in symbols)


def layer(name: str, source: int, target: int, entries: tuple[VersionEntry, ...], batches: int) -> LayerEntry:
    ones = (1024,) * batches
    return LayerEntry(name, "matmul", (source,), (target,), ones, ones, entries)


def write(final: Path, kernels: list[Any], weights: np.ndarray[Any, Any], **manifest: Any) -> None:
    module = tvm.IRModule({kernel.attrs["global_symbol"]: kernel for kernel in kernels})
    with write_artifact(final) as draft:
        tvm.compile(module, target=tvm_target()).export_library(str(draft / KERNELS))
        (draft / WEIGHTS).write_bytes(weights.tobytes())
        content = Manifest(
            schema=SCHEMA,
            model=final.name,
            precision="fp32",
            tolerance=1e-3,
            target={"kind": "llvm"},
            features=(),
            levels=(1.0, 2.0),
            environment={},
            source_digest=hashlib.sha256(b"").hexdigest(),
            kernels_digest=file_digest(draft / KERNELS),
            weights_digest=file_digest(draft / WEIGHTS),
            **manifest,
        )
        (draft / MANIFEST).write_bytes(msgspec.json.encode(content))
        store_answer(draft)


def mlp_weights() -> list[np.ndarray[Any, Any]]:
    generator = np.random.default_rng(7)
    return [generator.standard_normal((k, n), dtype=np.float32) for k, n in pairwise(MLP)]


def build_mlp(final: Path) -> None:
    weights = mlp_weights()
    buffers = [Buffer("input", "float32", (-1, MLP[0]), 0), Buffer("output", "float32", (-1, MLP[3]), 0)]
    offset = 0
    for weight in weights:
        buffers.append(Buffer("weight", "float32", weight.shape, offset))
        offset += weight.nbytes
    buffers += [Buffer("arena", "float32", (-1, 32), 0), Buffer("arena", "float32", (-1, 32), 1024)]
    kernels, layers = [], []
    for i, (source, weight, target) in enumerate(((0, 2, 5), (5, 3, 6), (6, 4, 1))):
        for by_row in (True, False):
            kernels.append(dense(f"dense{i}_{int(by_row)}", MLP[i], MLP[i + 1], by_row=by_row))
        entries = versions(f"dense{i}_0", f"dense{i}_1", arguments=(source, weight, target), batches=2, solo_ns=50_000)
        layers.append(layer(f"dense{i}", source, target, entries, 2))
    write(
        final,
        kernels,
        np.concatenate([w.ravel() for w in weights]),
        qos_ns=50_000_000,
        max_batch=8,
        batches=(1, 8),
        inputs=(Port("x", "float32", (-1, MLP[0])),),
        outputs=(Port("y", "float32", (-1, MLP[3])),),
        buffers=tuple(buffers),
        arena_bytes=2048,
        layers=tuple(layers),
    )


def build_chain(final: Path, kernel: Any, count: int, batches: tuple[int, ...] = (1,), low: int | None = None) -> None:
    """`low`: the least number of turns, with which a model that fails or crashes does neither."""
    shape = (1,) if len(batches) == 1 else (-1, 1)
    ports = (Port("turns", "int32", shape, low), Port("seed", "int32", shape))
    buffers = [Buffer("input", "int32", shape, 0), Buffer("input", "int32", shape, 1)]
    buffers += [Buffer("output", "int32", shape, 0)]
    buffers += [Buffer("arena", "int32", shape, 64 * i) for i in range(count - 1)]
    places = [1, *range(3, 2 + count), 2]
    layers, sizes = [], len(batches)
    symbol = kernel.attrs["global_symbol"]
    for i, (source, target) in enumerate(pairwise(places)):
        entries = versions(symbol, arguments=(0, source, target), batches=sizes, solo_ns=2_000_000)
        layers.append(layer(f"turn{i}", source, target, entries, sizes))
    write(
        final,
        [kernel],
        np.zeros(0, np.uint8),
        qos_ns=150_000_000,
        max_batch=batches[-1],
        batches=batches,
        inputs=ports,
        outputs=(Port("state", "int32", shape),),
        buffers=tuple(buffers),
        arena_bytes=64 * count,
        layers=tuple(layers),
    )


def build_words(final: Path) -> None:
    row_bytes = NAME_BYTES + TEXT_BYTES
    text = [
        Port(
            name, "string", (-1, 1), locations=(PackedLocation(0, i), PackedLocation(1, i * NAME_BYTES)), max_bytes=size
        )
        for i, (name, size) in enumerate((("name", NAME_BYTES), ("text", TEXT_BYTES)))
    ]
    packed = (Port("ends", "int32", (-2,)), Port("letters", "uint8", (-row_bytes,)), Port("ids", "int64", (-1,)))
    buffers = [Buffer("input", port.dtype, port.shape, i) for i, port in enumerate(packed)]
    buffers.append(Buffer("output", "int32", (-1, 5), 0))
    entries = versions("words", arguments=(0, 1, 2, 3), batches=2, solo_ns=200_000)
    ones = (1024, 1024)
    write(
        final,
        [words],
        np.zeros(0, np.uint8),
        qos_ns=150_000_000,
        max_batch=4,
        batches=(1, 4),
        inputs=(*text, Port("id", "int64", (-1, 1), locations=(PackedLocation(2, 0),))),
        packed_buffers=packed,
        outputs=(Port("digest", "int32", (-1, 5)),),
        buffers=tuple(buffers),
        arena_bytes=64,
        layers=(LayerEntry("words", "columns", (0, 1, 2), (3,), ones, ones, entries),),
    )


def main(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    build_mlp(folder / "mlp")
    build_chain(folder / "spin", spin, LAYERS)
    build_chain(folder / "spins", spins, LAYERS, (1, 4))
    build_chain(folder / "brittle", brittle, LAYERS, low=0)
    build_chain(folder / "crash", crash, 2, low=0)
    build_words(folder / "words")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
