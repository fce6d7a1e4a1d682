"""The kernels that `bench.recsys.ember` times: Ember's ladder on each family, look-ups in large tables, and pages."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.recsys.embedding_tables import ID_SETS, SHAPES, TableShape

ROWS_C = Path(__file__).parent / "rows.c"
SEGMENTS = 4096
POINTS = [
    {"ahead": ahead, "bags": bags, "along": along}
    for along, bags, ahead in product(("tables", "bags"), (4, 16), (0, 8, 16, 32))
]
REPEATED = 1 << 16  # different rows of a stored table
STORED = [point for point in POINTS if point["bags"] == 16]
PAGES_BYTES, PAGES_LOOKUPS, PAGES_BATCH = 2 << 30, 100, 1024
DISTANCES = (0, 4, 8, 16, 32)
LADDER = ((0, 0), (1, 0), (2, 0), (2, 16), (3, 0), (3, 16))  # level and distance


class LadderCase(NamedTuple):
    """A program of a family of embedding operations, and the sizes of its data."""

    family: str
    name: str
    sizes: dict[str, int]
    program: Any


def ladder() -> Iterator[LadderCase]:
    """The cases of every family."""
    from veltair.compiler.embedding import families
    from veltair.compiler.graph.layer_spec import Activation

    def table(name: str, rows: int, dim: int) -> Activation:
        return Activation(name, "float32", (rows, dim))

    for rm, (segments, dim, lookups) in {"RM1": (64, 32, 64), "RM2": (32, 64, 128), "RM3": (16, 128, 256)}.items():
        for level, skew in enumerate((0, 8, 12)):
            sizes = {"rows": 16_384, "dim": dim, "segments": 2 * segments, "lookups": lookups, "skew": skew}
            yield LadderCase("sums", f"{rm} L{level}", sizes, families.sls(table("table", 16_384, dim), dim))
    graphs = {"arxiv": (169_343, 128, 7), "proteins": (132_534, 8, 299), "products": (1_000_000, 100, 25)}
    for name, (rows, dim, degree) in graphs.items():
        sizes = {"rows": rows, "dim": dim, "segments": SEGMENTS, "lookups": degree, "skew": 0}
        yield LadderCase("graph (SpMM)", name, sizes, families.spmm(table("table", rows, dim), dim))
    for name, (rows, degree) in {"web-Google": (916_428, 6), "com-Youtube": (1_134_890, 5)}.items():
        sizes = {"rows": rows, "dim": 128, "segments": SEGMENTS, "lookups": degree, "skew": 0}
        yield LadderCase("messages", name, sizes, families.message_passing(table("table", rows, 128), 128))
    sizes = {"rows": 93_773, "dim": 512, "segments": SEGMENTS, "lookups": 1, "skew": 0}
    triples = families.knowledge_graph(table("entities", 93_773, 512), table("relations", 51, 512), 512)
    yield LadderCase("triples", "biokg", sizes, triples)
    for block in (1, 2, 4, 8):
        sizes = {"rows": 4096 // block, "dim": 512 * block, "segments": 8192 // block, "lookups": 1, "skew": 0}
        tokens = table("table", 4096 // block, 512 * block)
        yield LadderCase("blocks", f"{block} tokens", sizes, families.block_gather(tokens, 512 * block))


def prepare(folder: Path) -> None:
    """Compiles everything that `bench.recsys.ember` measures and writes the tables, 5.2 GB."""
    import tvm

    from veltair.compiler.embedding import families
    from veltair.compiler.embedding.embedding_kernel import embedding_function
    from veltair.compiler.embedding.family_reference import sls
    from veltair.compiler.embedding.row_storage import DTYPES, STORAGES, encode_rows, row_items
    from veltair.compiler.graph.layer_spec import Activation, LayerSpec
    from veltair.compiler.graph.parameters.recommendation import EmbeddingBagParameters, Reduction
    from veltair.compiler.kernels.rows.embedding_bag import EmbeddingBag
    from veltair.machine.isa import cpu_features, tvm_target

    folder.mkdir(parents=True, exist_ok=True)

    def library(code: Any, name: str) -> None:
        module = tvm.IRModule({"main": code.with_attr("global_symbol", "main")})
        tvm.compile(module, target=tvm.target.Target(tvm_target())).export_library(str(folder / f"{name}.so"))

    build = ["gcc", "-O3", "-march=native", "-shared", "-fPIC", ROWS_C, "-o", folder / "rows.so"]
    subprocess.run(build, check=True)
    for number, case in enumerate(ladder()):
        for level, ahead in LADDER:
            library(embedding_function(case.program, level, ahead, 8), f"ladder{number}-{level}-{ahead}")
    for ahead in DISTANCES:
        rows = Activation("table", "float32", (PAGES_BYTES // 128, 32))
        library(embedding_function(families.sls(rows, 32, lookups=PAGES_LOOKUPS), 3, ahead, 16), f"pages{ahead}")
    chance = np.random.default_rng(0)
    floats = max(tables * rows * dim for tables, rows, dim, *_ in SHAPES.values())
    piece = chance.standard_normal(1 << 22, np.float32)
    with (folder / "tables.bin").open("wb") as file:
        for start in range(0, floats, len(piece)):
            file.write(piece[: floats - start].data)

    def kernels(shape: TableShape, storage: str, points: list[dict[str, Any]], name: str) -> None:
        tables, rows, dim, lookups, batch = shape
        inputs = tuple(Activation(f"i{t}", "int64", (-1, lookups)) for t in range(tables))
        outputs = tuple(Activation(f"o{t}", "float32", (-1, dim)) for t in range(tables))
        row = np.zeros(row_items(dim, DTYPES[storage]), DTYPES[storage])
        weights = {f"table{t}": np.broadcast_to(row, (rows, len(row))) for t in range(tables)}
        parameters = EmbeddingBagParameters(reduce=Reduction.SUM)
        spec = LayerSpec("sums", "embedding_bag", inputs, outputs, weights, 0, batch, parameters)
        for place, point in enumerate(points):
            library(EmbeddingBag().build(spec, point, cpu_features()).function, f"{name}-{place}")

    for number, shape in enumerate(SHAPES.values()):
        tables, rows, _, lookups, batch = shape
        kernels(shape, "fp32", POINTS, f"tables{number}")
        np.save(folder / f"ids{number}.npy", chance.integers(0, rows, (ID_SETS, tables, batch, lookups)))
    some, ids = chance.standard_normal((REPEATED, 32), np.float32), np.load(folder / "ids0.npy")[0, 0]
    for storage in STORAGES:
        kernels(next(iter(SHAPES.values())), storage, STORED, storage)
        np.save(folder / f"rows-{storage}.npy", encode_rows(some, storage))
        np.save(folder / f"sums-{storage}.npy", sls(ids % REPEATED, encode_rows(some, storage), None))
