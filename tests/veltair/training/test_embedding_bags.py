"""Bags against torch's own and, for row-wise Adagrad, against numpy."""

from __future__ import annotations

import multiprocessing
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="torch is not installed: operators for training are not tried")

from veltair.errors import DataError  # noqa: E402
from veltair.training import EmbeddingBag, RowWiseAdagrad, embedding_bag  # noqa: E402

ROWS = 9


def bags(lengths: list[int], seed: int = 0) -> tuple[Any, Any]:
    """Ids with many duplicates, and where each bag begins."""
    ids = torch.from_numpy(np.random.default_rng(seed).integers(0, ROWS, sum(lengths)))
    return ids, torch.from_numpy(np.cumsum([0, *lengths])[:-1])


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.integers(0, 7), min_size=1, max_size=12),
    dim=st.sampled_from([1, 3, 4, 16, 24, 32, 128]),
    mode=st.sampled_from(["sum", "mean", "weighted"]),
    padding=st.sampled_from([None, 0, -1]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    ids_of=st.sampled_from([torch.int32, torch.int64]),
    last=st.booleans(),
)
def test_bags_are_those_of_torch(
    lengths: list[int], dim: int, mode: str, padding: int | None, dtype: Any, ids_of: Any, last: bool
) -> None:
    ids, offsets = bags(lengths)
    if last:
        offsets = torch.cat([offsets, torch.tensor([len(ids)])])
    kind: dict[str, Any] = {"mode": mode.replace("weighted", "sum"), "padding_idx": padding, "dtype": dtype}
    theirs = torch.nn.EmbeddingBag(ROWS, dim, include_last_offset=last, **kind)
    ours = EmbeddingBag(ROWS, dim, include_last_offset=last, **kind)
    ours.load_state_dict(theirs.state_dict())
    found = []
    for module, i, o in ((theirs, ids, offsets), (ours, ids.to(ids_of), offsets.to(ids_of))):
        weights = torch.linspace(-1, 1, len(ids), dtype=dtype, requires_grad=True) if mode == "weighted" else None
        out = module(i, o, weights)
        out.backward(torch.linspace(-2, 1, out.numel(), dtype=dtype).reshape(out.shape))
        found.append([out.detach(), module.weight.grad, *([] if weights is None else [weights.grad])])
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(found[1], found[0], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_gradients_are_right(mode: str) -> None:
    table = torch.randn(ROWS, 3, dtype=torch.float64, requires_grad=True)
    ids, offsets = bags([3, 0, 4, 1])
    assert torch.autograd.gradcheck(lambda t: embedding_bag(ids, t, offsets, mode=mode), table)
    if mode == "sum":
        weights = torch.randn(len(ids), dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(
            lambda t, w: embedding_bag(ids, t, offsets, per_sample_weights=w), (table, weights)
        )


def numpy_step(table: Any, moments: Any, ids: Any, bag_of: Any, given: Any, lr: float, eps: float) -> None:
    """Row-wise Adagrad as FBGEMM's, row by row."""
    for row in np.unique(ids):
        gradient = given[bag_of[ids == row]].sum(0)
        moments[row] += np.mean(gradient**2)
        table[row] -= lr * gradient / (np.sqrt(moments[row]) + eps)


@pytest.mark.parametrize("dim", [4, 16])
def test_row_wise_adagrad_is_that_of_numpy(dim: int) -> None:
    bag = EmbeddingBag(ROWS, dim, optimizer=RowWiseAdagrad(0.3, 1e-6), dtype=torch.float64)
    table, moments = bag.weight.detach().numpy().copy(), np.zeros(ROWS)
    for step in range(3):
        lengths = [4, 0, 6, 2]
        ids, offsets = bags(lengths, step)
        given = torch.randn(4, dim, dtype=torch.float64)
        bag(ids, offsets).backward(given)
        numpy_step(table, moments, ids.numpy(), np.repeat(np.arange(4), lengths), given.numpy(), 0.3, 1e-6)
    assert bag.weight.grad is None
    np.testing.assert_allclose(bag.weight.detach().numpy(), table, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(bag.moments.numpy(), moments, rtol=1e-12)
    again = EmbeddingBag(ROWS, dim, optimizer=RowWiseAdagrad(), dtype=torch.float64)
    again.load_state_dict(bag.state_dict())
    assert torch.equal(again.moments, bag.moments)


def update(threads: int) -> tuple[Any, Any]:
    """A large update, whose sums of duplicates are cut among threads."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    bag = EmbeddingBag(1000, 16, optimizer=RowWiseAdagrad(0.1))
    ids = torch.randint(0, 1000, (20_000,)) ** 2 // 1000
    out = bag(ids, torch.arange(0, 20_000, 50))
    out.backward(torch.randn_like(out))
    return out.detach().numpy(), bag.weight.detach().numpy()


def test_results_are_the_same_on_any_number_of_threads() -> None:
    before = torch.get_num_threads()
    try:
        expected = update(1)
        for threads in (2, 5):
            assert all(map(np.array_equal, update(threads), expected))
    finally:
        torch.set_num_threads(before)


# Made before a fork, after which torch waits for its own threads in operators on many elements.
FORKED = torch.arange(16_000) % ROWS, torch.ones(ROWS, 32), torch.arange(0, 16_000, 10)


def forked() -> float:
    ids, table, offsets = FORKED
    return float(embedding_bag(ids, table, offsets)[-1, -1])


def test_threads_start_anew_in_a_forked_process() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert forked() == 10
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.apply_async(forked).get(timeout=30) == 10
    finally:
        torch.set_num_threads(before)


def test_operators_compile() -> None:
    bag = EmbeddingBag(ROWS, 4, optimizer=RowWiseAdagrad(0.5))
    plain = EmbeddingBag(ROWS, 4)
    plain.load_state_dict({"weight": bag.weight.detach().clone()})
    ids = torch.tensor([[1, 1, 2]])
    for module in (bag, plain):
        torch.compile(lambda i, m=module: m(i).square().sum(), backend="aot_eager", fullgraph=True)(ids).backward()
    gradient = plain.weight.grad
    moments = (gradient**2).mean(1)
    torch.testing.assert_close(bag.moments, moments)
    torch.testing.assert_close(bag.weight, plain.weight - 0.5 * gradient / (moments.sqrt() + 1e-8)[:, None])


@pytest.mark.parametrize(
    ("ids", "offsets", "more", "message"),
    [
        ([1, 9], [0], {}, r"ids: position 1 is 9; the rows of the table are 0 to 8"),
        ([1, -1], [0], {}, r"ids: position 1 is -1; the rows"),
        ([1, 2], [0, 3], {}, r"offsets: place 1 is 3; expected offsets that rise from 0 to 2"),
        ([1, 2], [1], {}, r"offsets: place 0 is 1"),
        ([1, 2], [0, 2, 1], {}, r"offsets: place 2 is 1"),
        ([1, 2], [0, 1], {"include_last_offset": True}, r"offsets: place 1 is 1; .* to 2, the ids' count"),
        ([1, 2], [0], {"mode": "max"}, r"mode: expected 'sum' or 'mean', found 'max'"),
        ([1, 2], [0], {"padding_idx": 9}, r"padding_idx: 9 is no row"),
        ([1.0, 2.0], [0], {}, r"input: expected int32 or int64, found torch.float32"),
        ([1, 2], None, {}, r"input: expected ids in two dimensions, or in one with offsets"),
        ([1, 2], [0], {"per_sample_weights": torch.ones(3)}, r"per_sample_weights: expected shape \[2\], found \[3\]"),
        ([1, 2], [0], {"optimizer": RowWiseAdagrad()}, r"moments: expected the state of the optimizer"),
    ],
)
def test_what_does_not_fit_is_refused(ids: Any, offsets: Any, more: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        embedding_bag(torch.tensor(ids), torch.zeros(9, 4), offsets and torch.tensor(offsets), **more)


def test_two_look_ups_before_an_update_are_refused_by_autograd() -> None:
    bag = EmbeddingBag(ROWS, 4, optimizer=RowWiseAdagrad())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (bag(torch.tensor([[1]])) + bag(torch.tensor([[2]]))).sum().backward()
