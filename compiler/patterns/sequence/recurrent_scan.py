"""A Scan whose body is a gated recurrent unit: GRU as some exporters write it, and AUGRU, which has no operator."""

from __future__ import annotations

import onnx

from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.graph.parameters.sequence import SequenceOrder
from veltair.compiler.onnx.node_attributes import attribute
from veltair.compiler.patterns.sequence.gated_cell import read_cell
from veltair.compiler.patterns.sequence.recurrence_match import RecurrenceMatch, initial_state, is_read
from veltair.errors import ModelError


def match_scan(node: onnx.NodeProto, view: ModelView) -> RecurrenceMatch:
    where = f"node {node.name!r}: Scan"
    body, count = attribute(node, "body", None), attribute(node, "num_scan_inputs", 0)
    given = list(node.input[-count:])
    axes = set(attribute(node, "scan_input_axes", [0] * count))
    places = attribute(node, "scan_output_axes", [0] * (len(node.output) - 1))
    backward = any((*attribute(node, "scan_input_directions", []), *attribute(node, "scan_output_directions", [])))
    if len(node.input) != count + 1 or backward or len(axes) != 1 or not {*axes, *places} <= {0, 1}:
        raise ModelError(f"{where} is not supported; expected one state, all inputs along one axis, 0 or 1, forward")
    shapes = [view.shape_of(name) for name in given]
    if any(len(shape) != 3 for shape in shapes) or len(view.shape_of(node.input[0])) != 2:
        raise ModelError(f"{where} is not supported; expected a state (rows, units) and inputs (rows, steps, width)")
    names = [value.name for value in body.input]
    widths = dict(zip(names, (view.shape_of(node.input[0])[1], *(shape[2] for shape in shapes)), strict=True))
    inside = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in body.initializer}
    try:
        cell = read_cell(body, widths, {**view.constants, **inside})
    except LookupError as reason:
        raise ModelError(
            f"{where} is not supported: expected the body of a gated recurrent unit, but {reason.args[0]}"
        ) from None
    outside = dict(zip(names[1:], given, strict=True))
    last, *stacked = node.output
    states = [(n, p) for n, p, o in zip(stacked, places, body.output[1:], strict=True) if o.name in cell.states]
    read = [(name, place) for name, place in states if is_read(name, view)]
    unknown = [n for n in stacked if is_read(n, view) and n not in dict(read)]
    if unknown or len({place for _, place in read}) > 1:
        raise ModelError(f"{where} is not supported: its outputs are not all the states of the unit along one axis")
    order = ("rows", "steps") if not read or read[0][1] else ("steps", "rows")
    return RecurrenceMatch(
        outside[cell.x],
        SequenceOrder.ROWS_FIRST if axes == {1} else SequenceOrder.STEPS_FIRST,
        cell.reset,
        cell.weights,
        scores=outside[cell.score] if cell.score else "",
        initial=initial_state(node.input[0], view),
        states=tuple(name for name, _ in read),
        last=last if is_read(last, view) else "",
        states_axes=(*order, "hidden"),
    )
