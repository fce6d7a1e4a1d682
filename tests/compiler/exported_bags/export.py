"""Writes models of this folder again, as ONNX text: `python export.py FOLDER [NAME …]`, with PyTorch and ONNX."""

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


class Padded(nn.Module):
    """Bags of one list of ids that leave out different ids."""

    def __init__(self, modes=("mean", "max", "sum"), paddings=(2, 3, 4)):
        super().__init__()
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(ROWS, WIDTH, mode=mode, padding_idx=padding)
            for mode, padding in zip(modes, paddings, strict=True)
        )
        self.top = nn.Linear(WIDTH * len(modes), 2)

    def forward(self, ids, offsets=None, weights=None):
        parts = [bag(ids, offsets, weights if bag.mode == "sum" else None) for bag in self.bags]
        return self.top(torch.tanh(torch.cat(parts, 1)))


class Keyed(nn.Module):
    """`EmbeddingBagCollection`'s way with a `KeyedJaggedTensor`: the values of all features, then lengths of each."""

    def __init__(self, mode="mean", split=False):
        super().__init__()
        tables = ((0, ROWS, "sum"), (1, 7, mode), (3, 5, "sum"), (0, ROWS, "sum"))
        self.features, self.of, self.split = 4, [feature for feature, _, _ in tables], split
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(rows, WIDTH, mode=mode, include_last_offset=True) for _, rows, mode in tables
        )
        self.top = nn.Linear(WIDTH * len(tables) + 3, 1)

    def cut(self, values, totals):
        if self.split:
            return torch.split(values, totals.tolist())
        ends = torch.cat([torch.zeros(1, dtype=torch.int64), torch.cumsum(totals, 0)])
        return [values[ends[feature] : ends[feature + 1]] for feature in range(self.features)]

    def forward(self, values, lengths, dense, weights=None):
        own = lengths.view(self.features, -1)
        parts, factors = self.cut(values, own.sum(1)), None
        if weights is not None:
            factors = self.cut(weights, own.sum(1))
        found = [dense]
        for feature, bag in zip(self.of, self.bags, strict=True):
            offsets = torch.cat([torch.zeros(1, dtype=torch.int64), torch.cumsum(own[feature], 0)])
            found.append(bag(parts[feature], offsets, None if factors is None else factors[feature]))
        return self.top(torch.cat(found, 1))


IDS, OFFSETS = torch.tensor([3, 1, 4, 1, 5]), torch.tensor([0, 2, 2])
KEYED, LENGTHS = torch.tensor([1, 2, 3, 4, 0, 6, 5, 1, 1, 2]), torch.tensor([2, 0, 3, 1, 1, 1, 0, 2])
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
    "padded": (Padded(), (IDS, OFFSETS), ("ids", "offsets")),
    "matrix": (
        Padded(("mean", "max", "sum"), (None, None, None)),
        (IDS[:4].reshape(2, 2), None, torch.rand(2, 2)),
        ("ids", "weights"),
    ),
    "matrix_padded": (Padded(), (IDS[:4].reshape(2, 2),), ("ids",)),
    "keyed": (Keyed(), (KEYED, LENGTHS, torch.rand(2, 3)), ("values", "lengths", "dense")),
    "keyed_weighted": (
        Keyed("sum"),
        (KEYED, LENGTHS, torch.rand(2, 3), torch.rand(10)),
        ("values", "lengths", "dense", "weights"),
    ),
    "keyed_split": (Keyed(split=True), (KEYED, LENGTHS, torch.rand(2, 3)), ("values", "lengths", "dense")),
}
ONE_EXPORTER = {  # the older one refuses padding and writes splits as constants; the newer one cannot compare two cuts
    **dict.fromkeys(("padded", "matrix_padded", "keyed_split"), "dynamo"),
    "keyed_weighted": "torchscript",
}
OWN = {
    "ids": "n",
    "weights": "n",
    "clicks": "clicks_n",
    "tags": "tags_n",
    "ends": "batch_and_one",
    "values": "values_n",
}


def export(name, folder, dynamo):
    model, arguments, names = MODELS[name]
    path = Path(folder) / "model.onnx"
    common = {"input_names": list(names), "output_names": ["y"]}
    if dynamo:
        shapes = tuple(None if each is None else {0: torch.export.Dim.DYNAMIC} for each in arguments)
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
        for name in sys.argv[2:] or MODELS:
            for exporter in ONE_EXPORTER.get(name, "torchscript dynamo").split():
                proto = export(name, scratch, exporter == "dynamo")
                del proto.metadata_props[:], proto.graph.metadata_props[:]
                for node in nodes_of(proto.graph):
                    del node.metadata_props[:]
                    node.ClearField("doc_string")
                for value in (*proto.graph.value_info, *proto.graph.input, *proto.graph.output):
                    del value.metadata_props[:]
                (Path(sys.argv[1]) / f"{name}.{exporter}.txt").write_text(printer.to_text(proto))
