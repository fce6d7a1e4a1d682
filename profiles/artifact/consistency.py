"""Checks of a manifest against itself: no tensor that a kernel is given lies outside of the memory there is."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat
from math import prod

from veltair.profiles.artifact.dynamic_dimension import EXTENT_INPUT, DynamicDimension
from veltair.profiles.artifact.expected_answer import positions
from veltair.profiles.artifact.manifest import ITEM_BYTES, Buffer, Manifest, Port


def find_inconsistency(m: Manifest, weights_bytes: int) -> str:
    """The first fault of a manifest, as a message; empty when there is none."""
    own = chain(_packed_buffers(m), _sizes(m), _buffers(m, weights_bytes), _layers(m), _answer(m), _ragged(m))
    return next(chain(own, _dimension(m, weights_bytes)), "")


def _sizes(m: Manifest) -> Iterator[str]:
    if not m.batches or m.batches[-1] != m.max_batch or list(m.batches) != sorted(set(m.batches)):
        yield f"batches {m.batches} do not ascend to max_batch {m.max_batch}"
    if not m.levels or m.levels[0] != 1.0 or list(m.levels) != sorted(set(m.levels)):
        yield f"levels {m.levels} do not ascend from 1.0"
    if m.level_sources and len(m.level_sources) != len(m.levels):
        yield f"{len(m.level_sources)} level_sources for {len(m.levels)} levels"
    for port in m.outputs:
        if port.room < 0 or (port.room > 0) != (0 in port.shape):
            yield f"output {port.name} of shape {list(port.shape)} has room for {port.room} elements"
    unknown = (
        {b.dtype for b in m.buffers} | {p.dtype for p in (*m.input_tensors, *m.output_tensors)}
    ) - ITEM_BYTES.keys()
    if unknown:
        yield f"unknown dtype {', '.join(sorted(unknown))}; expected one of {', '.join(ITEM_BYTES)}"


def _buffers(m: Manifest, weights_bytes: int) -> Iterator[str]:
    """Kernels take the whole tensor of a port, and write no further."""
    ends = {
        "input": len(m.input_tensors),
        "output": len(m.output_tensors),
        "arena": m.arena_bytes,
        "weight": weights_bytes,
    }
    ports = {"input": m.input_tensors, "output": m.output_tensors}
    for i, b in enumerate(m.buffers):
        size = b.bytes_at(m.max_batch) if b.kind in ("weight", "arena") else 1
        if b.offset < 0 or b.offset + size > ends[b.kind]:
            yield f"buffer {i} ({b.kind}) ends at {b.offset + size}, past {ends[b.kind]}"
        elif b.kind in ports:
            port = ports[b.kind][b.offset]
            whole = Buffer(b.kind, port.dtype, port.shape, b.offset)
            if b.dtype != port.dtype or any(b.bytes_at(n) != whole.bytes_at(n) for n in (1, m.max_batch)):
                yield f"buffer {i} is {b.dtype} {list(b.shape)}, {b.kind} {port.name} {port.dtype} {list(port.shape)}"


def _packed_buffers(m: Manifest) -> Iterator[str]:
    """Inputs lie in packed buffers one after the other, without gaps: `InputLayout.merge` copies runs of them."""
    buffers = m.packed_buffers
    ends = [0] * len(buffers)
    for buffer in buffers:
        if len(buffer.shape) != 1 or buffer.shape[0] >= 0:
            where = f"packed buffer {buffer.name} has shape {list(buffer.shape)}"
            yield f"{where}; expected one dimension that grows with the batch"
            return
    for p in m.inputs:
        if not p.locations and p.dtype != "string":
            continue
        text = p.dtype == "string"
        sizes = (*p.shape[1:], p.max_bytes) if text else p.shape[1:]
        if p.shape[:1] != (-1,) or len(p.shape) != 2 or min(sizes) < 1:
            yield f"input {p.name} has shape {list(p.shape)} and {p.max_bytes} bytes; no packed buffer holds that"
            return
        wanted = ("int32", "uint8") if text else (p.dtype,)
        found = tuple(buffers[at.buffer].dtype for at in p.locations if 0 <= at.buffer < len(buffers))
        if found != wanted:
            expected = f"expected packed buffers of {' and '.join(wanted)}"
            yield f"input {p.name} is {p.dtype}; {expected}, found {' and '.join(found)}"
            return
        for at, size in zip(p.locations, sizes, strict=True):
            if at.start != ends[at.buffer]:
                yield f"input {p.name} begins at {at.start} of packed buffer {at.buffer}, expected {ends[at.buffer]}"
            ends[at.buffer] += size
    for buffer, end in zip(buffers, ends, strict=True):
        if end != -buffer.shape[0]:
            yield f"inputs fill {end} of packed buffer {buffer.name}, which holds {-buffer.shape[0]}"


def _layers(m: Manifest) -> Iterator[str]:
    batches, levels = len(m.batches), len(m.levels)
    for layer in m.layers:
        if not layer.versions:
            yield f"layer {layer.name} has no code version"
        indices = [*layer.inputs, *layer.outputs, *(a for v in layer.versions for a in v.arguments)]
        if any(not 0 <= index < len(m.buffers) for index in indices):
            yield f"layer {layer.name} names a buffer that does not exist"
        if len(layer.flops) != batches or len(layer.bytes) != batches:
            yield f"layer {layer.name} has not one FLOP and byte count for each batch"
        for v in layer.versions:
            if len(v.latency_ns) != batches or any(len(rows) != levels for rows in v.latency_ns):
                yield f"layer {layer.name}: latency table of {v.symbol} is not (batches, levels, cores)"
            widths = {len(row) for rows in v.latency_ns for row in rows}
            if len(widths) != 1 or 0 in widths:
                yield f"layer {layer.name}: latency rows of {v.symbol} differ in length"


def _answer(m: Manifest) -> Iterator[str]:
    if m.answer is None:
        return
    if len(m.answer.outputs) != len(m.output_tensors):
        yield f"the answer has {len(m.answer.outputs)} outputs, the model {len(m.output_tensors)}"
        return
    for port, output in zip(m.output_tensors, m.answer.outputs, strict=True):
        count = len(positions(prod(port.at(1))))
        if len(output.values) != count:
            yield f"the answer has {len(output.values)} values of output {port.name}, expected {count}"


def _ragged(m: Manifest) -> Iterator[str]:
    """Clients' bags are brought into inputs of these types and shapes."""
    ports = {port.name: port for port in m.inputs}
    if any(
        not each.used
        or each.features < 1
        or not 0 <= min(each.used) <= max(each.used) < each.features
        or len(set(each.used)) < len(each.used)
        for each in m.ragged
    ):
        yield f"the bags of {', '.join(each.ids for each in m.ragged)} are of features that there are not"
        return
    names = [name for each in m.ragged for name in each.rows]
    bounds = {each.bounds for each in m.ragged}
    if len(set(names)) != len(names) or bounds & (ports.keys() | set(names)):
        yield f"the bags of {', '.join(each.ids for each in m.ragged)} have inputs in common"
        return
    for each, view in ((bags, view) for bags in m.ragged for view in bags.views):
        own = (view.ids, *view.weights.values(), view.lengths)
        if any(name not in ports or not ports[name].shape for name in own) or each.room < 1:
            yield f"bags of {each.ids}: expected room, and inputs {', '.join(own)}"
            return
        ids, bags = ports[view.ids], ports[view.ids].shape[0]
        wanted = {view.ids: (ids.dtype, (bags, each.room)), view.lengths: ("int64", (bags, 1, 1))}
        wanted |= dict.fromkeys(view.weights.values(), ("float32", (bags, each.room, 1)))
        integers = {ids.dtype, each.bounds_dtype} <= {"int32", "int64"}
        if not integers or any((ports[name].dtype, ports[name].shape) != kind for name, kind in wanted.items()):
            yield f"bags of {each.ids}: its inputs are not of {each.room} ids each, their lengths and weights"
    if m.ragged and m.dimension:
        yield f"dimension {m.dimension.name}: there are bags as well"


