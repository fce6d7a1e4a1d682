"""Machines that we do not have, from samples of what their kernels say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from veltair.errors import ConfigError
from veltair.machine import topology as m


def words(text: str) -> list[str]:
    return text.split()


SKYLAKE = words(
    "fpu sse sse2 ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt aes xsave avx f16c rdrand abm bmi1 avx2 bmi2 adx clwb "
    "pclmulqdq avx512f avx512dq avx512cd avx512bw avx512vl"
)
ICELAKE = SKYLAKE + words(
    "avx512ifma avx512vbmi avx512_vbmi2 avx512_bitalg avx512_vpopcntdq avx512_vnni gfni vaes vpclmulqdq sha_ni"
)
SAPPHIRE = ICELAKE + words(
    "amx_tile amx_bf16 amx_int8 avx512_bf16 avx512_fp16 avx_vnni movdiri movdir64b cldemote serialize"
)
ZEN2 = words("fpu sse4_2 avx f16c abm bmi1 avx2 bmi2 fma movbe sha_ni clwb")
ZEN4 = [*ZEN2, "avx512f", "avx512dq", "avx512cd", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16"]


def target(flags: list[str]) -> tuple[str, list[str]]:
    found = m.llvm_target(frozenset(flags), 4)
    assert found["kind"] == "llvm" and found["num-cores"] == 4
    return found["mcpu"], found.get("mattr", [])


def test_cpuinfo() -> None:
    text = "processor\t: 0\nmodel name\t: AMD Ryzen Threadripper 3990X \nflags\t\t: fpu avx2 fma\n\nprocessor\t: 1\n"
    assert m.parse_cpuinfo(text) == ("AMD Ryzen Threadripper 3990X", {"fpu", "avx2", "fma"})
    assert m.parse_cpuinfo("") == ("unknown", frozenset())


@pytest.mark.parametrize(("flags", "mcpu", "mattr"), [
    (SAPPHIRE, "sapphirerapids", []),
    (ICELAKE, "icelake-server", []),
    ([f for f in SAPPHIRE if f != "avx512_fp16"], "icelake-server", ["+avx512bf16", "+amx-tile", "+amx-bf16"]),
    ([*SKYLAKE, "avx512_vnni"], "skylake-avx512", ["+avx512vnni"]),
    (ZEN4, "x86-64-v4", ["+avx512vnni", "+avx512bf16"]),
    (ZEN2, "x86-64-v3", []),
    ([*ZEN2, "avx_vnni"], "x86-64-v3", []),
    (["sse2"], "x86-64", []),
])  # fmt: skip
def test_the_target_is_what_the_flags_allow(flags: list[str], mcpu: str, mattr: list[str]) -> None:
    assert target(flags) == (mcpu, mattr)


@pytest.mark.parametrize(("flags", "names"), [
    (SAPPHIRE, {"avx2", "avx512", "avx512_vnni", "avx512_bf16", "amx_bf16"}),
    (ZEN2, {"avx2"}),
    ([f for f in ICELAKE if f != "avx512vl"], {"avx2"}),
    ([f for f in SAPPHIRE if f != "amx_tile"], {"avx2", "avx512", "avx512_vnni", "avx512_bf16"}),
    (["avx2"], set()),
])  # fmt: skip
def test_features_need_all_their_flags(flags: list[str], names: set[str]) -> None:
    assert {name for name, need in m.FEATURES.items() if need <= set(flags)} == names


@pytest.mark.parametrize(("text", "cores"), [
    ("0-3,64-67\n", (0, 1, 2, 3, 64, 65, 66, 67)), ("5", (5,)), ("", ()), ("2,0-1", (0, 1, 2)), ("\n", ()),
])  # fmt: skip
def test_cpu_lists(text: str, cores: tuple[int, ...]) -> None:
    assert m.parse_cpu_list(text) == cores


@pytest.mark.parametrize(("text", "cpus"), [
    ("max 100000\n", None), ("200000 100000\n", 2.0), ("150000 100000", 1.5), ("-1 100000", None), ("", None),
    (" ", None), ("50000", 0.5),
])  # fmt: skip
def test_quotas(text: str, cpus: float | None) -> None:
    assert m.parse_quota(text) == cpus


def test_small_parsers() -> None:
    assert m.parse_selected("always [madvise] never\n") == "madvise" and m.parse_selected("") == ""
    assert [m.parse_size(t) for t in ("48K", "2048K\n", "480M", "7", "max")] == [49152, 2 << 20, 480 << 20, 7, 0]
    assert m.parse_memory("MemFree: 1 kB\nMemTotal:       24684084 kB\n") == 24684084 * 1024


def threadripper() -> tuple[dict[int, str], dict[int, str]]:
    """3990X: 64 cores, core c and c + 64 are threads of one, four cores share an L3."""
    l3 = {
        c: f"{c % 64 // 4 * 4}-{c % 64 // 4 * 4 + 3},{c % 64 // 4 * 4 + 64}-{c % 64 // 4 * 4 + 67}" for c in range(128)
    }
    return l3, {c: f"{c % 64},{c % 64 + 64}" for c in range(128)}


def test_domains_of_a_threadripper() -> None:
    l3, siblings = threadripper()
    domains = m.group_cores(range(128), l3)
    assert len(domains) == 16 and domains[1] == (4, 5, 6, 7, 68, 69, 70, 71)
    assert m.pick_cores(domains, None, siblings) == domains == m.pick_cores(domains, 500.0, siblings)
    assert m.pick_cores(domains, 6.9, siblings) == ((0, 1, 2, 3), (4, 5))  # floor; no second threads yet
    assert m.pick_cores(domains, 0.4, siblings) == ((0,),)
    assert m.pick_cores(domains, 66, siblings)[0] == (0, 1, 2, 3, 64, 65)
    assert m.group_cores({2, 3, 70}, l3) == ((2, 3), (70,))  # an affinity mask within two caches
    only_second = m.group_cores({68, 69}, l3)
    assert m.pick_cores(only_second, 1, siblings) == ((68,),)


def test_cores_without_a_known_cache_share_a_domain() -> None:
    assert m.group_cores([3, 1, 2], {}) == ((1, 2, 3),)
    assert m.group_cores([0, 1, 2], {0: "0-1\n", 1: "0-1\n"}) == ((0, 1), (2,))


V1 = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n" + (
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
)
V2 = "25 20 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"


def test_cgroup_folders() -> None:
    assert m.cgroup_folders(V1, "4:cpu,cpuacct:/docker/ab\n3:memory:/x\n", "cpu") == [
        "/sys/fs/cgroup/cpu,cpuacct/docker/ab", "/sys/fs/cgroup/cpu,cpuacct/docker", "/sys/fs/cgroup/cpu,cpuacct",
    ]  # fmt: skip
    assert m.cgroup_folders(V2, "0::/user.slice/a.scope\n", "cpu") == [
        "/sys/fs/cgroup/user.slice/a.scope", "/sys/fs/cgroup/user.slice", "/sys/fs/cgroup",
    ]  # fmt: skip
    assert m.cgroup_folders(V1, "", "memory") == []
    inside = V1.replace("0:29 /", "0:29 /docker/ab")  # the container's own folder is all that is mounted
    assert m.cgroup_folders(inside, "4:cpu,cpuacct:/docker/ab\n", "cpu") == ["/sys/fs/cgroup/cpu,cpuacct"]
    assert m.cgroup_folders(V2, "0::/../../outside\n", "cpu") == ["/sys/fs/cgroup"]


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def two_cores() -> dict[str, str]:
    files = {}
    for core in (0, 1):
        base = f"sys/devices/system/cpu/cpu{core}"
        caches = ((1, "Data", "48K", core), (1, "Instruction", "32K", core), (2, "Unified", "2048K", core))
        for index, (level, kind, size, shared) in enumerate((*caches, (3, "Unified", "32M", "0-1"))):
            cache = f"{base}/cache/index{index}"
            files |= {f"{cache}/level": f"{level}\n", f"{cache}/type": f"{kind}\n"}
            files |= {f"{cache}/size": f"{size}\n", f"{cache}/shared_cpu_list": f"{shared}\n"}
        files[f"{base}/topology/thread_siblings_list"] = f"{core}\n"
    return files


def test_readers_of_a_v2_machine(tmp_path: Path) -> None:
    root = tree(tmp_path, {
        **two_cores(),
        "proc/self/mountinfo": V2, "proc/self/cgroup": "0::/pod/app\n", "proc/meminfo": "MemTotal: 8388608 kB\n",
        "sys/fs/cgroup/pod/cpu.max": "100000 100000\n", "sys/fs/cgroup/pod/app/cpu.max": "max 100000\n",
        "sys/fs/cgroup/pod/memory.max": "4294967296\n", "sys/fs/cgroup/pod/app/memory.max": "max\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never\n",
    })  # fmt: skip
    assert m.quota_cpus(root) == 1.0  # the parent's, tighter than its own
    assert m.memory_bytes(root) == 4 << 30
    assert m.usable_domains([0, 1], root) == ((0,),)
    assert m.cache_bytes(root) == {"L1": 48 << 10, "L2": 2 << 20, "L3": 32 << 20}
    assert m.huge_pages(root) == "always"


def test_readers_of_a_v1_machine(tmp_path: Path) -> None:
    root = tree(tmp_path, {
        **two_cores(),
        "proc/self/mountinfo": V1, "proc/self/cgroup": "4:cpu,cpuacct:/\n", "proc/meminfo": "MemTotal: 1024 kB\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    })  # fmt: skip
    assert m.quota_cpus(root) is None and m.usable_domains([0, 1], root) == ((0, 1),)
    tree(root, {"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "150000\n"})
    assert m.quota_cpus(root) == 1.5 and m.usable_domains([0, 1], root) == ((0,),)


def test_a_machine_that_shows_nothing(tmp_path: Path) -> None:
    assert m.quota_cpus(tmp_path) is None and m.memory_bytes(tmp_path) == 0 and m.cache_bytes(tmp_path) == {}
    assert m.huge_pages(tmp_path) == "absent" and m.usable_domains([4, 7], tmp_path) == ((4, 7),)


def test_this_machine() -> None:
    usable = m.machine().cores
    assert usable and set(usable) <= os.sched_getaffinity(0)
    environment = m.environment()
    assert environment.cores == len(usable) == m.tvm_target()["num-cores"]
    assert set(environment.isa) == m.features() <= m.FEATURES.keys()
    assert environment.memory_bytes > 0 and environment.versions["apache-tvm"] and environment.versions["veltair"]


@pytest.mark.parametrize(("isa", "mcpu", "attributes"), [
    ("avx2", "x86-64-v3", []), ("avx512", "x86-64-v4", []), ("avx512_bf16", "x86-64-v4", ["+avx512bf16"]),
    ("amx", "sapphirerapids", []), (None, "sapphirerapids", []),
])  # fmt: skip
def test_code_for_an_isa_uses_nothing_beyond_it(
    isa: str | None, mcpu: str, attributes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(m, "_cpu", lambda: ("a cpu", frozenset(SAPPHIRE) | {"avx10"}))
    target = m.tvm_target(m.isa_features(isa, m.features()))
    assert (target["mcpu"], target.get("mattr", [])) == (mcpu, attributes)


def test_an_isa_that_is_not_there_is_told_with_those_that_are() -> None:
    old = frozenset({"avx2", "avx512"})
    assert m.isa_features(None, old) == m.ISAS["avx512"]
    assert m.isa_features("avx2", old) == {"avx2"}
    assert m.isa_features(None, frozenset()) == frozenset()
    with pytest.raises(ConfigError, match=r"isa amx needs amx_bf16.*which this CPU lacks; it has avx2, avx512$"):
        m.isa_features("amx", old)
    with pytest.raises(ConfigError, match=r"expected one of avx2, avx512, avx512_bf16, amx, found 'sse4'"):
        m.isa_features("sse4", old)
