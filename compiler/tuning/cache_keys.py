"""The keys of what compiles keep for later ones: digests of all that an entry of `kernel_cache` depends on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from pathlib import Path

import msgspec
import tvm_ffi

import veltair
import veltair.compiler
import veltair.machine
import veltair.profiles
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point, version_symbol
from veltair.compiler.graph.parameters import LayerParameters
from veltair.compiler.timing.co_runners import GRADES
from veltair.compiler.timing.measure import content_digest, input_operands
from veltair.compiler.tuning.setting import Setting
from veltair.machine.cgroups import quota_cpus
from veltair.machine.isa import cpu_features, cpu_name
from veltair.machine.memory import huge_page_mode
from veltair.machine.topology import cache_bytes
from veltair.types import CoreSet

MOST_DIGESTED = 1 << 28  # bytes of a layer's weights: to check one with more takes less than to digest them
_CODE = (veltair.compiler, veltair.machine, veltair.profiles)  # packages on which code and times depend


def object_key(spec: LayerSpec, point: Point, kernel: Kernel, setting: Setting) -> str:
    """The key of a version's object file: all that its code depends on."""
    return _digest("object", *_code_facts(spec, point, setting), f"{tvm_ffi.structural_hash(kernel.function)}")


def version_key(
    spec: LayerSpec, point: Point, batches: Sequence[int], cores: CoreSet, setting: Setting, modelled: bool
) -> str:
    """The key of a version that passed its check with these weights; empty where these alone do not say what was
    checked.
    """
    if _draws_inputs(spec) or sum(weight.nbytes for weight in spec.weights.values()) > MOST_DIGESTED:
        return ""
    weights = [content_digest(weight).hex() for weight in spec.weights.values()]
    inputs = [msgspec.json.encode(input_operands(spec, batch, setting.bounds)).decode() for batch in batches]
    facts = *_code_facts(spec, point, setting), setting.precision, *weights, *inputs, f"{modelled}"
    return _digest("version", *facts, machine_facts(cores))


def times_key(
    spec: LayerSpec,
    point: Point,
    object_digest: str,
    kernel: Kernel | None,
    batches: Sequence[int],
    cores: CoreSet,
    setting: Setting,
) -> str:
    """The key of the times of an object file. Where the layer draws its own inputs, values of its weights count too.

    kernel: the version's; None where the object was found without generating it.
    """
    inputs = [msgspec.json.encode(input_operands(spec, batch, setting.bounds)).decode() for batch in batches]
    contents: list[str] = []
    if _draws_inputs(spec):
        if kernel is None:
            return ""
        contents = [f"{weight.shape} {content_digest(weight).hex()}" for weight in kernel.weights]
    facts = object_digest, *_code_facts(spec, point, setting), *inputs, *contents, f"{GRADES}"
    return _digest("timing", *facts, machine_facts(cores))


def memory_key(cores: CoreSet) -> str:
    """The key of this machine's cache sizes and bandwidths, as they were measured on these cores."""
    return _digest("memory", source_digest(), machine_facts(cores))


@cache
def machine_facts(cores: CoreSet) -> str:
    """What measured times depend on besides the code: the processor, the cores in use and what limits them."""
    facts = {
        "cpu": cpu_name(),
        "features": sorted(cpu_features()),
        "cores": cores,
        "quota": quota_cpus(),
        "caches": cache_bytes(),
        "huge pages": huge_page_mode(),
        "libraries": [metadata.version(name) for name in ("numpy", "onnxruntime")],
    }
    return json.dumps(facts)


def _draws_inputs(spec: LayerSpec) -> bool:
    """Whether the layer's inputs depend on more than their types and bounds, such as a description of features."""
    return type(spec.parameters).draw_inputs is not LayerParameters.draw_inputs


def _code_facts(spec: LayerSpec, point: Point, setting: Setting) -> list[str]:
    weights = [(name, str(weight.dtype), weight.shape) for name, weight in spec.weights.items()]
    target = sorted(setting.target.items())
    return [
        version_symbol(spec, point),
        *map(repr, (weights, target, sorted(setting.features))),
        *code_generator(),
    ]


@cache
def code_generator() -> tuple[str, ...]:
    """The versions of what turns points into code."""
    tvm = (metadata.version(name) for name in ("apache-tvm", "apache-tvm-ffi"))
    return *tvm, veltair.__version__, source_digest()


@cache
def source_digest() -> str:
    """A digest of all Python and C of veltair that generates, runs or times kernels: where it differs, nothing is
    reused.
    """
    found = hashlib.sha256()
    for package in _CODE:
        for folder in package.__path__:
            for path in sorted(Path(folder).rglob("*")):
                if path.suffix in (".py", ".so"):
                    found.update(f"{path.relative_to(folder)} {path.stat().st_size}\n".encode() + path.read_bytes())
    return found.hexdigest()


def _digest(*facts: str) -> str:
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()
