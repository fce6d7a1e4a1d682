"""`compile`: from a network in ONNX or PyTorch to a model artifact."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.console import Console
from rich.progress import Progress, TaskID

from veltair.errors import ModelError
from veltair.machine.scratch import ScratchFolder
from veltair.profiles.artifact.artifact_folder import Artifact
from veltair.profiles.cache.cache_folder import CacheFolder, cache_path

if TYPE_CHECKING:
    from veltair.compiler.quantisation.samples import SampleSource
    from veltair.compiler.tuning.precision import Precision
    from veltair.profiles.artifact.manifest import LevelSource, Storage

PRECISIONS = ("auto", "fp32", "bf16", "int8")  # the values of `Precision`, whose module loads TVM's compiler
Report: TypeAlias = Callable[[str, float, float | None], object]  # what is done, how much of it, of how much


def compile(
    model: Any,
    out: str | Path,
    *,
    example: Any = None,
    name: str | None = None,
    qos_ms: float | None = None,
    trials: int | None = None,
    precision: Precision = "auto",
    calibrate: SampleSource | None = None,
    isa: str | None = None,
    max_batch: int | None = None,
    dims: Mapping[str, int | tuple[int, int]] | None = None,
    features: str | Path | None = None,
    tables: Storage = "fp32",
    levels: LevelSource = "measured",
    fallback: bool = True,
    output_room: int | None = None,
    bag_room: int | Mapping[str, int] | None = None,
    fresh: bool = False,
    cache: bool = True,
    fresh_timings: bool = False,
    progress: Report | None = None,
) -> Artifact:
    """Compile a model into an artifact at `out`, which appears whole or not at all.

    ::

        artifact = veltair.compile("resnet50.onnx", "artifacts/resnet50", qos_ms=50, progress=print)
        print(artifact.summary())

    Args:
        model: the path of an ONNX file or of a TensorFlow SavedModel (docs/features.md), an `onnx.ModelProto`, or a
            `torch.nn.Module`, which is exported by `torch.onnx.export`.
        example: arguments of the torch module: a tensor, or a tuple of them.
        name: the model's name; default: the file's stem, or the class of the module.
        qos_ms: its latency target; default: the file's, or three times what the model takes.
        trials: candidates to measure of a layer without shipped records; 0 compiles without a search.
        calibrate: for a float model in `precision="int8"`, samples of its inputs: arrays by name, or an .npz file of
            them. Their first dimension counts samples; a hundred typical ones are enough for most models.
        max_batch: the greatest of a dynamic batch.
        dims: of dimensions that the model leaves open, by their names, extents and the bounds of the one that queries
            choose beside the batch: `{"height": 640, "seq": (1, 512)}`; see `veltair compile --dim`.
        features: a description of raw features (docs/features.md).
        fallback: whether ONNX Runtime may run what nothing of veltair computes.
        output_room: elements for each sample of an output whose extents the values of the inputs decide; default 65536.
        bag_room: ids of a bag, at most, where bags differ in length: of all bags, or by the input of their ids;
            default 128.
        cache: whether kernels and times of earlier compiles are reused, and these kept for later ones.
        fresh_timings: measure all times again, also those of kept kernels.
        progress: called with what is done, how much of it, and of how much, as often as that changes.

    `precision`, `isa`, `tables`, `levels` and `fresh` are those of `veltair compile`. Raises ModelError, ConfigError
    and other UserErrors for a fault of the input.
    """
    from veltair.compiler.build import compile_model  # loads TVM's compiler: half a second
    from veltair.compiler.onnx.bags.bag_inputs import checked_bag_room
    from veltair.compiler.onnx.dimensions.given_dimensions import GivenDimensions
    from veltair.compiler.onnx.folding.sized_outputs import checked_room
    from veltair.compiler.tuning.kernel_cache import KernelCache

    if qos_ms is not None and not 0 < qos_ms < 1e9:
        raise ModelError(f"qos_ms: expected a positive number of milliseconds, found {qos_ms}")
    with ScratchFolder("model") as scratch:
        return compile_model(
            _onnx_file(model, example, scratch, name),
            Path(out),
            name=name,
            qos_ns=None if qos_ms is None else max(1, round(qos_ms * 1e6)),
            trials=trials,
            precision=precision,
            samples=calibrate,
            isa=isa,
            fresh=fresh,
            max_batch=max_batch,
            features=None if features is None else Path(features),
            tables=tables,
            levels=levels,
            fallback=fallback,
            output_room=checked_room(output_room, "output_room"),
            bag_room=checked_bag_room({"": bag_room} if isinstance(bag_room, int) else bag_room or {}, "bag_room"),
            dimensions=GivenDimensions.of(dims or {}, "dims"),
            cache=KernelCache(CacheFolder(cache_path()) if cache else None, fresh_timings=fresh_timings or fresh),
            progress=None if progress is None else ReportedProgress(progress),
        )


def _onnx_file(model: Any, example: Any, folder: Path, name: str | None) -> Path:
    """The model as an ONNX file, written into `folder` where it is none yet."""
    from veltair.compiler.onnx.tensorflow.saved_model import convert_saved_model, is_saved_model

    if isinstance(model, str | Path):
        path = Path(model)
        return convert_saved_model(path, folder) if is_saved_model(path) else path
    import onnx

    file = folder / f"{name or type(model).__name__}.onnx"
    if isinstance(model, onnx.ModelProto):
        if name is None and model.graph.name:
            file = folder / f"{Path(model.graph.name).name}.onnx"
        onnx.save(model, str(file), save_as_external_data=model.ByteSize() > 1 << 30)
        return file
    try:
        import torch
    except ImportError:
        torch = None
    if torch is None or not isinstance(model, torch.nn.Module):
        raise ModelError(f"expected a path, an onnx.ModelProto or a torch.nn.Module, found {type(model).__name__}")
    if example is None:
        raise ModelError("example: expected the arguments of the torch module, to export it with")
    arguments = example if isinstance(example, tuple) else (example,)
    with torch.no_grad():
        torch.onnx.export(model.eval(), arguments, str(file), dynamo=False)
    return file


class ReportedProgress(Progress):
    """A progress bar that draws nothing and tells its caller instead. ::

    compile_model(path, out, progress=ReportedProgress(print))
    """

    def __init__(self, report: Report) -> None:
        super().__init__(console=Console(stderr=True), disable=True)
        self._report = report

    def update(self, task_id: TaskID, **changed: Any) -> None:
        super().update(task_id, **changed)
        self._tell(task_id)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        self._tell(task_id)

    def _tell(self, task_id: TaskID) -> None:
        task = self._tasks[task_id]
        self._report(task.description, task.completed, task.total)
