"""Compiles small models for real: the artifact is consistent, and appears whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled_models import records

from veltair.cli import main
from veltair.compiler.build import compile_model
from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_spec import Kernel
from veltair.compiler.kernels.conv.conv2d import Conv2d
from veltair.compiler.shared_library import ObjectFile
from veltair.compiler.timing import latency_tables
from veltair.compiler.tuning import checked_versions
from veltair.errors import ArtifactError, VeltairError
from veltair.machine.topology import usable_machine
from veltair.profiles.artifact.artifact_folder import MANIFEST, Artifact, file_digest, load_artifact


def test_the_artifact_is_complete_and_consistent(image: tuple[Path, Path, Artifact]) -> None:
    folder, model, made = image
    assert made == load_artifact(folder / "out")
    manifest = made.manifest
    assert (manifest.model, manifest.precision, manifest.batches) == ("tiny", "fp32", (1,))
    assert manifest.source_digest == file_digest(model)
    assert manifest.environment["cores"] == str(len(usable_machine().cores))
    assert manifest.levels[0] == 1.0
    layers = {layer.name: layer for layer in manifest.layers}
    assert [layers[name].op for name in ("first", "second", "third", "dense")] == ["conv2d"] * 3 + ["matmul"]
    assert layers["first"].flops == (2 * 81 * 32 * 32 * 9,)
    for layer in manifest.layers:
        assert 1 <= len(layer.versions) <= 5
        blocks = [version.block_size for version in layer.versions]
        assert blocks == sorted(blocks)
        for version in layer.versions:
            assert len(version.latency_ns[0]) == len(manifest.levels)
            assert {len(row) for row in version.latency_ns[0]} == {len(usable_machine().cores)}
    assert manifest.qos_ns > 0
    assert manifest.qos_ns % 1_000_000 == 0
    assert [entry.name for entry in folder.iterdir() if entry.name.startswith(".")] == []


def test_modelled_levels_are_labelled_and_older_manifests_still_load(
    image: tuple[Path, Path, Artifact], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, model, plain = image
    assert set(plain.manifest.level_sources) == {"measured"}
    monkeypatch.setattr(latency_tables, "distinct_levels", lambda slowdowns: [])  # as where co-runners cost nothing
    store = records(folder)
    made = compile_model(model, folder / "modelled", trials=6, precision="fp32", store=store, levels="modelled")
    levels = made.manifest.levels
    assert made.manifest.level_sources == ("measured", *["modelled"] * (len(levels) - 1))
    for layer in made.manifest.layers:
        for version in layer.versions:
            rows = np.array(version.latency_ns[0])
            assert (np.diff(rows, axis=0) >= 0).all()  # more pressure is never faster
    assert main(["inspect", str(folder / "modelled")]) == 0
    assert ("modelled" in capsys.readouterr().out) == (len(levels) > 1)

    facts = json.loads((folder / "modelled" / MANIFEST).read_text())
    del facts["level_sources"]
    (folder / "modelled" / MANIFEST).write_text(json.dumps(facts))
    assert load_artifact(folder / "modelled").manifest.level_sources == ()
    facts["level_sources"] = ["measured"] * (len(levels) + 1)
    (folder / "modelled" / MANIFEST).write_text(json.dumps(facts))
    with pytest.raises(ArtifactError, match="level_sources"):
        load_artifact(folder / "modelled")


def test_layers_of_equal_code_share_it_and_have_their_own_weights(image: tuple[Path, Path, Artifact]) -> None:
    first, second = (next(x for x in image[2].manifest.layers if x.name == name) for name in ("first", "second"))
    assert [v.symbol for v in first.versions] == [v.symbol for v in second.versions]
    assert all(a.arguments[1] != b.arguments[1] for a, b in zip(first.versions, second.versions, strict=True))


def test_weights_are_aligned_and_stand_in_the_file_once(image: tuple[Path, Path, Artifact]) -> None:
    manifest = image[2].manifest
    places = [b for b in manifest.buffers if b.kind == "weight"]
    assert all(b.offset % 64 == 0 for b in places)
    content = image[2].weights.read_bytes()
    parts = {b.offset: content[b.offset : b.offset + b.bytes_at(1)] for b in places}
    assert len(set(parts.values())) == len(parts)


def test_records_make_the_next_compile_search_nothing(
    image: tuple[Path, Path, Artifact], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, model, _ = image
    monkeypatch.setattr("veltair.compiler.tuning.search._CandidateTimer.measure", lambda *_: pytest.fail("it searches"))
    again = compile_model(
        model, tmp_path / "out", trials=6, precision="fp32", name="again", qos_ns=7, store=records(folder)
    )
    assert (again.manifest.model, again.manifest.qos_ns) == ("again", 7)


def test_a_version_with_wrong_results_is_left_out(
    image: tuple[Path, Path, Artifact], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A generator that drops the bias at every point but one loses those points, not the layer."""
    folder, model, _ = image
    good: dict[str, Any] = {}

    class Faulty(Conv2d):
        def build(self, spec: Any, point: Any, features: Any) -> Kernel:
            kernel = super().build(spec, point, features)
            if point == good.setdefault(spec.workload, point):
                return kernel
            packed, bias = kernel.weights
            return Kernel(kernel.function, (packed, bias * 0), kernel.block_size, kernel.parallelism)

    monkeypatch.setitem(SPACES, "conv2d", Faulty())
    made = compile_model(model, tmp_path / "out", trials=6, precision="fp32", store=records(folder))
    convolutions = [layer for layer in made.manifest.layers if layer.op == "conv2d"]
    assert len(convolutions) == 3
    assert all([v.point for v in layer.versions] in [[point] for point in good.values()] for layer in convolutions)


def test_a_layer_without_a_right_version_fails_and_writes_nothing(
    image: tuple[Path, Path, Artifact], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, model, _ = image
    real = checked_versions.ObjectFile

    def broken(function: Any, symbol: str, path: Path) -> ObjectFile:
        return real("no function" if symbol.startswith("matmul") else function, symbol, path)

    monkeypatch.setattr(checked_versions, "ObjectFile", broken)
    with pytest.raises(VeltairError, match=r"layer dense .*no version is right"):
        compile_model(model, tmp_path / "out", trials=6, precision="fp32", store=records(folder))
    assert list(tmp_path.iterdir()) == []


def test_what_stands_in_the_way_is_left_alone(image: tuple[Path, Path, Artifact], tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("dear")
    with pytest.raises(ArtifactError, match="left alone"):
        compile_model(image[1], tmp_path / "mine")
    assert (tmp_path / "mine" / "notes.txt").read_text() == "dear"
