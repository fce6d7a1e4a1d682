"""Kernels for each instruction set that this processor has give the same results, up to rounding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: operators for training are not tried")

from veltair.training import (  # noqa: E402
    Augru,
    EmbeddingBag,
    Gru,
    RowWiseAdagrad,
    concat_sum,
    one_hot_sum,
)
from veltair.training.native_calls import limit_vectors  # noqa: E402


@pytest.fixture(params=[32, 64])
def wider(request: pytest.FixtureRequest) -> Iterator[int]:
    if limit_vectors(request.param) != request.param:
        pytest.skip(f"the processor has no vectors of {request.param} bytes")
    yield request.param
    limit_vectors(64)


def everything(dtype: Any) -> list[Any]:
    """Results and gradients of all operators."""
    torch.manual_seed(0)
    found = []
    for dim in (4, 16, 64, 21):
        bag = EmbeddingBag(40, dim, mode="mean", padding_idx=3, optimizer=RowWiseAdagrad(), dtype=dtype)
        out = bag(torch.randint(0, 40, (30, 7)))
        out.square().sum().backward()
        found += [out, bag.weight, bag.moments]
    table = torch.randn(40, 16, dtype=dtype, requires_grad=True)
    weights = torch.randn(30, 7, dtype=dtype, requires_grad=True)
    plain = EmbeddingBag(40, 16, dtype=dtype)
    plain(torch.randint(0, 40, (30, 7)), None, weights).square().sum().backward()
    found += [plain.weight.grad, weights.grad, one_hot_sum(torch.randint(-1, 9, (30, 7)), 9, weights)]
    found.append(concat_sum([table[None], 2 * table[None]]))
    x, scores = torch.randn(21, 5, 6, dtype=dtype, requires_grad=True), torch.rand(21, 5, dtype=dtype)
    for layer, given in ((Gru(6, 11, dtype=dtype), (x,)), (Augru(6, 8, dtype=dtype), (x, scores))):
        states, _ = layer(*given)
        states.square().sum().backward()
        found += [states, x.grad.clone(), *(p.grad for p in layer.parameters())]
    return [each.detach().clone() for each in found]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_wide_vectors_give_what_narrow_ones_give(wider: int, dtype: Any) -> None:
    found = everything(dtype)
    assert limit_vectors(16) == 16
    tolerance = 1e-4 if dtype == torch.float32 else 1e-11
    torch.testing.assert_close(found, everything(dtype), rtol=tolerance, atol=tolerance)
