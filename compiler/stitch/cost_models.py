"""Two cost models (FusionStitching 4.3, 5.4): a quick one of the gain of fusing, a fuller one of a kernel's time.

Both are at batch 1, unless the spaces are those `at_batch`. Bandwidths and cycles are those of a server core with
AVX-512; only their ratios matter, since the measured search decides about a kernel. Which `COSTS` fit measured times
best says `python -m bench.kernels.stitched_costs`. Cache sizes are read from the machine.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil, inf, prod

from veltair.compiler.stitch.iteration_space import IterationSpace, KernelSchedule, iteration_space
from veltair.compiler.stitch.stitch_program import REDUCTIONS, StitchOp, StitchProgram, count_elements
from veltair.machine.topology import cache_bytes, usable_machine


@dataclass(frozen=True, slots=True)
class KernelCosts:
    """What the latency-evaluator multiplies the counts of a kernel by.

    >>> KernelCosts(call_ns=0, launch_ns=2000, task_ns=60, computing=1, moving=1).launch_ns
    2000
    """

    call_ns: float  # of a kernel, whatever it does
    launch_ns: float  # of its parallel loop
    task_ns: float
    computing: float  # times CYCLES at CLOCK_GHZ
    moving: float  # times bytes at BYTES_PER_NS


LANES = 16
FLOAT_BYTES = 4
CLOCK_GHZ = 2.5
LAUNCH_NS = 2000.0  # of a parallel kernel inside a block, its threads awake: what fusing saves
BYTES_PER_NS = (("L1", 120.0), ("L2", 50.0), ("L3", 12.0), ("memory", 7.0))  # one core, streaming
USUAL_BYTES = {"L1": 32 << 10, "L2": 1 << 20, "L3": 16 << 20}  # where the kernel shows no caches
CYCLES = {
    "exp": 9.0,
    "log": 13.0,
    "erf": 12.0,
    "tanh": 13.0,
    "sigmoid": 16.0,
    "sin": 40.0,
    "cos": 40.0,
    "div": 10.0,
    "sqrt": 12.0,
    "reciprocal": 10.0,
}  # of a vector; other operators take CHEAP_CYCLES
CHEAP_CYCLES = 0.5
COSTS = KernelCosts(call_ns=0.0, launch_ns=LAUNCH_NS, task_ns=60.0, computing=1.0, moving=1.0)
ADD_LATENCY = 4.0  # cycles between two additions to one accumulator
FOLD_CYCLES = 16.0  # the lanes of an accumulator into one


@cache
def _caches() -> tuple[tuple[float, float], ...]:
    """Bytes up to which data stay at a level (half of it is for others), and the level's bytes per nanosecond."""
    sizes = USUAL_BYTES | cache_bytes()
    return tuple((sizes.get(level, inf) / 2 if level != "memory" else inf, rate) for level, rate in BYTES_PER_NS)


@cache
def _cores() -> int:
    """To ask the system takes most of a millisecond, and scores of patterns ask ten thousand times."""
    return len(usable_machine().cores)


def move_ns(size_bytes: float, footprint_bytes: float) -> float:
    """Time to read or write a number of bytes of data with this footprint."""
    return size_bytes / next(rate for limit, rate in _caches() if footprint_bytes <= limit)


def gain_ns(program: StitchProgram, space: IterationSpace) -> float:
    """Delta-evaluator: time that one kernel saves against one for each operator; the score f of a pattern (eq. 3)."""
    made = {op.output: op for op in program.ops}
    reads: dict[str, int] = {}
    for op in program.ops:
        for name in op.operands:
            reads[name] = reads.get(name, 0) + 1
    saved = (len(program.ops) - 1) * LAUNCH_NS
    for name, count in reads.items():
        size = count_elements(program.shapes[name]) * FLOAT_BYTES
        stays = name in made and name not in program.outputs
        saved += (count + 1 if stays else count if name in made else count - 1) * move_ns(size, size)
    return saved - _penalty_ns(program, space)


def _penalty_ns(program: StitchProgram, space: IterationSpace) -> float:
    """Time of values that are computed again where they are broadcast, and of idle cores where rows are few."""
    places = prod(map(abs, space.extents))
    again = total = 0.0
    for op in program.ops:
        vectors = count_elements(op.shape) / LANES
        cost = _cycles(op) / CLOCK_GHZ
        total += max(vectors, 1.0) * cost
        if not space.is_row(op.output):
            again += max(places / LANES - vectors, 0.0) * cost
    largest = max(count_elements(shape) for shape in program.shapes.values()) * FLOAT_BYTES
    total += move_ns(largest, largest)
    cores = _cores()
    idle = 1 - min(units_of(space, 256), cores) / cores
    return again + total * idle


def units_of(space: IterationSpace, columns: int) -> int:
    """Independent rows, times the chunks of columns where columns are split."""
    width = space.extents[-1]
    chunks = ceil(width / min(columns or width, width)) if space.splits else 1
    return prod(abs(space.extents[axis]) for axis in space.outer) * chunks


def scratch_bytes(space: IterationSpace, setting: KernelSchedule) -> int:
    """The working set of a task: its rows of every operand, and the buffers."""
    row = sum(_row_bytes(space, name, setting.columns) for name in (*space.program.leaves, *space.program.outputs))
    kept = sum(_row_bytes(space, name, setting.columns) for name in space.kept(setting.scheme))
    return int(setting.rows * row + kept)


