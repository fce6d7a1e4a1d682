"""Joining nodes whose shapes cannot be told: the graph stays the same function, in an order that works."""

from __future__ import annotations

from dataclasses import dataclass

import onnx
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from veltair.compiler.onnx.constants import captured_names, read_names
from veltair.compiler.onnx.folding.opaque_nodes import body_nodes, is_opaque, join_opaque


@dataclass(frozen=True)
class Graph:
    nodes: list[onnx.NodeProto]
    opaque: dict[str, str]
    computed: set[str]
    outputs: set[str]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Nodes `t1 = Op(earlier, …)` over one input; some tensors opaque, and none of these an output."""
    count = draw(st.integers(1, 12))
    nodes = []
    for i in range(1, count + 1):
        inputs = draw(st.lists(st.integers(0, i - 1), min_size=1, max_size=3))
        nodes.append(helper.make_node("Op", [f"t{j}" for j in inputs], [f"t{i}"], name=f"n{i}"))
    names = [f"t{i}" for i in range(1, count + 1)]
    opaque = draw(st.sets(st.sampled_from(names), min_size=1))
    rest = [name for name in names if name not in opaque]
    some = st.sets(st.sampled_from(rest)) if rest else st.just(set())
    return Graph(nodes, dict.fromkeys(sorted(opaque), "why"), draw(some), draw(some))


def terms(nodes: list[onnx.NodeProto]) -> dict[str, str]:
    """What each tensor is as an expression of the input; a KeyError where the order is wrong."""
    found = {"t0": "t0"}
    for node in nodes:
        if is_opaque(node):
            inside = {name: found[name] for name in node.input}
            for inner in body_nodes(node):
                inside[inner.output[0]] = f"{inner.name}({', '.join(inside[name] for name in inner.input)})"
            found |= {name: inside[name] for name in node.output}
        else:
            found[node.output[0]] = f"{node.name}({', '.join(found[name] for name in node.input)})"
    return found


@given(graphs())
def test_the_graph_computes_the_same(graph: Graph) -> None:
    known = {"t0", *(f"t{i}" for i in range(1, len(graph.nodes) + 1))} - graph.opaque.keys()
    joined = join_opaque(graph.nodes, graph.opaque, known, graph.computed, graph.outputs)
    before, after = terms(graph.nodes), terms(joined)
    assert all(after[name] == before[name] for name in graph.outputs)
    [one] = [node for node in joined if is_opaque(node)]
    assert not graph.opaque.keys() & {*one.input, *one.output}
    assert not graph.computed & set(one.input)
    names = sorted(node.name for each in joined for node in (body_nodes(each) if is_opaque(each) else [each]))
    assert names == sorted(node.name for node in graph.nodes)


def test_renamed_inputs_reach_the_body() -> None:
    """And nothing has their old name: another node may make that."""
    nodes = [helper.make_node("Op", ["t0"], ["t1"], name="n1"), helper.make_node("Op", ["t1"], ["t2"], name="n2")]
    [_, one] = join_opaque(nodes, {"t2": "why"}, {"t0", "t1", "t2"}, set(), {"t2"})
    one.input[0] = "t0"
    assert terms([one])["t2"] == "n2(t0)"
    assert read_names(one) == {"t0"}


def test_what_a_body_captures_is_not_its_own() -> None:
    inner = helper.make_graph(
        [helper.make_node("Op", ["own", "made"], ["result"]), helper.make_node("Op", ["outside"], ["made"])],
        "inner",
        [onnx.ValueInfoProto(name="own")],
        [onnx.ValueInfoProto(name="result"), onnx.ValueInfoProto(name="passed")],
    )
    outer = helper.make_graph(
        [helper.make_node("Loop", ["count"], ["last"], body=inner)],
        "outer",
        [onnx.ValueInfoProto(name="count")],
        [onnx.ValueInfoProto(name="last")],
    )
    assert captured_names(helper.make_node("If", ["condition"], ["y"], then_branch=outer)) == {"outside", "passed"}
