"""Convolutions of volumes, (batch, channels, frames, height, width), as those of images with frames below each other.

No kernel is written for three-dimensional convolutions, and TVM's plain loops take some fifty times as long as those of
images. Every such convolution is one of an image:

- where it reads one pixel of a frame, all pixels of a frame are one row: (frames, height x width), a kernel of one
  column;
- elsewhere frames lie on top of each other, with rows of zeros between them, as many as the kernel reaches beyond a
  frame. Windows that cross two frames give rows that are cut away. What a kernel reads of other frames is stacked as
  channels, by the channel; a depthwise convolution, whose kernels want one channel, is a sum over frames instead.

Activations and sums behind a convolution read the image, so that they are its epilogue; what else reads the tensor gets
the volume, a view without the rows between frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.onnx.folding.opaque_nodes import is_opaque
from veltair.compiler.onnx.node_attributes import attribute, paddings
from veltair.compiler.onnx.onnx_model import OnnxModel
from veltair.compiler.patterns.model_rewriting import ModelRewriting
from veltair.compiler.patterns.vision.signals import BROADCASTING, UNARY

RANK = 5
FRAMES, ROWS = 2, 3  # the axes of frames, and of rows within one
# Of one tensor, element by element or channel by channel: rows between frames do no harm.
PASSED_ON = UNARY - {"GlobalAveragePool"}


@dataclass(frozen=True, slots=True)
class _Image:
    """A volume as an image. `frames`, `rows`, `columns`: what its pixels are; only the first `height` rows count."""

    name: str
    size: tuple[int, int]
    frames: int
    rows: int
    columns: int
    height: int

    def lies_as(self, other: _Image) -> bool:
        return replace(self, name=other.name) == other


@dataclass(frozen=True, slots=True)
class _Window:
    """What a convolution reads, each by the axis: frames, rows, columns. `out`: the extents of its output."""

    kernel: Sequence[int]
    strides: Sequence[int]
    dilations: Sequence[int]
    before: Sequence[int]
    after: Sequence[int]
    out: Sequence[int]

    def reach(self, axis: int) -> int:
        """How many places of an axis lie between the first and the last that one output reads, both included."""
        return (self.kernel[axis] - 1) * self.dilations[axis] + 1


@dataclass(slots=True)
class _Rewriting(ModelRewriting):
    """The new model so far. `images`: by the name of the volume; `plain`: images that have become volumes again."""

    images: dict[str, _Image] = field(default_factory=dict)
    plain: set[str] = field(default_factory=set)

    def shape_of(self, name: str) -> tuple[int, ...]:
        return self.values[name].shape if name in self.values else self.view.shape_of(name)

    def reshaped(self, name: str, result: str, *extents: int) -> str:
        """The tensor with other extents behind the batch."""
        return self.reshape(name, result, (self.shape_of(name)[0], *extents))

    def cut(self, name: str, result: str, axis: int, start: int, count: int, step: int = 1) -> str:
        """Every `step`-th place of an axis, `count` of them; the tensor itself where that is all."""
        shape = self.shape_of(name)
        if (start, count) == (0, shape[axis]):
            return name
        slices = np.array([[start], [start + (count - 1) * step + 1], [axis], [step]])
        return self.add("Slice", [name], result, (*shape[:axis], count, *shape[axis + 1 :]), *slices)

    def padded(self, name: str, result: str, frames: tuple[int, int], below: int) -> str:
        """The volume with frames of zeros around it, and rows of zeros below each frame."""
        if not any((*frames, below)):
            return name
        n, c, t, h, w = self.shape_of(name)
        pads = np.array([0, 0, frames[0], 0, 0, 0, 0, frames[1], below, 0])
        return self.add("Pad", [name], result, (n, c, t + sum(frames), h + below, w), pads, np.float32(0))

    def restore(self, name: str) -> None:
        """Make the volume that somebody reads."""
        image = self.images.get(name)
        if image is None or name in self.plain:
            return
        self.plain.add(name)
        channels, whole = self.view.shape_of(name)[1], image.rows == image.height
        frames = name if whole else f"{name}/frames"
        self.reshaped(image.name, frames, channels, image.frames, image.rows, image.columns)
        if not whole:
            self.cut(frames, name, ROWS, 0, image.height)


def volumes_as_images(view: ModelView) -> OnnxModel:
    """The model with convolutions of images in place of those of volumes; the same one where it has none."""
    if not any(_is_convolution(node, view) for node in view.nodes):
        return view.model
    found = _Rewriting(view)
    for node in view.nodes:
        window = _window(node, view) if _is_convolution(node, view) else None
        if window is not None:
            found.restore(node.input[0])
            _convolve(node, window, found)
        elif not _pass_on(node, found):
            for name in view.read_by(node):
                found.restore(name)
            found.nodes.append(node)
    for name in sorted(view.output_names):
        found.restore(name)
    return found.model()


def _is_convolution(node: onnx.NodeProto, view: ModelView) -> bool:
    """Whether a node is a three-dimensional convolution of floats with constant weights."""
    if node.op_type != "Conv" or is_opaque(node):
        return False
    known = all(name in view.constants and name not in view.model.quantised for name in node.input[1:] if name)
    shape = view.shape_of(node.input[0])
    return known and len(shape) == RANK and min(shape[1:]) > 0 and view.values[node.input[0]].dtype == "float32"


def _window(node: onnx.NodeProto, view: ModelView) -> _Window | None:
    """None for padding that reaches as far as the kernel, and for one without elements: TVM takes these."""
    shape, out = view.shape_of(node.input[0])[2:], view.shape_of(node.output[0])[2:]
    kernel = view.constants[node.input[1]].shape[2:]
    strides, dilations = (tuple(attribute(node, name, [1] * 3)) for name in ("strides", "dilations"))
    before, after = paddings(node, shape, out, kernel, strides, dilations)
    window = _Window(kernel, strides, dilations, before, after, out)
    fits = all(0 <= max(before[i], after[i]) < window.reach(i) for i in range(3))
    return window if fits and min((*out, *before, *after)) >= 0 and min(out) > 0 else None


def _convolve(node: onnx.NodeProto, window: _Window, found: _Rewriting) -> None:
    image = _pixels(node, window, found) if tuple(window.kernel[1:]) == (1, 1) else _stacked_frames(node, window, found)
    found.images[node.output[0]] = image


def _pixels(node: onnx.NodeProto, window: _Window, found: _Rewriting) -> _Image:
    """A convolution that reads one pixel of each frame: a frame is a row."""
    source, output, weight = node.input[0], node.output[0], found.view.constants[node.input[1]]
    _, channels, frames, *_ = found.view.shape_of(source)
    _, height, width = window.out
    for axis in (1, 2):
        every = f"{output}/every_{axis}"
        source = found.cut(source, every, FRAMES + axis, 0, window.out[axis], window.strides[axis])
    rows = found.reshaped(source, f"{output}/pixels", channels, frames, height * width)
    geometry: dict[str, Any] = {
        "strides": [window.strides[0], 1],
        "dilations": [window.dilations[0], 1],
        "pads": [window.before[0], 0, window.after[0], 0],
    }
    size = window.out[0], height * width
    result = _conv(node, rows, f"{output}/image", weight[..., 0], size, found, **geometry)
    return _Image(result, size, window.out[0], height, width, height)


def _stacked_frames(node: onnx.NodeProto, window: _Window, found: _Rewriting) -> _Image:
    """A convolution whose frames lie on top of each other, `rows` apart."""
    output, weight = node.output[0], found.view.constants[node.input[1]]
    _, channels, _, height, width = found.view.shape_of(node.input[0])
    stride, reach = window.strides[1], window.reach(1)
    rows = height + max(window.before[1], window.after[1])
    rows += -rows % stride
    whole = found.padded(node.input[0], f"{output}/padded", (window.before[0], window.after[0]), rows - height)
    tall = window.out[0] * rows
    starts = [place * window.dilations[0] for place in range(window.kernel[0])]
    reads = [
        found.cut(whole, f"{output}/from_{start}", FRAMES, start, window.out[0], window.strides[0]) for start in starts
    ]
    size = (window.out[0] * (rows // stride), window.out[2])
    # As many rows of zeros at the end as give the last frame as many rows as the others.
    below = max(reach - stride - window.before[1], 0)
    geometry: dict[str, Any] = {
        "strides": list(window.strides[1:]),
        "dilations": list(window.dilations[1:]),
        "pads": [window.before[1], window.before[2], below, window.after[2]],
    }
    group = attribute(node, "group", 1)
    if group == channels == weight.shape[0] and group > 1 and len(reads) > 1:
        result = _sum_of_frames(node, reads, tall, size, found, **geometry)
    else:
        extents = (channels, 1, tall, width) if len(reads) > 1 else (channels, tall, width)
        parts = [found.reshaped(name, f"{output}/part_{i}", *extents) for i, name in enumerate(reads)]
        image = parts[0]
        if len(parts) > 1:
            shape = (found.shape_of(image)[0], channels, len(parts), tall, width)
            joined = found.add("Concat", parts, f"{output}/parts", shape, axis=2)
            image = found.reshaped(joined, f"{output}/stacked", channels * len(parts), tall, width)
        filters = weight.reshape(weight.shape[0], -1, *weight.shape[3:])
        result = _conv(node, image, f"{output}/image", filters, size, found, **geometry)
    return _Image(result, size, window.out[0], rows // stride, window.out[2], window.out[1])


def _sum_of_frames(
    node: onnx.NodeProto, reads: Sequence[str], tall: int, size: tuple[int, int], found: _Rewriting, **geometry: Any
) -> str:
    """A depthwise convolution: one of each frame that it reads, and their sum."""
    output, weight = node.output[0], found.view.constants[node.input[1]]
    _, channels, _, _, width = found.view.shape_of(node.input[0])
    total = ""
    for place, name in enumerate(reads):
        image = found.reshaped(name, f"{output}/part_{place}", channels, tall, width)
        result = f"{output}/of_frame_{place}"
        made = _conv(node, image, result, weight[:, :, place], size, found, bias=place == 0, **geometry)
        shape = found.shape_of(made)
        total = found.add("Add", [made, total], f"{output}/until_{place}", shape) if total else made
    return total


def _conv(
    node: onnx.NodeProto,
    image: str,
    result: str,
    weight: NDArray[Any],
    size: tuple[int, int],
    found: _Rewriting,
    bias: bool = True,
    **geometry: Any,
) -> str:
    """The convolution of an image with these filters (OC, IC / group, KH, KW)."""
    inputs = [image, found.constant(f"{result}/filters", np.ascontiguousarray(weight))]
    if bias and len(node.input) > 2 and node.input[2]:
        inputs.append(node.input[2])
    shape = (found.shape_of(image)[0], weight.shape[0], *size)
    geometry |= {"group": attribute(node, "group", 1), "kernel_shape": weight.shape[2:]}
    return found.add("Conv", inputs, result, shape, **geometry)


def _pass_on(node: onnx.NodeProto, found: _Rewriting) -> bool:
    """Have a node that reads volumes read their images, if its result is the same there."""
    view = found.view
    computed = [name for name in node.input if name and name not in view.constants]
    images = [found.images.get(name) for name in computed]
    first = images[0] if images else None
    if first is None or is_opaque(node) or len([name for name in node.output if name]) > 1:
        return False
    constants = [view.constants[name] for name in node.input if name in view.constants]
    if node.op_type in BROADCASTING:
        same = all(image and image.lies_as(first) for image in images) and all(value.size == 1 for value in constants)
    else:
        same = node.op_type in PASSED_ON and len(computed) == 1 and all(value.ndim < 2 for value in constants)
    if not same or view.values[node.output[0]].dtype != "float32":
        return False
    result = f"{node.output[0]}/image"
    new = onnx.NodeProto()
    new.CopyFrom(node)
    for place, name in enumerate(node.input):
        image = found.images.get(name)
        if image is not None:
            new.input[place] = image.name
        elif name and node.op_type in BROADCASTING:
            new.input[place] = found.constant(f"{result}/{place}", view.constants[name].reshape(()))
    new.output[0] = result
    found.nodes.append(new)
    found.values[result] = replace(view.values[node.output[0]], name=result, shape=found.shape_of(first.name))
    found.images[node.output[0]] = replace(first, name=result)
    return True
