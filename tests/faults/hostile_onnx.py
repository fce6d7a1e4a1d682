"""Fifty hostile ONNX files, by name: each is made from a seed, small on disk, and must be refused in one line."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx_protos import I64, ONES, F, adding, external, model, node, port

BOOL, STRING = TensorProto.BOOL, TensorProto.STRING
BIG = 1 << 30  # elements of float32 that fill 4 GB
SEED = 1


def numbers(name: str, *values: int) -> TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def scalar(name: str, value: int) -> TensorProto:
    return numpy_helper.from_array(np.array(value, np.int64), name)


def chain(count: int, op: str = "Relu") -> list[NodeProto]:
    names = ["x", *(f"v{i}" for i in range(count - 1)), "y"]
    return [helper.make_node(op, [names[i]], [names[i + 1]], f"n{i}") for i in range(count)]


def computed(made: list[NodeProto], *constants: TensorProto) -> ModelProto:
    """A tensor `z` of float32 that no input decides, and that joins the input's way as one number."""
    return model([*made, node("ReduceMax", "z", "s", keepdims=0), node("Add", "x s", "y")], constants=constants)


def looping(trips: int) -> ModelProto:
    step = [
        helper.make_node("Identity", ["on"], ["on_"]),
        helper.make_node("Add", ["v", "v"], ["v_"]),
    ]
    ports = [port("i", (), I64), port("on", (), BOOL), port("v")]
    body = helper.make_graph(step, "body", ports, [port("on_", (), BOOL), port("v_")])
    loop = helper.make_node("Loop", ["trips", "", "x"], ["y"], "the Loop", body=body)
    return model([loop], constants=[scalar("trips", trips)])


def range_of_shape(x: tuple[str, tuple[int | str, ...]]) -> ModelProto:
    """As many numbers as the second extent of x times 2^38."""
    made = [
        *(node("Shape", "x", "s"), node("Gather", "s b", "extent"), node("Mul", "extent c", "limit")),
        *(node("Range", "a limit b", "r"), node("Cast", "r", "z", to=F)),
        *(node("ReduceMax", "z", "m", keepdims=0), node("Add", "x m", "y")),
    ]
    return model(made, [port(*x)], [port("y", x[1])], [scalar("a", 0), scalar("b", 1), scalar("c", 1 << 38)])


def recursive() -> ModelProto:
    """A function that calls itself."""
    proto = model([helper.make_node("Mine", ["x"], ["y"], "call", domain="my")], constants=[])
    own, theirs = helper.make_opsetid("my", 1), helper.make_opsetid("", 17)
    proto.opset_import.append(own)
    body = [helper.make_node("Mine", ["x"], ["y"], "again", domain="my")]
    proto.functions.append(helper.make_function("my", "Mine", ["x"], ["y"], body, [own, theirs]))
    return proto


def doubling(depth: int) -> ModelProto:
    """Functions that each call the one below twice: 2 to the power of `depth` nodes once they are inlined."""
    proto = model([helper.make_node(f"F{depth}", ["x"], ["y"], "call", domain="my")], constants=[])
    own, theirs = helper.make_opsetid("my", 1), helper.make_opsetid("", 17)
    proto.opset_import.append(own)
    for i in range(depth + 1):
        inside = [
            helper.make_node(f"F{i - 1}" if i else "Relu", [a], [b], domain="my" if i else "")
            for a, b in (("x", "h"), ("h", "y"))
        ]
        proto.functions.append(helper.make_function("my", f"F{i}", ["x"], ["y"], inside, [own, theirs]))
    return proto


def relu_of(shape: Any, out: Any = None, kind: int = F) -> ModelProto:
    return model([node("Relu", "x", "y")], [port("x", shape, kind)], [port("y", out, kind)])


def renamed(name: str, proto: ModelProto | None = None) -> ModelProto:
    made = proto or model([node("Frobnicate", "x", "y")])
    made.graph.node[0].name = made.graph.node[0].op_type = name
    return made


def altered(change: Callable[[ModelProto], object]) -> ModelProto:
    proto = adding(ONES)
    change(proto)
    return proto


def cut(share: float) -> bytes:
    data = adding(ONES).SerializeToString()
    return data[: int(len(data) * share)]


