"""Compiles that follow each other: what is reused, what never is, and what a broken cache costs. Counted, not timed."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
from compiled_models import CLI, bag_model, image_model, records

from veltair.compiler.build import compile_model
from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_spec import LayerSpec, version_symbol
from veltair.compiler.graph.parameters.vision import Conv2dParameters
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower
from veltair.compiler.shared_library import compile_object
from veltair.compiler.tuning import cache_keys, kernel_cache
from veltair.compiler.tuning.kernel_cache import CacheCounts, KeptTimes, KernelCache
from veltair.compiler.verify import verify
from veltair.machine.isa import ISAS, cpu_features, tvm_target
from veltair.profiles.artifact.artifact_folder import Artifact, load_artifact
from veltair.profiles.cache import cache_folder
from veltair.profiles.cache.cache_folder import CacheFolder


@dataclass
class Compiles:
    """Compiles of one model after another, with one set of records and one cache."""

    folder: Path
    model: Path
    made: int = 0
    last: Artifact | None = None

    @property
    def artifact(self) -> Artifact:
        assert self.last is not None
        return self.last

    @property
    def cache(self) -> CacheFolder:
        return CacheFolder(self.folder / "cache")

    def again(self, model: Path | None = None, *, fresh_timings: bool = False, **options: object) -> CacheCounts:
        cache = KernelCache(self.cache, fresh_timings=fresh_timings)
        self.made += 1
        given: dict[str, object] = {"trials": 0, "precision": "fp32", **options}
        self.last = compile_model(
            model or self.model, self.folder / f"out{self.made}", store=records(self.folder), cache=cache, **given
        )  # type: ignore[arg-type]
        return cache.counts

    def entries(self, kind: str) -> list[Path]:
        return sorted((self.cache.path / kind).iterdir())


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> Compiles:
    """A first compile, whose cache was empty."""
    folder = tmp_path_factory.mktemp("cold")
    found = Compiles(folder, image_model(folder / "tiny.onnx"))
    counts = found.again()
    assert counts.objects_built == counts.tables_measured == len(found.entries("objects")) > 2
    assert counts.objects_reused == counts.tables_reused == 0
    return found


@pytest.fixture
def compiles(cold: Compiles, tmp_path: Path) -> Compiles:
    """What the first compile left, in a folder of its own."""
    shutil.copytree(cold.folder, tmp_path / "after")
    folder = tmp_path / "after"
    return Compiles(folder, folder / "tiny.onnx", cold.made, load_artifact(folder / "out1"))


def all_of(counts: CacheCounts, objects: int) -> bool:
    """Whether so many kernels were there, with their times, and nothing was built or measured."""
    nothing = counts.objects_built == counts.tables_measured == 0
    return nothing and counts.objects_reused == counts.tables_reused == objects


def none_of(counts: CacheCounts) -> bool:
    return counts.objects_reused == counts.tables_reused == 0 < counts.objects_built


def test_a_second_compile_builds_checks_and_measures_nothing(
    compiles: Compiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, objects = compiles.artifact, len(compiles.entries("objects"))
    monkeypatch.setattr(kernel_cache, "compile_objects", lambda *_: pytest.fail("it compiles"))
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
        "veltair.compiler.tuning.code_versions.ReferenceCheck.find_fault",
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


@pytest.mark.parametrize("kind", ["objects", "timings", "versions"])
def test_damaged_entries_are_made_anew(compiles: Compiles, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Half of them torn, half of them altered: each is replaced, and the next compile finds all of them."""
    first, objects = compiles.artifact, len(compiles.entries("objects"))
    for number, path in enumerate(compiles.entries(kind)):
        raw = path.read_bytes()
        path.write_bytes(raw[: len(raw) // 2] if number % 2 else raw[:-1] + bytes([raw[-1] ^ 1]))
    counts = compiles.again()
    assert counts.objects_built == (objects if kind == "objects" else 0)
    assert counts.tables_measured == (objects if kind == "timings" else 0)
    assert compiles.artifact.kernels.read_bytes() == first.kernels.read_bytes()
    assert all_of(compiles.again(), objects)
    assert not [record for record in caplog.records if "not kept" in record.message]


def test_an_object_that_computes_something_else_is_built_anew(compiles: Compiles) -> None:
    """Its digest is right, and so is its symbol: the check with the model's own weights finds it."""
    graph = lower(load_model(compiles.model), "fp32")
    spec = next(layer for layer in graph.layers if layer.name == "first")
    point = next(layer for layer in compiles.artifact.layers if layer.name == "first").versions[0].point
    wrong = wrong_object(spec, dict(point), compiles.folder / "wrong.o")
    symbol = version_symbol(spec, dict(point)).encode()
    [name] = [path.name for path in compiles.entries("objects") if symbol in path.read_bytes()]
    right = compiles.cache.read("objects", name)
    assert right is not None and right != wrong
    compiles.cache.write("objects", name, wrong)
    counts = compiles.again()
    assert counts.objects_built == 1
    assert compiles.cache.read("objects", name) == right
    assert not verify(compiles.artifact, compiles.model).mismatches


def wrong_object(spec: LayerSpec, point: dict[str, int | str], path: Path) -> bytes:
    """The layer's kernel without its activation, by the same name."""
    parameters = replace(spec.parameters_as(Conv2dParameters), activation="none")
    kernel = SPACES[spec.op].build(replace(spec, parameters=parameters), point, ISAS["avx512"] & cpu_features())
    target = tvm_target(ISAS["avx512"] & cpu_features())
    compile_object(kernel.function, version_symbol(spec, point), target, path)
    return path.read_bytes()


def refuse(*_: object, **__: object) -> None:
    raise OSError(30, "Read-only file system")


def test_a_read_only_folder_serves_and_says_once_that_nothing_is_kept(
    compiles: Compiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    objects = len(compiles.entries("objects"))
    monkeypatch.setattr(cache_folder.tempfile, "mkstemp", refuse)
    monkeypatch.setattr(cache_folder.os, "utime", refuse)
    assert all_of(compiles.again(), objects)
    assert not [record for record in caplog.records if "not kept" in record.message]
    for path in compiles.entries("objects")[1:]:
        path.unlink()
    with caplog.at_level(logging.WARNING):
        assert compiles.again().objects_built == objects - 1
    [said] = [record.message for record in caplog.records if "not kept" in record.message]
    assert str(compiles.cache.path) in said and "Read-only" in said
    assert len(compiles.entries("objects")) == 1


@pytest.mark.parametrize("fault", ["a file", "others may write it"])
def test_a_folder_that_cannot_be_used_costs_one_line(
    compiles: Compiles, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = compiles.cache.path
    if fault == "a file":
        path.rename(path.with_name("before"))
        path.write_text("not a folder")
    else:
        path.chmod(0o777)
    with caplog.at_level(logging.WARNING):
        assert none_of(compiles.again())
    [said] = [record.message for record in caplog.records if "not kept" in record.message]
    assert str(path) in said and "\n" not in said
    assert fault == "a file" or "anybody may write it" in said


def test_without_a_cache_nothing_is_kept(compiles: Compiles) -> None:
    cache = KernelCache()
    out = compiles.folder / "without"
    compile_model(compiles.model, out, trials=0, precision="fp32", store=records(compiles.folder), cache=cache)
    assert none_of(cache.counts)


def test_two_compiles_at_once_share_one_cache(tmp_path: Path) -> None:
    model = image_model(tmp_path / "tiny.onnx")
    environment = os.environ | {"XDG_DATA_HOME": str(tmp_path / "xdg"), "VELTAIR_CACHE": str(tmp_path / "cache")}

    def begin(number: int, *options: str) -> subprocess.Popen[str]:
        command = [*CLI, "compile", str(model), "--out", str(tmp_path / f"out{number}"), "--trials", "0", "--json"]
        command += options
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)

    first = [*begin(0, "--no-cache").communicate(timeout=300)]
    assert not (tmp_path / "cache").exists(), first  # now there are records, so that the others choose alike
    both = [begin(1), begin(2)]
    for process in both:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    output, errors = begin(3).communicate(timeout=300)
    facts = msgspec.json.decode(output)
    assert (facts["objects_built"], facts["tables_measured"]) == (0, 0), errors
    assert facts["objects_reused"] == facts["tables_reused"] > 0
    assert not list((tmp_path / "cache").rglob(".veltair-*"))
