"""Calls of the kernels in C: what is given is checked before anything is read, then passed as addresses."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from veltair.errors import DataError
from veltair.machine.native_library import native_library

MOST_IDS = 1 << 32  # of a batch, and rows of a table: both stand in one word where ids are sorted
WORK_OF_A_TASK = 1 << 14  # elements; less is not worth waking a thread
_WORD, _ADDRESS = ctypes.c_int64, ctypes.c_void_p


def _fields(words: str = "", addresses: str = "", reals: str = "") -> list[tuple[str, Any]]:
    kinds = ((words, _WORD), (addresses, _ADDRESS), (reals, ctypes.c_double))
    return [(name, kind) for names, kind in kinds for name in names.split()]


class BagCall(ctypes.Structure):
    """`bag_call` of native/calls.h."""

    _fields_ = [
        *_fields("bags ids_count rows dim padding mean threads", "ids offsets sample_weights table out moments"),
        *_fields(reals="rate epsilon"),
        *_fields(addresses="scratch sample_gradient sorted bag_of scales"),
        *_fields("tasks"),
    ]


class OneHotCall(ctypes.Structure):
    """`one_hot_call` of native/calls.h."""

    _fields_ = _fields("samples width classes threads tasks", "ids weights counts gradient")


class ConcatCall(ctypes.Structure):
    """`concat_call` of native/calls.h."""

    _fields_ = _fields("outer inner count threads tasks", "parts lengths out")


class RecurrentCall(ctypes.Structure):
    """`recurrent_call` of native/calls.h."""

    _fields_ = _fields(
        "rows steps hidden reset_after threads tiles",
        "gates scores first weights bias states kept states_gradient gates_gradient other scores_gradient "
        "first_gradient",
    )


@cache
def _library() -> ctypes.CDLL:
    found = native_library("veltair.training._kernels")
    for name in ("check_ids", "check_offsets", "bag_rows_backward", "vector_bytes"):
        getattr(found, name).restype = _WORD
    found.check_ids.argtypes = [_ADDRESS, _WORD, _WORD, _WORD]
    found.check_offsets.argtypes = [_ADDRESS, _WORD, _WORD]
    return found


def call_kernel(name: str, call: ctypes.Structure, dtype: torch.dtype) -> None:
    """Runs a kernel, which waits for all its threads. Raises MemoryError."""
    function: Callable[..., Any] = getattr(_library(), name)
    if function(ctypes.byref(call), _WORD(dtype == torch.float64)) == -1 and name == "bag_rows_backward":
        raise MemoryError("no memory to sort the ids of a batch")


def address(tensor: torch.Tensor | None) -> int | None:
    """The address of the first element of a dense tensor, which has to outlive the call."""
    return None if tensor is None else int(tensor.data_ptr())


def lanes(dtype: torch.dtype) -> int:
    """Elements of a vector of the kernels that this processor gets."""
    width: int = _library().vector_bytes() // dtype.itemsize
    return width


def limit_vectors(most_bytes: int) -> int:
    """Calls kernels with vectors of at most 64, 32 or 16 bytes (AVX-512, AVX2, any); the bytes that it comes to.

    For tests, between operators: what a recurrent layer keeps for its gradient has the width of the vectors.
    """
    _library().limit_vector_bytes(_WORD(most_bytes))
    width: int = _library().vector_bytes()
    return width


def tasks_of(work: int, most: int) -> int:
    """Into how many tasks an operation on `work` elements is cut, `most` at most: some for each thread."""
    threads: int = torch.get_num_threads()
    return max(1, min(work // WORK_OF_A_TASK, 4 * threads, most))


def check_real(name: str, tensor: torch.Tensor, dtype: torch.dtype | None = None) -> None:
    """Raises DataError for what is not float32 or float64, or not of `dtype`."""
    allowed = (torch.float32, torch.float64) if dtype is None else (dtype,)
    if tensor.dtype not in allowed:
        raise DataError(f"{name}: expected {' or '.join(map(str, allowed))}, found {tensor.dtype}")


def check_shape(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Raises DataError for another shape."""
    if tuple(tensor.shape) != shape:
        raise DataError(f"{name}: expected shape {list(shape)}, found {list(tensor.shape)}")


def check_ids(ids: torch.Tensor, rows: int, what: str, absent: bool = False) -> None:
    """Raises DataError, which says where, for an id that is not below `rows`; with `absent`, -1 is none."""
    if max(ids.numel(), rows) >= MOST_IDS:
        raise DataError(f"ids: {ids.numel()} ids of {rows} {what}; expected less than 2**32 of each")
    at = _library().check_ids(ids.data_ptr(), ids.numel(), rows, absent)
    if at >= 0:
        allowed = f"0 to {rows - 1}{', or -1' if absent else ''}"
        raise DataError(f"ids: position {at} is {int(ids.reshape(-1)[at])}; the {what} are {allowed}")


def check_offsets(offsets: torch.Tensor, count: int) -> None:
    """Raises DataError, which says where, unless offsets (bags + 1) rise from 0 to `count`."""
    if offsets.numel() > MOST_IDS:
        raise DataError(f"offsets: {offsets.numel()} of bags; expected less than 2**32")
    at = _library().check_offsets(offsets.data_ptr(), offsets.numel() - 1, count)
    if at >= 0:
        found = int(offsets[at])
        raise DataError(f"offsets: place {at} is {found}; expected offsets that rise from 0 to {count}, the ids' count")
