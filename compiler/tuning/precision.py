"""fp32 or bfloat16: what a CPU can do, and which of them is faster on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.memory import vector_store
from veltair.compiler.codegen.multiply_add import VALUES_PER_STEP, broadcast_input, multiply_add, reduction_body
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.vectors import LANES, broadcast
from veltair.compiler.codegen.weight_packing import pack_bf16_pairs
from veltair.compiler.shared_library import compile_object, link_library
from veltair.compiler.timing.measure import Meter
from veltair.compiler.timing.measuring_messages import InlineTensor, OutputTensor
from veltair.errors import ConfigError
from veltair.machine.isa import tvm_target
from veltair.machine.scratch import ScratchFolder
from veltair.machine.topology import usable_machine

Precision = Literal["auto", "fp32", "bf16", "int8"]
# A dot product does the work of two fp32 products. Convolutions in fp32 need fewer of them (Winograd), so a dot has to
# take clearly less than two: with equal times ResNet-50 takes 0.6 of its time in fp32, with 4 times as long 1.7.
DEAREST_DOT = 1.5  # products in whose time a dot product has to be done
SUMS, DEPTH, ROUNDS = 24, 512, 8  # vectors of sums, which hide the latency; numbers read from L1; repetitions


def pick_precision(
    wanted: Precision,
    features: frozenset[str],
    isa: str | None,
    dots_pay: Callable[[], bool],
    suits: Callable[[], bool],
) -> Literal["fp32", "bf16"]:
    """What a model is compiled to.

    "auto" is bf16 with AMX tiles, and with AVX-512-bf16 alone where its dot products are fast: they take as long as a
    product of floats on some CPUs (Zen 5), four times as long on others (Sapphire Rapids). It is fp32 for models that
    bf16 does not suit. "int8" is as "auto": it is what the layers compute in that do not multiply 8-bit integers.

    Args:
        features: those that the code may use.
        isa: that was asked for, of which they are; None: all of this CPU.
        dots_pay: asked where it matters alone, since it takes half a second.
        suits: whether bf16 suits the model (`bf16_fitness`); asked where it matters alone.

    Raises ConfigError for bf16 without instructions for it, on this CPU or within the instruction set asked for.
    """
    if wanted == "bf16" and not features & {"amx_bf16", "avx512_bf16"}:
        has = f"{f'isa {isa}' if isa else 'this CPU'} has {', '.join(sorted(features)) or 'none of the sets used here'}"
        raise ConfigError(
            f"precision bf16 needs AVX-512-bf16 or AMX (avx512_bf16, amx_bf16), {has}; fp32 runs everywhere"
        )
    if wanted in ("fp32", "bf16"):
        return wanted
    if not features & {"amx_bf16", "avx512_bf16"} or not suits():
        return "fp32"
    return "bf16" if "amx_bf16" in features or dots_pay() else "fp32"


def dots_pay() -> bool:
    """Whether this CPU's dot products of bfloat16 beat its products of floats, both timed from registers and L1."""
    product_ns, dot_ns = (step_ns(dtype) for dtype in ("float32", "uint16"))
    return dot_ns <= DEAREST_DOT * product_ns


def step_ns(dtype: str) -> float:
    """What one step of a reduction takes (`products.STEP`) on one core of this machine, for inputs of this type."""
    steps = DEPTH // VALUES_PER_STEP[dtype]
    x, sums = np.ones(DEPTH, dtype), np.zeros(SUMS * LANES, np.float32)
    weight = np.ones((DEPTH, LANES), np.float32)
    taps = weight if dtype == "float32" else pack_bf16_pairs(weight, 0)

    def body(x: Any, taps: Any, out: Any) -> None:
        acc = T.alloc_buffer((SUMS,), f"float32x{LANES}", scope="local")
        for i in range(SUMS):
            T.buffer_store(acc, broadcast(0.0), [i])
        with T.grid(ROUNDS, steps) as (_, k):
            value, tap = T.bind(broadcast_input(x, k * VALUES_PER_STEP[dtype])), T.bind(taps[k, T.ramp(0, 1, LANES)])
            for i in range(SUMS):
                T.buffer_store(acc, multiply_add(acc[i], value, tap), [i])
        for i in range(SUMS):
            vector_store(out, acc[i], i * LANES)

    with ScratchFolder("precision") as scratch, Meter(usable_machine().cores) as meter:
        at, library = scratch / "step.o", scratch / "step.so"
        compile_object(build_prim_func((x, taps, sums), reduction_body(dtype, body)), "step", tvm_target(), at)
        link_library([at], library)
        given = [InlineTensor(str(array.dtype), array.shape, array.tobytes()) for array in (x, taps)]
        (took,) = meter.time(library, "step", [*given, OutputTensor("float32", sums.shape)], [1])
    return took / (ROUNDS * steps * SUMS)
