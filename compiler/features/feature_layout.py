"""Where the raw features of a description lie in a query's memory: each in the packed buffer of its type."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from veltair.compiler.features.feature_description import Feature, FeatureDescription
from veltair.compiler.features.symbolic_shapes import Extent, MergedBuffer, Symbols, count_bytes
from veltair.compiler.graph.layer_spec import Activation
from veltair.errors import ModelError
from veltair.profiles.artifact.manifest import PackedLocation, Port
from veltair.profiles.artifact.strings import MOST_BYTES

BUFFER_DTYPES = {"ints": "int64", "floats": "float32", "ends": "int32", "bytes": "uint8"}  # by packed buffer


@dataclass(frozen=True, slots=True)
class FeatureLayout:
    """The layout of all features that some column reads, in the order of the description.

    `profiles.artifact.input_layout` says how a packed buffer is laid out, and fills it::

        InputLayout.of(FeatureLayout.from_description(description)).fill(arrays, raw, batch)
    """

    starts: Mapping[str, tuple[int, ...]]  # values of a row before the feature in its buffer; a text has two buffers
    widths: Mapping[str, int]  # values of a row in each buffer; a buffer without any is not there
    features: tuple[Feature, ...]

    @classmethod
    def from_description(cls, description: FeatureDescription) -> FeatureLayout:
        read = description.features_read_by()
        features = tuple(feature for feature in description.features if feature.name in read)
        symbols, batch = Symbols(), Extent.from_value("batch")
        tensors: dict[str, dict[str, Extent]] = {buffer: {} for buffer in BUFFER_DTYPES}
        for feature in features:
            extents = (batch * feature.width, *[count_bytes(feature, symbols, batch)] * feature.is_text)
            for buffer, extent in zip(buffers_of(feature), extents, strict=True):
                tensors[buffer][feature.name] = extent
        # Every bound is a multiple of the batch, so places for one row say those for any number of them.
        placed = {
            buffer: MergedBuffer.place(held, symbols).at({"batch": 1}) for buffer, held in tensors.items() if held
        }
        starts = {f.name: tuple(placed[buffer][0][f.name] for buffer in buffers_of(f)) for f in features}
        return cls(starts, {buffer: width for buffer, (_, width) in placed.items()}, features)

    @property
    def packed_buffers(self) -> tuple[Port, ...]:
        return tuple(Port(tensor_name(name), BUFFER_DTYPES[name], (-width,)) for name, width in self.widths.items())

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The features as inputs of the model."""
        return tuple(map(self._port, self.features))

    def buffers_read(self, features: Collection[str]) -> tuple[str, ...]:
        """The packed buffers that hold values of these features, in the layout's order."""
        read = {buffer for feature in self.features if feature.name in features for buffer in buffers_of(feature)}
        return tuple(buffer for buffer in self.widths if buffer in read)

    def check_room(self, batch: int, path: Path) -> None:
        """Raises ModelError where the texts of so large a batch are more than ends of 32 bits tell apart."""
        room = batch * self.widths.get("bytes", 0)
        if room > MOST_BYTES:
            raise ModelError(
                f"{path}: max_bytes: room for {room} bytes of text in a batch of {batch}; expected at most "
                f"{MOST_BYTES}: lower max_bytes or the greatest batch"
            )

    def activation(self, buffer: str) -> Activation:
        """A packed buffer as a tensor of the layer graph."""
        return Activation(tensor_name(buffer), BUFFER_DTYPES[buffer], (-self.widths[buffer],))

    def _port(self, feature: Feature) -> Port:
        order, buffers = list(self.widths), buffers_of(feature)
        starts = zip(buffers, self.starts[feature.name], strict=True)
        locations = tuple(PackedLocation(order.index(buffer), start) for buffer, start in starts)
        if not feature.is_text:
            return Port(feature.name, BUFFER_DTYPES[buffers[0]], (-1, feature.width), locations=locations)
        separator = feature.separator if feature.kind == "tokens" else ""
        return Port(
            feature.name,
            "string",
            (-1, feature.width),
            locations=locations,
            max_bytes=feature.max_bytes,
            separator=separator,
        )


def buffers_of(feature: Feature) -> tuple[str, ...]:
    """The packed buffers that hold a feature: two for a text."""
    if feature.is_text:
        return ("ends", "bytes")
    return ("ints",) if feature.kind == "int" else ("floats",)


def tensor_name(buffer: str) -> str:
    """Name of a packed buffer in the layer graph."""
    return f"features:{buffer}"


def buffer_of(tensor: str) -> str:
    """The packed buffer that a tensor of the layer graph is."""
    return tensor.removeprefix(tensor_name(""))
