"""What the compiler and the measuring process say to each other: requests, answers, and the tensors in them."""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class InlineTensor(msgspec.Struct, frozen=True, tag=True):
    """A tensor whose content is in the message.

    >>> InlineTensor("uint8", (2,), b"ab").content
    b'ab'
    """

    dtype: str
    shape: tuple[int, ...]
    content: bytes


class FileTensor(msgspec.Struct, frozen=True, tag=True):
    """A tensor that lies in a file, row-major, from `offset` on. A lasting one is named by further requests.

    >>> FileTensor("float32", (4, 4), "weights.bin", 64).offset
    64
    """

    dtype: str
    shape: tuple[int, ...]
    path: str
    offset: int
    lasting: bool = True


class RepeatedTensor(msgspec.Struct, frozen=True, tag=True):
    """The samples of another tensor, of `part` rows of the first axis each, in the order of `rows`.

    >>> RepeatedTensor(InlineTensor("uint8", (2,), b"ab"), part=1, rows=(1, 0, 1)).rows  # b"bab"
    (1, 0, 1)
    """

    of: InlineTensor | FileTensor
    part: int
    rows: tuple[int, ...]


class RandomTensor(msgspec.Struct, frozen=True, tag=True):
    """Random values in `region` (start and stop of each axis), zeros around it.

    Floats are normal, "uint16" holds the bits of bfloat16 ones; integers are uniform in low … high and drawn again
    before each timed run: ids that stay the same would make every table look as if it fitted the cache.

    >>> RandomTensor("float32", (1, 6), ((0, 1), (1, 5))).region[1]  # the halo stays zero
    (1, 5)
    """

    dtype: str
    shape: tuple[int, ...]
    region: tuple[tuple[int, int], ...]
    low: int = 0
    high: int = 0


class TensorSequence(msgspec.Struct, frozen=True, tag=True):
    """An input with `count` contents in a file, one after the other; each timed run takes the next one.

    >>> TensorSequence("int64", (8,), "ids.bin", count=100).count
    100
    """

    dtype: str
    shape: tuple[int, ...]
    path: str
    count: int


class OutputTensor(msgspec.Struct, frozen=True, tag=True):
    """A tensor that the kernel writes; zeros before.

    >>> OutputTensor("float32", (1, 1000)).shape
    (1, 1000)
    """

    dtype: str
    shape: tuple[int, ...]


Operand: TypeAlias = InlineTensor | FileTensor | RepeatedTensor | RandomTensor | TensorSequence | OutputTensor


class TimeKernel(msgspec.Struct, frozen=True, tag=True):
    """Asks for the median time of a kernel on each of `counts` cores; one above `limit_ns` is not measured long.

    >>> TimeKernel("kernels.so", "relu", (OutputTensor("float32", (4,)),), (1, 2), 5, 10**7, 10**9, 0).counts
    (1, 2)
    """

    library: str
    symbol: str
    operands: tuple[Operand, ...]
    counts: tuple[int, ...]
    fewest_runs: int  # of which the median is taken; more within `budget_ns`
    budget_ns: int
    limit_ns: int
    rotate_bytes: int  # weights are copied until they take so much, and the copies used in turn


class RunKernel(msgspec.Struct, frozen=True, tag=True):
    """Asks for one run, and for the contents of the outputs in a file, one after the other.

    >>> RunKernel("kernels.so", "relu", (OutputTensor("float32", (4,)),), 1, "results").symbol
    'relu'
    """

    library: str
    symbol: str
    operands: tuple[Operand, ...]
    count: int
    results: str  # the file's path


class KernelTimes(msgspec.Struct, frozen=True, tag=True):
    """The answer to `TimeKernel`: median nanoseconds for each core count that was asked for.

    >>> KernelTimes((1_000, 600)).run_ns[1]
    600
    """

    run_ns: tuple[int, ...]


class KernelRan(msgspec.Struct, frozen=True, tag=True):
    """The answer to `RunKernel`: the outputs are in the file.

    >>> KernelRan()
    KernelRan()
    """


class MeasurementFailed(msgspec.Struct, frozen=True, tag=True):
    """The answer to either request where the kernel cannot be loaded or raises.

    >>> MeasurementFailed("no symbol relu").reason
    'no symbol relu'
    """

    reason: str


Request: TypeAlias = TimeKernel | RunKernel
Response: TypeAlias = KernelTimes | KernelRan | MeasurementFailed
