"""The plan of the arena, checked byte by byte: who may write where, and when."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from veltair.compiler.arena import Arena, plan_arena
from veltair.compiler.graph.layer_graph import LayerGraph, Slice
from veltair.compiler.graph.layer_spec import Activation, Halo, LayerSpec
from veltair.profiles.artifact.manifest import ALIGNMENT, SLACK_BYTES, Port

BATCHES = st.sampled_from((1, 3))


def layer(name: str, inputs: list[Activation], outputs: list[Activation]) -> LayerSpec:
    return LayerSpec(name, "op", tuple(inputs), tuple(outputs), {}, 0)


def port(tensor: Activation) -> Port:
    return Port(tensor.name, tensor.dtype, tensor.shape)


@st.composite
def activations(draw: st.DrawFn, name: str) -> Activation:
    if draw(st.booleans()):
        return Activation(name, "float32", (-1, draw(st.integers(1, 90))))
    dtype, block = draw(st.sampled_from((("float32", 16), ("uint16", 32), ("uint16", 3))))
    side = st.sampled_from((0, 1))
    halo = Halo(draw(side), draw(side), draw(side), draw(side))
    size = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    return Activation(name, dtype, (-1, draw(st.integers(1, 3)) * block, *size), block, halo)


@st.composite
def graphs(draw: st.DrawFn) -> LayerGraph:
    """Each layer reads up to three tensors that were there before, and gives one or two new ones."""
    source = Activation("in", "float32", (-1, 8))
    known, layers = [source], []
    for index in range(draw(st.integers(1, 10))):
        inputs = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True))
        outputs = [draw(activations(f"t{index}_{i}")) for i in range(draw(st.integers(1, 2)))]
        layers.append(layer(f"l{index}", inputs, outputs))
        known += outputs
    named = {tensor.name: tensor for tensor in known}
    return LayerGraph(tuple(layers), {}, {}, named, (port(source),), (port(known[-1]),), draw(BATCHES))


def bytes_of(arena: Arena, tensor: Activation, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Where in the arena a tensor's bytes lie: those of its content, and those of its halo."""
    shape = tensor.at(batch)
    item = np.dtype(tensor.dtype).itemsize
    places = arena.allocations[tensor.name].offset + np.arange(np.prod(shape) * item).reshape(*shape, item)
    inside = np.ones(places.shape, bool)
    if tensor.block:
        h, w = tensor.halo, np.zeros_like(inside)
        w[:, :, h.top : shape[2] - h.bottom, h.left : shape[3] - h.right] = True
        inside = w
    return places[inside], places[~inside]


def check(graph: LayerGraph) -> None:
    """Living tensors never overlap, and nobody ever writes into a halo."""
    arena = plan_arena(graph)
    last = {tensor.name: i for i, each in enumerate(graph.layers) for tensor in (*each.inputs, *each.outputs)}
    mine = {name for name, place in arena.allocations.items() if place.kind == "arena"}
    for batch in {1, graph.max_batch}:
        owner = np.full(arena.bytes, -1)
        halos = np.zeros(arena.bytes, bool)
        for tensor in graph.activations.values():
            if tensor.name in mine:
                content, halo = bytes_of(arena, tensor, batch)
                assert arena.allocations[tensor.name].offset % ALIGNMENT == 0
                assert max(*content, *halo, 0) < arena.bytes - SLACK_BYTES
                halos[halo] = True
        for index, each in enumerate(graph.layers):
            for tensor in each.outputs:
                if tensor.name not in mine:
                    continue
                content, halo = bytes_of(arena, tensor, batch)
                assert not halos[content].any()
                for place in (content, halo):
                    others = {int(label) for label in np.unique(owner[place]) if label >= index}
                    assert not others, f"{tensor.name} lies on a tensor that is needed until layer {max(others)}"
                owner[content] = owner[halo] = last[tensor.name]


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_any_graph(graph: LayerGraph) -> None:
    check(graph)


def chain(*tensors: Activation) -> LayerGraph:
    named = {tensor.name: tensor for tensor in tensors}
    layers = tuple(layer(b.name, [a], [b]) for a, b in pairwise(tensors))
    return LayerGraph(layers, {}, {}, named, (port(tensors[0]),), (port(tensors[-1]),), 1)


@given(st.lists(st.integers(1, 5), min_size=4, max_size=9))
def test_planes_that_end_between_two_boundaries(planes: list[int]) -> None:
    source, end = Activation("in", "float32", (1, 8)), Activation("out", "float32", (1, 8))
    halo = Halo(0, 1, 1, 1)
    tensors = [Activation(f"t{i}", "uint16", (1, 3 * n, 3, 3), 3, halo) for i, n in enumerate(planes)]
    graph = chain(source, *tensors, end)
    skipping = tuple(  # each reads the two before it
        replace(each, inputs=(*each.inputs, *before.inputs)) for before, each in pairwise(graph.layers)
    )
    check(replace(graph, layers=(graph.layers[0], *skipping)))


def test_tensors_with_the_same_planes_share_whatever_their_channels() -> None:
    source, end = Activation("in", "float32", (1, 8)), Activation("out", "float32", (1, 8))
    channels = (32, 128, 64, 16, 96)
    tensors = [Activation(f"c{c}", "float32", (1, c, 5, 5), 16, Halo(1, 1, 1, 1)) for c in channels]
    plane = 7 * 7 * 16 * 4
    assert plan_arena(chain(source, *tensors, end)).bytes == (128 + 64) // 16 * plane + SLACK_BYTES


def test_a_piece_of_a_concatenated_tensor_lies_in_it_and_keeps_it_alive() -> None:
    halo = Halo(1, 1, 1, 1)
    source, end = Activation("in", "float32", (1, 8)), Activation("out", "float32", (1, 8))
    whole = Activation("whole", "float32", (1, 48, 3, 3), 16, halo)
    a, b = (Activation(n, "float32", (1, c, 3, 3), 16, halo) for n, c in (("a", 32), ("b", 16)))
    between = Activation("between", "float32", (1, 16, 3, 3), 16, halo)
    layers = (
        layer("a", [source], [a]),
        layer("m", [source], [between]),
        layer("b", [between], [b]),
        layer("end", [whole], [end]),
    )
    named = {tensor.name: tensor for tensor in (source, end, whole, a, b, between)}
    slices = {"a": Slice("whole", 0), "b": Slice("whole", 2)}
    graph = LayerGraph(layers, {}, slices, named, (port(source),), (port(end),), 1)
    places, plane = plan_arena(graph).allocations, 5 * 5 * 16 * 4
    start = places["whole"].offset
    assert (places["a"].offset, places["b"].offset) == (start, start + 2 * plane)
    assert places["between"].offset not in range(start, start + 3 * plane)
