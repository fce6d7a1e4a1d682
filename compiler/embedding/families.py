"""The five families of embedding operations, scalar and coupled as they come in (Ember 2.2, Table 1).

The dimensions of a batch are variables: its SEGMENTS, their OFFSETS (one more than segments), and all LOOKUPS. Ids are
int64 or int32. Bags without offsets have the same number of lookups each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from veltair.compiler.embedding.slc import (
    AddToVariable,
    Callback,
    ElementLoop,
    EmbeddingProgram,
    For,
    MemoryCell,
    Operation,
    ReduceCell,
    SetVariable,
    StoreCell,
    Value,
)
from veltair.compiler.embedding.streams import (
    AluStream,
    InverseStream,
    KeptStream,
    LoadStream,
    RepeatedStream,
    StartStream,
    Stream,
)
from veltair.compiler.graph.layer_spec import Activation

SEGMENTS, LOOKUPS, OFFSETS = -1, -2, -3
Streams = tuple[tuple[str, Stream], ...]


def sls(
    table: Activation,
    dim: int,
    ids: str = "int64",
    lookups: int = 0,
    reduce: str = "sum",
    weighted: bool = False,
    ragged: bool = False,
    padding: int | None = None,
) -> EmbeddingProgram:
    """Sums of rows by segments: SparseLengthsSum, EmbeddingBag. out (segments, dim).

    Operands: ids; offsets int64 (segments + 1) unless there are `lookups` in each segment, then ids is (segments,
    lookups), and if `ragged` a segment has the first of them, as many as lengths int64 (segments,) says; weights
    float32 like ids, if `weighted`; the table; out. `reduce` is "sum", "mean" or "max" over what a segment
    has (of weighted rows, too), 0 for an empty one. padding: an id that counts as none.
    """
    picked = (SEGMENTS, lookups) if lookups else (LOOKUPS,)
    memories = [Activation("ids", ids, picked)]
    memories += [] if lookups else [Activation("offsets", "int64", (OFFSETS,))]
    memories += [Activation("lengths", "int64", (SEGMENTS,))] if ragged else []
    memories += [Activation("weights", "float32", picked)] if weighted else []
    memories += [table, Activation("out", "float32", (SEGMENTS, dim))]
    value: Value = "row"
    streams: list[tuple[str, Stream]] = [("id", LoadStream("ids", ("p",)))]
    if weighted:
        streams.append(("weight", LoadStream("weights", ("p",))))
        value = Operation("mul", ("weight", value))
    outer = list(_segment(lookups, ragged))
    start: Value = 0.0
    if reduce == "max":
        outer.append(("start", StartStream("begin", "stop", padding)))
        start = "start"
    if padding is not None:
        streams.append(("kept", KeptStream("ids", ("p",), padding)))
        value = Operation("where", ("kept", value, -math.inf if reduce == "max" else 0.0))
    if reduce == "mean":
        outer.append(("scale", InverseStream("begin", "stop", padding)))
        value = Operation("mul", ("scale", value))
    out = MemoryCell("out", ("b", "e"))
    elements = For(
        "e",
        0,
        "dim",
        (("row", LoadStream(table.name, ("id", "e"))),),
        (Callback((ReduceCell(out, value, "max" if reduce == "max" else "add"),)),),
    )
    inner = For("p", "begin", "stop", tuple(streams), (elements,))
    begun = Callback((ElementLoop("e", (StoreCell(out, start),)),))
    return EmbeddingProgram("sls", tuple(memories), dim, For("b", 0, "segments", tuple(outer), (begun, inner)))


def _segment(lookups: int = 0, ragged: bool = False) -> Streams:
    """Where a segment's lookups begin and stop."""
    if ragged:
        begin, length = AluStream("*", "b", lookups), LoadStream("lengths", ("b",))
        own = ("length", length), ("held", AluStream("min", "length", lookups))
        return ("begin", begin), *own, ("stop", AluStream("+", "begin", "held"))
    if lookups:
        return ("begin", AluStream("*", "b", lookups)), ("stop", AluStream("+", "begin", lookups))
    return ("begin", LoadStream("offsets", ("b",))), ("stop", LoadStream("offsets", (AluStream("+", "b", 1),)))


def spmm(table: Activation, dim: int, ids: str = "int64") -> EmbeddingProgram:
    """A sparse matrix in CSR times a dense one, as in graph networks: operands ids (columns), offsets, weights (the
    non-zeros), the table; out (segments, dim)."""
    found = sls(table, dim, ids, weighted=True)
    return EmbeddingProgram("spmm", found.memories, dim, found.loop)


