"""Compiles generated functions to one object file each, and links these to one shared library.

With separate object files, a candidate that does not compile leaves the others intact, and the final library is linked
from the objects that were measured, without compiling again.

TVM's own pipeline prepares schedules for any device, in sixty passes. Kernels that are nests of loops need a quarter
of them, which take a third of the time: shrinking buffers, moving conditions and splitting loops cost more than all
of LLVM and gain nothing over what LLVM does itself.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import tvm
from tvm import s_tir
from tvm.tirx import compilation_pipeline as pipelines
from tvm.tirx import transform

from veltair.compiler.codegen.outlined import keep_outlined, outline
from veltair.errors import UserError, VeltairError
from veltair.machine.topology import usable_machine


class BuildError(VeltairError):
    """A candidate did not compile."""


def _loop_nest_pipeline() -> tuple[Any, Any, Any]:
    """The pipeline of loop nests: its passes, then those for the host and for devices."""
    passes = [
        s_tir.transform.LowerOpaqueBlock(),  # removes loops of one iteration: a launch on all cores costs microseconds
        transform.FlattenBuffer(),
        transform.BF16ComputeLegalize(),
        transform.NarrowDataType(32),
        transform.VectorizeLoop(True),
        outline,
        transform.StorageRewrite(),
        keep_outlined,
        transform.StmtSimplify(),
        transform.CommonSubexprElim(),
        transform.AnnotateEntryFunc(),
        transform.SplitHostDevice(),
        transform.MakePackedAPI(),
        transform.BF16StorageLegalize(),
    ]
    return tvm.transform.Sequential(passes), pipelines.finalize_host_passes, pipelines.finalize_device_passes


LOOP_NEST_PIPELINE = "veltair.nests"
pipelines.register_tir_pipeline(LOOP_NEST_PIPELINE, _loop_nest_pipeline)


def compile_function(function: Any, symbol: str, target: Mapping[str, Any]) -> Any:
    """Compile one PrimFunc, a loop nest or a schedule of blocks, to an Executable that exports `symbol`."""
    module = tvm.IRModule({symbol: function.with_attr("global_symbol", symbol)})
    pipeline = "default" if isinstance(function.body, s_tir.SBlockRealize) else LOOP_NEST_PIPELINE
    return tvm.compile(module, target=tvm.target.Target(dict(target)), tir_pipeline=pipeline)


def compile_object(function: Any, symbol: str, target: Mapping[str, Any], path: Path) -> None:
    """Compile one PrimFunc to an object file that exports `symbol`.

    Raises BuildError with the last line of the compiler's message.
    """
    try:
        compile_function(function, symbol, target).mod.write_to_file(str(path))
    except Exception as error:  # TVM raises whatever its passes raise
        path.unlink(missing_ok=True)  # of a full disk, half a file
        words = str(error).strip().splitlines() or [type(error).__name__]
        raise BuildError(f"{symbol}: {words[-1]}") from error


@dataclass(frozen=True, slots=True)
class ObjectFile:
    """A generated function and the object file to compile it to. ::

    faults = compile_objects([ObjectFile(kernel.function, "conv_0", folder / "conv_0.o")], target)
    link_library([folder / "conv_0.o"], folder / "kernels.so")
    """

    function: Any  # tvm.tirx.PrimFunc
    symbol: str
    path: Path  # of the object file


class ObjectCompiler:
    """Compiles object files on all cores, in the order in which they are begun.

    ::

        with ObjectCompiler(tvm_target()) as compiler:
            fault = compiler.begin(ObjectFile(kernel.function, "conv_0", folder / "conv_0.o"))
            fault.result()  # the error message; empty once it has compiled
    """

    def __init__(self, target: Mapping[str, Any]) -> None:
        self._target = target
        # LLVM works outside of the interpreter lock, each module in a context of its own.
        self._pool = ThreadPoolExecutor(len(usable_machine().cores))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """What has not been begun by then is never compiled."""
        self._pool.shutdown(cancel_futures=True)

    def begin(self, source: ObjectFile) -> Future[str]:
        """Compile it, unless its file is there: it is the same code by the same name."""
        return self._pool.submit(self._compile, source)

    def _compile(self, source: ObjectFile) -> str:
        if source.path.exists():
            return ""
        try:
            compile_object(source.function, source.symbol, self._target, source.path)
        except BuildError as error:
            return str(error)
        return ""


def compile_objects(sources: Sequence[ObjectFile], target: Mapping[str, Any]) -> list[str]:
    """Compile all of them, as `ObjectCompiler` does. Return each one's error message, empty where it compiled."""
    with ObjectCompiler(target) as compiler:
        return [fault.result() for fault in [compiler.begin(source) for source in sources]]


def link_library(objects: Iterable[Path], library: Path) -> None:
    """Link one shared library of many objects. Raises UserError where there is no C compiler to link with."""
    linker = shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")
    if linker is None:
        raise UserError("no linker: expected gcc, cc or clang on the PATH")
    command = [linker, "-shared", "-s", "-o", str(library), *map(str, objects), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise VeltairError(f"{linker} could not link {library.name}: {done.stderr.strip()[-500:]}")
