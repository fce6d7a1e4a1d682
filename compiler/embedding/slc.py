"""Structured lookup-compute form (SLC): loops whose loads are streams, and callbacks that compute (Ember 6.1, Fig. 12).

The access side runs the streams, and may run ahead of the callbacks, which belong to the execute side. Names tie both
together: loops and streams define them, callbacks use them. slc.for, slc.push, mem_str and alu_str are Ember's terms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from veltair.compiler.embedding.streams import Stream, StreamIndex
from veltair.compiler.graph.layer_spec import Activation


@dataclass(frozen=True, slots=True)
class MemoryCell:
    """A number that callbacks write, in memory or in the accumulators.

    >>> str(MemoryCell("out", ("b", "e")))
    'out[b, e]'
    """

    memory: str
    at: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.memory}[{', '.join(self.at)}]"


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation on values: mul, add, sub, max, neg, abs, square, root, sigmoid; where(1 or 0, then, else).

    >>> str(Operation("mul", ("weight", "row")))
    'mul(weight, row)'
    """

    operation: str
    arguments: tuple[Value, ...]

    def __str__(self) -> str:
        return f"{self.operation}({', '.join(map(str, self.arguments))})"


Value: TypeAlias = str | float | MemoryCell | Operation


@dataclass(frozen=True, slots=True)
class StoreCell:
    """cell = value

    >>> str(StoreCell(MemoryCell("out", ("b", "e")), "row"))
    'out[b, e] = row'
    """

    cell: MemoryCell
    value: Value

    def __str__(self) -> str:
        return f"{self.cell} = {self.value}"


@dataclass(frozen=True, slots=True)
class ReduceCell:
    """cell += value, or another operation of both

    >>> str(ReduceCell(MemoryCell("out", ("b", "e")), "row"))
    'out[b, e] += row'
    >>> str(ReduceCell(MemoryCell("out", ("b", "e")), "row", "max"))
    'out[b, e] max= row'
    """

    cell: MemoryCell
    value: Value
    by: Literal["add", "max"] = "add"

    def __str__(self) -> str:
        return f"{self.cell} {'+' if self.by == 'add' else self.by}= {self.value}"


@dataclass(frozen=True, slots=True)
class SetVariable:
    """variable = value, for a number that the execute side holds

    >>> str(SetVariable("dot", 0.0))
    'dot = 0.0'
    """

    variable: str
    value: Value

    def __str__(self) -> str:
        return f"{self.variable} = {self.value}"


@dataclass(frozen=True, slots=True)
class AddToVariable:
    """variable += the sum of all lanes of a value

    >>> str(AddToVariable("dot", Operation("mul", ("self", "row"))))
    'dot += mul(self, row)'
    """

    variable: str
    value: Value

    def __str__(self) -> str:
        return f"{self.variable} += {self.value}"


@dataclass(frozen=True, slots=True)
class ElementLoop:
    """A loop of the execute side over the elements of a row.

    >>> str(ElementLoop("e", (AddToVariable("dot", "row"),), lanes=16))
    'for<16> e: dot += row'
    """

    index: str
    body: tuple[Statement, ...]
    lanes: int = 1

    def __str__(self) -> str:
        inside = "; ".join(map(str, self.body))
        return f"for<{self.lanes}> {self.index}: {inside}"


Statement: TypeAlias = StoreCell | ReduceCell | SetVariable | AddToVariable | ElementLoop


@dataclass(frozen=True, slots=True)
class Callback:
    """Statements that the execute side runs where the callback stands in the loop.

    >>> str(Callback((SetVariable("dot", 0.0),)).body[0])
    'dot = 0.0'
    """

    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Push:
    """slc.push: an element goes into a buffer stream, which callbacks behind the loop read as a whole.

    >>> Push("row").stream
    'row'
    """

    stream: str


@dataclass(frozen=True, slots=True)
class For:
    """slc.for: loads its streams at each step, then runs its body. `lanes` > 1: slcv.for, that many steps at once.

    stop: "segments" for the outer loop, "dim" for the elements of a row.
    counter: the execute side's name of the step, if it counts steps itself.

    >>> from veltair.compiler.embedding.streams import LoadStream
    >>> For("p", "begin", "stop", streams=(("id", LoadStream("ids", ("p",))),), body=(Push("id"),)).lanes
    1
    """

    index: str
    begin: StreamIndex | int
    stop: StreamIndex
    streams: tuple[tuple[str, Stream], ...]
    body: tuple[For | Callback | Push, ...]
    lanes: int = 1
    counter: str = ""


@dataclass(frozen=True, slots=True)
class EmbeddingProgram:
    """One embedding operation: segments of a batch, the lookups of each, the elements of their rows.

    The memories are the operands of its code, in order; "out" is written. A row has `dim` numbers. `families` has some.

    >>> ids = Activation("ids", "int64", (-1,))
    >>> print(EmbeddingProgram("gather", (ids,), dim=8, loop=For("b", 0, "segments", (), ())))
    gather(ids: int64[-1])
      for b from 0 to segments
    """

    name: str
    memories: tuple[Activation, ...]
    dim: int
    loop: For

    def __str__(self) -> str:
        operands = ", ".join(f"{m.name}: {m.dtype}{list(m.shape)}" for m in self.memories)
        return "\n".join([f"{self.name}({operands})", *_lines(self.loop, 1)])


def _lines(node: For | Callback | Push, depth: int) -> Iterator[str]:
    margin = "  " * depth
    if isinstance(node, Push):
        yield f"{margin}push({node.stream})"
    elif isinstance(node, Callback):
        yield f"{margin}callback"
        yield from (f"{margin}  {statement}" for statement in node.body)
    else:
        vector = f"<{node.lanes}>" if node.lanes > 1 else ""
        counted = f", counted as {node.counter}" if node.counter else ""
        yield f"{margin}for{vector} {node.index} from {node.begin} to {node.stop}{counted}"
        yield from (f"{margin}  {name} = {stream}" for name, stream in node.streams)
        for inner in node.body:
            yield from _lines(inner, depth + 1)


def names_in(value: Value | Statement) -> Iterator[str]:
    """Names that a value or statement reads or that place its cell, without those that it defines itself."""
    match value:
        case str():
            yield value
        case MemoryCell(_, at):
            yield from at
        case Operation(_, arguments):
            for argument in arguments:
                yield from names_in(argument)
        case StoreCell(cell, inner) | ReduceCell(cell, inner):
            yield from cell.at
            yield from names_in(inner)
        case SetVariable(variable, inner) | AddToVariable(variable, inner):
            yield from (name for name in names_in(inner) if name != variable)
        case ElementLoop(index, body):
            own = {index} | {s.variable for s in body if isinstance(s, (SetVariable, AddToVariable))}
            yield from (name for statement in body for name in names_in(statement) if name not in own)
