"""ONNX Runtime's answers as the outputs of an artifact, which are tensors of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from veltair.compiler.onnx.scikit_learn.class_maps import as_matrix, labels_by_output, parts_by_output
from veltair.profiles.artifact.manifest import Port
from veltair.profiles.artifact.output_layout import numbers_of


class SessionAnswers:
    """The answers of a session to a model's file: lists of dictionaries as matrices, lists of tensors as their parts,
    texts as the numbers of their labels.

    ::

        SessionAnswers(session, Path("m.onnx")).run(manifest.outputs, {"x": x})
    """

    def __init__(self, session: Any, model: Path) -> None:
        """The file is read only where an output is a list."""
        self._session = session
        self._labels: dict[str, tuple[int | str, ...]] = {}
        self._parts: dict[str, tuple[str, int]] = {}
        if any(output.type.startswith("seq(") for output in session.get_outputs()):
            graph = onnx.load(str(model), load_external_data=False).graph
            self._labels = labels_by_output(graph)
            for name, parts in parts_by_output(graph).items():
                self._parts |= {part: (name, index) for index, (part, _) in enumerate(parts)}

    @property
    def names(self) -> set[str]:
        """The outputs that an artifact of the file has."""
        lists = {name for name, _ in self._parts.values()}
        return {output.name for output in self._session.get_outputs()} - lists | self._parts.keys()

    def run(self, ports: Sequence[Port], feeds: Mapping[str, Any]) -> list[NDArray[Any]]:
        """The outputs of these ports. Raises what ONNX Runtime raises."""
        wanted = [self._parts.get(port.name, (port.name, 0))[0] for port in ports]
        names = list(dict.fromkeys(wanted))
        found = dict(zip(names, self._session.run(names, dict(feeds)), strict=True))
        return [self._tensor(port, found[name]) for port, name in zip(ports, wanted, strict=True)]

    def _tensor(self, port: Port, value: Any) -> NDArray[Any]:
        if port.name in self._labels:
            return as_matrix(value, self._labels[port.name])
        array: NDArray[Any] = value[self._parts[port.name][1]] if port.name in self._parts else value
        return numbers_of(port.labels, array) if port.labels else array
