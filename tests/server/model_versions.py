"""Versions of the example models: the same network with other weights, and broken ones."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import msgspec
import numpy as np

from veltair.profiles.artifact.artifact_folder import KERNELS, MANIFEST, WEIGHTS, load_artifact
from veltair.profiles.runtime.answer_check import store_answer

LAYERS = 3  # of mlp with weights, each of which its scale passes


def altered(source: Path, target: Path, **changes: object) -> Path:
    """A copy of an artifact with other manifest entries."""
    shutil.copytree(source, target)
    manifest = msgspec.json.decode((target / MANIFEST).read_bytes())
    (target / MANIFEST).write_bytes(msgspec.json.encode(manifest | changes))
    return target


def scaled_mlp(artifacts: Path, target: Path, scale: float) -> Path:
    """A version of mlp whose answers are `scale ** LAYERS` times those of the first."""
    weights = np.fromfile(artifacts / "mlp" / WEIGHTS, np.float32) * np.float32(scale)
    altered(artifacts / "mlp", target, weights_digest=hashlib.sha256(weights.tobytes()).hexdigest())
    weights.tofile(target / WEIGHTS)
    store_answer(target)
    return target


def deadly(artifacts: Path, target: Path) -> Path:
    """A version of crash that kills the process that loads it: its warm-up reads elsewhere."""
    ports = load_artifact(artifacts / "crash").manifest.inputs
    return altered(artifacts / "crash", target, inputs=[msgspec.structs.replace(port, low=1, high=1) for port in ports])


def broken(artifacts: Path, target: Path, how: str) -> Path:
    """A version of mlp that cannot be served."""
    if how == "other instructions":
        return altered(artifacts / "mlp", target, features=["no_such_isa"])
    if how == "deadly":
        return deadly(artifacts, target)
    if how == "not a library":
        content = b"\x7fELF, and then nothing of the kind"
        altered(artifacts / "mlp", target, kernels_digest=hashlib.sha256(content).hexdigest())
        (target / KERNELS).write_bytes(content)
        return target
    if how == "short weights":
        content = (artifacts / "mlp" / WEIGHTS).read_bytes()[:-4096]
        altered(artifacts / "mlp", target, weights_digest=hashlib.sha256(content).hexdigest())
        (target / WEIGHTS).write_bytes(content)
        return target
    shutil.copytree(artifacts / "mlp", target)
    if how == "no library":
        (target / KERNELS).unlink()
    elif how == "flipped byte":
        raw = bytearray((target / WEIGHTS).read_bytes())
        raw[len(raw) // 2] ^= 1
        (target / WEIGHTS).write_bytes(raw)
    elif how == "torn manifest":
        (target / MANIFEST).write_bytes((target / MANIFEST).read_bytes()[:-10])
    elif how == "no symbol":
        manifest = msgspec.json.decode((target / MANIFEST).read_bytes())
        manifest["layers"][0]["versions"][0]["symbol"] = "nothing"
        (target / MANIFEST).write_bytes(msgspec.json.encode(manifest))
    return target


BROKEN = (
    *("other instructions", "deadly", "no library", "flipped byte", "torn manifest", "no symbol"),
    *("not a library", "short weights"),
)
