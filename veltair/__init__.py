"""A multi-tenant inference daemon for CPUs.

For Python: `compile`, `load`, `measure_accuracy`, `features`, `serve`, `Client`, `AsyncClient`, `load_test` and
`simulate`, which `api/` holds; each is imported when it is first used. ::

    artifact = veltair.compile("model.onnx", "artifacts/model")
    with veltair.serve(artifact) as daemon:
        daemon.client().infer(artifact.manifest.model, image)

In this folder: `types`, `errors` and `config`; `terminal`, which prints results; `cli` and its `commands/`; `machine/`
and `grpc/`, which the other packages build on; `zoo/`, which builds models; `simulation/`, which runs the scheduler in
virtual time. `compiler`, `profiles`, `scheduler`, `server` and `loadgen` are folders at the root of the repository,
installed below this package.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from veltair.api.accuracy import OutputAccuracy, measure_accuracy
    from veltair.api.client import Answer, AsyncClient, Client
    from veltair.api.compiling import compile
    from veltair.api.daemon import Daemon, serve
    from veltair.api.in_process_model import InProcessModel, load
    from veltair.api.load_test import LoadResult, load_test
    from veltair.api.simulations import SimulationResult, simulate
    from veltair.api.training.training_features import TrainingFeatures, features
    from veltair.config import TenantConfig
    from veltair.profiles.artifact.artifact_folder import Artifact, load_artifact

    __version__: str

# ONNX Runtime's own packages report its use unless this is set when it is imported; a server calls nobody.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__all__ = [
    "Answer",
    "Artifact",
    "AsyncClient",
    "Client",
    "Daemon",
    "InProcessModel",
    "LoadResult",
    "OutputAccuracy",
    "SimulationResult",
    "TenantConfig",
    "TrainingFeatures",
    "compile",
    "features",
    "load",
    "load_artifact",
    "load_test",
    "measure_accuracy",
    "serve",
    "simulate",
]
_MODULES = {
    "api.accuracy": ("OutputAccuracy", "measure_accuracy"),
    "api.client": ("Answer", "AsyncClient", "Client"),
    "api.compiling": ("compile",),
    "api.daemon": ("Daemon", "serve"),
    "api.in_process_model": ("InProcessModel", "load"),
    "api.load_test": ("LoadResult", "load_test"),
    "api.simulations": ("SimulationResult", "simulate"),
    "api.training.training_features": ("TrainingFeatures", "features"),
    "config": ("TenantConfig",),
    "profiles.artifact.artifact_folder": ("Artifact", "load_artifact"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # a tenth of what a worker imports

        return version("veltair")
    if name not in _HOMES:
        raise AttributeError(f"module 'veltair' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"veltair.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
