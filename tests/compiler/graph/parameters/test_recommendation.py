"""How `veltair inspect` describes embedding bags."""

from __future__ import annotations

import pytest
from row_models import drawn

from veltair.compiler.embedding.row_storage import STORAGES, encode_rows, storage_of
from veltair.compiler.graph.parameters.recommendation import EmbeddingBagParameters, Reduction


@pytest.mark.parametrize("storage", STORAGES)
def test_inspect_says_how_rows_are_stored(storage: str) -> None:
    """In the note of the layer, which is no term of its workload; rows in fp32 are not mentioned in either."""
    tables = [encode_rows(drawn(rows, 32), storage) for rows in (4000, 1000)]
    size = sum(table.nbytes for table in tables)
    parameters = EmbeddingBagParameters(reduce=Reduction.SUM, storage=storage_of(tables[0]), table_bytes=size)
    notes = {"fp32": "", "fp16": "tables of 0.3 MB in fp16", "int8": "tables of 0.2 MB in int8"}
    assert parameters.note == notes[storage]
    assert parameters.terms() == {"reduce": "sum"} | ({} if storage == "fp32" else {"storage": storage})
