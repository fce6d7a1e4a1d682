"""Helper of the tests: a manifest of an empty model, of which a test sets what it is about."""

from __future__ import annotations

from typing import Any

import msgspec

from veltair.profiles.artifact.manifest import SCHEMA, Manifest

EMPTY = Manifest(
    schema=SCHEMA,
    model="m",
    precision="fp32",
    tolerance=0.1,
    qos_ns=1,
    target={},
    features=(),
    max_batch=1,
    batches=(1,),
    levels=(1.0,),
    inputs=(),
    outputs=(),
    buffers=(),
    arena_bytes=0,
    layers=(),
    environment={},
    source_digest="",
    kernels_digest="",
    weights_digest="",
)


def make_manifest(**fields: Any) -> Manifest:
    return msgspec.structs.replace(EMPTY, **fields)