def message_passing(table: Activation, dim: int, ids: str = "int64", lookups: int = 0) -> EmbeddingProgram:
    """out[i] = sum over i's neighbours j of sigmoid(h_i . h_j) h_j: SDDMM and SpMM in one (FusedMM; Ember 2.2.3).

    Operands: ids (neighbours), offsets, the table, whose first rows are the segments' own; out (segments, dim). With
    `lookups` neighbours each: ids (segments, lookups), "selves" (segments,), the rows that are their own, the table.
    """
    if lookups:
        memories = (Activation("ids", ids, (SEGMENTS, lookups)), Activation("selves", ids, (SEGMENTS,)))
    else:
        memories = (Activation("ids", ids, (LOOKUPS,)), Activation("offsets", "int64", (OFFSETS,)))
    selves: Streams = (("self", LoadStream("selves", ("b",))),) if lookups else ()
    out = MemoryCell("out", ("b", "e"))
    own = "self" if lookups else "b"
    rows: Streams = (("own", LoadStream(table.name, (own, "e"))), ("row", LoadStream(table.name, ("id", "e"))))
    likeness = For("e", 0, "dim", rows, (Callback((AddToVariable("dot", Operation("mul", ("own", "row"))),)),))
    message = Callback(
        (
            SetVariable("edge", Operation("sigmoid", ("dot",))),
            ElementLoop("e", (ReduceCell(out, Operation("mul", ("edge", "row"))),)),
        )
    )
    start = Callback((SetVariable("dot", 0.0),))
    inner = For("p", "begin", "stop", (("id", LoadStream("ids", ("p",))),), (start, likeness, message))
    zero = Callback((ElementLoop("e", (StoreCell(out, 0.0),)),))
    operands = (*memories, table, Activation("out", "float32", (SEGMENTS, dim)))
    outer = (*_segment(lookups), *selves)
    return EmbeddingProgram("message_passing", operands, dim, For("b", 0, "segments", outer, (zero, inner)))


def knowledge_graph(
    entities: Activation, relations: Activation, dim: int, norm: int = 1, ids: str = "int64"
) -> EmbeddingProgram:
    """TransE's score of triples, -|head + relation - tail| in norm 1 or 2.

    Operands: heads, relations' ids ("kinds") and tails, all (segments,); both tables; out (segments,).
    """
    memories = tuple(Activation(name, ids, (SEGMENTS,)) for name in ("heads", "kinds", "tails"))
    rows = _load_each({"head": (entities.name, "h"), "relation": (relations.name, "r"), "tail": (entities.name, "t")})
    gap = Operation("sub", (Operation("add", ("head", "relation")), "tail"))
    distance: Value = "distance" if norm == 1 else Operation("root", ("distance",))
    grown = AddToVariable("distance", Operation("abs" if norm == 1 else "square", (gap,)))
    elements = For("e", 0, "dim", rows, (Callback((grown,)),))
    score = Callback((StoreCell(MemoryCell("out", ("b",)), Operation("neg", (distance,))),))
    ids_at = {"h": "heads", "r": "kinds", "t": "tails"}
    streams: Streams = tuple((name, LoadStream(memory, ("p",))) for name, memory in ids_at.items())
    inner = For("p", "b", AluStream("+", "b", 1), streams, (Callback((SetVariable("distance", 0.0),)), elements, score))
    operands = (*memories, entities, relations, Activation("out", "float32", (SEGMENTS,)))
    return EmbeddingProgram("knowledge_graph", operands, dim, For("b", 0, "segments", (), (inner,)))


def block_gather(table: Activation, dim: int, ids: str = "int64", picked: int = 0, blocks: int = 0) -> EmbeddingProgram:
    """Blocks of rows copied: BigBird's sparse attention (Ember 2.2.2).

    Operands: ids (segments,) of blocks, the table as (blocks, dim), a block's rows side by side in it; out (segments,
    dim). With `picked`: ids (picked,) are the same for each sample, and the table has `blocks` rows for each.
    """
    found: Stream = RepeatedStream("ids", "p", picked, blocks) if picked else LoadStream("ids", ("p",))
    memories = (Activation("ids", ids, (picked or SEGMENTS,)), table, Activation("out", "float32", (SEGMENTS, dim)))
    copied = Callback((StoreCell(MemoryCell("out", ("b", "e")), "row"),))
    elements = For("e", 0, "dim", (("row", LoadStream(table.name, ("id", "e"))),), (copied,))
    inner = For("p", "b", AluStream("+", "b", 1), (("id", found),), (elements,))
    return EmbeddingProgram("block_gather", memories, dim, For("b", 0, "segments", (), (inner,)))


def _load_each(rows: Mapping[str, tuple[str, str]]) -> Streams:
    """A stream of elements for each row: its name, the table, and the stream of its id."""
    return tuple((name, LoadStream(table, (row, "e"))) for name, (table, row) in rows.items())
