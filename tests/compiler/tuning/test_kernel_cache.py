"""Compiles that follow each other: what is reused, and what never is. Counted, not timed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
from compiled_models import bag_model, image_model
from repeated_compiles import Compiles, all_of, none_of

from veltair.compiler.tuning import cache_keys, kernel_cache
from veltair.compiler.tuning.kernel_cache import KeptTimes
from veltair.compiler.verify import verify
from veltair.machine.isa import cpu_features
from veltair.profiles.cache import cache_folder


def test_a_second_compile_builds_checks_and_measures_nothing(
    compiles: Compiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, objects = compiles.artifact, len(compiles.entries("objects"))
    monkeypatch.setattr(kernel_cache.KernelCache, "begin", lambda *_: pytest.fail("it compiles"))
    monkeypatch.setattr("veltair.compiler.timing.measure.Meter._ask", lambda *_: pytest.fail("it measures or checks"))
    assert all_of(compiles.again(), objects)
    assert compiles.artifact.kernels.read_bytes() == first.kernels.read_bytes()
    assert compiles.artifact.weights.read_bytes() == first.weights.read_bytes()
    assert compiles.artifact.manifest.environment["timed_since"] == first.manifest.environment["timed_since"]
    latencies = [[[v.latency_ns for v in layer.versions] for layer in a.layers] for a in (first, compiles.artifact)]
    assert latencies[0] == latencies[1]
    monkeypatch.undo()
    assert not verify(compiles.artifact, compiles.model).mismatches


def test_layers_of_another_model_are_checked_with_its_own_weights(
    compiles: Compiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects, checked = len(compiles.entries("objects")), []
    other = image_model(compiles.folder / "other.onnx", seed=7)
    monkeypatch.setattr(
        "veltair.compiler.tuning.checked_versions.ReferenceCheck.find_fault",
        lambda self, *_: checked.append(self.spec.symbol) or "",
    )
    assert all_of(compiles.again(other), objects)
    assert {symbol.split("_")[0] for symbol in checked} == {"conv2d", "matmul"}  # those that have weights
    assert len(set(checked)) == 3
    monkeypatch.undo()
    assert not verify(compiles.artifact, other).mismatches


def test_lookups_in_a_dynamic_batch(tmp_path: Path) -> None:
    compiles = Compiles(tmp_path, bag_model(tmp_path / "bags.onnx"))
    first = compiles.again(max_batch=8)
    assert none_of(first)
    assert all_of(compiles.again(max_batch=8), first.objects_built)
    assert none_of(compiles.again(max_batch=6))  # other code, and other sizes to time


def test_modelled_levels_measure_the_memory_once(compiles: Compiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veltair.compiler.timing.latency_tables.distinct_levels", lambda slowdowns: [])
    counts = compiles.again(levels="modelled")
    assert (counts.objects_built, counts.tables_measured) == (0, 0)  # checked again, for what the model needs besides
    before = compiles.artifact.manifest.levels
    monkeypatch.setattr(kernel_cache, "measure_memory", lambda cores: pytest.fail("it measures the memory"))
    assert all_of(compiles.again(levels="modelled"), counts.objects_reused)
    assert compiles.artifact.manifest.levels == before


def test_fresh_timings_are_measured_and_kept(compiles: Compiles) -> None:
    objects = len(compiles.entries("objects"))
    for path in compiles.entries("timings"):
        content = compiles.cache.read("timings", path.name)
        assert content is not None
        old = msgspec.structs.replace(msgspec.json.decode(content, type=KeptTimes), measured_s=86400)
        compiles.cache.write("timings", path.name, msgspec.json.encode(old))
    counts = compiles.again()
    assert counts.timed_since == compiles.artifact.manifest.environment["timed_since"] == "1970-01-02T00:00:00Z"
    counts = compiles.again(fresh_timings=True)
    assert (counts.objects_built, counts.tables_reused, counts.tables_measured) == (0, 0, objects)
    assert counts.timed_since > "2020"
    assert compiles.again().timed_since == counts.timed_since


def test_another_instruction_set_shares_nothing(compiles: Compiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veltair.compiler.build.cpu_features", lambda: frozenset())
    assert none_of(compiles.again())
    assert compiles.artifact.manifest.features == ()


def test_another_version_of_tvm_shares_nothing(compiles: Compiles, monkeypatch: pytest.MonkeyPatch) -> None:
    real = cache_keys.metadata.version
    monkeypatch.setattr(cache_keys.metadata, "version", lambda name: real(name) + ".1" * (name == "apache-tvm"))
    cache_keys.code_generator.cache_clear()
    try:
        assert none_of(compiles.again())
    finally:
        cache_keys.code_generator.cache_clear()


def test_an_altered_design_space_shares_nothing(
    compiles: Compiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any byte of any module that generates, runs or times kernels."""
    source = tmp_path / "space" / "conv.py"
    source.parent.mkdir()
    package = ModuleType("space")
    package.__path__ = [str(source.parent)]
    monkeypatch.setattr(cache_keys, "_CODE", (package,))
    try:
        for text, reused in (("TILE = 8", False), ("TILE = 8", True), ("TILE = 9", False)):
            source.write_text(text)
            cache_keys.source_digest.cache_clear()
            cache_keys.code_generator.cache_clear()
            counts = compiles.again()
            assert none_of(counts) != reused
    finally:
        cache_keys.source_digest.cache_clear()
        cache_keys.code_generator.cache_clear()


def test_the_digest_is_of_the_real_sources() -> None:
    names = {path for package in cache_keys._CODE for path in Path(package.__path__[0]).rglob("*.py")}
    assert {Path(cache_keys.__file__), Path(cache_folder.__file__)} < names
    assert Path(__import__("veltair.compiler.kernels.conv.conv2d", fromlist=["x"]).__file__ or "") in names


MACHINES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "processor": lambda patch: patch.setattr(cache_keys, "cpu_name", lambda: "another CPU"),
    "features": lambda patch: patch.setattr(cache_keys, "cpu_features", lambda: cpu_features() | {"avx10"}),
    "quota": lambda patch: patch.setattr(cache_keys, "quota_cpus", lambda: 1.5),
    "caches": lambda patch: patch.setattr(cache_keys, "cache_bytes", lambda: {"L2": 1}),
}


@pytest.mark.parametrize("other", MACHINES)
def test_times_of_another_machine_are_not_reused(
    compiles: Compiles, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    MACHINES[other](monkeypatch)
    cache_keys.machine_facts.cache_clear()
    try:
        counts = compiles.again()
        assert (counts.objects_built, counts.tables_reused) == (0, 0)
        assert counts.tables_measured == counts.objects_reused > 0
    finally:
        cache_keys.machine_facts.cache_clear()
