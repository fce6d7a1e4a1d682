"""What no code on the way of a tenant's bytes may call, and which clock decides: read from the source."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

Rounds = Callable[..., range]

ROOT = Path(__file__).resolve().parents[2]
# Whatever reads what a tenant sends or uploads: requests, artifacts, ONNX files, feature descriptions.
ON_THE_WAY = ("server", "profiles", "scheduler", "compiler", "veltair")
SERVING = ("server", "scheduler", "veltair/grpc", "veltair/machine", "profiles/runtime")

MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "code", "codeop", "yaml"}
BUILT_IN = {"eval", "exec", "compile", "__import__"}
METHODS = {
    *("os.system", "os.popen", "os.execv", "os.execve", "os.execvp", "os.spawnv", "pty.spawn"),
    *("subprocess.getoutput", "subprocess.getstatusoutput", "numpy.fromregex", "np.fromregex"),
    *("torch.load", "joblib.load", "importlib.import_module", "runpy.run_path", "runpy.run_module", "tempfile.mktemp"),
}
KEYWORDS = {"allow_pickle", "shell"}
# Each with its reason.
ALLOWED = {
    # modules of this project by a name of its own table, never a tenant's
    ("veltair/cli.py", "importlib.import_module"),
    ("veltair/__init__.py", "importlib.import_module"),
    # writes the operator's own file, and reads none
    ("veltair/ray/command.py", "yaml"),
}

WALL_CLOCK = {
    *("time.time", "time.time_ns", "time.localtime", "time.gmtime", "time.ctime", "time.clock_gettime"),
    *("datetime.now", "datetime.utcnow", "datetime.today", "datetime.datetime.now", "date.today"),
}
# What is shown to people, and compared with nothing but dates of certificates.
SHOWN = {
    ("server/access/certificates.py", "time.time"),  # how long a certificate is valid
    ("server/front/logs/access_log.py", "time.time_ns"),  # when a request ended, in its line
    ("server/front/tracing/otlp.py", "time.time_ns"),  # when a span began
    ("server/front/metrics.py", "time.time_ns"),  # when the last inference of a model was
    ("server/front/request_counts.py", "time.time_ns"),
    ("server/front/monitor/dashboard.py", "time.time"),  # what the browser's clock is compared with
    ("server/front/monitor/hour_history.py", "time.time"),  # where a step stands on the chart
    ("server/wire/http1_body.c", "time(NULL"),  # the header `Date`
}
WALL_CLOCK_IN_C = ("CLOCK_REALTIME", "gettimeofday(", "time(NULL", "system_clock")


def python_files(folders: tuple[str, ...]) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def dotted(node: ast.expr) -> str:
    """`os.path.join` as it is written; empty for what is no name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := dotted(node.value)):
        return f"{before}.{node.attr}"
    return ""


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Each call, by the name that stands in the source."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and (name := dotted(node.func)):
            yield name, node


def opens(keyword: ast.keyword) -> bool:
    """Whether the argument is `allow_pickle` or `shell`, unless it is False."""
    return keyword.arg in KEYWORDS and not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False)


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def find_what_they_forbid(source: Path) -> None:
    """The rules themselves, tried on a file that breaks them."""
    source.write_text("import pickle\nfrom os import system\neval('1')\nnp.load(x, allow_pickle=True)\ntime.time()\n")
    assert {"pickle", "os.system"} <= set(imported(source))
    found = dict(calls(source))
    assert set(found) == {"eval", "np.load", "time.time"}
    assert [opens(keyword) for keyword in found["np.load"].keywords] == [True]


def test_nothing_of_a_tenant_is_executed(rounds: Rounds, tmp_path: Path) -> None:
    """No pickle, no eval and no shell in any module that reads what a tenant sends or uploads."""
    find_what_they_forbid(tmp_path / "bad.py")
    for _ in rounds(quick=1, full=1):
        found = []
        for path in python_files(ON_THE_WAY):
            name = str(path.relative_to(ROOT))
            for module in imported(path):
                if module.partition(".")[0] in MODULES or module in METHODS:
                    found.append((name, module))
            for called, call in calls(path):
                if called in BUILT_IN | METHODS or any(map(opens, call.keywords)):
                    found.append((name, called))
        assert set(found) == ALLOWED


def test_no_time_on_the_way_of_a_query_is_the_wall_clocks(rounds: Rounds) -> None:
    """Deadlines, timeouts and durations are on the monotonic clock: a step of the wall clock changes none of them."""
    for _ in rounds(quick=1, full=1):
        found = {
            (str(path.relative_to(ROOT)), name)
            for path in python_files(SERVING)
            for name, _ in calls(path)
            if name in WALL_CLOCK or any(name.endswith(f".{clock}") for clock in WALL_CLOCK)
        }
        for path in (path for folder in SERVING for path in (ROOT / folder).rglob("*.[ch]")):
            text = path.read_text("utf-8")
            found |= {(str(path.relative_to(ROOT)), name) for name in WALL_CLOCK_IN_C if name in text}
        assert found == SHOWN
