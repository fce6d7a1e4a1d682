"""From generated functions to machine code: one object file each, linked to one shared library.

An object of its own keeps a candidate that does not compile from spoiling the others, and lets the final library be
linked from what was measured without compiling again.

TVM's own pipeline prepares schedules for any device, in sixty passes. Kernels that are nests of loops need a quarter
of them, which takes a third of the time: to shrink buffers, move conditions and split loops costs more than all of
LLVM, and gains nothing over what LLVM does itself.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
from tvm import s_tir
from tvm.tirx import compilation_pipeline as pipelines
from tvm.tirx import transform

from veltair.errors import UserError, VeltairError
from veltair.machine.topology import usable_machine


class BuildError(VeltairError):
    """A candidate did not compile."""


def _nests() -> tuple[Any, Any, Any]:
    """The pipeline of nests of loops: passes, then those for the host and for devices."""
    passes = [
        s_tir.transform.LowerOpaqueBlock(),  # loops of one iteration go: a launch on all cores costs microseconds
        transform.FlattenBuffer(),
        transform.BF16ComputeLegalize(),
        transform.NarrowDataType(32),
        transform.VectorizeLoop(True),
        transform.StorageRewrite(),
        transform.StmtSimplify(),
        transform.CommonSubexprElim(),
        transform.AnnotateEntryFunc(),
        transform.SplitHostDevice(),
        transform.MakePackedAPI(),
        transform.BF16StorageLegalize(),
    ]
    return tvm.transform.Sequential(passes), pipelines.finalize_host_passes, pipelines.finalize_device_passes


NESTS = "veltair.nests"
pipelines.register_tir_pipeline(NESTS, _nests)


def machine_code(function: Any, symbol: str, target: Mapping[str, Any]) -> Any:
    """What TVM makes of one PrimFunc, a nest of loops or a schedule of blocks: an Executable with `symbol` in it."""
    module = tvm.IRModule({symbol: function.with_attr("global_symbol", symbol)})
    pipeline = "default" if isinstance(function.body, s_tir.SBlockRealize) else NESTS
    return tvm.compile(module, target=tvm.target.Target(dict(target)), tir_pipeline=pipeline)


def compile_object(function: Any, symbol: str, target: Mapping[str, Any], path: Path) -> None:
    """Machine code of one PrimFunc, to be called as `symbol`. Raises BuildError with the compiler's last words."""
    try:
        machine_code(function, symbol, target).mod.write_to_file(str(path))
    except Exception as error:  # TVM raises whatever its passes raise
        words = str(error).strip().splitlines() or [type(error).__name__]
        raise BuildError(f"{symbol}: {words[-1]}") from error


@dataclass(frozen=True, slots=True)
class Source:
    """A generated function on its way to machine code."""

    function: Any  # tvm.tirx.PrimFunc
    symbol: str
    path: Path  # of the object file


def compile_objects(sources: Sequence[Source], target: Mapping[str, Any]) -> list[str]:
    """Compile all of them, on all cores; for each what went wrong, or an empty text."""

    def attempt(source: Source) -> str:
        try:
            compile_object(source.function, source.symbol, target, source.path)
        except BuildError as error:
            return str(error)
        return ""

    # LLVM works outside of the interpreter lock, each module in a context of its own.
    with ThreadPoolExecutor(len(usable_machine().cores)) as pool:
        return list(pool.map(attempt, sources))


def link(objects: Iterable[Path], library: Path) -> None:
    """One shared library of many objects. Raises UserError where there is no C compiler to link with."""
    linker = shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")
    if linker is None:
        raise UserError("no linker: expected gcc, cc or clang on the PATH")
    command = [linker, "-shared", "-s", "-o", str(library), *map(str, objects), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise VeltairError(f"{linker} could not link {library.name}: {done.stderr.strip()[-500:]}")
