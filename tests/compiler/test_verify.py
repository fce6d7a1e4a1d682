"""`veltair verify` against ONNX Runtime: right artifacts pass, a wrong version is found. And `veltair inspect`."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
from compiled_models import Told, heads_model, image_model, records, run

from veltair.compiler.build import compile_model
from veltair.machine.topology import usable_machine
from veltair.profiles.artifact.artifact_folder import KERNELS, MANIFEST, WEIGHTS, Artifact, write_artifact


def test_it_agrees_with_onnx_runtime(image: tuple[Path, Path, Artifact]) -> None:
    folder, model, made = image
    done = run(folder, "verify", folder / "out", model, "--json")
    facts = json.loads(done.stdout)
    assert (done.returncode, facts["ok"], facts["mismatches"]) == (0, True, [])
    assert facts["layers"] == len(made.manifest.layers)
    assert facts["versions"] == sum(len(layer.versions) for layer in made.manifest.layers)
    assert 0 < facts["max_rel_err"] < 1e-4
    assert facts["cores"] == len(usable_machine().cores)


def test_pieces_of_a_whole_may_begin_anywhere(tmp_path: Path, told: Told) -> None:
    model = heads_model(tmp_path / "heads.onnx")
    made = compile_model(model, tmp_path / "out", trials=0, precision="fp32", store=records(tmp_path))
    assert any(b.kind == "arena" and b.offset % 64 for b in made.manifest.buffers)
    _, output, _ = told("verify", tmp_path / "out", model, "--json")
    facts = json.loads(output)
    assert facts["ok"], facts["mismatches"]


def test_other_weights_are_found_out(image: tuple[Path, Path, Artifact], told: Told) -> None:
    folder, _, _ = image
    other = image_model(folder / "other.onnx", seed=9)
    code, output, _ = told("verify", folder / "out", other, "--json")
    facts = json.loads(output)
    assert (code, facts["ok"]) == (1, False)
    assert facts["max_rel_err"] > 0.01
    assert any("off its reference" in text for text in facts["mismatches"])
    assert told("verify", folder / "out", other)[0] == 1


def test_one_wrong_version_is_found_out(image: tuple[Path, Path, Artifact], tmp_path: Path, told: Told) -> None:
    """A version of one layer is given the weights of another layer."""
    _, model, made = image
    manifest = made.manifest
    names = [layer.name for layer in manifest.layers]
    layers = list(manifest.layers)
    victim, donor = layers[names.index("second")], layers[names.index("first")]
    last = len(victim.versions) - 1
    swapped = list(victim.versions[last].arguments)
    swapped[1] = donor.versions[last].arguments[1]
    bad = msgspec.structs.replace(victim.versions[last], arguments=tuple(swapped))
    layers[names.index("second")] = msgspec.structs.replace(victim, versions=(*victim.versions[:last], bad))
    with write_artifact(tmp_path / "bad") as draft:
        (draft / MANIFEST).write_bytes(msgspec.json.encode(msgspec.structs.replace(manifest, layers=tuple(layers))))
        for name in (KERNELS, WEIGHTS):
            (draft / name).write_bytes((made.path / name).read_bytes())
    _, output, _ = told("verify", tmp_path / "bad", model, "--json")
    facts = json.loads(output)
    assert not facts["ok"]
    assert any(text.startswith("layer second") for text in facts["mismatches"])
    assert not any(text.startswith("layer first") for text in facts["mismatches"])


def test_another_answer_than_the_artifact_holds(image: tuple[Path, Path, Artifact], tmp_path: Path, told: Told) -> None:
    _, model, made = image
    answer = made.manifest.answer
    assert answer is not None
    (first, *others) = answer.outputs
    values = (1 + (first.values[0] or 0), *first.values[1:])
    changed = msgspec.structs.replace(answer, outputs=(msgspec.structs.replace(first, values=values), *others))
    with write_artifact(tmp_path / "other") as draft:
        manifest = msgspec.structs.replace(made.manifest, answer=changed)
        (draft / MANIFEST).write_bytes(msgspec.json.encode(manifest))
        for name in (KERNELS, WEIGHTS):
            (draft / name).write_bytes((made.path / name).read_bytes())
    _, output, _ = told("verify", tmp_path / "other", model, "--json")
    mismatches = json.loads(output)["mismatches"]
    assert mismatches and all(text.startswith("off the answer that the artifact holds: output ") for text in mismatches)


def test_inspect_tells_every_version(image: tuple[Path, Path, Artifact], told: Told) -> None:
    folder, _, made = image
    facts = json.loads(run(folder, "inspect", folder / "out", "--json").stdout)
    assert facts["model"] == "tiny"
    assert facts["environment"]["cpu"] == made.manifest.environment["cpu"]
    answer = made.manifest.answer
    assert answer is not None
    count = sum(len(output.values) for output in answer.outputs)
    assert facts["answer"] == {"tolerance": answer.tolerance, "compared": count, "left_out": 0}
    for layer, entry in zip(facts["layers"], made.manifest.layers, strict=True):
        assert (layer["name"], layer["op"]) == (entry.name, entry.op)
        for line, version in zip(layer["versions"], entry.versions, strict=True):
            assert (line["block_size"], line["parallelism"]) == (version.block_size, version.parallelism)
            assert line["origin"] == version.origin != ""
            assert line["latency_ns"] == [[list(row) for row in rows] for rows in version.latency_ns]
    _, table, _ = told("inspect", folder / "out")
    assert f"a load compares {count} values of its answer" in table
    assert all(entry.name in table for entry in made.manifest.layers)
