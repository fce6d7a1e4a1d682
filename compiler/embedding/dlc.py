"""Decoupled lookup-compute form (DLC): a side that fetches, a side that computes, and the queue between them.

Ember 4, 6.3, Fig. 9. The access side is the loop nest with its streams; where a callback stood it sends a token. The
execute side says what to do at each token, with the operands that come through the queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from veltair.compiler.embedding.slc import Callback, EmbeddingProgram, For, Statement, names_in
from veltair.compiler.embedding.streams import LoadStream, Stream, StreamIndex


@dataclass(frozen=True, slots=True)
class SendToken:
    """Where the access side sends a token.

    >>> SendToken("e_end").token
    'e_end'
    """

    token: str


@dataclass(frozen=True, slots=True)
class Traversal:
    """loop_tr: the part of a `For` that the access side runs.

    >>> lookups = Traversal("p", "begin", "stop", (), (SendToken("p_ite"),), lanes=1)
    >>> [node.index for node in Traversal("b", 0, "segments", (), (lookups,), lanes=1).inner()]
    ['p']
    """

    index: str
    begin: StreamIndex | int
    stop: StreamIndex
    streams: tuple[tuple[str, Stream], ...]
    body: tuple[Traversal | SendToken, ...]
    lanes: int

    def inner(self) -> Iterator[Traversal]:
        return (node for node in self.body if isinstance(node, Traversal))


@dataclass(frozen=True, slots=True)
class Token:
    """Work of the execute side, named by the loop and its event (Ember 4): "p_beg", "e_ite", "e_end", …

    >>> Token("e_end", rows=("row",), scalars=("weight",), body=()).rows
    ('row',)
    """

    name: str
    rows: tuple[str, ...]  # streams of rows among its operands: where each row begins
    scalars: tuple[str, ...]  # other streams, and indices, among them
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class DecoupledProgram:
    """Both sides of a program; `decouple` makes one.

    >>> from veltair.compiler.embedding.families import sls
    >>> from veltair.compiler.graph.layer_spec import Activation
    >>> decouple(sls(Activation("table", "float32", (100, 8)), dim=8)).lookups.index
    'p'
    """

    program: EmbeddingProgram
    access: Traversal
    tokens: Mapping[str, Token]
    counter: str  # name under which the execute side counts segments; "": the number comes through the queue

    @property
    def queued(self) -> bool:
        """Whether whole rows go through the queue; else single elements do, and nothing can run ahead."""
        return not any(node.body for node in self.lookups.inner())

    @property
    def lookups(self) -> Traversal:
        """The loop over a segment's lookups."""
        return next(self.access.inner())


def decouple(program: EmbeddingProgram) -> DecoupledProgram:
    """Both sides of a program (Ember 6.3): callbacks become tokens, the streams that they use become operands."""
    rows: set[str] = set()
    known: set[str] = set()
    tokens: dict[str, Token] = {}

    def taken(name: str, body: tuple[Statement, ...]) -> SendToken:
        found = list(dict.fromkeys(n for statement in body for n in names_in(statement)))
        operands = [n for n in found if n in known]
        scalars = tuple(n for n in operands if n not in rows)
        tokens[name] = Token(name, tuple(n for n in operands if n in rows), scalars, body)
        return SendToken(name)

    def traversed(loop: For) -> Traversal:
        known.add(loop.index)
        for name, stream in loop.streams:
            known.add(name)
            if isinstance(stream, LoadStream) and stream.is_row:
                rows.add(name)
        body: list[Traversal | SendToken] = []
        before = True
        for node in loop.body:
            inner = next((n for n in loop.body if isinstance(n, For)), None)
            if isinstance(node, For):
                body.append(traversed(node))
                before = False
            elif isinstance(node, Callback):
                event = "beg" if before else "end"
                body.append(taken(f"{inner.index}_{event}" if inner else f"{loop.index}_ite", node.body))
        return Traversal(loop.index, loop.begin, loop.stop, loop.streams, tuple(body), loop.lanes)

    access = traversed(program.loop)
    return DecoupledProgram(program, access, tokens, program.loop.counter)
