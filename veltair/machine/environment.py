"""What a number is measured on: the record that stands beside every result."""

from __future__ import annotations

import platform
from dataclasses import asdict
from importlib import metadata
from typing import Any

from veltair.machine.isa import cpu_features, cpu_name
from veltair.machine.memory import memory_bytes
from veltair.machine.topology import usable_machine
from veltair.types import Environment

_DISTRIBUTIONS = ("veltair", "apache-tvm", "apache-tvm-ffi", "numpy", "onnx", "onnxruntime", "openvino")


def describe_environment() -> Environment:
    """The processor, memory and software that a number measured now depends on; packages that are not installed are
    left out."""
    versions: dict[str, str] = {}
    for name in _DISTRIBUTIONS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return Environment(
        cpu=cpu_name(),
        isa=tuple(sorted(cpu_features())),
        cores=len(usable_machine().cores),
        memory_bytes=memory_bytes(),
        kernel=platform.release(),
        python=platform.python_version(),
        versions=versions,
    )


def flat_facts(environment: Environment) -> dict[str, str]:
    """An environment as the manifest holds it: text by name."""
    facts: dict[str, Any] = asdict(environment)
    versions: dict[str, str] = facts.pop("versions")
    flat = {k: " ".join(map(str, v)) if isinstance(v, tuple | list) else str(v) for k, v in facts.items()}
    return flat | versions