def noisy(seed: int) -> bytes:
    """A model of which a tenth of the bytes are others."""
    data, chance = bytearray(adding(ONES).SerializeToString()), random.Random(seed)
    for _ in range(len(data) // 10):
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


def groups(depth: int) -> bytes:
    """Nested groups of protobuf's wire format, which a recursive parser follows."""
    return b"\x0b" * depth


GOOD_BOOL = port("c", (), BOOL)
HOSTILE: dict[str, Callable[[], ModelProto | bytes]] = {
    "nothing": lambda: b"",
    "noise": lambda: random.Random(SEED).randbytes(1 << 16),
    "a tenth changed": lambda: noisy(SEED),
    "cut at half": lambda: cut(0.5),
    "cut at nine tenths": lambda: cut(0.9),
    "a million nested groups": lambda: groups(1 << 20),
    "a length of 4 GB": lambda: b"\x3a\xff\xff\xff\xff\x0f" + cut(0.9),
    "a script": lambda: b"#!/bin/sh\nexit 0\n",
    "a pickle": lambda: b"\x80\x04\x95\x1e\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
    "a cycle": lambda: model([node("Add", "x b", "a"), node("Add", "a w", "y"), node("Relu", "y", "b")]),
    "a node that reads itself": lambda: model([node("Add", "x y", "y")]),
    "a missing initializer": lambda: model([node("Add", "x gone", "y")]),
    "a dangling output": lambda: model([node("Relu", "x", "y")], outputs=[port("elsewhere")]),
    "an output twice": lambda: model([node("Relu", "x", "y"), node("Abs", "x", "y")]),
    "an input twice": lambda: model([node("Add", "x x", "y")], [port("x"), port("x")]),
    "an initializer twice": lambda: model([node("Add", "x w", "y")], constants=[ONES, ONES]),
    "no node": lambda: model([], constants=[]),
    "no output": lambda: altered(lambda p: p.graph.ClearField("output")),
    "no operator set": lambda: altered(lambda p: p.ClearField("opset_import")),
    "operator set -1": lambda: model([node("Relu", "x", "y")], opset=-1),
    "operator set 2^62": lambda: model([node("Relu", "x", "y")], opset=1 << 62),
    "version 2^62": lambda: altered(lambda p: setattr(p, "ir_version", 1 << 62)),
    "an unknown operator": lambda: model([node("Frobnicate", "x", "y")]),
    "a foreign domain": lambda: model([node("Foo", "x", "y", domain="com.evil")]),
    "a Python operator": lambda: model([node("PyOp", "x", "y", domain="pyopmulti", module="os", method="system")]),
    "a name of a megabyte": lambda: renamed("n" * (1 << 20)),
    "a name of control characters": lambda: renamed("\x1b[2J\x1b]0;owned\x07\r\n\x00veltair: all is well"),
    "a name of a megabyte of escapes": lambda: renamed("\u202e\x1b" * (1 << 18)),
    "data in /etc/passwd": lambda: adding(external([2, 4], location="/etc/passwd")),
    "data above the folder": lambda: adding(external([2, 4], location="../../../../etc/passwd")),
    "data in a device": lambda: adding(external([2, 4], location="/dev/zero", length=32)),
    "data beyond its file": lambda: adding(external([2, 4], location="model.onnx", offset=1 << 62, length=32)),
    "data that is too short": lambda: adding(TensorProto(name="w", data_type=F, dims=[2, 4], raw_data=b"abcd")),
    "data of a type that is none": lambda: adding(TensorProto(name="w", data_type=99, dims=[2, 4], raw_data=b"abcd")),
    "dimensions that overflow": lambda: adding(TensorProto(name="w", data_type=F, dims=[1 << 62, 4, 1 << 62])),
    "a negative dimension": lambda: adding(TensorProto(name="w", data_type=F, dims=[-2, -4], raw_data=b"\0" * 32)),
    "an input of 2^80 numbers": lambda: relu_of((1 << 40, 1 << 40)),
    "an input of a negative size": lambda: relu_of((2, -4)),
    "an input of no size": lambda: relu_of((2, 0)),
    "an input of strings": lambda: model(
        [node("Identity", "x", "y")], [port("x", kind=STRING)], [port("y", None, STRING)]
    ),
    "shapes that contradict": lambda: model([node("Add", "x w", "y")], [port("x", (3, 5))], [port("y", None)]),
    "an If without branches": lambda: model([helper.make_node("If", ["c"], ["y"])], [port("x"), GOOD_BOOL]),
    "a loop of 2^40 turns": lambda: looping(1 << 40),
    "a function that calls itself": recursive,
    "functions that double 40 times": lambda: doubling(40),
    "a range of 2^31": lambda: computed(
        [node("Range", "a b c", "r"), node("Cast", "r", "z", to=F)],
        scalar("a", 0),
        scalar("b", 1 << 31),
        scalar("c", 1),
    ),
    "a range of 10^12 from a shape": lambda: range_of_shape(("x", (2, 4))),
    "a range of 10^12 beside a batch": lambda: range_of_shape(("x", ("n", 4))),
    "a constant of 8 GB": lambda: computed([node("ConstantOfShape", "k", "z")], numbers("k", 2, BIG)),
    "a tile of 8 GB": lambda: computed([node("Tile", "w k", "z")], ONES, numbers("k", 1 << 14, 1 << 14)),
    "an expansion of 8 GB": lambda: computed(
        [node("Expand", "w k", "z")], numpy_helper.from_array(np.ones((1, 1), np.float32), "w"), numbers("k", 2, BIG)
    ),
    "a computed size of 4 GB": lambda: computed(
        [node("Mul", "k k", "kk"), node("ConstantOfShape", "kk", "z")], numbers("k", 1 << 7, 1 << 8)
    ),
    "a size that no inference follows": lambda: computed(
        [node("ReduceProd", "k", "kk", keepdims=1), node("ConstantOfShape", "kk", "z")], numbers("k", 1 << 15, 1 << 16)
    ),
    "a range that no inference follows": lambda: computed(
        [node("ReduceProd", "k", "b", keepdims=0), node("Range", "a b c", "r"), node("Cast", "r", "z", to=F)],
        *(scalar("a", 0), scalar("c", 1), numbers("k", 1 << 15, 1 << 16)),
    ),
    "100,000 nodes in a chain": lambda: model([*chain(100_000)[:-1], node("Frobnicate", "v99998", "y")]),
    "a max_batch of 10^8": lambda: _with_batch("100000000"),
}


def _with_batch(stated: str) -> ModelProto:
    proto = model([node("Relu", "x", "y")], [port("x", ("n", 1 << 16))], [port("y", ("n", 1 << 16))])
    helper.set_model_props(proto, {"veltair.max_batch": stated})
    return proto
