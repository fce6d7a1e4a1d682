"""Writes the models of this folder again, as ONNX text: `python export.py FOLDER`, with PyTorch and ONNX installed."""

import sys
import tempfile
from pathlib import Path

import onnx
import torch
from onnx import printer
from torch import nn

ROWS, WIDTH = 11, 4


class Bags(nn.Module):
    """One embedding bag and a dense layer."""

    def __init__(self, mode="sum", form="offsets"):
        super().__init__()
        self.bag = nn.EmbeddingBag(ROWS, WIDTH, mode=mode, include_last_offset=form in ("ends", "lengths"))
        self.top, self.form = nn.Linear(WIDTH, 2), form

    def forward(self, ids, bounds, weights=None):
        if self.form == "lengths":
            bounds = torch.cat([torch.zeros(1, dtype=torch.int64), torch.cumsum(bounds, 0)])
        return self.top(self.bag(ids, bounds, weights))


class Ranker(nn.Module):
    """Two tables of one list of ids, a third one, and dense features."""

    def __init__(self):
        super().__init__()
        self.wide, self.deep = nn.EmbeddingBag(ROWS, 1, mode="sum"), nn.EmbeddingBag(ROWS, WIDTH, mode="mean")
        self.other, self.bottom, self.top = nn.EmbeddingBag(7, WIDTH, mode="sum"), nn.Linear(3, 4), nn.Linear(12, 1)

    def forward(self, clicks, click_offsets, tags, tag_offsets, dense):
        parts = self.deep(clicks, click_offsets), self.other(tags, tag_offsets), torch.relu(self.bottom(dense))
        return self.top(torch.cat(parts, 1)) + self.wide(clicks, click_offsets)


IDS, OFFSETS = torch.tensor([3, 1, 4, 1, 5]), torch.tensor([0, 2, 2])
MODELS = {
    "sum": (Bags(), (IDS, OFFSETS), ("ids", "offsets")),
    "mean": (Bags("mean"), (IDS, OFFSETS), ("ids", "offsets")),
    "weighted": (Bags(), (IDS, OFFSETS, torch.rand(5)), ("ids", "offsets", "weights")),
    "ends": (Bags("mean", "ends"), (IDS, torch.tensor([0, 2, 2, 5])), ("ids", "ends")),
    "lengths": (Bags(form="lengths"), (IDS, torch.tensor([2, 0, 3])), ("ids", "lengths")),
    "greatest": (Bags("max"), (IDS, OFFSETS), ("ids", "offsets")),
    "ranker": (
        Ranker(),
        (IDS, OFFSETS, torch.tensor([6, 5, 0, 2]), torch.tensor([0, 1, 4]), torch.rand(3, 3)),
        ("clicks", "click_offsets", "tags", "tag_offsets", "dense"),
    ),
}
OWN = {"ids": "n", "weights": "n", "clicks": "clicks_n", "tags": "tags_n", "ends": "batch_and_one"}


def export(name, folder, dynamo):
    model, arguments, names = MODELS[name]
    path = Path(folder) / "model.onnx"
    common = {"input_names": list(names), "output_names": ["y"]}
    if dynamo:
        shapes = tuple({0: torch.export.Dim.DYNAMIC} for _ in arguments)
        torch.onnx.export(
            model.eval(), arguments, str(path), dynamo=True, dynamic_shapes=shapes, external_data=False, **common
        )
    else:
        axes = {each: {0: OWN.get(each, "batch")} for each in (*names, "y")}
        torch.onnx.export(
            model.eval(), arguments, str(path), dynamo=False, dynamic_axes=axes, opset_version=17, **common
        )
    return onnx.load(str(path))


def nodes_of(graph):
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            yield from nodes_of(attribute.g)


if __name__ == "__main__":
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as scratch:
        for name in MODELS:
            for exporter in ("torchscript", "dynamo"):
                proto = export(name, scratch, exporter == "dynamo")
                del proto.metadata_props[:], proto.graph.metadata_props[:]
                for node in nodes_of(proto.graph):
                    del node.metadata_props[:]
                    node.ClearField("doc_string")
                for value in (*proto.graph.value_info, *proto.graph.input, *proto.graph.output):
                    del value.metadata_props[:]
                (Path(sys.argv[1]) / f"{name}.{exporter}.txt").write_text(printer.to_text(proto))
