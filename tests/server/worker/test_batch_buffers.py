"""Several queries gathered into one batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tensor_pools import new_pool

from veltair.profiles.artifact.artifact_folder import load_artifact
from veltair.profiles.artifact.input_layout import InputLayout
from veltair.profiles.artifact.manifest import Manifest
from veltair.profiles.artifact.strings import Strings
from veltair.server.ipc.block_orders import Members
from veltair.server.ipc.tensor_pool import TensorPool
from veltair.server.worker.batch_buffers import BatchBuffers

Query = tuple[list[bytes], list[bytes], list[int]]  # names, texts, ids


MARKER = b"marker of another query "


def inputs(query: Query) -> dict[str, Any]:
    names, texts, ids = query
    column = np.array(ids, np.int64).reshape(-1, 1)
    return {"name": Strings.from_values(names), "text": Strings.from_values(texts), "id": column}


def drawn(seed: int, rows: int) -> Query:
    chance = np.random.default_rng(seed)
    names = [chance.bytes(chance.integers(0, 9)) for _ in range(rows)]
    texts = [chance.bytes(chance.integers(0, 300)) for _ in range(rows)]
    return names, texts, chance.integers(0, 1 << 40, rows).tolist()


def pool_of(folder: Path, slots: int) -> tuple[TensorPool, Manifest]:
    manifest = load_artifact(folder / "words").manifest
    return new_pool([manifest], slots), manifest


@pytest.mark.slow
def test_a_batch_gathers_what_each_slot_was_last_given(artifacts: Path) -> None:
    pool, manifest = pool_of(artifacts, 3)
    batch = BatchBuffers(pool, 0, manifest)
    for sizes in ((1, 2, 1), (1, 1, 1), (2, 1, 1)):
        queries = [drawn(slot, rows) for slot, rows in enumerate(sizes)]
        for slot in range(3):
            before = [MARKER[:8]] * 4, [MARKER * 100] * 4, [-1] * 4
            InputLayout.of(manifest).fill(pool.inputs(0, slot, 4), inputs(before), 4)
        for slot, (query, rows) in enumerate(zip(queries, sizes, strict=True)):
            InputLayout.of(manifest).fill(pool.inputs(0, slot, rows), inputs(query), rows)
        batch.gather(Members.of(list(enumerate(sizes))).packed)
        names, texts, ids = InputLayout.of(manifest).slots(batch.inputs(sum(sizes)), sum(sizes))
        assert names.strings().tolist() == [name for query in queries for name in query[0]]
        assert texts.strings().tolist() == [text for query in queries for text in query[1]]
        assert ids.values.ravel().tolist() == [id_ for query in queries for id_ in query[2]]


@pytest.mark.slow
def test_an_output_may_have_several_rows_for_each_sample(artifacts: Path) -> None:
    plain = load_artifact(artifacts / "mlp").manifest
    [port] = plain.outputs
    manifest = msgspec.structs.replace(plain, outputs=(msgspec.structs.replace(port, shape=(-8, 1)),))
    assert manifest.client_shape(manifest.outputs[0]) == (-1, 1)
    pool = new_pool([manifest], 2)
    batch = BatchBuffers(pool, 0, manifest)
    [rows] = batch.outputs(3)
    rows[:, 0] = np.arange(24)
    batch.scatter(Members.of([(0, 1), (1, 2)]).packed)
    [first], [second] = (pool.outputs(0, slot, count) for slot, count in ((0, 1), (1, 2)))
    assert np.concatenate([first, second])[:, 0].tolist() == [*range(24)]
