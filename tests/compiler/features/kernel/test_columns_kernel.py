"""The fused kernel against plain Python: every code path at odd batches, and inputs made to read outside."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest
from features.compiled_columns import CompiledColumns, make_description
from features.every_column import COLUMNS, FEATURES, LESS, POINT, SHAPES, raw_features
from run_kernels import between_guard_pages, require_features

from veltair.compiler.design_spaces import SPACES
from veltair.compiler.embedding.row_storage import STORAGES
from veltair.compiler.features.feature_description import FeatureDescription
from veltair.compiler.features.feature_reference import reference_inputs
from veltair.compiler.features.kernel.columns_kernel import concatenated_layer
from veltair.compiler.features.text_code.tokens import BLOCK, NOTED
from veltair.compiler.features.vocabularies import LONGEST_PROBE, MOST_SLOTS_PER_KEY, Vocabularies, fill_slots
from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.compiler.references.layer_reference import pack_activation, unpack_activation
from veltair.compiler.references.layer_reference import reference_outputs as layer_reference
from veltair.profiles.artifact.manifest import Storage
from veltair.profiles.runtime.executor import aligned_copy


@pytest.fixture(scope="module")
def whole() -> FeatureDescription:
    return make_description(FEATURES, COLUMNS, **SHAPES)


@pytest.fixture(scope="module")
def compiled(whole: FeatureDescription) -> CompiledColumns:
    return CompiledColumns(whole, POINT)


@pytest.mark.parametrize("batch", [1, 3, 16, 31, 33, 70, 200])
def test_every_code_path_equals_the_reference(compiled: CompiledColumns, whole: FeatureDescription, batch: int) -> None:
    raw = raw_features(batch, batch)
    np.testing.assert_allclose(compiled(raw, batch), reference_inputs(whole, raw)["x"], rtol=1e-5, atol=1e-6)


def test_the_reference_of_the_layer_is_that_of_its_columns(compiled: CompiledColumns) -> None:
    """As the search checks candidates: from the merged inputs alone, offsets that fall among them."""
    arrays = [aligned_copy(array) for array in compiled.arrays(raw_features(8, 8), 8)]
    arrays[compiled.names.index("ends")][[1, 20]] = [2**31 - 1, -1]
    expected = layer_reference(compiled.spec, arrays)
    assert expected is not None and SPACES["columns"].points(compiled.spec, LESS)
    np.testing.assert_allclose(compiled.run(arrays, 8), expected[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_numbers_at_and_beside_boundaries(isa: str) -> None:
    """However many boundaries there are; infinity and NaN are below none of them."""
    require_features(frozenset({isa}), f"code for {isa}")
    chance, counts = np.random.default_rng(0), (1, 15, 16, 17, 100, 512, 513)
    edges = [np.unique(chance.standard_normal(count).astype(np.float32)) for count in counts]
    columns = [{"name": f"c{i}", "feature": f"f{i}", "boundaries": e.tolist()} for i, e in enumerate(edges)]
    some = make_description([{"name": f"f{i}", "kind": "float"} for i in range(len(edges))], columns)
    code = CompiledColumns(some, POINT, *((LESS, "haswell") if isa == "avx2" else ()), max_batch=2048, dtype="int64")
    values = {
        f"f{i}": np.concatenate([e, np.nextafter(e, np.float32(-9)), [np.inf, -np.inf, np.nan]])
        for i, e in enumerate(edges)
    }
    for batch in (1, 15, 16, 79, 2048):
        raw = {name: chance.permutation(np.resize(v, 2048)).astype(np.float32)[:batch] for name, v in values.items()}
        expected = [np.searchsorted(e, raw[f"f{i}"], "right") for i, e in enumerate(edges)]
        np.testing.assert_array_equal(code(raw, batch), np.stack(expected, 1))


@pytest.mark.parametrize("dtype", ["float32", "uint16"])
def test_computed_numbers_beside_columns(dtype: str) -> None:
    """Of any widths, on both sides; in bfloat16 all of it is rounded once, as what is made of its float32 is."""
    if dtype == "uint16":
        require_features(frozenset({"avx512_bf16"}), "rounding to bfloat16")
    texts = {"cross", "crossed", "parts", "case", "strip", "strong_key"}  # make ids of texts, with as much code again
    some = make_description(FEATURES, [column for column in COLUMNS if not texts & column.keys()], **SHAPES)
    kinds = (("a", "uint16", 3), ("b", "float32", 50), ("c", dtype, 16))
    a, b, c = (Activation(name, kind, (-1, width)) for name, kind, width in kinds)

    def changed(spec: LayerSpec) -> LayerSpec:
        width = sum(tensor.shape[1] for tensor in (*spec.outputs, a, b, c))
        return concatenated_layer(spec, [a, b], [c], Activation("y", dtype, (-1, width)))

    code = CompiledColumns(some, POINT, changed=changed)
    for batch in (1, 19, 33):
        chance, raw = np.random.default_rng(batch), raw_features(batch, batch)
        pieces = [
            pack_activation(tensor, chance.standard_normal(tensor.at(batch)).astype(np.float32)) for tensor in (a, b, c)
        ]
        out = code.run([aligned_copy(array) for array in (*code.arrays(raw, batch), *pieces)], batch)
        left, middle, right = (
            unpack_activation(tensor, piece) for tensor, piece in zip((a, b, c), pieces, strict=True)
        )
        expected = np.concatenate([left, middle, reference_inputs(some, raw)["x"], right], 1)
        worst = 1e-5 if dtype == "float32" else 2**-8
        np.testing.assert_allclose(unpack_activation(code.spec.outputs[0], out), expected, rtol=worst, atol=1e-6)
        same = layer_reference(code.spec, [*code.arrays(raw, batch), *pieces])
        assert same is not None
        np.testing.assert_allclose(unpack_activation(code.spec.outputs[0], same[0]), expected, rtol=worst, atol=1e-6)
    raw["dense"][0] = np.uint32(0xFFFFFFFF).view(np.float32)  # rounding must not make a number of it
    out = code.run([aligned_copy(array) for array in (*code.arrays(raw, batch), *pieces)], batch)
    assert (np.isnan(unpack_activation(code.spec.outputs[0], out)).sum(1) == [3] + [0] * (batch - 1)).all()
    drawn = code.spec.parameters.draw_inputs(5, np.random.default_rng(0))
    assert drawn is not None
    assert [(d.dtype, d.size) for d in drawn] == [(np.dtype(t.dtype), np.prod(t.at(5))) for t in code.spec.inputs]


def test_columns_in_parallel_on_avx2() -> None:
    some = [c for c in COLUMNS if c["feature"] in ("f", "i", "t") and not {"cross", "crossed"} & c.keys()]
    small = make_description([f for f in FEATURES if f["name"] in ("f", "i", "t")], some, **SHAPES)
    code = CompiledColumns(small, {"rows": 128, "columns": 32, "along": "columns", "ahead": 0}, LESS, "haswell")
    raw = raw_features(3, 150)
    np.testing.assert_allclose(code(raw, 150), reference_inputs(small, raw)["x"], rtol=1e-5, atol=1e-6)


def test_ends_that_fall_or_pass_the_room_are_empty_texts(compiled: CompiledColumns, whole: FeatureDescription) -> None:
    """The kernel's own check; `Strings.checked` refuses them before."""
    raw = raw_features(5, 4)
    arrays = {
        name: between_guard_pages(array, 64)
        for name, array in zip(compiled.names, compiled.arrays(raw, 4), strict=True)
    }
    arrays["ends"][1] = 2**31 - 1  # row 1 of s; row 2 then begins past the room, and its end falls
    arrays["ends"][4 + 3] = -5  # row 3 of kept
    out = compiled.run([arrays[name] for name in compiled.names], 4)
    for feature, row in (("s", 1), ("s", 2), ("kept", 3)):
        raw[feature][row] = b""
    np.testing.assert_allclose(out, reference_inputs(whole, raw)["x"], rtol=1e-5, atol=1e-6)


