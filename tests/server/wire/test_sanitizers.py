"""The I/O threads under the sanitizers for addresses, undefined behaviour and races, with the tests of their queries.

A process of its own runs them, with the sanitizer loaded ahead of everything: Python itself is not instrumented.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

import veltair.grpc.native
import veltair.server.wire

FOLDERS = [Path(module.__file__ or "").parent for module in (veltair.server.wire, veltair.grpc.native)]
FLAGS = ["-std=c11", "-O1", "-g", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-omit-frame-pointer"]
WARNINGS = ["-Wall", "-Wextra", "-Werror"]
TESTS = [
    f"test_native_{name}.py" for name in ("queries", "ends", "deadlines", "shared_memory", "stop", "strings", "tls")
]
TESTS += [f"test_http1{part}.py" for part in ("", "_chunked", "_connections", "_ends", "_forward")]
TESTS += ["test_lingering.py", "test_server_timing.py", "test_native_traces.py"]
SANITIZERS = {"memory": ("address,undefined", "libasan.so"), "races": ("thread", "libtsan.so")}
WAIT_S = 1200  # for the tests of a sanitizer: a minute where nothing else runs
OPTIONS = {
    # Leaks are looked for, and are no failure: Python's are many.
    "ASAN_OPTIONS": "detect_leaks=1",
    "LSAN_OPTIONS": "exitcode=0",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": "ignore_noninstrumented_modules=1:halt_on_error=1",
    "PYTHONMALLOC": "malloc",
}

pytestmark = pytest.mark.slow


def path_of(library: str) -> str:
    """Where gcc has a library."""
    found = subprocess.run(["gcc", f"-print-file-name={library}"], capture_output=True, text=True, check=True)
    path = found.stdout.strip()
    assert Path(path).is_absolute(), f"gcc has no {library}"
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[tuple[int, str]]]]:
    """The tests under each sanitizer, side by side, since they wait as much as they compute: exit code and output."""
    with ThreadPoolExecutor(len(SANITIZERS)) as pool:
        yield {name: pool.submit(run_tests, name, tmp_path_factory.mktemp(name)) for name in SANITIZERS}


def run_tests(name: str, folder: Path) -> tuple[int, str]:
    sanitizers, library = SANITIZERS[name]
    preloaded = [path_of(library), path_of("libstdc++.so")]  # the second for exceptions of other libraries
    built = folder / "wire.so"
    sources = [str(path) for folder in FOLDERS for path in sorted(folder.glob("*.c"))]
    subprocess.run(["gcc", *FLAGS, *WARNINGS, f"-fsanitize={sanitizers}", *sources, "-o", str(built)], check=True)
    here = Path(__file__).parent
    environment = os.environ | {
        **OPTIONS,
        "LD_PRELOAD": " ".join(preloaded),
        "INSTRUMENTED_WIRE": str(built),
        "PYTHONPATH": str(here.parent),
        "TVM_USE_RUNTIME_LIB": "1",  # nothing is compiled there, and the compiler takes seconds to load
    }
    run = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "instrumented_wire", "-p", "no:cacheprovider"]
    found = subprocess.run(
        [*run, *(str(here / name) for name in TESTS)],
        env=environment,
        cwd=here.parents[2],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    return found.returncode, found.stdout + found.stderr


@pytest.mark.parametrize("name", SANITIZERS)
def test_the_io_threads(runs: dict[str, Future[tuple[int, str]]], name: str) -> None:
    returncode, output = runs[name].result()
    told = output.partition("ERROR: LeakSanitizer")[0][-6000:]
    assert returncode == 0, told
    assert re.search(r"^\d+ passed in", output, re.MULTILINE), told
    assert not leaks_of_ours(output)


def leaks_of_ours(output: str) -> list[str]:
    """The leaks with a frame in the tested sources."""
    reports = re.split(r"\n\n", output)
    return [report for report in reports if " leak of " in report and re.search(r"/(wire|native)/\w+\.c:\d", report)]
