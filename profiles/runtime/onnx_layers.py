"""Layers that ONNX Runtime runs, inside blocks as any other: on the block's cores, on the arena's memory, uncopied.

The code of such a layer calls `run` by name, through TVM's FFI; where it reads texts, `run_on_texts`. Its model is one
of its weights: a digest, by which sessions are shared, and the ONNX bytes. A session has as many threads as it was made
with, so that there is one for each power of two of cores; a block on five cores runs it on four.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import tvm_ffi
from numpy.typing import NDArray

from veltair.profiles.runtime import pinned_threads
from veltair.types import CoreSet

FUNCTION, TEXT_FUNCTION = "veltair.run_onnx_layer", "veltair.run_onnx_layer_on_texts"
DIGEST_BYTES = 32
MOST_BINDINGS = 64  # of each session: a slot's tensors are bound once
TEXT = "tensor(string)"  # ONNX Runtime's name of the element type
TEXT_PLACE = 4  # numbers that say where a text lies
TYPES: dict[str, np.dtype[Any]] = {  # ONNX Runtime's names of element types
    "tensor(float)": np.dtype("float32"),
    "tensor(double)": np.dtype("float64"),
    "tensor(float16)": np.dtype("float16"),
    "tensor(bool)": np.dtype("bool"),
    **{f"tensor({sign}int{bits})": np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


def frame_model(content: bytes) -> NDArray[np.uint8]:
    """The ONNX bytes as a weight: behind their digest.

    >>> frame_model(b"onnx").nbytes
    36
    """
    return np.frombuffer(hashlib.sha256(content).digest() + content, np.uint8)


class OnnxLayer:
    """The sessions of one model, made when they are first needed. ::

    layer = hold_layer(framed)
    layer.prepare()  # makes those that the cores of this process need
    """

    def __init__(self, framed: NDArray[np.uint8]) -> None:
        self._content = framed[DIGEST_BYTES:]
        self._sessions: dict[int, _Session] = {}  # by threads

    def prepare(self) -> None:
        if self.session(1).reads_text:
            return
        pinned = pinned_threads.current_threads()
        for threads in powers_of_two(len(pinned.usable) if pinned else 1):
            self.session(threads)

    def session(self, cores: int) -> _Session:
        """The one with the most threads that so many cores can run."""
        threads = powers_of_two(cores)[-1]
        if threads not in self._sessions:
            self._sessions[threads] = _Session(self._content.tobytes(), threads)
        return self._sessions[threads]


def powers_of_two(cores: int) -> list[int]:
    """
    >>> powers_of_two(5)
    [1, 2, 4]
    """
    return [1 << bits for bits in range(max(1, cores).bit_length())]


def exact_session(model: str | bytes, options: Any) -> Any:
    """ONNX Runtime's session of a file or its bytes, on CPUs. Raises what ONNX Runtime raises.

    Without VNNI it adds pairs of 8-bit products in 16 bits, which saturate. It is asked to change weights instead, at
    which it fails where several nodes share them: then it optimises nothing, which leaves products between roundings
    in floats.
    """
    import onnxruntime as ort

    options.add_session_config_entry("session.x64quantprecision", "1")
    options.log_severity_level = 4  # an error is raised, and need not be printed too
    try:
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception:  # ONNX Runtime raises its own types
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class _Session:
    """ONNX Runtime's session, the threads that it started, and the tensors that it was bound to."""

    def __init__(self, content: bytes, threads: int) -> None:
        import onnxruntime as ort  # starts a thread: a worker is confined before

        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # the cores are others' between blocks
        before = _threads()
        self._session = exact_session(content, options)
        self._threads = _threads() - before
        inputs = self._session.get_inputs()
        self._texts = [(port.name, port.shape[1:]) for port in inputs if port.type == TEXT]
        numbers = [port for port in inputs if port.type != TEXT]
        ports = (*numbers, *self._session.get_outputs())
        self._ports = [(port.name, TYPES[port.type], len(port.shape)) for port in ports]
        self._inputs = len(numbers)
        self._bindings: dict[tuple[Any, ...], Any] = {}  # by addresses and extents
        self._cores: CoreSet = ()

    def run(self, arguments: tuple[Any, ...]) -> None:
        """Addresses and extents: of each input, then of each output, an address and its extents."""
        binding = self._bindings.get(arguments)
        if binding is None:
            if len(self._bindings) >= MOST_BINDINGS:
                self._bindings.clear()
            binding = self._bindings[arguments] = self._bind(arguments)
        self._session.run_with_iobinding(binding)

    @property
    def reads_text(self) -> bool:
        """Whether it runs by `run_on_texts`, on one core: operators on text use no more."""
        return bool(self._texts)

    def run_on_texts(self, texts: Sequence[Sequence[str]], arguments: tuple[Any, ...]) -> None:
        """As `run`, for a model that reads text alone, of which ONNX Runtime binds no memory: it gives tensors."""
        feeds = {
            name: np.array(values, object).reshape(-1, *row)
            for (name, row), values in zip(self._texts, texts, strict=True)
        }
        found = self._session.run(None, feeds)
        for array, (name, dtype, address, extents) in zip(found, self._tensors(arguments), strict=True):
            if list(array.shape) != extents:
                raise RuntimeError(f"{name} has shape {list(array.shape)}, not {extents}, for these texts")
            content = np.ascontiguousarray(array, dtype)
            ctypes.memmove(address, content.ctypes.data, content.nbytes)

    def move_to(self, cores: CoreSet) -> None:
        """The calling thread is on one of the cores already."""
        if cores != self._cores:
            for thread in self._threads:
                os.sched_setaffinity(thread, cores)
            self._cores = cores

    def _bind(self, arguments: Sequence[Any]) -> Any:
        binding = self._session.io_binding()
        for place, (name, dtype, address, extents) in enumerate(self._tensors(arguments)):
            bind = binding.bind_input if place < self._inputs else binding.bind_output
            bind(name, "cpu", 0, dtype, extents, address)
        return binding

    def clear_outputs(self, arguments: Sequence[Any]) -> None:
        for _, dtype, address, extents in list(self._tensors(arguments))[self._inputs :]:
            ctypes.memset(address, 0, math.prod(extents) * np.dtype(dtype).itemsize)

    def _tensors(self, arguments: Sequence[Any]) -> Iterator[tuple[str, Any, int, list[int]]]:
        at = 0
        for name, dtype, rank in self._ports:
            yield name, dtype, arguments[at], list(arguments[at + 1 : at + 1 + rank])
            at += 1 + rank


