"""The zoo's GCN on a random graph of ogbn-arxiv's size, beside torch's sparse CSR products and PyTorch Geometric.

    python -m bench.kernels.graph_convolution [--artifact DIR] [--torch PYTHON] [--json FILE]

The artifact is compiled in fp32 where there is none. torch runs in a Python of its own: `torch.sparse_csr_tensor`
products, and, where it is installed, `torch_geometric.nn.GCNConv` with the same weights over an edge list, and over the
adjacency as a CSR tensor, which it multiplies by (by `torch-sparse`'s or `pyg-lib`'s kernels where these are
installed). All get the same features and answer with the same logits, on one thread and on all; the engines take turns.
The bar is 1.5x. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from bench.paths import ROOT, result_path
from bench.recsys.embedding_tables import timed

ROUNDS, BUDGET_S = 5, 4.0


class TorchConvolution:
    """torch in a Python of its own; it reads the arrays of a folder."""

    def __init__(self, python: str, folder: Path) -> None:
        command = [python, "-m", "bench.kernels.graph_convolution", "--peer", str(folder.resolve())]
        self._process = subprocess.Popen(command, text=True, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.versions = self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def measure(self, threads: int) -> dict[str, float]:
        assert self._process.stdin
        self._process.stdin.write(f"{threads}\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def peer(folder: Path) -> None:
    """Prints the versions, then answers each line "THREADS" with ms by engine and leaves its logits in the folder."""
    import torch

    held = {path.stem: torch.from_numpy(np.load(path)) for path in folder.glob("*.npy")}
    x, nodes = held["features"], held["features"].shape[0]
    weights = [(held["weight_0"], held["bias_0"]), (held["weight_1"], held["bias_1"])]
    edges = torch.stack([held["targets"], held["sources"]])
    adjacency = torch.sparse_coo_tensor(edges, held["entries"], (nodes, nodes)).to_sparse_csr()

    def sparse() -> Any:
        h = torch.relu(adjacency @ (x @ weights[0][0]) + weights[0][1])
        return adjacency @ (h @ weights[1][0]) + weights[1][1]

    runs: dict[str, Callable[[], Any]] = {"torch_csr": sparse}
    versions = {"torch": torch.__version__}
    try:
        import torch_geometric
        from torch_geometric.nn import GCNConv
    except ImportError:
        pass
    else:
        versions["torch_geometric"] = torch_geometric.__version__
        layers = [GCNConv(*weight.shape, normalize=False) for weight, _ in weights]
        with torch.no_grad():
            for layer, (weight, bias) in zip(layers, weights, strict=True):
                layer.lin.weight.copy_(weight.T)
                layer.bias.copy_(bias)
        index = torch.stack([held["sources"], held["targets"]])

        def geometric() -> Any:
            h = torch.relu(layers[0](x, index, held["entries"]))
            return layers[1](h, index, held["entries"])

        def by_rows() -> Any:
            h = torch.relu(layers[0](x, adjacency))
            return layers[1](h, adjacency)

        runs |= {"torch_geometric": geometric, "torch_geometric_csr": by_rows}
        versions |= {name: version(name) for name in ("pyg-lib", "torch-sparse") if find_spec(name.replace("-", "_"))}
    print(json.dumps(versions), flush=True)
    for line in sys.stdin:
        torch.set_num_threads(int(line))
        ms = {}
        with torch.no_grad():
            for name, run in runs.items():
                ms[name] = timed(run, BUDGET_S)
                np.save(folder / f"{name}.logits", run().numpy())
        print(json.dumps(ms), flush=True)


def write_arrays(folder: Path, model: Path) -> None:
    """The model's constants and one draw of features, as .npy files."""
    import onnx

    held = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(model).graph.initializer}
    names = {
        "layer_0.weight": "weight_0",
        "layer_0.bias": "bias_0",
        "logits.weight": "weight_1",
        "logits.bias": "bias_1",
    }
    names |= {name: name for name in ("sources", "targets", "entries")}
    for name, file in names.items():
        np.save(folder / file, held[name].reshape(-1) if name == "targets" else held[name])
    nodes = held["layer_0.extents"][0]
    features = np.random.default_rng(1).standard_normal((nodes, held["layer_0.weight"].shape[0]), np.float32)
    np.save(folder / "features", features)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    import veltair
    from veltair.machine.environment import describe_environment
    from veltair.machine.topology import usable_machine
    from veltair.zoo.registry import write

    found: dict[str, Any] = {"environment": asdict(describe_environment()), "bar": 1.5}
    cores = len(usable_machine().cores)
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch) / "gcn.onnx"
        write("gcn", model)
        if not options.artifact.is_dir():
            veltair.compile(model, options.artifact, precision="fp32")
        write_arrays(Path(scratch), model)
        features = np.load(Path(scratch) / "features.npy")
        torch = TorchConvolution(options.torch, Path(scratch)) if options.torch else None
        found["peers"] = torch.versions if torch else {}
        for threads in sorted({1, cores}):
            turns: list[dict[str, float]] = []
            with veltair.load(options.artifact, threads=threads) as served:
                for _ in range(ROUNDS):
                    turn = {"veltair": timed(lambda run=served: run(features), BUDGET_S)}  # type: ignore[misc]
                    turns.append(turn | (torch.measure(threads) if torch else {}))
                logits = next(iter(served(features).values()))
            for name in turns[0].keys() - {"veltair"}:
                other = np.load(Path(scratch) / f"{name}.logits.npy")
                found.setdefault("errors", {})[name] = float(np.abs(logits - other).max() / np.abs(other).max())
                assert found["errors"][name] < 1e-4, f"{name}: other logits"
            ms = {name: float(np.median([turn[name] for turn in turns])) for name in turns[0]}
            found[f"{threads} threads"] = {"ms": ms, "gain": {n: t / ms["veltair"] for n, t in ms.items()}}
            print(f"{threads} threads:", *(f"{name} {value:.1f} ms" for name, value in ms.items()), flush=True)
        if torch:
            torch.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--artifact", type=Path, default=Path("gcn-fp32"))
    parser.add_argument("--torch", metavar="PYTHON", help="a Python with torch, and perhaps torch-geometric")
    parser.add_argument("--json", type=result_path)
    parser.add_argument("--peer", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        peer(options.peer)
        return
    found = measure(options)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