def latency_ns(space: IterationSpace, setting: KernelSchedule, cores: int = 0) -> float:
    """Latency-evaluator: time of a kernel on `cores` cores, by default all."""
    return packed_ns([(space, setting)], cores=cores)


def packed_ns(
    programs: Sequence[tuple[IterationSpace, KernelSchedule]],
    slices: int = 0,
    cores: int = 0,
    costs: KernelCosts = COSTS,
) -> float:
    """Time of a kernel that packs programs, on `cores` cores, by default all.

    A thread takes tasks that stand side by side, and those of a program do: without `slices`, the thread that gets the
    longest ones decides.
    """
    cores = cores or _cores()
    if slices:
        share = sum(ceil(units_of(d, s.columns) / slices) * _unit_ns(d, s, costs) for d, s in programs)
        launch = costs.launch_ns if slices > 1 else 0.0
        return costs.call_ns + launch + ceil(slices / cores) * (share + costs.task_ns)
    counts, tasks_ns = list[int](), list[float]()
    for space, setting in programs:
        units = units_of(space, setting.columns)
        counts.append(ceil(units / setting.rows))
        tasks_ns.append(min(setting.rows, units) * _unit_ns(space, setting, costs) + costs.task_ns)
    tasks = sum(counts)
    chunk = ceil(tasks / cores)
    longest = 0.0
    for start in range(0, tasks, chunk):
        first, taken = 0, 0.0
        for count, ns in zip(counts, tasks_ns, strict=True):
            taken += max(min(first + count, start + chunk) - max(first, start), 0) * ns
            first += count
        longest = max(longest, taken)
    return costs.call_ns + (costs.launch_ns if tasks > 1 else 0.0) + longest


def plan_ns(patterns: Sequence[StitchProgram]) -> float:
    """Time of a plan: its kernels one after the other, each with its best scheme and split."""
    total = 0.0
    for pattern in patterns:
        space = iteration_space(pattern)
        if space is None:
            return inf
        cores = _cores()
        rows = {1, max(1, ceil(units_of(space, 256) / cores)), units_of(space, 0)}
        total += LAUNCH_NS + min(
            latency_ns(space, KernelSchedule(r, s, 4, c))
            for r in rows
            for s in ("registers", "buffer")
            for c in (0, 256)
        )
    return total


def _unit_ns(space: IterationSpace, setting: KernelSchedule, costs: KernelCosts) -> float:
    """Time of one row: what each phase reads, computes and writes."""
    program = space.program
    kept = set(space.kept(setting.scheme))
    ops = {op.output: op for op in program.ops}
    width = min(setting.columns or space.extents[-1], space.extents[-1])
    inner = prod(space.extents[axis] for axis in space.inner)
    vectors = ceil(width / LANES) * inner
    row = sum(_row_bytes(space, name, setting.columns) for name in (*program.leaves, *program.outputs, *kept))
    cycles = moved = 0.0
    read: set[str] = set()
    for phase in range(space.phases):
        seen: set[str] = set()
        sinks = [op for op in program.ops if _ends_in(op, phase, space, kept)]
        stack = [name for op in sinks for name in ((str(op.terms[0]),) if op.kind in REDUCTIONS else (op.output,))]
        work = 0.0
        while stack:
            name = stack.pop()
            if name in seen or space.is_row(name):
                continue
            seen.add(name)
            if name not in ops:
                size = _row_bytes(space, name, setting.columns)
                whole = count_elements(program.shapes[name]) * FLOAT_BYTES
                moved += move_ns(size, row if name in read else whole)
                read.add(name)
            elif name in kept and space.phase[name] < phase:
                moved += move_ns(_row_bytes(space, name, setting.columns), row)
            else:
                work += _cycles(ops[name])
                stack.extend(ops[name].operands)
        reductions = sum(op.kind in REDUCTIONS for op in sinks)
        chain = ADD_LATENCY / (1 if space.reduces_across else setting.unroll) if reductions else 0.0
        cycles += vectors * max(work + reductions * CHEAP_CYCLES, chain)
        cycles += reductions * (0 if space.reduces_across else FOLD_CYCLES)
        for op in sinks:
            if op.kind not in REDUCTIONS:
                size = _row_bytes(space, op.output, setting.columns)
                moved += move_ns(size, row if op.output in kept else count_elements(op.shape) * FLOAT_BYTES)
    cycles += sum(_cycles(op) for op in program.ops if space.is_row(op.output))
    return costs.computing * cycles / CLOCK_GHZ + costs.moving * moved


def _ends_in(op: StitchOp, phase: int, space: IterationSpace, kept: Collection[str]) -> bool:
    """Whether the loop of a phase computes an operator for its own sake: it reduces, keeps or writes it."""
    if op.kind in REDUCTIONS:
        return space.phase[op.output] == phase + 1
    stays = op.output in kept or op.output in space.program.outputs
    return stays and space.phase[op.output] == phase and not space.is_row(op.output)


def _row_bytes(space: IterationSpace, name: str, columns: int) -> int:
    width = space.extents[-1]
    size = 1
    for axis in space.inner:
        size *= space.extents[axis] if space.varies[name][axis] else 1
    return size * (min(columns or width, width) if space.varies[name][-1] else 1) * FLOAT_BYTES


def _cycles(op: StitchOp) -> float:
    return CYCLES.get(op.kind, CHEAP_CYCLES)
