"""Which precision a CPU gets."""

import pytest
from run_kernels import require_features

from veltair.compiler.tuning import precision
from veltair.compiler.tuning.precision import DEAREST_DOT, dots_pay, pick_precision, step_ns
from veltair.errors import ConfigError

DOTS = frozenset({"avx2", "avx512", "avx512_bf16"})


def unasked() -> bool:
    raise AssertionError("nothing is to be timed here")


@pytest.mark.parametrize(
    ("wanted", "features", "pays", "chosen"),
    [
        ("auto", DOTS | {"amx_bf16"}, None, "bf16"),
        ("auto", DOTS, True, "bf16"),
        ("auto", DOTS, False, "fp32"),
        ("auto", frozenset({"avx2", "avx512"}), None, "fp32"),
        ("auto", frozenset(), None, "fp32"),
        ("fp32", DOTS | {"amx_bf16"}, None, "fp32"),
        ("bf16", DOTS, None, "bf16"),
    ],
)
def test_what_is_asked_for_or_fast(
    wanted: precision.Precision, features: frozenset[str], pays: bool | None, chosen: str
) -> None:
    assert pick_precision(wanted, features, None, unasked if pays is None else lambda: pays) == chosen


def test_bf16_without_instructions_for_it_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"bf16 needs AVX-512-bf16 or AMX .*, this CPU has avx2, avx512; fp32 runs"):
        pick_precision("bf16", frozenset({"avx2", "avx512"}), None, unasked)
    with pytest.raises(ConfigError, match=r"bf16 needs AVX-512-bf16 or AMX .*, isa avx2 has avx2; fp32 runs"):
        pick_precision("bf16", frozenset({"avx2"}), "avx2", unasked)


@pytest.mark.parametrize(("dot_ns", "pays"), [(DEAREST_DOT - 0.1, True), (DEAREST_DOT + 0.1, False)])
def test_dots_pay_in_less_than_two_products(monkeypatch: pytest.MonkeyPatch, dot_ns: float, pays: bool) -> None:
    monkeypatch.setattr(precision, "step_ns", {"float32": 1.0, "uint16": dot_ns}.__getitem__)
    assert dots_pay() is pays


def test_steps_are_timed_on_this_cpu() -> None:
    require_features(frozenset({"avx512_bf16"}), "dot products of bfloat16")
    for dtype in ("float32", "uint16"):
        assert 0.01 < step_ns(dtype) < 100  # ns; no core does ten vectors in one, none waits for memory here
