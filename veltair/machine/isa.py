"""Instruction sets: what the processor and its kernel offer, what `--isa` allows, and the TVM target that follows."""

from __future__ import annotations

import ctypes
import platform
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from veltair.errors import ConfigError
from veltair.machine.kernel_files import ROOT, read_text
from veltair.machine.topology import usable_machine

_AVX512 = frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq"})
# Our name of a feature -> the flags of /proc/cpuinfo that a processor with it shows, all of them.
CPU_FEATURES: Mapping[str, frozenset[str]] = {
    "avx2": frozenset({"avx2", "fma"}),
    "avx512": _AVX512,
    "avx512_vnni": _AVX512 | {"avx512_vnni"},
    "avx512_bf16": _AVX512 | {"avx512_bf16"},
    "amx_bf16": _AVX512 | {"amx_tile", "amx_bf16"},
    "amx_int8": _AVX512 | {"amx_tile", "amx_int8"},
}

# The values of `--isa`, poorest first, and the features that code for each may use.
ISAS: Mapping[str, frozenset[str]] = {
    "avx2": frozenset({"avx2"}),
    "avx512": frozenset({"avx2", "avx512"}),
    "avx512_vnni": frozenset({"avx2", "avx512", "avx512_vnni"}),
    "avx512_bf16": frozenset({"avx2", "avx512", "avx512_vnni", "avx512_bf16"}),  # no CPU is known without VNNI
    "amx": frozenset(CPU_FEATURES),  # no CPU is known with one kind of tiles alone
}

_X86_64_V3 = frozenset({"avx2", "fma", "bmi1", "bmi2", "f16c", "abm", "movbe"})
_X86_64_V4 = _X86_64_V3 | _AVX512 | {"avx512cd"}
_SKYLAKE = _X86_64_V4 | {"adx", "aes", "pclmulqdq", "clwb"}
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
    ("x86-64-v4", _X86_64_V4),
    ("x86-64-v3", _X86_64_V3),
)
# Flag -> LLVM attribute: added when the CPU has it and the name that was picked does not imply it.
_ATTRIBUTES: Mapping[str, str] = {
    "avx512_vnni": "+avx512vnni",
    "avx512_bf16": "+avx512bf16",
    "amx_tile": "+amx-tile",
    "amx_bf16": "+amx-bf16",
    "amx_int8": "+amx-int8",
}

_ARCH_PRCTL, _ARCH_GET_XCOMP_SUPP, _XTILEDATA = 158, 0x1021, 18


def cpu_name() -> str:
    """The processor's model name, "unknown" where the kernel shows none."""
    return _name_and_flags()[0]


def cpu_features() -> frozenset[str]:
    """The names of `CPU_FEATURES` that this processor and its kernel offer."""
    flags = _name_and_flags()[1]
    return frozenset(name for name, required in CPU_FEATURES.items() if required <= flags)


def isa_features(isa: str | None, offered: frozenset[str]) -> frozenset[str]:
    """Features that code for an instruction set may use; None stands for the richest set that is offered.

    Raises ConfigError for a name that is not in `ISAS`, and for a set whose features are not all offered.

    >>> sorted(isa_features("avx512", frozenset({"avx2", "avx512", "avx512_bf16"})))
    ['avx2', 'avx512']
    """
    usable = [name for name, required in ISAS.items() if required <= offered]
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

    allowed: names of `CPU_FEATURES` that the code may use. LLVM learns of nothing beyond them, so that the code runs
    on every processor that has those. By default everything that this processor has.
    """
    flags = _name_and_flags()[1]
    return llvm_target(flags if allowed is None else flags & _allowed_flags(allowed), len(usable_machine().cores))


def llvm_target(flags: frozenset[str], cores: int) -> dict[str, Any]:
    """TVM's target for a processor with these `/proc/cpuinfo` flags.

    >>> llvm_target(frozenset({"sse2"}), 4)
    {'kind': 'llvm', 'mcpu': 'x86-64', 'num-cores': 4}
    """
    name, implied = next(((n, flags_of) for n, flags_of in _CPU_NAMES if flags_of <= flags), ("x86-64", frozenset()))
    target: dict[str, Any] = {"kind": "llvm", "mcpu": name, "num-cores": cores}
    if implied >= _AVX512:
        extra = [llvm for flag, llvm in _ATTRIBUTES.items() if flag in flags - implied]
        target |= {"mattr": extra} if extra else {}
    return target


def parse_cpuinfo(text: str) -> tuple[str, frozenset[str]]:
    """Model name and flags of the first processor of `/proc/cpuinfo` ("unknown" and none where absent)."""
    name = re.search(r"^model name\s*:\s*(.+?)\s*$", text, re.M)
    flags = re.search(r"^flags\s*:\s*(.*)$", text, re.M)
    return name[1] if name else "unknown", frozenset(flags[1].split()) if flags else frozenset()


@cache
def _name_and_flags() -> tuple[str, frozenset[str]]:
    name, flags = parse_cpuinfo(read_text(ROOT / "proc/cpuinfo"))
    return name, flags if _kernel_saves_tiles() else frozenset(f for f in flags if not f.startswith("amx_"))


@cache
def _kernel_saves_tiles() -> bool:
    """Whether the kernel keeps AMX's tile registers over a context switch (Linux 5.16 on)."""
    if platform.machine() != "x86_64":
        return False
    supported = ctypes.c_uint64()
    call = ctypes.CDLL(None, use_errno=True).syscall
    code = call(ctypes.c_long(_ARCH_PRCTL), ctypes.c_long(_ARCH_GET_XCOMP_SUPP), ctypes.byref(supported))
    return code == 0 and bool(supported.value >> _XTILEDATA & 1)


def _allowed_flags(features: frozenset[str]) -> frozenset[str]:
    """The flags that LLVM may use for code that is limited to these features."""
    if "amx_bf16" in features:
        return _SAPPHIRE
    level = _X86_64_V4 if "avx512" in features else _X86_64_V3 if "avx2" in features else frozenset[str]()
    return level.union(*(CPU_FEATURES[name] for name in features))
