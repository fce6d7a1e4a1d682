"""Transfer of points between workloads: a search begins at the best points of the most similar recorded workload.

Pure; needs no TVM. The distances are not the paper's, which searches every layer from nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import log2

from veltair.compiler.graph.layer_spec import Point
from veltair.profiles.records.tuning_records import TuningRecord

LEAST_RECORDS = 4  # of a workload that others learn from: the best of fewer says little
TAKEN = 3  # points
FAR = 16.0  # doublings that a word which differs, or a coordinate that the other point lacks, counts for
STRUCTURE = ("kernel", "strides", "structure")  # attributes that the code depends on more than on sizes
TYPES = ("storage",)  # attributes that are data types

_TENSOR = re.compile(r"(\w+)\[([-\d,]*)\]/(\d+)")


@dataclass(frozen=True, slots=True)
class Transfer:
    """Points that a search begins with, taken over from another workload.

    >>> Transfer("softmax float32[-1,8]/0 float32[-1,8]/0", indices=(3, 0)).indices[0]
    3
    """

    source: str  # the workload whose points they were
    indices: tuple[int, ...]  # into the points of the space that takes them, the most promising first


@dataclass(frozen=True, slots=True)
class Workload:
    """`LayerSpec.workload`, taken apart.

    >>> parse_workload("matmul float32[-1,8]/0 float32[-1,4]/0 activation=relu").brief
    '[-1,8] to [-1,4]'
    """

    op: str
    tensors: tuple[tuple[str, tuple[int, ...], int], ...]  # dtype, shape, block
    attributes: Mapping[str, str]

    @property
    def kind(self) -> tuple[str, ...]:
        """Op and data types: workloads that differ here have nothing to say to each other."""
        ends = (self.tensors[0][0], self.tensors[-1][0]) if self.tensors else ()
        return (self.op, *ends, *(self.attributes.get(name, "") for name in TYPES))

    @property
    def brief(self) -> str:
        """The workload for a line on a terminal: the first and the last tensor, and the kernel."""
        shapes = [f"[{','.join(map(str, shape))}]" for _, shape, _ in self.tensors]
        kernel = f" kernel={self.attributes['kernel']}" if "kernel" in self.attributes else ""
        return f"{shapes[0]} to {shapes[-1]}{kernel}" if shapes else self.op


@cache
def parse_workload(workload: str) -> Workload:
    """Words of another form (none are made today) count for nothing."""
    op, *words = workload.split(" ")
    tensors, attributes = [], {}
    for word in words:
        if found := _TENSOR.fullmatch(word):
            dtype, shape, block = found.groups()
            tensors.append((dtype, tuple(int(dim) for dim in shape.split(",") if dim), int(block)))
        elif "=" in word:
            name, _, value = word.partition("=")
            attributes[name] = value
    return Workload(op, tuple(tensors), attributes)


def workload_distance(one: Workload, other: Workload) -> tuple[float, float, float]:
    """Between workloads of one kind, compared in this order: structure (kernel, strides), doublings between the
    shapes of the first and the last tensor, and how much of the rest differs."""
    names = one.attributes.keys() | other.attributes.keys()
    unlike = {name for name in names if one.attributes.get(name) != other.attributes.get(name)}
    structure = sum(name in unlike for name in STRUCTURE)
    doublings, rest = 0.0, float(len(unlike) - structure + abs(len(one.tensors) - len(other.tensors)))
    if one.tensors and other.tensors:
        for end in (0, -1):
            (_, here, block), (_, there, other_block) = one.tensors[end], other.tensors[end]
            rank = max(len(here), len(there))
            padded = zip((1,) * (rank - len(here)) + here, (1,) * (rank - len(there)) + there, strict=True)
            for a, b in padded:
                doublings += abs(log2(max(abs(a), 1) / max(abs(b), 1)))
                rest += (a < 0) != (b < 0)  # one has a dynamic batch
            rest += block != other_block
    return structure, doublings, rest


def nearest_point(wanted: Point, points: Sequence[Point]) -> int:
    """Index of the point that differs by the fewest doublings; the first of equals."""

    def apart(point: Point) -> float:
        return sum(_apart(wanted.get(name), point.get(name)) for name in wanted.keys() | point.keys())

    return min(range(len(points)), key=lambda i: apart(points[i]))


def _apart(a: int | str | None, b: int | str | None) -> float:
    if isinstance(a, int) and isinstance(b, int):
        return abs(log2((1 + abs(a)) / (1 + abs(b))))  # 0 is a coordinate too
    return 0.0 if a == b else FAR


def transfer_points(
    workload: str, points: Sequence[Point], recorded: Mapping[str, Sequence[TuningRecord]]
) -> Transfer | None:
    """The best points of the nearest recorded workload, each as the nearest point of this space.

    recorded: what is known, of any CPU; times are compared only within one CPU and TVM. Of the workload itself, the
    points that its space has no more are as good a source as any. None where no workload of this op and these types
    has enough records.
    """
    here = parse_workload(workload)
    found: list[tuple[tuple[float, float, float], str, list[TuningRecord]]] = []
    for name, records in recorded.items():
        there = parse_workload(name)
        if there.kind == here.kind:
            best = comparable_records(r for r in records if name != workload or r.point not in points)
            if len(best) >= LEAST_RECORDS:
                found.append((workload_distance(here, there), name, best))
    if not found:
        return None
    _, source, best = min(found, key=lambda entry: entry[:2])
    indices = (nearest_point(record.point, points) for record in best[:TAKEN])
    return Transfer(source, tuple(dict.fromkeys(indices)))


def comparable_records(records: Iterable[TuningRecord]) -> list[TuningRecord]:
    """Those that worked of the CPU, TVM and batch size with most of them, the fastest first."""
    groups: dict[tuple[str, str, int], list[TuningRecord]] = {}
    for record in records:
        if record.run_ns:
            groups.setdefault((record.cpu, record.tvm, record.batch), []).append(record)
    most = max(groups.values(), key=len) if groups else []
    return sorted(most, key=lambda record: record.best_ns)
