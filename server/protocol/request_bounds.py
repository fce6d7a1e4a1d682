"""How much a request may name: checked before anything is computed from it, so that a small request costs little."""

from __future__ import annotations

from collections.abc import Sequence

from veltair.errors import RequestError

MAX_RANK = 16  # dimensions of a tensor
LEAST_DIMENSION, MAX_DIMENSION = -(2**63), 2**63 - 1  # of 64 bits; which of them fit is another question
MAX_TENSORS = 4096  # inputs, and requested outputs, of a request; of models known, the largest has some thousand
MAX_PARAMETERS = 1024  # of a request, and of one of its tensors


def check_shape(where: str, shape: Sequence[int]) -> None:
    """Raises RequestError, which begins with `where`. The product of a shape that passes is cheap, and so is its text.

    >>> check_shape("input 'x'", [1 << 62] * 17)
    Traceback (most recent call last):
    veltair.errors.RequestError: input 'x': 17 dimensions; a tensor has 16 at most
    """
    if len(shape) > MAX_RANK:
        raise RequestError(f"{where}: {len(shape)} dimensions; a tensor has {MAX_RANK} at most")
    if max(shape, default=0) > MAX_DIMENSION or min(shape, default=0) < LEAST_DIMENSION:
        raise RequestError(f"{where}: a dimension is beyond 64 bits")


def check_counts(inputs: int, outputs: int, parameters: int) -> None:
    """Raises RequestError for more of them than a request may have.

    >>> check_counts(1000, 1, 0)
    """
    for found, most, what in (
        (inputs, MAX_TENSORS, "inputs"),
        (outputs, MAX_TENSORS, "outputs"),
        (parameters, MAX_PARAMETERS, "parameters"),
    ):
        if found > most:
            raise RequestError(f"request: {found} {what}; it may have {most}")


def check_parameters(where: str, count: int) -> None:
    """Raises RequestError where one tensor has too many parameters."""
    if count > MAX_PARAMETERS:
        raise RequestError(f"{where}: {count} parameters; it may have {MAX_PARAMETERS}")


def only_value(values: Sequence[str], name: str) -> str:
    """The value of a header that may stand once: of two, another reader may take the other. Raises RequestError.

    >>> only_value(["a"], "veltair-tenant"), only_value([], "veltair-tenant")
    ('a', '')
    """
    if len(values) > 1:
        raise RequestError(f"{name} is given {len(values)} times, expected once")
    return values[0] if values else ""
