"""GRU against torch's own, AUGRU against a loop over steps."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: operators for training are not tried")

from veltair.errors import DataError  # noqa: E402
from veltair.training import Augru, Gru, augru, gru  # noqa: E402

TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-12}


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("batch", "inputs", "hidden", "bias"), [(1, 3, 5, True), (16, 8, 8, False), (37, 4, 17, True)])
def test_gru_is_that_of_torch(batch: int, inputs: int, hidden: int, bias: bool, dtype: Any) -> None:
    torch.manual_seed(0)
    theirs = torch.nn.GRU(inputs, hidden, bias=bias, batch_first=True, dtype=dtype)
    ours = Gru(inputs, hidden, bias, dtype=dtype)
    ours.load_state_dict(theirs.state_dict())
    x, first = torch.randn(batch, 6, inputs, dtype=dtype), torch.randn(1, batch, hidden, dtype=dtype)
    found = []
    for module in (theirs, ours):
        given, h0 = x.clone().requires_grad_(), first.clone().requires_grad_()
        states, last = module(given, h0)
        (states.square().sum() + last.sum()).backward()
        found.append([states.detach(), last.detach(), given.grad, h0.grad, *(p.grad for p in module.parameters())])
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(found[1], found[0], rtol=tolerance, atol=30 * tolerance)


def by_steps(module: Any, x: Any, scores: Any) -> Any:
    """The cell as DIEN writes it, step after step."""
    hidden, h, states = module.hidden_size, torch.zeros(len(x), module.hidden_size, dtype=x.dtype), []
    w, v, b, d = module.weight_ih_l0, module.weight_hh_l0, module.bias_ih_l0, module.bias_hh_l0
    for t in range(x.shape[1]):
        given, recurrent = x[:, t] @ w.t() + b, h @ v.t() + d
        r, u = torch.sigmoid(given + recurrent)[:, : 2 * hidden].split(hidden, 1)
        if module.reset_after:
            c = torch.tanh(given[:, 2 * hidden :] + r * recurrent[:, 2 * hidden :])
        else:
            c = torch.tanh(given[:, 2 * hidden :] + (r * h) @ v[2 * hidden :].t() + d[2 * hidden :])
        u = (1 - scores[:, t, None]) * u
        h = u * h + (1 - u) * c
        states.append(h)
    return torch.stack(states, 1)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("reset_after", [False, True])
def test_augru_is_the_loop(reset_after: bool, dtype: Any) -> None:
    torch.manual_seed(0)
    module = Augru(3, 9, reset_after=reset_after, dtype=dtype)
    x, scores = torch.randn(19, 5, 3, dtype=dtype), torch.rand(19, 5, dtype=dtype)
    torch.testing.assert_close(
        module(x, scores)[0], by_steps(module, x, scores), rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype]
    )


@pytest.mark.parametrize("reset_after", [False, True])
def test_gradients_through_time_are_right(reset_after: bool) -> None:
    torch.manual_seed(0)
    shapes = [(3, 4, 2), (9, 2), (9, 3), (9,), (9,), (3, 3), (3, 4)]
    given = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    assert torch.autograd.gradcheck(lambda *g: gru(*g[:-1], scores=g[-1], reset_after=reset_after), given)


def test_large_and_undefined_inputs() -> None:
    module = Gru(1, 4)
    states, _ = module(torch.tensor([[[1e30]], [[-1e30]], [[float("nan")]]]))
    assert torch.isfinite(states[:2]).all() and torch.isnan(states[2]).any()


def test_operators_compile() -> None:
    module, x, scores = Augru(3, 4), torch.randn(2, 5, 3), torch.rand(2, 5)
    module(x, scores)[0].sum().backward()
    expected = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    torch.compile(lambda: module(x, scores)[0].sum(), backend="aot_eager", fullgraph=True)().backward()
    torch.testing.assert_close([p.grad for p in module.parameters()], expected)


def test_what_does_not_fit_is_refused() -> None:
    x, w, v = torch.zeros(2, 5, 3), torch.zeros(12, 3), torch.zeros(12, 4)
    with pytest.raises(DataError, match=r"weight_ih: expected shape \[12, 3\], found \[12, 2\]"):
        gru(x, w[:, :2], v)
    with pytest.raises(DataError, match=r"scores: expected shape \[2, 5\], found \[2, 4\]"):
        augru(x, torch.zeros(2, 4), w, v)
    with pytest.raises(DataError, match=r"h0: expected torch.float32, found torch.float64"):
        gru(x, w, v, h0=torch.zeros(2, 4, dtype=torch.float64))
    with pytest.raises(DataError, match=r"x: expected torch.float32 or torch.float64, found torch.float16"):
        gru(x.half(), w.half(), v.half())
    with pytest.raises(DataError, match=r"x: expected shape \[batch, steps, inputs\]"):
        gru(x[0], w, v)
