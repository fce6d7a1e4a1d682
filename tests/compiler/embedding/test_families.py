"""The five families of embedding operations at every level of Ember's ladder, against numpy; and what never happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from numpy.typing import NDArray
from run_kernels import OLDER_CPUS, between_guard_pages, require_features

from veltair.compiler.embedding import families
from veltair.compiler.embedding import family_reference as reference
from veltair.compiler.embedding.access_emitter import DISTANCES
from veltair.compiler.embedding.dlc import decouple
from veltair.compiler.embedding.embedding_kernel import embedding_function
from veltair.compiler.embedding.passes import LEVELS, optimise
from veltair.compiler.embedding.row_storage import STORAGES, decode_rows, encode_rows
from veltair.compiler.embedding.slc import EmbeddingProgram
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.shared_library import compile_function
from veltair.machine.isa import tvm_target
from veltair.machine.topology import usable_machine
from veltair.profiles.runtime.executor import aligned_copy, aligned_zeros

Array = NDArray[Any]
random = np.random.default_rng(5)
BAD_IDS = (-1, 50, 2**31, 2**40, -(2**63), 2**63 - 1)
OFFSETS = np.array([0, 3, 3, 20, 41, 60])


def compiled(
    program: EmbeddingProgram, level: int, ahead: int = 0, segments: int = 2, mcpu: str = ""
) -> Callable[..., Any]:
    code = embedding_function(program, level, ahead, segments)
    run: Callable[..., Any] = compile_function(code, "main", tvm_target() | ({"mcpu": mcpu} if mcpu else {}))["main"]
    return run


def called(run: Callable[..., Any], operands: Sequence[Array], shape: Sequence[int]) -> Array:
    out = aligned_zeros(shape, "float32")
    out[...] = 7  # whatever was there is no part of the result
    run(*(tvm_ffi.from_dlpack(a) for a in (*map(aligned_copy, operands), out)))
    return out


def table(name: str, rows: int, dim: int, storage: str = "fp32") -> tuple[Activation, Array]:
    array = encode_rows(random.standard_normal((rows, dim)), storage)
    return Activation(name, str(array.dtype), array.shape), array


def cases(dim: int, storage: str) -> dict[str, tuple[EmbeddingProgram, tuple[Array, ...], Array]]:
    """By name: a program, its operands and what it must give. Some ids are no rows."""
    (named, tab), (other, rel) = table("table", 50, dim, storage), table("relations", 9, dim, storage)
    ids, kinds = random.integers(0, 50, 60), random.integers(0, 9, 5)
    ids[[1, 7, 30, 31]] = -1, 50, 2**40, -(2**63)
    weights = random.standard_normal(60).astype(np.float32)
    heads, tails, bags = ids[:5], ids[5:10], ids.reshape(5, 12)
    triples = (heads, kinds, tails, tab, rel)
    return {
        "sls": (families.sls(named, dim), (ids, OFFSETS, tab), reference.sls(ids, tab, OFFSETS)),
        "weighted mean": (
            families.sls(named, dim, reduce="mean", weighted=True),
            (ids, OFFSETS, weights, tab),
            reference.sls(ids, tab, OFFSETS, weights, reduce="mean"),
        ),
        "bags of one length": (
            families.sls(named, dim, lookups=12, reduce="mean"),
            (bags, tab),
            reference.sls(bags, tab, None, reduce="mean"),
        ),
        "spmm": (families.spmm(named, dim), (ids, OFFSETS, weights, tab), reference.sls(ids, tab, OFFSETS, weights)),
        "message passing": (
            families.message_passing(named, dim),
            (ids, OFFSETS, tab),
            reference.message_passing(ids, tab, OFFSETS),
        ),
        "transe 1": (families.knowledge_graph(named, other, dim), triples, reference.knowledge_graph(*triples, norm=1)),
        "transe 2": (
            families.knowledge_graph(named, other, dim, 2),
            triples,
            reference.knowledge_graph(*triples, norm=2),
        ),
        "blocks": (families.block_gather(named, dim), (heads, tab), reference.block_gather(heads, tab)),
    }


def error(found: Array, expected: Array) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize(("dim", "ahead", "storage"), [(37, 4, "fp32"), (37, 8, "int8"), (300, 8, "fp16")])
def test_every_level_gives_the_same(dim: int, ahead: int, storage: str) -> None:
    made = cases(dim, storage)
    kinds = [(name, level) for name in made for level in LEVELS]
    with ThreadPoolExecutor(len(usable_machine().cores)) as pool:
        runs = list(pool.map(lambda kind: compiled(made[kind[0]][0], kind[1], ahead), kinds))
    for (name, level), run in zip(kinds, runs, strict=True):
        _, operands, expected = made[name]
        assert error(called(run, operands, expected.shape), expected) < 1e-5, (name, level)


@pytest.mark.parametrize("ahead", DISTANCES)
@pytest.mark.parametrize("segments", [1, 3, 8])
def test_any_distance_and_any_tile(ahead: int, segments: int) -> None:
    program, operands, expected = cases(16, "fp32")["sls"]
    for level in (2, 3):
        assert error(called(compiled(program, level, ahead, segments), operands, expected.shape), expected) < 1e-5


@pytest.mark.parametrize("mcpu", ["haswell", "skylake-avx512"])
def test_code_for_lesser_instruction_sets(mcpu: str) -> None:
    require_features(OLDER_CPUS[mcpu], f"code for {mcpu}")
    for storage in STORAGES:
        program, operands, expected = cases(40, storage)["weighted mean"]
        assert error(called(compiled(program, 3, 8, mcpu=mcpu), operands, expected.shape), expected) < 1e-5


@pytest.mark.parametrize("storage", STORAGES)
def test_nothing_outside_of_a_table_is_read(storage: str) -> None:
    """A load beyond either end of the table would end this process. Ids that are no rows are row 0."""
    dim = 64 if storage != "int8" else 56  # so that rows are whole cache lines, as kernels expect of where tables begin
    named, tab = table("table", 50, dim, storage)
    safe = between_guard_pages(tab)
    ids = np.array([*BAD_IDS, 0, 49] * 4)
    offsets = np.array([0, 9, 32])
    want = reference.sls(ids, tab, offsets)
    for level in LEVELS:
        for ahead in (0, 32):
            out = aligned_zeros(want.shape, "float32")
            run = compiled(families.sls(named, dim), level, ahead)
            run(*(tvm_ffi.from_dlpack(a) for a in (aligned_copy(ids), aligned_copy(offsets), safe, out)))
            assert error(out, want) < 1e-5


@pytest.mark.parametrize(
    "offsets", [[0, 30, 10, 60], [-5, 2**40, 60, 70], [60, 60, 60, 0], [2**63 - 1, -(2**63), 7, 9]]
)
def test_offsets_that_fall_or_pass_the_end_are_cut(offsets: list[int]) -> None:
    """They are clipped to what there is; a bag that would end before it begins is empty."""
    named, tab = table("table", 50, 24)
    ids, ends = random.integers(0, 50, 60), np.array(offsets)
    want = reference.sls(ids, tab, ends)
    for level in LEVELS:
        for segments in (1, 3):
            found = called(compiled(families.sls(named, 24), level, 4, segments), (ids, ends, tab), want.shape)
            np.testing.assert_allclose(found, want, atol=1e-4)


def test_a_bag_of_ten_million() -> None:
    named, tab = table("table", 3, 8)
    tab[...] = np.float32([[1], [2], [-3]])
    ids = np.tile([0, 1, 2, 2, 7], 2_000_000)  # 1 + 2 - 3 - 3 + 1 each time
    found = called(compiled(families.sls(named, 8), 3, 16), (ids, np.array([0, len(ids)]), tab), (1, 8))
    np.testing.assert_array_equal(found, -4_000_000)


def test_what_the_passes_make_of_a_mean() -> None:
    """Rows go through the queue whole, then alone; the mean's factor leaves the loop over lookups (Ember, Fig. 15)."""
    named, _ = table("table", 50, 32)
    operands = {}
    for level in LEVELS:
        tokens = decouple(optimise(families.sls(named, 32, reduce="mean", weighted=True), level)).tokens
        token = tokens["e_end" if level > 1 else "e_ite"]
        operands[level] = token.rows, set(token.scalars)
    assert operands[0] == operands[1] == (("row",), {"b", "e", "scale", "weight"})
    assert operands[2] == (("row",), {"b", "scale", "weight"})
    assert operands[3] == (("row",), {"weight"})
    text = str(optimise(families.sls(named, 32, reduce="mean"), 3))
    assert "for<16> e: sum[e] += row" in text
    assert "out[bag, e] = mul(scale, sum[e])" in text


@pytest.mark.parametrize("dim", [1, 33])
def test_int8_rows_are_within_half_a_step(dim: int) -> None:
    wide = random.standard_normal((20, dim)) * random.lognormal(size=(20, 1))
    wide[3] = 5.0
    step = np.maximum(wide.max(1) - wide.min(1), 1e-6) / 255
    assert (np.abs(decode_rows(encode_rows(wide, "int8")) - wide).max(1) <= 0.51 * step + 1e-5).all()
