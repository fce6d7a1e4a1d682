"""Ember's optimisations of the structured form (Ember 7, Fig. 15, Table 4), and their meaning on a CPU.

emb-opt0, no optimisation: one number at a time, from table to output.
emb-opt1, vectorised (7.1): the loop over a row's elements takes 16 at a time. Where Ember masks the last vector, its
    rest is done in shorter ones.
emb-opt2, bufferised (7.2): a row goes through the queue whole. On a CPU an entry is where the checked row begins, with
    its segment and scalars, and the row's lines are prefetched when it is pushed: the access loop runs ahead of the
    execute loop. The row itself is not copied, since the execute side sees the same memory.
emb-opt3, aligned (7.3): everything but where rows begin leaves the queue. Segments are counted by the execute side,
    which ends each in turn; scalars, which lie in a row anyway, are read in place; sums are in registers from the
    begin of a segment to its end, which saves a load and a store for each row, and a segment's factor scales its sum.
"""

from __future__ import annotations

from dataclasses import replace

from veltair.compiler.codegen.vectors import LANES
from veltair.compiler.embedding.slc import (
    Callback,
    ElementLoop,
    EmbeddingProgram,
    For,
    MemoryCell,
    Operation,
    Push,
    ReduceCell,
    Statement,
    StoreCell,
    Value,
)
from veltair.compiler.embedding.streams import InverseStream

LEVELS = range(4)  # emb-opt0 … emb-opt3


def optimise(program: EmbeddingProgram, level: int) -> EmbeddingProgram:
    """The program after the passes of emb-opt0 … emb-opt3."""
    for each in (vectorise, bufferise, align_queues)[:level]:
        program = replace(program, loop=each(program.loop))
    return program


def vectorise(loop: For) -> For:
    """Vectors in inner loops only, as in the paper: rows are contiguous and longer than a vector."""
    innermost = not any(isinstance(inner, For) for inner in loop.body)

    def wide(node: For | Callback | Push) -> For | Callback | Push:
        if isinstance(node, Callback):
            return Callback(tuple(replace(s, lanes=LANES) if isinstance(s, ElementLoop) else s for s in node.body))
        return vectorise(node) if isinstance(node, For) else node

    return replace(loop, body=tuple(map(wide, loop.body)), lanes=LANES if innermost else loop.lanes)


def bufferise(loop: For) -> For:
    """Moves the callback of an element behind the loop over elements, which only fills a buffer."""
    body: list[For | Callback | Push] = []
    for inner in loop.body:
        if isinstance(inner, For) and inner.stop == "dim":
            statements = tuple(s for c in inner.body if isinstance(c, Callback) for s in c.body)
            body.append(replace(inner, body=tuple(Push(name) for name, _ in inner.streams)))
            body.append(Callback((ElementLoop(inner.index, statements, inner.lanes),)))
        else:
            body.append(bufferise(inner) if isinstance(inner, For) else inner)
    pushes = [node for node in body if isinstance(node, For) and node.stop == "dim"]
    if pushes:  # the computation of a lookup is one callback, behind all loads for it
        statements = tuple(s for node in body if isinstance(node, Callback) for s in node.body)
        body = [*pushes, Callback(statements)]
    return replace(loop, body=tuple(body))


COUNTER = "bag"


def align_queues(loop: For) -> For:
    """Makes the segment's number a counter of the execute side, and its sum an accumulator, stored at the end."""
    scales = {name for name, stream in loop.streams if isinstance(stream, InverseStream)}
    sums = _accumulates(loop)
    factors: set[str] = set()

    def moved(value: Value) -> Value:
        if isinstance(value, Operation) and value.operation == "mul" and value.arguments[0] in scales:
            factors.add(str(value.arguments[0]))
            return moved(value.arguments[1])
        return value

    def rewritten(statement: Statement) -> Statement:
        match statement:
            case ElementLoop(index, body, lanes):
                return ElementLoop(index, tuple(map(rewritten, body)), lanes)
            case ReduceCell(MemoryCell(_, (_, index)), value, by):
                return ReduceCell(MemoryCell("sum", (index,)), moved(value), by)
            case StoreCell(MemoryCell(memory, at), value):
                if sums:
                    return StoreCell(MemoryCell("sum", at[1:]), value)
                return StoreCell(
                    MemoryCell(memory, tuple(COUNTER if name == loop.index else name for name in at)), value
                )
        return statement

    def inside(node: For | Callback | Push) -> For | Callback | Push:
        if isinstance(node, Callback):
            return Callback(tuple(map(rewritten, node.body)))
        return replace(node, body=tuple(map(inside, node.body))) if isinstance(node, For) else node

    body = tuple(map(inside, loop.body))
    if sums:
        total: Value = MemoryCell("sum", ("e",))
        for factor in sorted(factors):
            total = Operation("mul", (factor, total))
        body = (*body, Callback((ElementLoop("e", (StoreCell(MemoryCell("out", (COUNTER, "e")), total),), LANES),)))
    return replace(loop, body=body, counter=COUNTER)


def _accumulates(node: For | Callback | Push) -> bool:
    if isinstance(node, For):
        return any(map(_accumulates, node.body))
    return isinstance(node, Callback) and any(
        isinstance(s, ReduceCell)
        for each in node.body
        for s in (each.body if isinstance(each, ElementLoop) else (each,))
    )