def test_nothing_is_read_outside_of_texts_numbers_and_tables(compiled: CompiledColumns) -> None:
    check_at_guard_pages(compiled)


@pytest.mark.parametrize("storage", [storage for storage in STORAGES if storage != "fp32"])
def test_nothing_is_read_outside_of_rows_of_other_types(storage: Storage) -> None:
    names = ("f", "searched", "i", "many", "s", "s.one", "t")  # rows of every width, and of one and several
    columns = [c for c in COLUMNS if c.get("name", c["feature"]) in names]
    some = make_description([f for f in FEATURES if f["name"] in names], columns, **SHAPES)
    check_at_guard_pages(CompiledColumns(some, POINT, storage=storage))


def check_at_guard_pages(code: CompiledColumns) -> None:
    """Every array ends at a page that no one may touch: a read behind it kills the process."""
    code.weights[:] = [between_guard_pages(weight, 64) for weight in code.weights]
    for batch in (1, 7, 16, 33):
        raw = raw_features(batch, batch)
        arrays = [between_guard_pages(array, 64) for array in code.arrays(raw, batch)]
        expected = reference_inputs(code.description, raw, code.store.tables)["x"]
        np.testing.assert_allclose(code.run(arrays, batch), expected, rtol=1e-5, atol=1e-6)


