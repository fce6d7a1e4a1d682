"""Records what the tutorial's first page shows: `python docs/tutorial/record_first_hour.py WHEEL`, some minutes.

The commands run in an empty folder and an empty environment, in the order of the page, with its three files beside
them. It needs ports 8000 and 8001, and a registry with PyTorch in it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

HERE = Path(__file__).parent
FILES, OUTPUT = HERE / "first_hour", HERE / "output"
COMMANDS = (
    ("install", "pip install veltair-0.1.0-*.whl torch==2.13.0"),
    ("compile", "python compile_mine.py"),
    ("zoo", "veltair zoo dlrm --rows 100000"),
    ("compile-second", "veltair compile dlrm.onnx --out artifacts/dlrm --qos-ms 20"),
    ("serve", "veltair serve artifacts/mine artifacts/dlrm"),
    ("ask", "python ask.py"),
    (
        "curl",
        # as `serve` prints it
        'head=\'{"inputs":[{"name":"input.1","shape":[1,3,96,96],"datatype":"FP32",'
        '"parameters":{"binary_data_size":110592}}]}\'\n'
        '{ printf %s "$head"; head -c 110592 /dev/zero; } | curl -s --data-binary @- \\\n'
        '  -H "Inference-Header-Content-Length: 110" \\\n'
        "  http://127.0.0.1:8000/v2/models/mine/infer",
    ),
    ("load", "veltair load both.toml"),
)


def keep(name: str, text: str) -> None:
    """Progress and the log's own lines are left out, as the page says."""
    skipped = ("search: ", "build and check: ", "time alone and under", "pack weights: ", "import: ", "20")
    lines = [line.rstrip() for line in text.splitlines() if not line.startswith(skipped)]
    (OUTPUT / f"first-hour-{name}.txt").write_text("\n".join(lines) + "\n", "utf-8")
    print(f"--- {name}", *lines, sep="\n", flush=True)


def main() -> None:
    wheel = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "empty"
        folder.mkdir()
        venv.create(Path(scratch) / "env", with_pip=True)
        for file in (wheel, *FILES.iterdir()):
            shutil.copy(file, folder)
        path = f"{Path(scratch) / 'env' / 'bin'}:{os.environ['PATH']}"
        own = {"XDG_DATA_HOME": scratch, "VELTAIR_CACHE": f"{scratch}/cache"}  # no records or kernels of ours
        environment = os.environ | {"PATH": path, "COLUMNS": "100"} | own
        daemon: subprocess.Popen[str] | None = None
        try:
            for name, command in COMMANDS:
                if name == "serve":
                    daemon, text = serve(command, folder, environment)
                else:
                    shell = ["bash", "-c", command]
                    done = subprocess.run(shell, cwd=folder, env=environment, capture_output=True, text=True)
                    text = done.stdout + done.stderr
                    if done.returncode:
                        raise SystemExit(f"{command}: {text}")
                if name != "install":
                    keep(name, text)
        finally:
            if daemon is not None:
                daemon.send_signal(signal.SIGINT)
                daemon.wait(60)


def serve(command: str, folder: Path, environment: dict[str, str]) -> tuple[subprocess.Popen[str], str]:
    """The daemon, and what it printed until it was ready and had shown its models' snippets."""
    command_line = ["bash", "-c", f"exec {command}"]
    pipe = subprocess.PIPE
    daemon = subprocess.Popen(
        command_line, cwd=folder, env=environment, text=True, stdout=pipe, stderr=subprocess.STDOUT
    )
    assert daemon.stdout is not None
    lines: list[str] = []
    for line in daemon.stdout:
        lines.append(line)
        if "/v2/models/mine/infer" in line:
            return daemon, "".join(lines)
    raise SystemExit("".join(lines))


if __name__ == "__main__":
    main()
