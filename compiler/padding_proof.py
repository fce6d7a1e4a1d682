"""Whether queries may be padded along a dimension of a model: `prove_padding` answers with what it takes, or why not.

Two things have to hold. By its structure, the model mixes positions only where each padded one is exactly zero
(`onnx.position_rules`), which is seen on the model itself, on random inputs padded from several extents: values that an
attention mask has put out are exact zeros, others never are by chance. Zeros that hold for the positions of the query
alone, as behind a causal mask, have to follow from constants, too (`causal_zeros`). And ONNX Runtime gives the same
answers for inputs as they are and padded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.causal_zeros import CausalZeros
from veltair.compiler.onnx.constants import read_names
from veltair.compiler.onnx.dimensions.fixed_extent import FixedExtent
from veltair.compiler.onnx.dimensions.given_dimensions import GivenDimensions
from veltair.compiler.onnx.folding.opaque_nodes import standard_nodes
from veltair.compiler.onnx.id_bounds import id_bounds
from veltair.compiler.onnx.node_evaluation import IR_VERSION
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.onnx.position_rules import LastPositionError, PaddingShowsError, Positions, ZeroNeeded
from veltair.compiler.onnx.simplify import describe_error
from veltair.compiler.score_shifts import check_shifts
from veltair.errors import ModelError
from veltair.profiles.artifact.dynamic_dimension import EXTENT_INPUT, DynamicDimension
from veltair.types import TensorSpec

BATCH = 2
TOLERANCE = 2e-4  # of an output's largest value: sums are taken in another order
LARGE = 1000.0  # what floats are multiplied by once: a mask has to put out such values too
MOST_LAST = 4  # nodes that read the last position; the model is loaded twice for each
MOST_BYTES = 15 << 27  # of the constants of a model that is looked at: a protobuf holds 2 GB
SEED = 61

Feeds = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class PaddingProof:
    """What makes padding harmless.

    >>> PaddingProof(pads={}, masks=("attention_mask",), axes={"tokens": (1,)}, last={}).masks
    ('attention_mask',)
    """

    pads: Mapping[str, int]  # by input, where that is not 0
    masks: tuple[str, ...]  # inputs that must be 0 or 1, with a 1 in each row
    axes: Mapping[str, tuple[int, ...]]  # of each output that has the dimension
    last: Mapping[str, bool]  # nodes that have to read the query's last position (`FixedExtent.last`)


def prove_padding(path: Path, given: GivenDimensions, axes: Mapping[str, tuple[int, ...]]) -> PaddingProof:
    """Raises PaddingShowsError with the reason where padding may show; ModelError for a file that cannot be loaded.

    axes: by input, those that have the dimension whose bounds are given.
    """
    last: dict[str, bool] = {}
    while True:
        try:
            return _prove(path, given, axes, last)
        except LastPositionError as found:
            if found.name in last or len(last) == MOST_LAST:
                raise
            last[found.name] = found.keeps
        except ModelError as error:
            if not last:
                raise
            raise PaddingShowsError(f"{', '.join(last)}: the last position: {error}") from None


def _prove(
    path: Path, given: GivenDimensions, axes: Mapping[str, tuple[int, ...]], last: Mapping[str, bool]
) -> PaddingProof:
    name, low, high = given.chosen
    other = min(max(low, 2 * high // 3), high - 1)
    both = (FixedExtent(name, extent, batch=BATCH, last=last) for extent in (high, other))
    large, small = (load_model(path, fixed=fixed, given=given) for fixed in both)
    if last:  # with an open batch, too
        load_model(path, fixed=FixedExtent(name, high, last=last), given=given)
    if large.sized or large.columns:
        raise PaddingShowsError("values of its inputs decide the extents of an output, or it computes feature columns")
    batch = max(port.shape[0] for port in large.inputs if port.name in axes)
    positions = Positions(large, small, high, other, low, batch)
    needed = positions.check()
    check_shifts(positions)
    outputs = {port.name: _axes_of(port, _find(small.outputs, port.name), high, other) for port in large.outputs}
    whole = {n: found for n, found in outputs.items() if found}
    failure = PaddingShowsError("no input has the dimension")
    for pads in _candidates(large.inputs, axes):
        dimension = DynamicDimension(name, low, high, (high,), {**axes, **whole}, pads=pads, last=dict(last))
        trial = _Trial(path, positions, dimension, needed)
        try:
            return PaddingProof(pads, trial.masks(), whole, last)
        except PaddingShowsError as error:
            failure = error
    raise failure


def _find(ports: Sequence[TensorSpec], name: str) -> TensorSpec:
    found = next((port for port in ports if port.name == name), None)
    if found is None:
        raise PaddingShowsError(f"output {name!r} is another one at another extent")
    return found


def _axes_of(large: TensorSpec, small: TensorSpec, extent: int, other: int) -> tuple[int, ...]:
    pairs = list(zip(large.shape, small.shape, strict=True))
    if any(a != b and (a, b) != (extent, other) for a, b in pairs):
        raise PaddingShowsError(f"output {large.name!r} has {large.shape} at {extent}, and {small.shape} at {other}")
    return tuple(axis for axis, (a, b) in enumerate(pairs) if a != b)


def _candidates(inputs: Sequence[TensorSpec], axes: Mapping[str, tuple[int, ...]]) -> Iterator[dict[str, int]]:
    """Pads to try: zeros; ones where a mask may say which positions do not count."""
    yield {}
    flags = [port.name for port in inputs if port.name in axes and port.dtype == "bool"]
    if flags:
        yield dict.fromkeys(flags, 1)


class _Trial:
    """Runs the model on padded inputs. Every method raises PaddingShowsError where padding shows."""

    def __init__(
        self, path: Path, positions: Positions, dimension: DynamicDimension, needed: Sequence[ZeroNeeded]
    ) -> None:
        import onnxruntime as ort

        model = positions.large
        self._model, self._dimension, self._needed, self._ort = model, dimension, needed, ort
        self._axes, self._causal = positions.axes, CausalZeros(positions)
        self._held: dict[tuple[str, int], bool] = {}
        self._original = self._session(str(path))
        made = {name for node in model.nodes for name in node.output}
        seen = {tensor for need in needed for tensor, _ in need.tensors}
        if dimension.last:  # the file itself takes no extent
            made |= {port.name for port in model.outputs}
            seen |= {port.name for port in model.outputs}
        self._seen = sorted(seen & made)
        self._inner = self._session(self._instrumented()) if self._seen else None
        self._bounds = {port.name: id_bounds(model, port.name) or (0, 1) for port in model.inputs}

    def masks(self) -> tuple[str, ...]:
        """The inputs that are masks; without padding to see, none is."""
        d, rng = self._dimension, np.random.default_rng(SEED)
        extents = sorted({d.low, min(d.low + 1, d.high - 1), (d.low + d.high) // 2, d.high - 1})
        for extent in extents:
            for scale in (1.0, LARGE):
                feeds = self._draw(extent, rng, scale)
                self._check_zeros(feeds, extent)
                self._check(feeds, extent)
                if (0, 1) in self._bounds.values():
                    self._check(self._draw(extent, rng, scale, first=False), extent)
        found = []
        for port in self._model.inputs:
            if d.axes.get(port.name) and np.dtype(port.dtype).kind in "iub":
                feeds = self._draw(extents[-1], rng, 1.0)
                feeds[port.name] = np.full_like(feeds[port.name], d.pads.get(port.name, 0))
                try:
                    self._check_zeros(feeds, extents[-1])
                    self._check(feeds, extents[-1])
                except PaddingShowsError:
                    found.append(self._checked_mask(port))
        return tuple(found)

    def _checked_mask(self, port: TensorSpec) -> str:
        alone = self._dimension.axes[port.name] == (len(port.shape) - 1,)
        if not alone or self._bounds[port.name][1] != 1 or self._dimension.pads.get(port.name):
            raise PaddingShowsError(f"padding of {port.name!r} shows where all of it is padding")
        return port.name

    def _check(self, feeds: Feeds, extent: int) -> None:
        d = self._dimension
        padded = self._padded(feeds, extent)
        names = [port.name for port in self._model.outputs]
        exact = self._run(self._original, names, feeds)
        found = self._run(self._inner if d.last else self._original, names, padded)
        for name, wanted, output in zip(names, exact, found, strict=True):
            _compare(name, d.first(name, output, extent), wanted, extent)

    def _padded(self, feeds: Feeds, extent: int) -> Feeds:
        return {name: np.asarray(value) for name, value in self._dimension.bring_to_bucket(feeds, extent).items()}

    def _check_zeros(self, feeds: Feeds, extent: int) -> None:
        padded = self._padded(feeds, extent)
        known = {**self._model.initializers, **padded}
        if self._inner is not None:
            known |= zip(self._seen, self._run(self._inner, self._seen, padded), strict=True)
        for need in self._needed:
            if not any(self._is_zero(known[name], name, axis, extent) for name, axis in need.tensors):
                raise PaddingShowsError(f"node {need.node!r} mixes positions, and padded ones count")

    def _is_zero(self, value: NDArray[Any], name: str, axis: int, extent: int) -> bool:
        """Whether every padded position is zero: of all queries, or of those in front that constants make so."""
        whole = self._dimension.high
        # An axis may hold the positions of several rows one after the other.
        padded = {each: np.arange(value.shape[each]) % whole >= extent for each in self._axes[name]}
        behind = value.compress(padded[axis], axis)
        if not behind.any():
            return True
        for other in padded.keys() - {axis}:
            behind = behind.compress(~padded[other], other)
        return not behind.any() and self._holds(name, axis)

    def _holds(self, name: str, axis: int) -> bool:
        if (name, axis) not in self._held:
            self._held[name, axis] = self._causal.hold(name, axis)
        return self._held[name, axis]

    def _run(self, session: Any, names: Sequence[str], feeds: Feeds) -> list[NDArray[Any]]:
        given = {port.name for port in session.get_inputs()}
        try:
            found: list[NDArray[Any]] = session.run(list(names), {n: v for n, v in feeds.items() if n in given})
        except Exception as error:  # ONNX Runtime raises its own types
            raise PaddingShowsError(f"ONNX Runtime does not run it: {describe_error(error)}") from None
        return found

    def _session(self, given: str | bytes) -> Any:
        options = self._ort.SessionOptions()
        options.log_severity_level = 4
        if isinstance(given, bytes):  # tensors that have become outputs stay what they are
            options.graph_optimization_level = self._ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            return self._ort.InferenceSession(given, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime raises its own types
            raise ModelError(f"{self._model.path}: ONNX Runtime cannot load it: {describe_error(error)}") from None

    def _instrumented(self) -> bytes:
        """The model with the tensors that have to be zero as its outputs."""
        model = self._model
        if sum(value.nbytes for value in model.initializers.values()) > MOST_BYTES:
            raise PaddingShowsError("its constants are too large to look inside")
        nodes, constants = standard_nodes(model.nodes, model.initializers, model.values)
        used = {name for node in nodes for name in read_names(node)}.union(self._seen)
        graph = onnx.helper.make_graph(
            nodes,
            "positions",
            [_value(port) for port in model.inputs],
            [_value(model.values[name]) for name in self._seen],
            [onnx.numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items() if n in used],
        )
        opsets = [onnx.helper.make_opsetid("", model.opset)]
        opsets += [onnx.helper.make_opsetid(domain, version) for domain, version in model.other_opsets.items()]
        made: bytes = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION).SerializeToString()
        return made

    def _draw(self, extent: int, rng: np.random.Generator, scale: float, *, first: bool = True) -> Feeds:
        """Random inputs of the extent; integers without a range are masks, with a 1 at the first position of each row.

        first: else masks have a 1 at the last position alone. A causal attention has rows then that see nothing, and
        some models make them see everything, padding too; in others they are NaN until an operator makes them zero.
        """
        found = {}
        for port in self._model.inputs:
            if port.name == EXTENT_INPUT:
                continue
            axes = self._dimension.axes.get(port.name, ())
            shape = [extent if axis in axes else dim for axis, dim in enumerate(port.shape)]
            kind = np.dtype(port.dtype).kind
            if kind == "f":
                found[port.name] = (scale * rng.standard_normal(shape)).astype(port.dtype)
                continue
            low, high = self._bounds[port.name]
            value = rng.integers(low, high, shape, endpoint=True).astype(port.dtype)
            if high == 1 and value.ndim:
                counts = 1 - self._dimension.pads.get(port.name, 0)
                if not first:
                    value[...] = 1 - counts
                value[..., 0 if first else -1] = counts
            found[port.name] = value
        return found


def _compare(name: str, found: NDArray[Any], wanted: NDArray[Any], extent: int) -> None:
    same = found.shape == wanted.shape
    if same and wanted.dtype.kind == "f":
        most = float(np.abs(wanted).max(initial=1e-30, where=np.isfinite(wanted)))
        same = np.allclose(found, wanted, rtol=0.0, atol=TOLERANCE * most, equal_nan=True)
    elif same:
        same = np.array_equal(found, wanted)
    if not same:
        raise PaddingShowsError(f"output {name!r} is another one where inputs of extent {extent} are padded")


def _value(spec: TensorSpec) -> onnx.ValueInfoProto:
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype))
    return onnx.helper.make_tensor_value_info(spec.name, kind, list(spec.shape))
