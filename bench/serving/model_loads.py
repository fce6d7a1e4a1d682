"""What loading a large model costs those who are served meanwhile.

    python -m bench.serving.model_loads SERVED LOADED [--qps 100] [--seconds 20] [--rounds 3] [--out FILE]

SERVED and LOADED are folders of artifacts. One daemon serves the first at a steady rate over gRPC; by turns it is left
alone and has the second one loaded and unloaded again and again, as its clients would (`server.model_control`). Each
load checks all digests, locks the weights in memory, maps them in every worker and runs every version of every layer.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import tritonclient.http as triton
from rich.console import Console

from bench.part_tables import markdown_table
from bench.paths import CLI, RESULTS, result_path
from bench.serving.daemon import ServedModel, configuration, running, serve_command, write_toml
from veltair.machine.environment import describe_environment
from veltair.profiles.artifact.artifact_folder import load_artifact

FIRST = ("nice", "-n", "-16")  # the load generator goes before the daemon, as in `bench.serving.overload`


def main() -> int:
    args = _arguments()
    served, loaded = load_artifact(args.served).manifest.model, load_artifact(args.loaded).manifest.model
    rounds: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "serve.toml"
        document = configuration([ServedModel(served, args.served), ServedModel(loaded, args.loaded)])
        document["server"]["model_control"] = True
        write_toml(config, document)
        with running(serve_command(config)) as (_, where):
            client = triton.InferenceServerClient(where["http"])
            for number in range(args.rounds):
                client.unload_model(loaded)
                alone = load(Path(folder), where["grpc"], served, args.qps, args.seconds)
                with Loads(where["http"], loaded) as loads:
                    beside = load(Path(folder), where["grpc"], served, args.qps, args.seconds)
                rounds.append({"alone": alone, "beside": beside, "load_s": loads.load_s, "unload_s": loads.unload_s})
                Console().print(f"round {number + 1}: {len(loads.load_s)} loads")
    weights_mb = round((args.loaded / "weights.bin").stat().st_size / 1e6)
    found = {"environment": asdict(describe_environment()), "served": served, "qps": args.qps, "loaded": loaded}
    found |= {"weights_mb": weights_mb, "rounds": rounds}
    args.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    print(markdown(found))
    return 0


class Loads:
    """Loads and unloads a model again and again within the block."""

    def __init__(self, address: str, model: str) -> None:
        self._client, self._model = triton.InferenceServerClient(address, network_timeout=600.0), model
        self.load_s: list[float] = []
        self.unload_s: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Loads:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            for change, seconds in ((self._client.load_model, self.load_s), (self._client.unload_model, self.unload_s)):
                begin = time.monotonic()
                change(self._model)
                seconds.append(round(time.monotonic() - begin, 4))


def load(folder: Path, address: str, model: str, qps: float, seconds: float) -> dict[str, Any]:
    """A tenant's part of a report of `veltair load`."""
    scenario = folder / "load.toml"
    run = {"target": f"grpc://{address}", "duration_s": seconds, "warmup_s": 1.0, "seed": 1, "connections": 4}
    write_toml(scenario, {"load": run, "tenants": [{"name": model, "qps": qps, "target_ms": 50.0}]})
    command = [*FIRST, *CLI, "load", str(scenario), "--json"]
    report = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    tenant: dict[str, Any] = report["tenants"][0]
    return tenant


def markdown(found: dict[str, Any]) -> str:
    """The medians of all rounds."""
    rows = []
    for key in ("p50_ms", "p95_ms", "p99_ms", "qos_rate"):
        alone, beside = (median(each[how][key] for each in found["rounds"]) for how in ("alone", "beside"))
        ratio = median(each["beside"][key] / each["alone"][key] for each in found["rounds"])
        rows.append([key, f"{alone:.3f}", f"{beside:.3f}", f"{ratio:.2f}x"])
    loads = [seconds for each in found["rounds"] for seconds in each["load_s"]]
    unloads = [seconds for each in found["rounds"] for seconds in each["unload_s"]]
    head = f"{found['served']} at {found['qps']:g} queries a second; {len(loads)} loads of {found['loaded']}, "
    head += f"{found['weights_mb']:,} MB: {median(loads):.2f} s each, unloaded in {median(unloads):.2f} s"
    return f"{head}\n\n{markdown_table(['', 'alone', 'while it is loaded', 'ratio'], rows)}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("bench.serving.model_loads", description="What loading costs the others.")
    parser.add_argument("served", type=lambda path: Path(path).resolve())
    parser.add_argument("loaded", type=lambda path: Path(path).resolve())
    parser.add_argument("--qps", type=float, default=100.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=result_path, default=RESULTS / "model-loads.json")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
