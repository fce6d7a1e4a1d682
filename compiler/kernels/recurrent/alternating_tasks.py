"""A parallel loop that runs again and again, forwards and backwards in turn."""

from __future__ import annotations

from collections.abc import Iterator

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.memory import index_in_register
from veltair.compiler.codegen.vectors import Expr


class AlternatingTasks:
    """Tasks of which each thread takes its range in ascending order and then, the next time, in descending order.

    What tasks read may be more than a thread's cache holds. Always from the first one on, it would find nothing there:
    what comes next was dropped longest ago. In turn, it begins with what it has read last.

    A kernel does not know how many threads there are. It sees where a thread's range begins: the task before has not
    ended when that task begins, since it is the last one of another thread. Should that thread be so late or so early
    that it has, two ranges count as one for one turn, which costs time and changes no result.

    Made where its memory is to live.

    ::

        tasks = AlternatingTasks(8)
        with T.serial(0, steps) as step:
            for task in tasks.run(step):
                ...
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.ended = T.alloc_buffer((count,), "int32", scope="global")  # the turn in which each place ended last
        self.begins = T.alloc_buffer((count,), "int32", scope="global")  # whether a range begins at a place
        self.mirrored = T.alloc_buffer((count,), "int32", scope="global")  # its place counted from its range's end
        with T.serial(0, count) as place:
            T.buffer_store(self.ended, T.int32(-1), [place])

    def run(self, turn: Expr) -> Iterator[Expr]:
        """The tasks of a turn, in a parallel loop; turns count from 0, one by one."""
        backwards = turn % 2 != 0
        with T.parallel(0, self.count) as place:
            before = self.ended[T.max(place - 1, 0)]
            T.buffer_store(self.begins, T.cast(T.Or(place == 0, before != turn), "int32"), [place])
            yield index_in_register(T.Select(backwards, self.mirrored[place], place))
            T.buffer_store(self.ended, turn, [place])
        with when(T.Not(backwards)):
            self._mirror()

    def _mirror(self) -> None:
        first = T.alloc_buffer((1,), "int32", scope="global")
        with T.serial(0, self.count) as last:
            with when(self.begins[last] != 0):
                T.buffer_store(first, last, [0])
            following = self.begins[T.min(last + 1, self.count - 1)]
            with when(T.Or(last == self.count - 1, following != 0)), T.serial(0, last + 1 - first[0]) as place:
                T.buffer_store(self.mirrored, last - place, [first[0] + place])
