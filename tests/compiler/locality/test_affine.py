"""Ranges of index expressions hold every value that the expressions take."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from veltair.compiler.locality.affine import AffineExpr, StridedRange, combine, loop_variable


def make_range(first: int, count: int, step: int) -> StridedRange:
    return StridedRange(first, first + (count - 1) * step, step if count > 1 else 0)


spans = st.builds(make_range, st.integers(0, 50), st.integers(1, 12), st.integers(1, 9))


def values(span: StridedRange) -> set[int]:
    return set(range(span.first, span.last + 1, span.step or 1))


@given(spans, spans, st.integers(1, 12), st.integers(1, 20))
def test_spans_hold_every_value(a: StridedRange, b: StridedRange, by: int, size: int) -> None:
    ranges = {0: a, 1: b}
    x, y, fixed = loop_variable(0), loop_variable(1), AffineExpr((), by)
    for kind, right, of in (
        ("div", fixed, lambda m, n: m // by),
        ("div", y.plus(fixed), lambda m, n: m // (n + by)),
        ("mod", fixed, lambda m, n: m % by),
        ("mod", y.plus(fixed), lambda m, n: m % (n + by)),
        ("min", y, min),
        ("max", y, max),
        ("product", y, lambda m, n: m * n),
        ("any", y, lambda m, n: m),
        ("any", y, lambda m, n: n),
    ):
        span = combine(kind, x, right).span(ranges)
        assert {of(m, n) for m in values(a) for n in values(b)} <= values(span), kind
    shares = combine("div", x, y).span(ranges)  # where there is nothing to share, the code does not run
    assert {m // n for m in values(a) for n in values(b) if n} <= values(shares)
    plain = x.times(3).plus(y.times(-2)).plus(AffineExpr((), 7)).span(ranges)
    assert {3 * m - 2 * n + 7 for m in values(a) for n in values(b)} <= values(plain)
    assert values(a) | values(b) <= values(a.hull(b))
    inside = a.plus(StridedRange(-20, -20, 0)).clipped(size)
    assert (values(inside) if inside else set()) == {v - 20 for v in values(a) if 0 <= v - 20 < size}
