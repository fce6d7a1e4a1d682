"""What a damaged, altered or unusable cache costs, and two compiles that share one. Counted, not timed."""

from __future__ import annotations

import logging
import subprocess
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from compiled_models import CLI, Told, image_model, records
from repeated_compiles import Compiles, all_of, none_of

from veltair.compiler.build import compile_model
from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_spec import LayerSpec, version_symbol
from veltair.compiler.graph.parameters.vision import Conv2dParameters
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower
from veltair.compiler.shared_library import compile_object
from veltair.compiler.tuning.kernel_cache import KernelCache
from veltair.compiler.verify import verify
from veltair.machine.isa import ISAS, cpu_features, tvm_target
from veltair.profiles.cache import cache_folder


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
    monkeypatch.setattr(cache_folder, "whole_file", refuse)
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


def test_two_compiles_at_once_share_one_cache(told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = image_model(tmp_path / "tiny.onnx")
    monkeypatch.setenv("VELTAIR_CACHE", str(tmp_path / "cache"))

    def command(number: int, *options: str) -> list[str]:
        return ["compile", str(model), "--out", str(tmp_path / f"out{number}"), "--trials", "0", "--json", *options]

    code, _, errors = told(*command(0, "--no-cache"))
    assert code == 0, errors
    assert not (tmp_path / "cache").exists()  # now there are records, so that the others choose alike
    both = [
        subprocess.Popen([*CLI, *command(number)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for number in (1, 2)
    ]
    for process in both:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    code, output, errors = told(*command(3))
    facts = msgspec.json.decode(output)
    assert (facts["objects_built"], facts["tables_measured"]) == (0, 0), errors
    assert facts["objects_reused"] == facts["tables_reused"] > 0
    assert not list((tmp_path / "cache").rglob(".veltair-*"))