def _takes_extent(m: Manifest, extent: int, d: DynamicDimension) -> bool:
    """Whether the last input of a bucket is the extent, of a query or of each of its samples, where that is needed."""
    rows = [port.shape[:1] for port in m.inputs if d.axes.get(port.name)]
    shapes = [(1,)] if d.exact else rows if d.last else []
    if not shapes:
        return all(port.name != EXTENT_INPUT for port in m.inputs)
    return any(m.inputs[-1:] == (Port(EXTENT_INPUT, "int64", shape, extent, extent),) for shape in shapes)


def _dimension(m: Manifest, weights_bytes: int) -> Iterator[str]:
    """Buckets differ in the extent of the dimension, and in what computes them."""
    d = m.dimension
    if d is None:
        if m.buckets:
            yield f"{len(m.buckets)} buckets of no dimension"
        return
    if (
        not 1 <= d.low <= d.high
        or d.extents[:1] != (d.high,)
        or list(d.extents) != sorted(set(d.extents), reverse=True)
    ):
        yield f"dimension {d.name}: buckets {d.extents} do not descend from {d.high}, the end of {d.low} to {d.high}"
        return
    if len(m.buckets) != len(d.extents) - 1 or d.extents[-1] < d.low:
        yield f"dimension {d.name}: {len(m.buckets)} smaller buckets of the extents {d.extents}"
        return
    if (d.exact and (m.buckets or d.last)) or not all(map(_takes_extent, m.every_bucket, d.extents, repeat(d))):
        yield f"dimension {d.name}: expected an input {EXTENT_INPUT} where kernels get the extent, and one bucket"
    if not {name for name, axes in d.axes.items() if axes} & {port.name for port in m.client_inputs}:
        yield f"dimension {d.name}: no input has it"
    inputs = {port.name: port for port in m.client_inputs}
    for name in (*d.masks, *d.pads, *d.surplus):
        if name not in inputs or inputs[name].locations or not inputs[name].shape:
            yield f"dimension {d.name}: {name} is no input that is padded"
    for bucket, extent in zip(m.every_bucket, d.extents, strict=True):
        if bucket is not m:
            if bucket.buckets or bucket.dimension or (bucket.max_batch, bucket.mergeable) != (m.max_batch, m.mergeable):
                yield f"bucket {extent} of dimension {d.name} is no model of its own, or has another batch"
            if fault := find_inconsistency(bucket, weights_bytes):
                yield f"bucket {extent} of dimension {d.name}: {fault}"
        for side, ours, whole in (("input", bucket.inputs, m.inputs), ("output", bucket.outputs, m.outputs)):
            if [(p.name, p.dtype, d.client_shape(p.name, p.shape)) for p in ours] != [
                (p.name, p.dtype, d.client_shape(p.name, p.shape)) for p in whole
            ]:
                yield f"bucket {extent} of dimension {d.name}: its {side}s are not those of the model"
            for port in ours:
                axes = d.axes.get(port.name, ())
                wanted = (0,) if d.exact and side == "output" else (extent + d.surplus.get(port.name, 0),)
                if any(not 0 <= axis < len(port.shape) or port.shape[axis] not in wanted for axis in axes):
                    where = f"bucket {extent} of dimension {d.name}"
                    yield f"{where}: {side} {port.name} is {list(port.shape)} in axes {axes}"
