"""Settings of the whole suite, which runs in one process with both halves of TVM: the compiler is loaded first.

Hypothesis draws new examples on a developer's machine and the same ones every time in CI; no test has a time limit.
"""

import gc
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import tvm  # noqa: F401  the server loads the runtime library alone, which would hide the compiler from other tests
from daemon_logs import pytest_runtest_makereport  # noqa: F401
from hypothesis import HealthCheck, settings

settings.register_profile(
    "suite", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=bool(os.environ.get("CI"))
)
settings.load_profile("suite")

# Background jobs of a shell ignore Ctrl-C and Ctrl-\, and so would the processes that tests start and signal.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole-sweeps", action="store_true", help="all cases of tests that are marked as sweeps")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--whole-sweeps"):
        os.environ["VELTAIR_WHOLE_SWEEPS"] = "1"  # run_kernels.some_of


def pytest_report_header(config: pytest.Config) -> str:
    return "sweeps: " + ("whole" if config.getoption("--whole-sweeps") else "thinned; --whole-sweeps tries every case")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a sweep over several parameters, every nth case, and the first with a value that no case before it has."""
    if config.getoption("--whole-sweeps"):
        return
    cases: Counter[str] = Counter()
    seen: set[tuple[str, str, int]] = set()
    kept, left = [], []
    for item in items:
        if sweep := item.get_closest_marker("sweep"):
            test = item.nodeid.partition("[")[0]
            values = {(test, name, id(value)) for name, value in item.callspec.params.items()}
            is_kept = cases[test] % sweep.args[0] == 0 or bool(values - seen)
            cases[test] += 1
            seen |= values if is_kept else set()
            (kept if is_kept else left).append(item)
        else:
            kept.append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left)


def pytest_collection_finish() -> None:
    """What the modules have made stays: no collection looks through those many objects again."""
    gc.collect()
    gc.freeze()


MANY_DESCRIPTORS = 256  # a process often has 1,024
FEW_DESCRIPTORS = 32  # of a fixture of the session, which stay


@pytest.fixture(autouse=True)
def few_descriptors() -> Iterator[None]:
    """What a test has left in reference cycles is closed before it adds up: a process of so many objects seldom looks
    through all of them by itself."""
    before = _count_descriptors()
    yield
    if _count_descriptors() > MANY_DESCRIPTORS:
        gc.collect()
        assert _count_descriptors() <= max(MANY_DESCRIPTORS, before + FEW_DESCRIPTORS), "the test leaves files open"


def _count_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.fixture(scope="session", autouse=True)
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Commands that compile share a cache of the session's own, not the developer's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VELTAIR_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the artifacts of build_artifacts.py: real kernels, built once a session in a process of its own."""
    folder = tmp_path_factory.mktemp("artifacts")
    script = Path(__file__).parent / "server" / "build_artifacts.py"
    subprocess.run([sys.executable, script, folder], check=True, env=os.environ | {"TVM_USE_RUNTIME_LIB": "0"})
    return folder
