"""Models of machines: what the simulator knows about a machine, read from data files.

A file names the source of each value: a data sheet, a published measurement, or a measurement of the machine itself
(`bench.paper.machine_model` writes such a file). No value is ever adjusted to the outcome of a simulation.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources
from math import log, sqrt
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from veltair.errors import ConfigError
from veltair.simulation.machine_model.kernel_shares import kernel_table_names
from veltair.types import Machine

_DATA = resources.files("veltair.simulation.machine_model") / "data" / "machines"


@dataclass(frozen=True, slots=True)
class MachineModel:
    """One socket. Bandwidths are in GB/s = bytes per ns, read and write together, as streaming code reaches them.

    >>> load_machine_model("threadripper-3990x").machine(cores=6).domains
    ((0, 1, 2, 3), (4, 5))
    """

    name: str
    title: str
    cores: int
    domain_cores: int  # that share an L3
    l2_bytes: int  # of a core
    l3_bytes: int  # of a domain
    clock_ghz: float  # under load on all cores
    vector_bits: int
    fma_units: int  # vector multiply-adds that start in a cycle
    fma_latency: int  # cycles
    loads: int  # vector loads that start in a cycle
    registers: int  # vector registers
    matrix_flops: float  # of a core per cycle on bfloat16 tiles; 0: there are no tiles
    vector_efficiency: float  # share of the register tile's bound that good kernels reach, out of L2
    matrix_efficiency: float  # the same with matrix tiles, of the peak
    l3_gb_s: float  # of a core
    core_gb_s: float  # of a core, from otherwise idle memory
    domain_gb_s: float  # of a domain, from memory or other domains
    dram_gb_s: float  # of the machine
    launch_ns: float  # fork and join of one parallel layer
    launch_core_ns: float  # more for each core beyond the first
    spawn_median_ns: float  # growth of a running block by more cores: log-normal
    spawn_mean_ns: float
    dispatch_ns: float  # from the end of a block to the start of the next on the same cores
    front_ns: float  # core time of a query in client and front end, half of it before its first block
    front_in_ns: float  # more for each byte of its input, before its first block
    front_out_ns: float  # more for each byte of its output, after its last block
    # Latency of memory over that of idle memory, at evenly spaced parts of its bandwidth in use, from none to all.
    loaded_latency: tuple[float, ...] = (1.0,)
    wake_ns: float = 0.0  # more before a block's first layer, if it takes a core that another query held before
    exposed_share: float = 0.0  # of the shorter of computing and moving, the part that does not overlap with the longer
    shared_links: bool = False  # blocks in one domain share its link; else each has all of it
    kernels: str = ""  # a table of `kernel_shares`, in place of `vector_efficiency` for the layers that it knows

    def domains(self, cores: int) -> int:
        """Returns how many L3 domains this many cores take when whole domains are handed out first."""
        return -(-cores // self.domain_cores)

    def machine(self, cores: int | None = None) -> Machine:
        """Returns the first `cores` cores, by default all, for the scheduler.

        Raises ConfigError for a count that the machine does not have.
        """
        count = self.cores if cores is None else cores
        if not 1 <= count <= self.cores:
            raise ConfigError(f"machine {self.name}: expected 1 to {self.cores} cores, got {count}")
        starts = range(0, count, self.domain_cores)
        return Machine(tuple(tuple(range(i, min(i + self.domain_cores, count))) for i in starts))

    def memory_latency(self, used: float) -> float:
        """Returns the latency over that of idle memory while this part of the memory bandwidth is used."""
        curve = self.loaded_latency
        return float(np.interp(used, np.linspace(0, 1, len(curve)), curve))

    @property
    def spawn_sigma(self) -> float:
        """Standard deviation of the logarithm of the time of a growth."""
        return sqrt(2 * log(self.spawn_mean_ns / self.spawn_median_ns))

    @property
    def vector_flops(self) -> float:
        """FLOPs of a core per ns in fp32, at the peak."""
        return self.clock_ghz * self.fma_units * self.vector_bits / 32 * 2

    @property
    def element_bytes(self) -> int:
        """Bytes of an activation or weight: bfloat16 where there are matrix tiles, else fp32."""
        return 2 if self.matrix_flops else 4


def machine_names() -> list[str]:
    """Returns the names of the machines that ship with the package."""
    return sorted(file.name.removesuffix(".toml") for file in _DATA.iterdir() if file.name.endswith(".toml"))


def load_machine_model(name: str) -> MachineModel:
    """Returns a machine that ships by its name, or another by the path of its TOML file; raises ConfigError."""
    if name in machine_names():
        return parse_machine_model((_DATA / f"{name}.toml").read_text("utf-8"), name)
    path = Path(name)
    if path.suffix != ".toml":
        raise ConfigError(f"unknown machine {name!r}: expected {', '.join(machine_names())} or a .toml file")
    try:
        return parse_machine_model(path.read_text("utf-8"), name)
    except OSError as error:
        raise ConfigError(f"{name}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name}: not UTF-8 at byte {error.start}") from None


class ParameterCurve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A parameter of a machine file with several values.

    >>> ParameterCurve((1.0, 1.2, 1.9), "a measurement").value[-1]
    1.9
    """

    value: Annotated[tuple[Annotated[float, msgspec.Meta(ge=1)], ...], msgspec.Meta(min_length=1)]
    source: Annotated[str, msgspec.Meta(min_length=1)]


class Parameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A parameter of a machine file.

    >>> Parameter(64.0, "data sheet").source
    'data sheet'
    """

    value: Annotated[float, msgspec.Meta(ge=0, le=1e12)]
    source: Annotated[str, msgspec.Meta(min_length=1)]


_OPTIONAL: dict[str, Any] = {
    "loaded_latency": ParameterCurve | None,
    "wake_ns": Parameter | None,
    "exposed_share": Parameter | None,
    "shared_links": bool | None,
    "kernels": str | None,
}
_File = msgspec.defstruct(
    "_File",
    [
        (name, str if name in ("name", "title") else Parameter)
        for name in MachineModel.__dataclass_fields__  # the file's keys are the model's fields
        if name not in _OPTIONAL
    ]
    + [(name, kind, None) for name, kind in _OPTIONAL.items()],
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
)
_MAY_BE_ZERO = {
    "matrix_flops",
    "matrix_efficiency",
    "launch_core_ns",
    "dispatch_ns",
    "wake_ns",
    "exposed_share",
    "front_ns",
    "front_in_ns",
    "front_out_ns",
}


def parse_machine_model(text: str, where: str) -> MachineModel:
    """Reads the content of a machine file; `where` names the file in errors."""
    try:
        raw = msgspec.convert(tomllib.loads(text), _File)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where}: {error}") from None
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$.")
        raise ConfigError(f"{where}: {place.rstrip('`')}: {what[0].lower()}{what[1:]}") from None
    values: dict[str, float | str | bool | tuple[float, ...]] = {}
    for key, field in MachineModel.__dataclass_fields__.items():
        entry = getattr(raw, key)
        if entry is None:
            continue
        if not isinstance(entry, Parameter):
            values[key] = entry if isinstance(entry, (str, bool)) else entry.value
            continue
        if entry.value == 0 and key not in _MAY_BE_ZERO:
            raise ConfigError(f"{where}: {key}: expected a value above 0")
        if field.type == "int" and entry.value != int(entry.value):
            raise ConfigError(f"{where}: {key}: expected a whole number, got {entry.value}")
        values[key] = int(entry.value) if field.type == "int" else entry.value
    model = MachineModel(**values)  # type: ignore[arg-type]
    for key in ("vector_efficiency", "matrix_efficiency", "exposed_share"):
        if getattr(model, key) > 1:
            raise ConfigError(f"{where}: {key}: expected at most 1, got {getattr(model, key)}")
    if model.kernels and model.kernels not in kernel_table_names():
        expected = ", ".join(kernel_table_names())
        raise ConfigError(f"{where}: kernels: expected one of {expected}, got {model.kernels!r}")
    if model.spawn_mean_ns < model.spawn_median_ns:
        raise ConfigError(f"{where}: spawn_mean_ns: a log-normal mean is not below its median")
    return model
