"""The units of a CPU that multiply matrices."""

from __future__ import annotations

from enum import StrEnum


class MatrixUnit(StrEnum):
    """What computes the products of a kernel. The values stand in points of design spaces as "unit".

    >>> MatrixUnit.of_cpu(frozenset({"avx512", "avx512_bf16"}))
    <MatrixUnit.DOT_PRODUCT: 'dots'>
    """

    AMX = "amx"  # tiles of bfloat16
    DOT_PRODUCT = "dots"  # AVX-512-bf16: pairs of bfloat16 in vectors
    VECTOR = "vector"  # multiply-adds of fp32 vectors

    @classmethod
    def of_cpu(cls, features: frozenset[str]) -> MatrixUnit:
        """The unit for products of bfloat16 on a CPU that has AVX-512-bf16 or AMX."""
        return cls.AMX if "amx_bf16" in features else cls.DOT_PRODUCT
