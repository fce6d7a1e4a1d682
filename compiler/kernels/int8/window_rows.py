"""Copies what a convolution reads for some outputs to rows, one a output: then it is a product of matrices.

Inputs lie with their channels last, so a row of taps is one stretch of memory. Taps beside the image are the input's
zero point.
"""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.vectors import Expr, ramp
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.parameters.quantised import Window

_WIDEST = 32  # bytes that one step copies


def copy_windows(
    source: Any, rows: Any, padding: Expr, tensors: tuple[Activation, Activation], window: Window, first: Expr, to: Expr
) -> None:
    """Copy the windows of `to` outputs, counted over images, rows and columns, from the `first` on.

    source: the input's memory in one dimension. rows: (outputs, taps x channels) at least.
    """
    x, y = tensors
    (_, channels, height, width), (_, _, out_height, out_width) = x.shape, y.shape
    (kh, kw), (sh, sw), (dh, dw) = window.kernel, window.strides, window.dilations
    top, left = window.pads[:2]
    with T.serial(0, to) as r:
        place = T.bind(first + r)
        image = T.bind(place // (out_height * out_width))
        y0 = T.bind(place // out_width % out_height * sh - top)
        x0 = T.bind(place % out_width * sw - left)
        with T.serial(0, kh) as u:
            row = T.bind(y0 + u * dh)
            begin = T.bind((image * height + row) * width * channels)
            target = T.bind(u * (kw * channels))
            inside = T.And(row >= 0, row < height)

            def tap(v: Expr) -> None:
                column = T.bind(x0 + v * dw)
                here = T.And(inside, T.And(column >= 0, column < width))
                with T.If(here):
                    with T.Then():
                        copy_bytes(source, begin + column * channels, rows, (r, target + v * channels), channels)
                    with T.Else():
                        fill_bytes(padding, rows, (r, target + v * channels), channels)

            if kw == 1 or dw > 1:
                with T.serial(0, kw) as v:
                    tap(v)
            else:
                with T.If(T.And(inside, T.And(x0 >= 0, x0 + kw <= width))):
                    with T.Then():
                        copy_bytes(source, begin + x0 * channels, rows, (r, target), kw * channels)
                    with T.Else(), T.serial(0, kw) as v:
                        tap(v)


def copy_rows(source: Any, rows: Any, size: int, first: Expr, to: Expr) -> None:
    """Copy `to` rows of `size` bytes each, from the `first` on; `source` is memory in one dimension."""
    with T.serial(0, to) as r:
        copy_bytes(source, T.bind((first + r) * size), rows, (r, T.int32(0)), size)


def copy_bytes(source: Any, begin: Expr, target: Any, place: tuple[Expr, ...], count: int) -> None:
    """Copy `count` bytes from `begin` of a buffer of one dimension on to a place of another one."""
    for first, size in _steps(count):
        T.buffer_store(target, source[ramp(begin + first, size)], [*place[:-1], ramp(place[-1] + first, size)])


def fill_bytes(value: Expr, target: Any, place: tuple[Expr, ...], count: int) -> None:
    """Write `count` times the same byte."""
    for first, size in _steps(count):
        filled = T.broadcast(value, size) if size > 1 else value
        T.buffer_store(target, filled, [*place[:-1], ramp(place[-1] + first, size)])


def _steps(count: int) -> Any:
    """All of `count` bytes as (first, how many): a loop over wide steps, then ever narrower ones."""
    if count >= _WIDEST:
        with T.serial(0, count // _WIDEST) as step:
            yield step * _WIDEST, _WIDEST
    done, size = count // _WIDEST * _WIDEST, _WIDEST
    while done < count:
        size //= 2
        if count - done >= size:
            yield done, size
            done += size
