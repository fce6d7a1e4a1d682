"""A DIEN trained on our operators learns what it learns on torch's, and is served on kernels of ours."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import veltair
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower

torch = pytest.importorskip("torch", reason="torch is not installed: operators for training are not tried")
pytest.importorskip("onnxscript", reason="onnxscript is not installed: no trained model is exported")

from bench.recsys.training_step.dien import Trainer, draw_batch  # noqa: E402
from veltair.training import EmbeddingBag, Gru, RowWiseAdagrad, concat_sum, one_hot_sum  # noqa: E402

ROWS = {"users": 50, "items": 40, "categories": 10}
STEPS, TRAINED, HELD_OUT = 6, 40, 6000


def through_text(batch: tuple[Any, ...], path: Path) -> tuple[Any, ...]:
    """A batch written and read as amz-DIEN's lines are: click, user, item, category, and histories split by \\x02."""
    with path.open("w") as file:
        for user, item, category, items, categories, click in zip(*(each.tolist() for each in batch), strict=True):
            texts = ("\x02".join(map(str, filter(None, history))) for history in (items, categories))
            file.write("\t".join([str(int(click)), str(user), str(item), str(category), *texts]) + "\n")
    table = [line.rstrip("\n").split("\t") for line in path.read_text().splitlines()]
    found = [torch.tensor([int(row[column]) for row in table]) for column in (1, 2, 3)]
    for column in (4, 5):
        ids = torch.zeros(len(table), STEPS, dtype=torch.int64)
        for row, values in enumerate(table):
            tokens = values[column].split("\x02")
            ids[row, : len(tokens)] = torch.tensor(list(map(int, tokens)))
        found.append(ids)
    return *found, torch.tensor([float(row[0]) for row in table])


def area_under_curve(scores: Any, clicks: Any) -> float:
    ranks = np.argsort(np.argsort(scores)) + 1
    positive = clicks.sum()
    return float((ranks[clicks > 0].sum() - positive * (positive + 1) / 2) / (positive * (len(clicks) - positive)))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("rows") / "train.tsv"
    batches = [through_text(draw_batch(256, ROWS, seed, STEPS), path) for seed in range(TRAINED)]
    trainers, threads = {}, torch.get_num_threads()
    torch.set_num_threads(1)  # torch's operators wait for each other's threads on a busy machine
    for engine in ("torch", "veltair"):
        trainers[engine] = Trainer(engine, ROWS)
        for batch in batches:
            trainers[engine].step(batch)
        trainers[engine].network.eval()
    torch.set_num_threads(threads)
    return trainers


def test_it_learns_as_much_as_on_operators_of_torch(trained: dict[str, Any]) -> None:
    *features, clicks = draw_batch(HELD_OUT, ROWS, 1000, STEPS)
    with torch.no_grad():
        found = {e: area_under_curve(t.network(*features).numpy(), clicks.numpy()) for e, t in trained.items()}
    assert found["torch"] > 0.7
    assert abs(found["veltair"] - found["torch"]) < 0.001, found


def export(module: Any, arguments: tuple[Any, ...], path: Path, **options: Any) -> list[str]:
    """Writes a module; the names of its inputs."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of the exporters, about themselves
        torch.onnx.export(module.eval(), arguments, str(path), **options)
    return [value.name for value in onnx.load(path).graph.input]


def test_the_trained_network_becomes_layers_of_ours(trained: dict[str, Any], tmp_path: Path) -> None:
    *features, _ = draw_batch(4, ROWS, 0, STEPS)
    network, path, batch = trained["veltair"].network, tmp_path / "dien.onnx", torch.export.Dim("batch")
    shapes = tuple({0: batch} for _ in features)
    names = export(network, tuple(features), path, dynamo=True, dynamic_shapes=shapes, verbose=False)
    session = onnxruntime.InferenceSession(path)
    (answer,) = session.run(None, {name: tensor.numpy() for name, tensor in zip(names, features, strict=True)})
    with torch.no_grad():
        np.testing.assert_allclose(answer, network(*features).numpy(), rtol=1e-4, atol=1e-5)
    layers = [layer.op for layer in lower(load_model(path, 4), "fp32").layers]
    assert layers.count("recurrent") == 2 and layers.count("embedding_bag") + layers.count("lookups") >= 2, layers
    assert "onnxruntime" not in layers


class WideAndDeep(torch.nn.Module):
    """Bags of any length, a count of tags, a GRU and a sum over concatenated tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.clicks = EmbeddingBag(50, 16, optimizer=RowWiseAdagrad())
        self.items, self.gru, self.top = EmbeddingBag(30, 8), Gru(8, 8), torch.nn.Linear(16 + 8 + 8 + 6, 1)

    def forward(self, clicks: Any, offsets: Any, items: Any, tags: Any) -> Any:
        rows = self.items(items.reshape(-1, 1)).reshape(-1, 4, 8)
        states = self.gru(rows)[0]
        total = concat_sum([rows, states], 1)
        parts = [self.clicks(clicks, offsets), total, states[:, -1], one_hot_sum(tags, 6)]
        return torch.sigmoid(self.top(torch.cat(parts, 1)))


def test_bags_of_any_length_are_served_on_kernels_of_ours(tmp_path: Path) -> None:
    torch.manual_seed(0)
    ids = torch.randint(0, 50, (9,)), torch.tensor([0, 2, 2, 5])
    arguments = *ids, torch.randint(0, 30, (4, 4)), torch.randint(-1, 6, (4, 3))
    names, batch, path = ["clicks", "offsets", "items", "tags"], {0: "batch"}, tmp_path / "wide.onnx"
    axes = {**dict.fromkeys([*names, "score"], batch), "clicks": {0: "ids"}}
    module = WideAndDeep()
    export(module, arguments, path, dynamo=False, input_names=names, output_names=["score"], dynamic_axes=axes)
    artifact = veltair.compile(path, tmp_path / "wide", trials=0, precision="fp32")
    layers = [layer.op for layer in artifact.manifest.layers]
    assert "lookups" in layers and "recurrent" in layers and "onnxruntime" not in layers, layers
    with veltair.load(artifact) as model, torch.no_grad():
        answer = model({name: tensor.numpy() for name, tensor in zip(names, arguments, strict=True)})["score"]
        np.testing.assert_allclose(answer, module(*arguments).numpy(), rtol=1e-4, atol=1e-5)
