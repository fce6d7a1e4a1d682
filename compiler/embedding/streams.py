"""What the structured and the decoupled form load or compute for each step of a loop: Ember's mem_str and alu_str."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class AluStream:
    """alu_str: a stream plus another, or a stream plus, times, or at most a constant.

    >>> str(AluStream("+", "b", 1))
    'b + 1'
    """

    operation: Literal["+", "*", "min"]
    stream: str
    by: int | str

    def __str__(self) -> str:
        return f"{self.stream} {self.operation} {self.by}"


@dataclass(frozen=True, slots=True)
class InverseStream:
    """alu_str: 1 / (stop - begin), or 1 for an empty segment: the factor from a segment's sum to its mean.

    >>> str(InverseStream("begin", "stop"))
    '1 / max(stop - begin, 1)'
    """

    begin: str
    stop: str
    skipped: int | None = None  # an id that does not count

    def __str__(self) -> str:
        return f"1 / max({_counted(self)}, 1)"


@dataclass(frozen=True, slots=True)
class StartStream:
    """alu_str: what a segment's maximum starts with: less than any number, or 0 for an empty segment.

    >>> str(StartStream("begin", "stop", skipped=7))
    '-inf if stop - begin without 7 else 0'
    """

    begin: str
    stop: str
    skipped: int | None = None  # an id that does not count

    def __str__(self) -> str:
        return f"-inf if {_counted(self)} else 0"


@dataclass(frozen=True, slots=True)
class KeptStream:
    """alu_str: 1 for an id that counts, 0 for the one that does not.

    >>> str(KeptStream("ids", ("p",), skipped=7))
    'ids[p] != 7'
    """

    memory: str
    at: tuple[str, ...]
    skipped: int

    def __str__(self) -> str:
        return f"{self.memory}[{', '.join(self.at)}] != {self.skipped}"


@dataclass(frozen=True, slots=True)
class RepeatedStream:
    """mem_str and alu_str: ids that are the same for each sample of a batch, each of which has `rows` rows of its own.

    >>> str(RepeatedStream("ids", "p", ids=8, rows=64))
    'ids[p % 8] + p / 8 * 64'
    """

    memory: str
    at: str
    ids: int
    rows: int

    def __str__(self) -> str:
        return f"{self.memory}[{self.at} % {self.ids}] + {self.at} / {self.ids} * {self.rows}"


def _counted(stream: InverseStream | StartStream) -> str:
    skipped = "" if stream.skipped is None else f" without {stream.skipped}"
    return f"{stream.stop} - {stream.begin}{skipped}"


StreamIndex: TypeAlias = str | AluStream


@dataclass(frozen=True, slots=True)
class LoadStream:
    """mem_str: a number in `memory`. At (id, "e") it is an element of a table's row, of row 0 for an id that is no row.

    >>> str(LoadStream("ids", ("p",)))
    'mem_str(ids[p])'
    """

    memory: str
    at: tuple[StreamIndex, ...]

    @property
    def is_row(self) -> bool:
        return len(self.at) > 1

    def __str__(self) -> str:
        return f"mem_str({self.memory}[{', '.join(map(str, self.at))}])"


Stream: TypeAlias = LoadStream | AluStream | InverseStream | StartStream | KeptStream | RepeatedStream
