"""What is said of a product's numbers holds for all its values."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from veltair.compiler.patterns.quantised.product_facts import has_whole_bias, saturates
from veltair.compiler.patterns.quantised.product_match import ProductMatch
from veltair.compiler.patterns.quantised.quantum import QuantisedTensor, Quantum
from veltair.compiler.references.quantised_reference import quantise
from veltair.compiler.references.reference_arithmetic import apply_activation

INPUT = Quantum(0.02, 7, "uint8")
SCALES = st.sampled_from([1e-5, 0.003, 0.02, 1.0])
ACTIVATIONS = st.sampled_from(["none", "relu", "clip:0.0:6.0", "clip:-1.0:1.0", "clip:-1000.0:1000.0", "gelu"])
TYPES = st.sampled_from([("uint8", 0), ("uint8", 255), ("uint8", 113), ("int8", -128), ("int8", 0), ("int8", 127)])


def match(bias: list[float], **terms: object) -> ProductMatch:
    """A product with one weight, and one column for each number of the bias, whose sums have steps of 0.001."""
    columns = len(bias)
    weight, scale = np.full((1, columns), 3, np.int8), np.full(columns, 0.001, np.float32)
    return ProductMatch("p", "x", INPUT, weight, scale, np.array(bias, np.float32), "y", **terms)  # type: ignore[arg-type]


@given(ACTIVATIONS, ACTIVATIONS, SCALES, TYPES, st.booleans())
def test_what_saturates_needs_no_other_bound(
    first: str, last: str, scale: float, kind: tuple[str, int], added: bool
) -> None:
    rounded = Quantum(scale, kind[1], kind[0])
    between = {"between": INPUT, "added": np.zeros(1, np.float32)} if added else {}
    found = match([0.5], first=first, last=last, rounded=rounded, **between)
    values = np.linspace(-300 * scale, 300 * scale, 1201).astype(np.float32)
    bound = apply_activation(values if added else apply_activation(values, first), last)
    same = np.array_equal(*(quantise(each, rounded.array, rounded.dtype) for each in (bound, values)))
    assert saturates(found) == (same and "gelu" not in (first, last))


def test_a_result_that_int32_may_have_no_room_for_is_bounded() -> None:
    tiny = Quantum(1e-12, 0, "uint8")
    assert not saturates(match([0.5], rounded=tiny))
    assert not saturates(match([0.0], between=INPUT, residual=QuantisedTensor("r", INPUT), rounded=tiny))
    assert saturates(match([0.5], rounded=Quantum(1e-6, 0, "uint8")))


def test_a_result_that_is_not_rounded_saturates_nowhere() -> None:
    assert not saturates(match([0.5]))
    assert not saturates(match([0.5], rounded=INPUT, dynamic=("scale", "zero")))


@given(st.lists(st.integers(-100_000, 100_000), min_size=1, max_size=9))
def test_a_bias_of_whole_steps(steps: list[int]) -> None:
    assert has_whole_bias(match([0.001 * each for each in steps]))


def test_a_bias_between_two_steps() -> None:
    assert not has_whole_bias(match([0.002, 0.0025]))
    assert not has_whole_bias(match([0.001 * (1 << 23)]))  # a float tells such steps no longer apart
    assert not has_whole_bias(match([np.inf]))
    assert not has_whole_bias(match([0.002], dynamic=("scale", "zero")))  # steps that queries have


def test_a_column_without_steps() -> None:
    found = match([0.0, 0.5])
    found.scale[:] = 0
    assert not has_whole_bias(found)
    found.bias[:] = 0
    assert has_whole_bias(found)
