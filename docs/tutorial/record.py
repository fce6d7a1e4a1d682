"""Records the output that the tutorials show: `python docs/tutorial/record.py`, a few minutes on an idle machine.

Each block of output on the pages is a file in `docs/tutorial/output`, written here by running what the page says.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

OUTPUT = Path(__file__).parent / "output"
LAYER = "/layer2.0.2.conv"  # a 3x3 convolution of ResNet-50 with two code versions
WORKLOAD = "workload conv2d_bf16 uint16[1,128,56,56]/32 uint16[1,128,28,28]/32"
DUMPS = ("01-import-model", "07-settle-halos", "08-search-candidates")  # phases whose dump the page shows
CONFIG = """\
[server]
http = "127.0.0.1:0"
grpc = "127.0.0.1:0"
event_log = "events.jsonl"

[[tenants]]
name = "resnet50"
artifact = "artifacts/resnet50"
qos_ms = 100
"""
CLIENT = """\
import sys
import numpy as np, tritonclient.grpc as triton

client = triton.InferenceServerClient(sys.argv[1])
image = triton.InferInput("input", [1, 3, 224, 224], "FP32")
image.set_data_from_numpy(np.zeros((1, 3, 224, 224), np.float32))
answer = client.infer("resnet50", [image])
print(answer.as_numpy("logits").shape, answer.as_numpy("logits")[0, :3].round(4))
"""


def veltair(*arguments: str) -> str:
    """What a command prints, 110 columns wide."""
    command = [sys.executable, "-m", "veltair.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "110"})
    return done.stdout


def keep(name: str, lines: Iterable[str]) -> None:
    text = "\n".join(line.rstrip() for line in lines)
    (OUTPUT / name).write_text(text + "\n", "utf-8")
    print(f"--- {name}\n{text}")


def of_layer(text: str) -> list[str]:
    """The heading and the rows of the layer that the tutorial follows, continuation rows included."""
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if LAYER in line)
    last = next(i for i in range(first + 1, len(lines)) if lines[i].strip().startswith("/"))
    return [*lines[:2], *lines[first:last]]


def record_layer() -> None:
    """One layer through the compiler."""
    veltair("zoo", "resnet50", "--out", "resnet50.onnx")
    options = ("--trials", "0", "--no-cache", "--dump", "dump")
    compiled = veltair("compile", "resnet50.onnx", "--out", "artifacts/resnet50", *options)
    keep("compile.txt", compiled.splitlines())
    dumps = sorted(Path("dump").iterdir())
    keep("dump.txt", (f"{path.name:40}{len(path.read_text('utf-8').splitlines()):6} lines" for path in dumps))
    imported, settled, chosen = (Path("dump", f"{name}.txt").read_text("utf-8") for name in DUMPS)
    for name, text in zip(DUMPS[:2], (imported, settled), strict=True):
        keep(f"dump-{name}.txt", next(part for part in text.split("\n\n") if LAYER in part).splitlines())
    lines = chosen.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(WORKLOAD) and "strides=(2,2)" in line)
    last = next(i for i in range(first + 1, len(lines)) if not lines[i].startswith("    "))
    keep(f"dump-{DUMPS[2]}.txt", lines[first:last])
    keep("inspect.txt", of_layer(veltair("inspect", "artifacts/resnet50")))
    keep("verify.txt", veltair("verify", "artifacts/resnet50", "resnet50.onnx").splitlines())
    keep("plan.txt", veltair("plan", "artifacts/resnet50", "--cores", "2", "--qos-ms", "30").splitlines())


def record_query() -> None:
    """One query through the daemon."""
    Path("serve.toml").write_text(CONFIG, "utf-8")
    Path("ask.py").write_text(CLIENT, "utf-8")
    command = [sys.executable, "-m", "veltair.cli", "serve", "serve.toml"]
    daemon = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert daemon.stdout is not None
    started: list[str] = []
    while not started or "Dashboard" not in started[-1]:
        started.append(daemon.stdout.readline().rstrip())
    keep("serve.txt", (line for line in started if not line.startswith("20")))  # without the lines of the log
    address = next(line.partition("grpc://")[2] for line in started if "grpc://" in line)
    asked = subprocess.run([sys.executable, "ask.py", address], capture_output=True, text=True, check=True)
    keep("ask.txt", asked.stdout.splitlines())
    daemon.send_signal(signal.SIGINT)
    daemon.wait(30)
    lines = Path("events.jsonl").read_text("utf-8").splitlines()
    keep("events.txt", (shortened(line) for line in lines))
    keep("replay.txt", veltair("replay", "events.jsonl").splitlines())


def shortened(line: str) -> str:
    """A line of the log with long lists cut, as the page says."""
    record = json.loads(line)
    versions = record.get("block", {}).get("versions")
    if versions and len(versions) > 6:
        record["block"]["versions"] = [*versions[:4], "…"]
    text = json.dumps(record, ensure_ascii=False)
    return text if len(text) <= 320 else f"{text[:317]} …"


def main() -> None:
    OUTPUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        record_layer()
        record_query()


if __name__ == "__main__":
    main()
