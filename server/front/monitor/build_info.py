"""Which daemon this is: versions of what its answers and times depend on."""

from __future__ import annotations

import platform
from importlib import metadata


def describe_build(policy: str) -> dict[str, str]:
    """Labels of `veltair_build_info`. A package that is not installed has an empty version.

    >>> sorted(describe_build("fcfs"))
    ['numpy', 'policy', 'python', 'tvm', 'version']
    """
    return {
        "version": _version("veltair"),
        "policy": policy,
        "python": platform.python_version(),
        "tvm": _version("apache-tvm"),
        "numpy": _version("numpy"),
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
