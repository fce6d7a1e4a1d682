"""Sums of one-hots and over concatenated tensors against torch's own operators."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: operators for training are not tried")

from veltair.errors import DataError  # noqa: E402
from veltair.training import concat_sum, one_hot_sum  # noqa: E402


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4), (700, 40), (0, 3), (3, 0)])
def test_one_hot_sum(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    ids = torch.randint(-1, 7, shape)
    one_hots = torch.nn.functional.one_hot(ids + 1, 8)[..., 1:].float()
    assert torch.equal(one_hot_sum(ids, 7), one_hots.sum(-2))
    weights = torch.randn(shape, requires_grad=True)
    torch.testing.assert_close(one_hot_sum(ids.int(), 7, weights), (one_hots * weights[..., None]).sum(-2))


def test_gradients_are_right() -> None:
    weights = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    ids = torch.tensor([[0, 1, 1, -1], [2, 2, 2, 0], [-1, -1, -1, -1]])
    assert torch.autograd.gradcheck(lambda w: one_hot_sum(ids, 3, w), weights)
    parts = [torch.randn(2, n, 3, dtype=torch.float64, requires_grad=True) for n in (1, 0, 4)]
    assert torch.autograd.gradcheck(lambda *p: concat_sum(p), parts)


@pytest.mark.parametrize(("shape", "dim"), [((4, 1, 5), 1), ((300, 3, 40), 1), ((4, 3), 1), ((4, 3), 0), ((4, 3), -2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_concat_sum(shape: tuple[int, ...], dim: int, dtype: Any) -> None:
    torch.manual_seed(0)
    parts = []
    for length in (shape[dim], 2 * shape[dim]):
        one = list(shape)
        one[dim] = length
        parts.append(torch.randn(one, dtype=dtype).transpose(0, -1).contiguous().transpose(0, -1))  # not dense
    torch.testing.assert_close(concat_sum(parts, dim), torch.cat(parts, dim).sum(dim), rtol=1e-5, atol=1e-5)


def test_operators_compile() -> None:
    x = torch.randn(2, 3, 4, requires_grad=True)
    weights = torch.randn(2, 3, requires_grad=True)

    def both(x: Any, weights: Any) -> Any:
        return concat_sum([x, x]).sum() + one_hot_sum(torch.tensor([[0, 1, 2]] * 2), 3, weights).sum()

    torch.compile(both, backend="aot_eager", fullgraph=True)(x, weights).backward()
    assert torch.equal(x.grad, torch.full_like(x, 2)) and torch.equal(weights.grad, torch.ones_like(weights))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(DataError, match=r"ids: position 2 is 3; the classes are 0 to 2, or -1"):
        one_hot_sum(torch.tensor([0, -1, 3]), 3)
    with pytest.raises(DataError, match=r"ids: position 0 is -2"):
        one_hot_sum(torch.tensor([-2]), 3)
    with pytest.raises(DataError, match=r"weights: expected shape \[3\], found \[2\]"):
        one_hot_sum(torch.tensor([0, 1, 2]), 3, torch.ones(2))
    with pytest.raises(DataError, match=r"tensors: expected at least one"):
        concat_sum([])
    with pytest.raises(DataError, match=r"tensors\[1\]: expected shape \[2, 1, 3\], found \[2, 1, 4\]"):
        concat_sum([torch.ones(2, 1, 3), torch.ones(2, 1, 4)])
    with pytest.raises(DataError, match=r"dim: expected one of 2 dimensions, found 2"):
        concat_sum([torch.ones(2, 1)], 2)
