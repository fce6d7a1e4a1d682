"""What the machine offers, read from the kernel and never assumed.

Every `parse_*` function is pure and takes the text of a kernel file: machines which we do not have can be tried
from samples. The readers below take `root`, the place where `/proc` and `/sys` are looked for.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any

from veltair.errors import ConfigError
from veltair.types import CoreSet, Environment, Machine

ROOT = Path("/")

_AVX512 = frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq"})
# Our names of instruction sets -> the flags of /proc/cpuinfo that all must be there.
FEATURES: Mapping[str, frozenset[str]] = {
    "avx2": frozenset({"avx2", "fma"}),
    "avx512": _AVX512,
    "avx512_vnni": _AVX512 | {"avx512_vnni"},
    "avx512_bf16": _AVX512 | {"avx512_bf16"},
    "amx_bf16": _AVX512 | {"amx_tile", "amx_bf16"},
}

# What `--isa` may ask for, poorest first, and the features that code for it may use.
ISAS: Mapping[str, frozenset[str]] = {
    "avx2": frozenset({"avx2"}),
    "avx512": frozenset({"avx2", "avx512"}),
    "avx512_bf16": frozenset({"avx2", "avx512", "avx512_bf16"}),
    "amx": frozenset(FEATURES),
}

_V3 = frozenset({"avx2", "fma", "bmi1", "bmi2", "f16c", "abm", "movbe"})
_V4 = _V3 | _AVX512 | {"avx512cd"}
_SKYLAKE = _V4 | {"adx", "aes", "pclmulqdq", "clwb"}
_ICELAKE = _SKYLAKE | {
    *("avx512ifma", "avx512vbmi", "avx512_vbmi2", "avx512_bitalg", "avx512_vpopcntdq", "avx512_vnni"),
    *("gfni", "vaes", "vpclmulqdq", "sha_ni"),
}
_SAPPHIRE = _ICELAKE | {
    *("amx_tile", "amx_bf16", "amx_int8", "avx512_bf16", "avx512_fp16", "avx_vnni"),
    *("movdiri", "movdir64b", "cldemote", "serialize"),
}
# LLVM's CPU names, richest first; a hypervisor that hides one flag gets the next name. Only AVX and newer are
# compared: LLVM does not emit the system instructions (pku, sgx, ptwrite, …) that the names also imply.
_CPU_NAMES: Sequence[tuple[str, frozenset[str]]] = (
    ("sapphirerapids", _SAPPHIRE),
    ("icelake-server", _ICELAKE),
    ("skylake-avx512", _SKYLAKE),
    ("x86-64-v4", _V4),
    ("x86-64-v3", _V3),
)
# Flag -> LLVM attribute: added when the CPU has it and the name that was picked does not imply it.
_ATTRIBUTES: Mapping[str, str] = {
    "avx512_vnni": "+avx512vnni",
    "avx512_bf16": "+avx512bf16",
    "amx_tile": "+amx-tile",
    "amx_bf16": "+amx-bf16",
}
_DISTRIBUTIONS = ("veltair", "apache-tvm", "apache-tvm-ffi", "numpy", "onnx", "onnxruntime", "openvino")


def parse_cpuinfo(text: str) -> tuple[str, frozenset[str]]:
    """Model name and flags of the first processor of `/proc/cpuinfo` ("unknown" and none where absent)."""
    name = re.search(r"^model name\s*:\s*(.+?)\s*$", text, re.M)
    flags = re.search(r"^flags\s*:\s*(.*)$", text, re.M)
    return name[1] if name else "unknown", frozenset(flags[1].split()) if flags else frozenset()


def parse_cpu_list(text: str) -> CoreSet:
    """The kernel's list format: `0-3,64-67` -> (0, 1, 2, 3, 64, …)."""
    cores: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cores.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(cores))


def parse_quota(text: str) -> float | None:
    """CPUs granted by `cpu.max` (v2: `200000 100000`) or v1's quota and period joined; None is no limit."""
    quota, _, period = text.strip().partition(" ")
    if quota in ("", "max") or int(quota) <= 0:
        return None
    return int(quota) / int(period or 100_000)


def parse_selected(text: str) -> str:
    """The word in brackets: `always [madvise] never` -> `madvise`; empty when there is none."""
    word = re.search(r"\[(\w+)\]", text)
    return word[1] if word else ""


