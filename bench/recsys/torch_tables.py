"""torch and FBGEMM on the tables of `bench.recsys.ember`, in a Python of their own.

    python -m bench.recsys.torch_tables DIR

Prints the versions, then answers each line "SHAPE THREADS" with medians in ms and the sum of all outputs. On several
threads, each engine also gets a request for each thread at once (`bench.at_once`).
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.at_once import time_at_once
from bench.paths import ROOT
from bench.recsys.embedding_tables import SHAPES, in_turn, timed


class TorchProcess:
    """torch and FBGEMM in a Python of their own."""

    def __init__(self, python: str, folder: Path) -> None:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        command = [python, "-m", "bench.recsys.torch_tables", str(folder.resolve())]
        self._process = subprocess.Popen(command, text=True, cwd=ROOT, **pipes)
        self.versions = self._ask("")
        self.total = 0.0

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin and self._process.stdout
        if line:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def measure(self, shape: int, threads: int) -> dict[str, float]:
        answer = self._ask(f"{shape} {threads}")
        self.total = answer.pop("total")
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def main() -> None:
    folder = Path(sys.argv[1])
    import fbgemm_gpu
    import torch
    from fbgemm_gpu.split_embedding_configs import SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode, EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_inference import IntNBitTableBatchedEmbeddingBagsCodegen

    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # the process that starts this one is pinned to one core
    memory = np.memmap(folder / "tables.bin", np.float32, "c")
    memory._mmap.madvise(mmap.MADV_HUGEPAGE)
    memory._mmap.madvise(22)  # MADV_POPULATE_READ
    runs: list[dict[str, Any]] = []
    for number, (tables, rows, dim, lookups, batch) in enumerate(SHAPES.values()):
        region = torch.from_numpy(memory[: tables * rows * dim])
        weights = region.view(tables, rows, dim)
        sets = [torch.from_numpy(some) for some in np.load(folder / f"ids{number}.npy")]
        each = torch.arange(0, batch * lookups, lookups)
        specs = [(f"t{t}", rows, dim, SparseType.FP32, EmbeddingLocation.HOST) for t in range(tables)]
        module = IntNBitTableBatchedEmbeddingBagsCodegen(
            specs, device="cpu", output_dtype=SparseType.FP32, bounds_check_mode=BoundsCheckMode.NONE
        )
        module.initialize_physical_weights_placements_and_offsets()
        module.initialize_logical_weights_placements_and_offsets()
        assert module.weights_offsets.tolist() == [t * rows * dim * 4 for t in range(tables)]
        module.weights_host, module.weight_initialized = region.view(torch.uint8), True
        module.host_size = region.numel() * 4
        all_offsets = torch.arange(0, tables * batch * lookups + 1, lookups)

        def torch_run(some: Any, weights: Any = weights, each: Any = each, tables: int = tables) -> Any:
            bag = torch.nn.functional.embedding_bag
            return [bag(some[t].view(-1), weights[t], each, mode="sum") for t in range(tables)]

        def fbgemm_run(some: Any, module: Any = module, offsets: Any = all_offsets) -> Any:
            return module(some.view(-1), offsets)

        runs.append({"torch": (torch_run, sets), "fbgemm": (fbgemm_run, sets)})
    versions = {"torch": torch.__version__, "fbgemm_gpu": fbgemm_gpu.__version__}
    print(json.dumps(versions), flush=True)

    def alone(run: Any, some: Any) -> Any:
        with torch.inference_mode():  # a thread's own setting
            return run(some)

    with torch.inference_mode():
        for line in sys.stdin:
            shape, threads = map(int, line.split())
            torch.set_num_threads(threads)
            answer = {}
            for name, (run, sets) in runs[shape].items():
                answer[name] = timed(in_turn(*(partial(run, some) for some in sets)), 0.3)
                if threads > 1:
                    torch.set_num_threads(1)
                    lanes = [in_turn(*(partial(alone, run, some) for some in sets)) for _ in range(threads)]
                    answer[f"{name}_at_once"] = time_at_once(lanes, 0.3)
                    torch.set_num_threads(threads)
            answer["total"] = sum(float(run(some).double().sum()) for some in sets)
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
