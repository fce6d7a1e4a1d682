"""A read-only view of an ONNX model: who makes and who reads each tensor, shapes, constants, matches of patterns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import onnx
from numpy.typing import NDArray

from veltair.compiler.onnx.constants import captured_names
from veltair.compiler.onnx.onnx_model import OnnxModel
from veltair.types import TensorSpec

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class Matches:
    """Groups of nodes that one layer computes, each with a description of it, found before the first node is lowered.

    A match is filed under the node at which its layer is emitted. All other nodes of the group are its inner nodes,
    which need no layer of their own.

    >>> last, inner = onnx.NodeProto(), onnx.NodeProto()
    >>> matches = Matches()
    >>> matches.add(last, "a description", [inner])
    >>> matches.at(last, str), matches.is_inner(inner), matches.is_inner(last)
    ('a description', True, False)
    """

    _by_node: dict[int, Any] = field(default_factory=dict)  # by the id of the node, which the model keeps alive
    _inner: set[int] = field(default_factory=set)
    _groups: dict[int, tuple[onnx.NodeProto, ...]] = field(default_factory=dict)  # inner nodes, likewise

    def add(self, node: onnx.NodeProto, match: object, inner: Iterable[onnx.NodeProto] = ()) -> None:
        group = tuple(inner)
        self._by_node[id(node)], self._groups[id(node)] = match, group
        self.add_inner(group)

    def add_inner(self, nodes: Iterable[onnx.NodeProto]) -> None:
        self._inner.update(map(id, nodes))

    def at(self, node: onnx.NodeProto, kind: type[M]) -> M | None:
        """The match filed under a node, if it is of this kind."""
        match = self._by_node.get(id(node))
        return match if isinstance(match, kind) else None

    def has(self, node: onnx.NodeProto) -> bool:
        return id(node) in self._by_node

    def is_inner(self, node: onnx.NodeProto) -> bool:
        return id(node) in self._inner

    def is_free(self, node: onnx.NodeProto) -> bool:
        """Whether a node belongs to no match."""
        return not self.has(node) and not self.is_inner(node)

    def inner_of(self, node: onnx.NodeProto) -> tuple[onnx.NodeProto, ...]:
        """The inner nodes of the match filed under a node."""
        return self._groups.get(id(node), ())

    def union(self, other: Matches) -> Matches:
        return Matches(self._by_node | other._by_node, self._inner | other._inner, self._groups | other._groups)


@dataclass(frozen=True)
class ModelView:
    """What patterns read of the model. `dtype` and `block` are those of blocked activations at its precision.

    ::

        view = ModelView(load_model(path), "fp32")
        relus = [node for node in view.nodes if node.op_type == "Relu" and view.only_user(node.output[0])]
    """

    model: OnnxModel
    precision: str  # "fp32" or "bf16"
    matches: Matches = field(default_factory=Matches)

    @property
    def dtype(self) -> str:
        """The element type of blocked activations; "uint16" holds bfloat16 bits."""
        return "uint16" if self.precision == "bf16" else "float32"

    @property
    def block(self) -> int:
        """The channels in a block."""
        return 32 if self.precision == "bf16" else 16

    @property
    def nodes(self) -> Sequence[onnx.NodeProto]:
        """All nodes in topological order."""
        return self.model.nodes

    @property
    def values(self) -> Mapping[str, TensorSpec]:
        """The type and shape of every tensor, constants included."""
        return self.model.values

    @property
    def constants(self) -> Mapping[str, NDArray[Any]]:
        return self.model.initializers

    @property
    def inputs(self) -> Sequence[TensorSpec]:
        return self.model.inputs

    @property
    def outputs(self) -> Sequence[TensorSpec]:
        return self.model.outputs

    @property
    def max_batch(self) -> int:
        return self.model.max_batch

    @cached_property
    def output_names(self) -> frozenset[str]:
        return frozenset(port.name for port in self.outputs)

    @cached_property
    def makers(self) -> Mapping[str, onnx.NodeProto]:
        """The node that makes a tensor; none for inputs and constants."""
        return {name: node for node in self.nodes for name in node.output if name}

    @cached_property
    def _users(self) -> Mapping[str, Sequence[onnx.NodeProto]]:
        users: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            for name in (*node.input, *sorted(captured_names(node) & self.values.keys())):
                users.setdefault(name, []).append(node)
        return users

    def read_by(self, node: onnx.NodeProto) -> Sequence[str]:
        """The tensors that a node reads, and the graphs inside it."""
        return [name for name in node.input if name] + sorted(captured_names(node) & self.values.keys())

    def users_of(self, name: str) -> Sequence[onnx.NodeProto]:
        """The nodes that read a tensor, in order; one that reads it twice stands there twice."""
        return self._users.get(name, ())

    def only_user(self, name: str) -> onnx.NodeProto | None:
        """The one node that reads a tensor, if no other node and no output of the model does."""
        users = self.users_of(name)
        return users[0] if len(users) == 1 and name not in self.output_names else None

    def free_user(self, name: str) -> onnx.NodeProto | None:
        """The one node that reads a tensor, if no match has that node: a layer that is emitted may swallow it."""
        user = self.only_user(name)
        return user if user is not None and self.matches.is_free(user) else None

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The ONNX shape; a dimension -k stands for k times the batch."""
        return self.values[name].shape

    def is_map(self, name: str) -> bool:
        """Whether a tensor is feature maps, (N, C, H, W): the batch, where it has one, is its first dimension alone."""
        shape = self.shape_of(name)
        return len(shape) == 4 and min(shape[1:]) > 0