def test_long_texts_and_a_million_separators() -> None:
    some = [
        {**f, "max_bytes": 10_000_000 if f["name"] == "s" else 1 << 20} for f in FEATURES if f["name"] in ("s", "all")
    ]
    columns = [c for c in COLUMNS if c.get("name", c["feature"]) in ("s", "s.known", "all")]
    large = make_description(some, columns, **SHAPES)
    raw = {
        "s": [b"x" * 10_000_000, b"\0" * 65],
        "all": [b";" * 1_000_000, b"a;" * 500_000 + b"b"],
    }
    # A million float32 rows one after the other: the sum itself is that inexact.
    np.testing.assert_allclose(
        CompiledColumns(large, POINT, max_batch=2)(raw, 2), reference_inputs(large, raw)["x"], rtol=2e-2, atol=1e-6
    )


def test_what_is_cut_off_is_not_even_read() -> None:
    """A row costs what its first tokens do: those behind lie where nobody may look."""
    page = mmap.PAGESIZE
    some = make_description(
        [{"name": "t", "kind": "tokens", "truncate": 2, "max_bytes": 2 * page}],
        [{"feature": "t", "hash": 40, "combiner": "sum", "table": "t8"}],
        t8=(40, 8),
    )
    text = (b"one,two," + b"three," * page)[: 2 * page]
    code, raw = CompiledColumns(some, POINT, max_batch=1), {"t": [text]}
    memory = mmap.mmap(-1, 2 * page)
    memory[:page] = text[:page]
    letters, arrays = np.frombuffer(memory, np.uint8), [aligned_copy(array) for array in code.arrays(raw, 1)]
    arrays[code.names.index("bytes")] = letters
    second = ctypes.c_void_p(letters.ctypes.data + page)
    assert ctypes.CDLL(None).mprotect(second, ctypes.c_size_t(page), 0) == 0
    np.testing.assert_allclose(code.run(arrays, 1), reference_inputs(some, raw)["x"], rtol=1e-5)


def test_every_separator_counts_once() -> None:
    some = make_description(
        [{"name": "t", "kind": "tokens", "empty": "keep", "max_bytes": 1 << 20}], [{"feature": "t", "length": True}]
    )
    code = CompiledColumns(some, POINT, max_batch=1)
    for size in (0, 1, 31, 32, 33, NOTED - 1, NOTED, NOTED + BLOCK, NOTED + BLOCK + 1, 1 << 20):
        assert code({"t": [b"," * size]}, 1).tolist() == [[size + 1]]


def test_as_many_tokens_are_read_as_there_may_be() -> None:
    """However they lie in the stretches whose ends are noted together; empty ones do not count."""
    chance = np.random.default_rng(3)
    for limit in (NOTED, 2 * NOTED + 5):
        some = make_description(
            [{"name": "t", "kind": "tokens", "truncate": limit, "max_bytes": 1 << 12}],
            [{"feature": "t", "hash": 40, "combiner": "sum", "table": "t8"}],
            t8=(40, 8),
        )
        texts = [b",".join([b"x" * size for size in chance.integers(0, 4, count)]) for count in (0, 200, 300, 500, 999)]
        raw = {"t": texts}
        found = CompiledColumns(some, POINT, max_batch=len(texts))(raw, len(texts))
        np.testing.assert_allclose(found, reference_inputs(some, raw)["x"], rtol=1e-4, atol=1e-4)


def test_keys_are_found_within_a_few_probes() -> None:
    """However many there are; memory stays in proportion where keys were chosen to collide."""
    for count in (1, 100, 20_000):
        slots = Vocabularies.build({"v": [f"key {i}" for i in range(count)]}).slots
        full = np.concatenate([slots, slots[: LONGEST_PROBE + 1]]) >= 0
        runs = np.convolve(full, np.ones(LONGEST_PROBE + 1, int), "valid")
        assert (slots >= 0).sum() == count and runs.max() <= LONGEST_PROBE
        assert len(slots) <= 4 * MOST_SLOTS_PER_KEY * count
    colliding = fill_slots([place << 40 for place in range(200)])
    assert (colliding >= 0).sum() == 200 and len(colliding) <= 4 * MOST_SLOTS_PER_KEY * 200
