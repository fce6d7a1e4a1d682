"""An embedding operation as one function, parallel over tiles of segments."""

from __future__ import annotations

from math import prod
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.streaming_stores import with_streaming_stores
from veltair.compiler.embedding.access_emitter import AccessEmitter, FlatMemory
from veltair.compiler.embedding.dlc import decouple
from veltair.compiler.embedding.passes import optimise
from veltair.compiler.embedding.slc import EmbeddingProgram
from veltair.compiler.embedding.streams import LoadStream


def embedding_function(
    program: EmbeddingProgram, level: int = 3, ahead: int = 16, segments: int = 1, streamed: bool = False
) -> Any:
    """A PrimFunc of the program's memories, in order, after emb-opt<level>.

    ahead: rows by which the access loop leads the execute loop, one of DISTANCES. segments: of a task.
    streamed: results are stored past the caches; only at emb-opt3, of rows that are whole cache lines.
    """
    decoupled = decouple(optimise(program, level))

    def body(*buffers: Any) -> None:
        named = dict(zip((m.name for m in program.memories), buffers, strict=True))
        total = named["out"].shape[0]
        if "offsets" in named:
            total = T.min(total, named["offsets"].shape[0] - 1)
        memories = {name: flat_memory(buffer) for name, buffer in named.items()}
        ids = next(stream.memory for _, stream in decoupled.lookups.streams if isinstance(stream, LoadStream))
        with T.parallel(0, T.ceildiv(total, segments)) as task:
            first = T.bind(task * segments)
            AccessEmitter(decoupled, memories, prod(named[ids].shape), ahead, streamed).tile(
                first, T.min(segments, total - first)
            )

    return build_prim_func(program.memories, with_streaming_stores(body) if streamed else body)


def flat_memory(buffer: Any) -> FlatMemory:
    """An operand of a kernel as `AccessEmitter` reads it."""
    return FlatMemory(T.decl_buffer((prod(buffer.shape),), buffer.dtype, data=buffer.data), buffer.shape[0])
