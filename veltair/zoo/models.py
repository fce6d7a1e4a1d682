"""The models that can be built, by name, and how they reach the disk whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import onnx

from veltair.errors import ConfigError
from veltair.zoo import dlrm, mobilenet_v2, resnet50
from veltair.zoo.dlrm import DlrmShape, Progress

IMAGE_MODELS: Mapping[str, Callable[[int], onnx.ModelProto]] = {
    "resnet50": resnet50.build,
    "mobilenet_v2": mobilenet_v2.build,
}
ZOO = (*IMAGE_MODELS, "dlrm")


def write(
    name: str,
    path: Path,
    seed: int = 0,
    shape: DlrmShape | None = None,
    progress: Progress = lambda done, total: None,
) -> list[Path]:
    """Builds a model of `ZOO` at `path`; the files written. The same arguments give the same bytes.

    shape: DLRM's, the default `DlrmShape()` when None; its tables go to `<path>.data`, with progress in bytes.
    ConfigError for an unknown name, a negative seed, a shape for another model, or a place that cannot be written.
    """
    if name not in ZOO:
        raise ConfigError(f"no model {name!r} in the zoo; there are {', '.join(ZOO)}")
    if seed < 0:
        raise ConfigError(f"seed must not be negative, got {seed}")
    if shape is not None and name != "dlrm":
        raise ConfigError(f"{name} has a fixed shape; tables, rows, dim and lookups belong to dlrm")
    try:
        if name != "dlrm":
            with _whole(path) as file:
                file.write(IMAGE_MODELS[name](seed).SerializeToString(deterministic=True))
            return [path]
        shape = shape or DlrmShape()
        data = dlrm.external_file(path)
        with _whole(path) as file:  # the model appears last: there is never one without its tables
            file.write(dlrm.build(seed, shape, data.name).SerializeToString(deterministic=True))
            with _whole(data) as tables:
                dlrm.write_tables(tables, seed, shape, progress)
        return [path, data]
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error


@contextmanager
def _whole(path: Path) -> Iterator[BinaryIO]:
    """A file that takes its name only when it was written to the end."""
    if path.is_dir():
        raise IsADirectoryError(0, "is a folder, expected a file name")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            yield file
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
