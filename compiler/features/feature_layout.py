"""Where the raw features of a description lie in a query's memory: each in a packed buffer of its type."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from veltair.compiler.features.feature_description import Feature, FeatureDescription
from veltair.compiler.graph.layer_spec import Activation
from veltair.profiles.artifact.manifest import PackedLocation, Port

BUFFER_DTYPES = {
    "ints": "int64",
    "floats": "float32",
    "ends": "int32",
    "bytes": "uint8",
}  # those that have anything in them


@dataclass(frozen=True, slots=True)
class FeatureLayout:
    """Of all features that some column reads, in the order of the description."""

    starts: Mapping[str, tuple[int, ...]]  # of each feature in its bank, or a text's in both: a row's values before it
    widths: Mapping[str, int]  # of a row in each bank
    features: tuple[Feature, ...]

    @classmethod
    def from_description(cls, description: FeatureDescription) -> FeatureLayout:
        read = description.reads()
        features = tuple(feature for feature in description.features if feature.name in read)
        starts, widths = {}, dict.fromkeys(BUFFER_DTYPES, 0)
        for feature in features:
            kinds, sizes = buffers_of(feature), (1, feature.max_bytes) if feature.textual else (feature.width,)
            starts[feature.name] = tuple(widths[bank] for bank in kinds)
            for bank, size in zip(kinds, sizes, strict=True):
                widths[bank] += size
        return cls(starts, {bank: width for bank, width in widths.items() if width}, features)

    @property
    def packed_buffers(self) -> tuple[Port, ...]:
        return tuple(Port(tensor_name(bank), BUFFER_DTYPES[bank], (-width,)) for bank, width in self.widths.items())

    @property
    def inputs(self) -> tuple[Port, ...]:
        return tuple(map(self._port, self.features))

    def buffers_read(self, features: Collection[str]) -> tuple[str, ...]:
        """The packed buffers that hold values of these features, in the layout's order."""
        read = {bank for feature in self.features if feature.name in features for bank in buffers_of(feature)}
        return tuple(bank for bank in self.widths if bank in read)

    def activation(self, bank: str) -> Activation:
        return Activation(tensor_name(bank), BUFFER_DTYPES[bank], (-self.widths[bank],))

    def _port(self, feature: Feature) -> Port:
        order, kinds = list(self.widths), buffers_of(feature)
        starts = zip(kinds, self.starts[feature.name], strict=True)
        places = tuple(PackedLocation(order.index(bank), start) for bank, start in starts)
        if not feature.textual:
            return Port(feature.name, BUFFER_DTYPES[kinds[0]], (-1, feature.width), locations=places)
        separator = feature.separator if feature.kind == "tokens" else ""
        return Port(feature.name, "string", (-1, 1), locations=places, max_bytes=feature.max_bytes, separator=separator)


def buffers_of(feature: Feature) -> tuple[str, ...]:
    return ("ends", "bytes") if feature.textual else ("ints",) if feature.kind == "int" else ("floats",)


def tensor_name(bank: str) -> str:
    """Of the tensor in the graph."""
    return f"features:{bank}"


def buffer_of(tensor: str) -> str:
    return tensor.removeprefix(tensor_name(""))
