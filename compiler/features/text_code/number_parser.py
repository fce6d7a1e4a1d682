"""Decimal numbers in texts to float64, as generated code: `NumberParser`. docs/features.md has the form."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.vectors import Expr
from veltair.compiler.features.text_code.word_arithmetic import in_register

POWERS = 340  # of ten, each way


def powers_of_ten() -> NDArray[np.float64]:
    """10**-POWERS to 10**POWERS."""
    return np.array([float(f"1e{power}") for power in range(-POWERS, POWERS + 1)])


class NumberParser:
    """Emits a parser of one text: spaces, sign, digits, fraction, exponent, spaces.

    Use, inside the body of a kernel::

        NumberParser(text, begin, size).emit(powers, out, valid)
    """

    def __init__(self, text: Any, begin: Expr, size: Expr) -> None:
        self._text, self._begin, self._size = text, begin, size
        variables = [T.alloc_buffer((1,), "int32", scope="global") for _ in range(4)]
        self._at, self._exponent, self._seen, self._power = variables  # seen: 1 once there is a digit
        self._digits = T.alloc_buffer((1,), "int64", scope="global")
        self._end = in_register(begin + size)

    def emit(self, powers: Any, out: Any, valid: Any) -> None:
        """Stores the number in out[0] (float64) and 1 in valid[0], or 0 there for a text that is no number.

        Seventeen digits count. Those and the power of ten, from `powers_of_ten`, are exact to a unit or two of
        float64's last place.
        """
        for buffer in (self._exponent, self._seen):
            T.buffer_store(buffer, T.int32(0), [0])
        T.buffer_store(self._digits, T.int64(0), [0])
        T.buffer_store(self._at, self._begin, [0])
        T.buffer_store(valid, T.int32(0), [0])
        with when(self._size > 0):
            self._skip_spaces()
            negative = self._sign()
            self._take_digits(shift=0)
            with when(self._is_any(".")):
                self._step()
                self._take_digits(shift=-1)
            with when(T.And(self._seen[0] == 1, self._is_any("e", "E"))):
                self._step()
                self._take_exponent()
            self._skip_spaces()
            with when(T.And(self._seen[0] == 1, self._at[0] == self._end)):
                clipped = T.max(T.min(self._exponent[0], T.int32(POWERS)), T.int32(-POWERS)) + POWERS
                size_of = in_register(T.cast(self._digits[0], "float64") * powers[clipped])
                unsigned = in_register(T.Select(self._digits[0] == T.int64(0), T.float64(0), size_of))
                T.buffer_store(out, T.Select(negative, T.float64(0) - unsigned, unsigned), [0])
                T.buffer_store(valid, T.int32(1), [0])

    def _skip_spaces(self) -> None:
        with T.While(self._is_any(" ")):
            self._step()

    def _sign(self) -> Expr:
        """Takes a sign, if there is one: whether it is a minus."""
        negative = T.bind(self._is_any("-"))
        with when(self._is_any("-", "+")):
            self._step()
        return negative

    def _take_digits(self, shift: int) -> None:
        """Appends digits to the number; each moves the exponent by `shift`, one that does not fit by one more."""
        with T.While(self._is_digit()):
            with T.If(self._digits[0] < T.int64(10**16)):
                with T.Then():
                    appended = self._digits[0] * T.int64(10) + T.cast(self._digit(), "int64")
                    T.buffer_store(self._digits, appended, [0])
                    T.buffer_store(self._exponent, self._exponent[0] + shift, [0])
                with T.Else():
                    T.buffer_store(self._exponent, self._exponent[0] + shift + 1, [0])
            T.buffer_store(self._seen, T.int32(1), [0])
            self._step()

    def _take_exponent(self) -> None:
        """Sign and digits behind the e, of which there must be one; they end at 2**20."""
        down = self._sign()
        T.buffer_store(self._seen, T.int32(0), [0])
        T.buffer_store(self._power, T.int32(0), [0])
        with T.While(self._is_digit()):
            T.buffer_store(self._power, T.min(self._power[0] * 10 + self._digit(), T.int32(1 << 20)), [0])
            T.buffer_store(self._seen, T.int32(1), [0])
            self._step()
        signed = T.Select(down, T.int32(0) - self._power[0], self._power[0])
        T.buffer_store(self._exponent, self._exponent[0] + signed, [0])

    def _step(self) -> None:
        T.buffer_store(self._at, self._at[0] + 1, [0])

    def _byte(self) -> Expr:
        """The byte at the current place; behind the end the last one, which no condition takes."""
        return self._text[T.min(self._at[0], self._end - 1)]

    def _is_any(self, *letters: str) -> Expr:
        condition = T.bool(False)
        for letter in letters:
            condition = T.Or(condition, self._byte() == T.uint8(ord(letter)))
        return T.And(self._at[0] < self._end, condition)

    def _digit(self) -> Expr:
        return T.cast(self._byte(), "int32") - ord("0")

    def _is_digit(self) -> Expr:
        return T.And(self._at[0] < self._end, T.And(self._digit() >= 0, self._digit() <= 9))