_layers: WeakValueDictionary[bytes, OnnxLayer] = WeakValueDictionary()  # by digest
_kept: dict[bytes, OnnxLayer] = {}  # of who runs layers without an executor, as measuring does


def hold_layer(framed: NDArray[np.uint8]) -> OnnxLayer:
    """The layer of a model, which stays as long as somebody holds it."""
    digest = framed[:DIGEST_BYTES].tobytes()
    layer = _layers.get(digest)
    if layer is None:
        layer = _layers[digest] = OnnxLayer(framed)
    return layer


class _Drawn(threading.local):
    inputs = False


_drawn = _Drawn()


@contextmanager
def on_drawn_inputs() -> Iterator[None]:
    """Within the block, layers that this thread runs get values that nobody has given: a layer of which values decide
    may refuse them, and gives zeros then."""
    before, _drawn.inputs = _drawn.inputs, True
    try:
        yield
    finally:
        _drawn.inputs = before


def run(model: Any, length: int, values_decide: int, *arguments: Any) -> None:
    """What the code of a layer calls.

    Args:
        model: the address of its bytes, `length` of them.
        values_decide: whether values of its inputs decide shapes, or may be such that ONNX Runtime refuses them.
        arguments: its tensors; see `_Session.run`.

    Raises RuntimeError, ONNX Runtime's, for values that it refuses or that lead to other shapes than the file states.
    """
    bound = tuple(map(_address, arguments))
    pinned = pinned_threads.current_threads()
    cores = pinned.cores if pinned else ()
    with pinned.set_aside() if pinned and len(cores) > 1 else nullcontext():
        _run(model, length, cores, bound, lambda session: session.run(bound), values_decide=bool(values_decide))


def run_on_texts(model: Any, length: int, batch: int, count: int, *arguments: Any) -> None:
    """What the code of a layer calls that reads texts, `count` inputs of them.

    Args:
        arguments: of each text four numbers (`TextPlace`); the addresses of the packed buffers of ends and bytes
            (`profiles.artifact.input_layout`); the output tensors.

    Raises RuntimeError, ONNX Runtime's, for texts that it refuses or that lead to other shapes than it was tried with.
    """
    places, (ends, content, *outputs) = arguments[: TEXT_PLACE * count], arguments[TEXT_PLACE * count :]
    bound = tuple(map(_address, outputs))
    texts = [
        _read_texts(_address(ends), _address(content), batch, *places[at : at + TEXT_PLACE])
        for at in range(0, len(places), TEXT_PLACE)
    ]
    pinned = pinned_threads.current_threads()
    cores = pinned.cores[:1] if pinned else ()
    _run(model, length, cores, bound, lambda session: session.run_on_texts(texts, bound), values_decide=True)


def _read_texts(
    ends: int, content: int, batch: int, first_end: int, first_byte: int, width: int, room: int
) -> list[str]:
    """The texts of an input. One whose ends fall, or pass its room, is empty; bytes that are no UTF-8 are replaced."""
    stops = memoryview(ctypes.string_at(ends + 4 * batch * first_end, 4 * batch * width)).cast("i").tolist()
    size = min(max(stops[-1], 0), batch * room)
    data = ctypes.string_at(content + batch * first_byte, size)
    return [
        data[begin:end].decode("utf-8", "replace") if 0 <= begin <= end <= size else ""
        for begin, end in pairwise([0, *stops])
    ]


def _run(
    model: Any,
    length: int,
    cores: CoreSet,
    bound: tuple[int, ...],
    call: Callable[[_Session], None],
    *,
    values_decide: bool,
) -> None:
    """Has a session of the model called, whose threads run on these cores. `bound`: its tensors."""
    address = _address(model)
    digest = ctypes.string_at(address, DIGEST_BYTES)
    layer = _layers.get(digest)
    if layer is None:
        framed = np.frombuffer(ctypes.string_at(address, length), np.uint8)
        layer = _kept[digest] = hold_layer(framed)
    session = layer.session(len(cores))
    session.move_to(cores)
    try:
        call(session)
    except Exception:  # ONNX Runtime raises its own types
        if not (values_decide and _drawn.inputs):
            raise
        session.clear_outputs(bound)


def _address(value: Any) -> int:
    return value if isinstance(value, int) else int(value.value or 0)


def _threads() -> set[int]:
    return {int(entry.name) for entry in Path("/proc/self/task").iterdir()}


tvm_ffi.register_global_func(FUNCTION, run, override=True)
tvm_ffi.register_global_func(TEXT_FUNCTION, run_on_texts, override=True)