def parse_size(text: str) -> int:
    """`2048K` -> bytes; 0 for what is no size."""
    size = re.fullmatch(r"(\d+)([KMG]?)", text.strip())
    return int(size[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[size[2]] if size else 0


def parse_memory(text: str) -> int:
    """MemTotal of `/proc/meminfo` in bytes; 0 when absent."""
    total = re.search(r"^MemTotal:\s*(\d+) kB", text, re.M)
    return int(total[1]) * 1024 if total else 0


def cgroup_folders(mountinfo: str, membership: str, controller: str) -> list[str]:
    """Folders whose limits bind this process for one controller ("cpu", "memory"), innermost first.

    mountinfo, membership: `/proc/self/mountinfo` and `/proc/self/cgroup`, of cgroup v1 or v2. A container may
    see a path that lies above its own mount; the mount itself is then the place to look.
    """
    folders: list[str] = []
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, tail = left.split(), right.split()
        if len(fields) < 5 or len(tail) < 3 or tail[0] not in ("cgroup", "cgroup2"):
            continue
        if tail[0] == "cgroup" and controller not in tail[2].split(","):
            continue
        mount_root, mount = PurePosixPath(fields[3]), PurePosixPath(fields[4])
        own = mount
        for entry in membership.splitlines():
            hierarchy, names, path = [*entry.split(":", 2), "", ""][:3]
            listed = hierarchy == "0" if tail[0] == "cgroup2" else controller in names.split(",")
            if listed and ".." not in path and PurePosixPath(path).is_relative_to(mount_root):
                own = mount / PurePosixPath(path).relative_to(mount_root)
        while own != mount:
            folders.append(str(own))
            own = own.parent
        folders.append(str(mount))
    return folders


def group_cores(usable: Iterable[int], l3_lists: Mapping[int, str]) -> tuple[CoreSet, ...]:
    """Usable cores by the L3 cache that they share; those whose cache is not known share one domain."""
    groups: dict[CoreSet, list[int]] = {}
    for core in sorted(usable):
        groups.setdefault(parse_cpu_list(l3_lists.get(core, "")), []).append(core)
    return tuple(tuple(group) for group in groups.values())


def pick_cores(domains: tuple[CoreSet, ...], quota: float | None, siblings: Mapping[int, str]) -> tuple[CoreSet, ...]:
    """As many cores as the quota pays for (floor, at least 1): first one thread of each physical core, domain
    by domain, then second threads."""
    count = sum(map(len, domains))
    if quota is None or quota >= count:
        return domains
    usable = {core for domain in domains for core in domain}

    def rank(core: int) -> int:
        threads = [c for c in parse_cpu_list(siblings.get(core, "")) if c in usable]
        return threads.index(core) if core in threads else 0

    order = sorted((rank(core), i, core) for i, domain in enumerate(domains) for core in domain)
    kept = {core for _, _, core in order[: max(1, int(quota))]}
    return tuple(tuple(c for c in domain if c in kept) for domain in domains if kept.intersection(domain))


def llvm_target(flags: frozenset[str], cores: int) -> dict[str, Any]:
    """TVM target for a CPU with these `/proc/cpuinfo` flags."""
    name, implied = next(((n, need) for n, need in _CPU_NAMES if need <= flags), ("x86-64", frozenset[str]()))
    target: dict[str, Any] = {"kind": "llvm", "mcpu": name, "num-cores": cores}
    if implied >= _AVX512:
        extra = [llvm for flag, llvm in _ATTRIBUTES.items() if flag in flags - implied]
        target |= {"mattr": extra} if extra else {}
    return target


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def _per_core(root: Path, file: str) -> dict[int, str]:
    folders = (root / "sys/devices/system/cpu").glob("cpu[0-9]*")
    return {int(folder.name[3:]): _read(folder / file) for folder in folders}


def _limits(root: Path, controller: str) -> list[Path]:
    proc = root / "proc/self"
    folders = cgroup_folders(_read(proc / "mountinfo"), _read(proc / "cgroup"), controller)
    return [root / folder.lstrip("/") for folder in folders]


def quota_cpus(root: Path = ROOT) -> float | None:
    """CPUs that the tightest cgroup (v1 or v2) grants; None when nothing limits them."""
    granted: list[float] = []
    for folder in _limits(root, "cpu"):
        v1 = f"{_read(folder / 'cpu.cfs_quota_us').strip()} {_read(folder / 'cpu.cfs_period_us').strip()}"
        for text in (_read(folder / "cpu.max"), v1):
            cpus = parse_quota(text)
            granted += [] if cpus is None else [cpus]
    return min(granted, default=None)


def memory_bytes(root: Path = ROOT) -> int:
    """Memory of the machine, or of the tightest cgroup where that is less."""
    sizes = [parse_memory(_read(root / "proc/meminfo"))]
    for folder in _limits(root, "memory"):
        sizes += [parse_size(_read(folder / name)) for name in ("memory.max", "memory.limit_in_bytes")]
    return min((size for size in sizes if size > 0), default=0)


def l3_lists(root: Path = ROOT) -> dict[int, str]:
    """`shared_cpu_list` of each core's level-3 cache; empty text where the kernel shows none."""
    lists: dict[int, str] = {}
    for core in _per_core(root, "online"):
        caches = (root / f"sys/devices/system/cpu/cpu{core}/cache").glob("index*")
        lists[core] = next((_read(c / "shared_cpu_list") for c in caches if _read(c / "level").strip() == "3"), "")
    return lists


def cache_bytes(root: Path = ROOT) -> dict[str, int]:
    """Sizes of the first core's data caches, `{"L1": …, "L2": …, "L3": …}`, of the levels that are shown."""
    sizes: dict[str, int] = {}
    for folder in sorted((root / "sys/devices/system/cpu/cpu0/cache").glob("index*")):
        if _read(folder / "type").strip() != "Instruction" and (size := parse_size(_read(folder / "size"))):
            sizes[f"L{_read(folder / 'level').strip()}"] = size
    return sizes


def huge_pages(root: Path = ROOT) -> str:
    """Mode of transparent huge pages: "always", "madvise", "never"; "absent" when the kernel has none."""
    return parse_selected(_read(root / "sys/kernel/mm/transparent_hugepage/enabled")) or "absent"


def usable_domains(affinity: Iterable[int], root: Path = ROOT) -> tuple[CoreSet, ...]:
    """The cores of the mask that the quota pays for, grouped by L3."""
    siblings = _per_core(root, "topology/thread_siblings_list")
    return pick_cores(group_cores(affinity, l3_lists(root)), quota_cpus(root), siblings)


def machine() -> Machine:
    """The cores that this process may use now: affinity mask and cgroup quota, grouped by L3."""
    return Machine(usable_domains(os.sched_getaffinity(0)))


_ARCH_PRCTL, _ARCH_GET_XCOMP_SUPP, _XTILEDATA = 158, 0x1021, 18


@cache
def _kernel_saves_tiles() -> bool:
    """Whether the kernel keeps AMX's tile registers over a context switch (Linux 5.16 on)."""
    if platform.machine() != "x86_64":
        return False
    supported = ctypes.c_uint64()
    call = ctypes.CDLL(None, use_errno=True).syscall
    code = call(ctypes.c_long(_ARCH_PRCTL), ctypes.c_long(_ARCH_GET_XCOMP_SUPP), ctypes.byref(supported))
    return code == 0 and bool(supported.value >> _XTILEDATA & 1)


@cache
def _cpu() -> tuple[str, frozenset[str]]:
    name, flags = parse_cpuinfo(_read(ROOT / "proc/cpuinfo"))
    return name, flags if _kernel_saves_tiles() else frozenset(f for f in flags if not f.startswith("amx_"))


def features() -> frozenset[str]:
    """The names of `FEATURES` that this CPU and its kernel offer."""
    return frozenset(name for name, need in FEATURES.items() if need <= _cpu()[1])


def isa_features(isa: str | None, offered: frozenset[str]) -> frozenset[str]:
    """Features that code for an instruction set may use; None stands for the richest of those that are offered.

    Raises ConfigError for a name that is none of `ISAS`, and for a set of which the CPU has not everything.
    """
    usable = [name for name, need in ISAS.items() if need <= offered]
    has = ", ".join(usable) or "none of them"
    if isa is None:
        return ISAS[usable[-1]] if usable else frozenset()
    if isa not in ISAS:
        raise ConfigError(f"isa: expected one of {', '.join(ISAS)}, found {isa!r}; this CPU has {has}")
    if missing := ISAS[isa] - offered:
        raise ConfigError(f"isa {isa} needs {', '.join(sorted(missing))}, which this CPU lacks; it has {has}")
    return ISAS[isa]


def tvm_target(allowed: frozenset[str] | None = None) -> dict[str, Any]:
    """TVM's target for this machine, e.g. `{"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 2}`.

    allowed: names of `FEATURES` that the code may use; LLVM is told of nothing beyond them, so that the code runs on
    every CPU that has those. By default everything that this CPU has.
    """
    flags = _cpu()[1]
    return llvm_target(flags if allowed is None else flags & _flags_of(allowed), len(machine().cores))


def _flags_of(allowed: frozenset[str]) -> frozenset[str]:
    """The flags that LLVM may use for code that asks for these features alone."""
    if "amx_bf16" in allowed:
        return _SAPPHIRE
    level = _V4 if "avx512" in allowed else _V3 if "avx2" in allowed else frozenset[str]()
    return level.union(*(FEATURES[name] for name in allowed))


def environment() -> Environment:
    """What a number measured now was measured on; packages that are not installed are left out."""
    versions: dict[str, str] = {}
    for name in _DISTRIBUTIONS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return Environment(
        cpu=_cpu()[0],
        isa=tuple(sorted(features())),
        cores=len(machine().cores),
        memory_bytes=memory_bytes(),
        kernel=platform.release(),
        python=platform.python_version(),
        versions=versions,
    )
