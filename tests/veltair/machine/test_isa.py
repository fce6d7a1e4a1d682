"""Instruction sets and targets of processors that we do not have, from samples of what their kernels say."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from veltair.errors import ConfigError
from veltair.machine import isa
from veltair.machine.isa import CPU_FEATURES, ISAS, cpu_features, isa_features, llvm_target, parse_cpuinfo, tvm_target


def flags_of(text: str) -> frozenset[str]:
    return frozenset(text.split())


SKYLAKE = flags_of(
    "fpu sse sse2 ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt aes xsave avx f16c rdrand abm bmi1 avx2 bmi2 adx clwb "
    "pclmulqdq avx512f avx512dq avx512cd avx512bw avx512vl"
)
ICELAKE = SKYLAKE | flags_of(
    "avx512ifma avx512vbmi avx512_vbmi2 avx512_bitalg avx512_vpopcntdq avx512_vnni gfni vaes vpclmulqdq sha_ni"
)
SAPPHIRE = ICELAKE | flags_of(
    "amx_tile amx_bf16 amx_int8 avx512_bf16 avx512_fp16 avx_vnni movdiri movdir64b cldemote serialize"
)
ZEN2 = flags_of("fpu sse4_2 avx f16c abm bmi1 avx2 bmi2 fma movbe sha_ni clwb")
ZEN4 = ZEN2 | flags_of("avx512f avx512dq avx512cd avx512bw avx512vl avx512_vnni avx512_bf16")


class TargetCase(NamedTuple):
    flags: frozenset[str]
    mcpu: str
    mattr: list[str]


TARGETS = [
    TargetCase(SAPPHIRE, "sapphirerapids", []),
    TargetCase(ICELAKE, "icelake-server", []),
    TargetCase(SAPPHIRE - {"avx512_fp16"}, "icelake-server", ["+avx512bf16", "+amx-tile", "+amx-bf16", "+amx-int8"]),
    TargetCase(SKYLAKE | {"avx512_vnni"}, "skylake-avx512", ["+avx512vnni"]),
    TargetCase(ZEN4, "x86-64-v4", ["+avx512vnni", "+avx512bf16"]),
    TargetCase(ZEN2, "x86-64-v3", []),
    TargetCase(ZEN2 | {"avx_vnni"}, "x86-64-v3", []),
    TargetCase(frozenset({"sse2"}), "x86-64", []),
]


@pytest.mark.parametrize("case", TARGETS, ids=lambda case: case.mcpu)
def test_the_target_is_what_the_flags_allow(case: TargetCase) -> None:
    target = llvm_target(case.flags, 4)
    assert target["kind"] == "llvm" and target["num-cores"] == 4
    assert (target["mcpu"], target.get("mattr", [])) == (case.mcpu, case.mattr)


FEATURES = [
    (SAPPHIRE, {"avx2", "avx512", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8"}),
    (ZEN2, {"avx2"}),
    (ICELAKE - {"avx512vl"}, {"avx2"}),
    (SAPPHIRE - {"amx_tile"}, {"avx2", "avx512", "avx512_vnni", "avx512_bf16"}),
    (frozenset({"avx2"}), set()),
]


@pytest.mark.parametrize(("flags", "names"), FEATURES)
def test_features_need_all_their_flags(flags: frozenset[str], names: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isa, "_name_and_flags", lambda: ("a cpu", flags))
    assert cpu_features() == names


def test_cpuinfo() -> None:
    text = "processor\t: 0\nmodel name\t: AMD Ryzen Threadripper 3990X \nflags\t\t: fpu avx2 fma\n\nprocessor\t: 1\n"
    assert parse_cpuinfo(text) == ("AMD Ryzen Threadripper 3990X", {"fpu", "avx2", "fma"})
    assert parse_cpuinfo("") == ("unknown", frozenset())


LIMITED_TARGETS = [
    ("avx2", "x86-64-v3", []),
    ("avx512", "x86-64-v4", []),
    ("avx512_bf16", "x86-64-v4", ["+avx512vnni", "+avx512bf16"]),
    ("amx", "sapphirerapids", []),
    (None, "sapphirerapids", []),
]


@pytest.mark.parametrize(("name", "mcpu", "attributes"), LIMITED_TARGETS)
def test_code_for_an_isa_uses_nothing_beyond_it(
    name: str | None, mcpu: str, attributes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isa, "_name_and_flags", lambda: ("a cpu", SAPPHIRE | {"avx10"}))
    target = tvm_target(isa_features(name, cpu_features()))
    assert (target["mcpu"], target.get("mattr", [])) == (mcpu, attributes)


def test_an_isa_that_is_not_offered_is_refused_with_those_that_are() -> None:
    old = frozenset({"avx2", "avx512"})
    assert isa_features(None, old) == ISAS["avx512"]
    assert isa_features("avx2", old) == {"avx2"}
    assert isa_features(None, frozenset()) == frozenset()
    with pytest.raises(ConfigError, match=r"isa amx needs amx_bf16, amx_int8.*lacks; it has avx2, avx512$"):
        isa_features("amx", old)
    with pytest.raises(ConfigError, match=r"expected one of avx2, avx512, avx512_vnni, avx512_bf16, amx, found 'sse4'"):
        isa_features("sse4", old)
    assert ISAS["amx"] == CPU_FEATURES.keys()
