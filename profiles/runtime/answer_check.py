"""Runs a loaded artifact on the inputs of its answer: to keep that answer, or to compare with it.

`python -m veltair.profiles.runtime.answer_check FOLDER` prints the answer of an artifact as JSON, in a process that
ends if a kernel crashes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from numpy.typing import NDArray

from veltair.errors import ArtifactError, VeltairError
from veltair.profiles.artifact.artifact_folder import MANIFEST, Artifact, decode_manifest
from veltair.profiles.artifact.expected_answer import draw_tensors, find_deviation, make_answer
from veltair.profiles.artifact.manifest import ExpectedAnswer
from veltair.profiles.runtime.pinned_threads import kernel_environment

if TYPE_CHECKING:
    from veltair.profiles.runtime.executor import Executor

LAST_BYTES = 500  # of what the process said before it failed


def check_answer(path: Path, executor: Executor, pause: Callable[[], None] | None = None) -> None:
    """Run every version of every layer once, and compare what comes out with the artifact's answer, if it has one.

    Page faults, lazy symbols and TVM's first launch happen here. `pause` is called after each layer. Raises
    ArtifactError for an answer that deviates.
    """
    for version, outputs in enumerate(run_versions(executor, pause)):
        if deviation := find_deviation(executor.manifest, outputs, version):
            raise ArtifactError(f"{path}: it does not compute what it did when it was compiled: {deviation}")


def run_versions(executor: Executor, pause: Callable[[], None] | None = None) -> Iterator[Sequence[NDArray[Any]]]:
    """All outputs of the model on the drawn inputs, for each version index; layers with fewer begin again at 0.

    The arrays are the same ones each time. `pause` is called after each layer.
    """
    from veltair.profiles.runtime.executor import aligned_zeros
    from veltair.profiles.runtime.onnx_layers import on_drawn_inputs

    manifest = executor.manifest
    inputs = [aligned_zeros(port.at(1), port.dtype) for port in manifest.input_tensors]
    outputs = [aligned_zeros(port.at(1), port.dtype) for port in manifest.output_tensors]
    draw_tensors(manifest, inputs)
    run = executor.bind(1, inputs, outputs)
    for version in range(max((len(layer.versions) for layer in manifest.layers), default=1)):
        for output in outputs:
            output.fill(0)
        for index, layer in enumerate(manifest.layers):
            with on_drawn_inputs():
                run.layer(index, version % len(layer.versions))
            if pause:
                pause()
        yield outputs


def store_answer(folder: Path) -> None:
    """Run the artifact in a folder, and keep what it answers in its manifest.

    Raises VeltairError where it does not run.
    """
    command = [sys.executable, "-P", "-m", __name__, str(folder)]
    done = subprocess.run(
        command, env=os.environ | kernel_environment(), stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    if done.returncode:
        said = done.stderr[-LAST_BYTES:].decode(errors="replace").strip().splitlines()
        ending = f"killed by signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        raise VeltairError(f"the compiled model does not run: {ending}{f': {said[-1]}' if said else ''}")
    answer = msgspec.json.decode(done.stdout, type=ExpectedAnswer)
    manifest = msgspec.structs.replace(_read(folder).manifest, answer=answer)
    (folder / MANIFEST).write_bytes(msgspec.json.encode(manifest))


def compute_answer(artifact: Artifact) -> ExpectedAnswer:
    """The answer of an artifact, on all cores of this process, whose main thread stays on one of them."""
    from veltair.machine.topology import usable_machine
    from veltair.profiles.runtime.executor import Executor
    from veltair.profiles.runtime.pinned_threads import PinnedThreads

    PinnedThreads(usable_machine().cores)  # before any library with kernels is loaded
    runs = [[output.copy() for output in outputs] for outputs in run_versions(Executor(artifact))]
    return make_answer(artifact.manifest, runs)


def _read(folder: Path) -> Artifact:
    """The artifact, without its digests: they were written a moment ago."""
    return Artifact(folder, decode_manifest((folder / MANIFEST).read_bytes(), folder), "")


if __name__ == "__main__":
    print(msgspec.json.encode(compute_answer(_read(Path(sys.argv[1])))).decode())
