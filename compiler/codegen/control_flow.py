"""Branches and loops that run in a kernel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.vectors import LANES, Expr


@contextmanager
def when(*conditions: Expr) -> Iterator[None]:
    """Code that runs where all conditions hold; always, where there are none."""
    with ExitStack() as stack:
        for condition in conditions:
            stack.enter_context(T.If(condition))
            stack.enter_context(T.Then())
        yield


def loop_over_columns(width: int) -> Iterator[tuple[Expr, int]]:
    """All columns of a row as (first, count): a loop over vectors of 16, then one shorter vector."""
    if width >= LANES:
        with T.serial(0, width // LANES) as number:
            yield number * LANES, LANES
    if width % LANES:
        yield T.int32(width - width % LANES), width % LANES
