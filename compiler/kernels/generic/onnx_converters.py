"""Converters of ONNX operators to Relax, in place of those of TVM's that are wrong or lack something.

TVM's importer lets a Gather read, and a Scatter write, whatever an index points at. The converters in here count
negative indices from the end and clip the others, so that none leaves its axis.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax, te, topi
from tvm.relax.frontend.onnx import onnx_frontend

from veltair.compiler.kernels.generic.unordered_converters import UNORDERED
from veltair.errors import ModelError

SLACK = 1e-4  # of an extent that a scale gives, for scales that are no binary fractions


class _ClippingGather(onnx_frontend.Gather):  # type: ignore[misc]  # TVM has no types
    """ONNX Gather: negative indices count from the end, others are clipped into the axis."""

    @classmethod
    def _impl_v13(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        data, indices = inputs[0], inputs[1]
        if isinstance(data, relax.ShapeExpr) or isinstance(indices, relax.ShapeExpr):
            return super()._impl_v13(bb, inputs, attr, params)
        axis = attr.get("axis", 0)
        extent = data.ty.shape[axis]
        if isinstance(indices, tvm.ir.GenericConst) and isinstance(extent, tvm.tirx.IntImm):
            known = indices.value.numpy()
            known = np.where(known < 0, known + int(extent), known)
            return relax.op.take(data, relax.const(known, str(known.dtype)), axis, mode="clip")

        def gather(data: Any, indices: Any) -> Any:
            first, rank = axis % len(data.shape), len(indices.shape)

            def element(*at: Any) -> Any:
                index = _inside(indices(*at[first : first + rank]), data.shape[first])
                return data(*at[:first], index, *at[first + rank :])

            shape = [*data.shape[:first], *indices.shape, *data.shape[first + 1 :]]
            return te.compute(shape, element, name="gather")

        return bb.emit_te(gather, data, indices)


class _ClippingGatherElements(onnx_frontend.GatherElements):  # type: ignore[misc]  # TVM has no types
    """ONNX GatherElements."""

    @classmethod
    def _impl_v13(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        axis = attr.get("axis", 0)

        def gather(data: Any, indices: Any) -> Any:
            def element(*at: Any) -> Any:
                place = list(at)
                place[axis] = _inside(indices(*at), data.shape[axis])
                return data(*place)

            return te.compute(indices.shape, element, name="gather_elements")

        return bb.emit_te(gather, *inputs)


class _ClippingGatherND(onnx_frontend.GatherND):  # type: ignore[misc]  # TVM has no types
    """ONNX GatherND."""

    @classmethod
    def _impl_v13(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        shared = attr.get("batch_dims", 0)

        def gather(data: Any, indices: Any) -> Any:
            outer, count = list(indices.shape[:-1]), int(indices.shape[-1])

            def element(*at: Any) -> Any:
                found = [
                    _inside(indices(*at[: len(outer)], i), extent)
                    for i, extent in enumerate(data.shape[shared : shared + count])
                ]
                return data(*at[:shared], *found, *at[len(outer) :])

            return te.compute([*outer, *data.shape[shared + count :]], element, name="gather_nd")

        return bb.emit_te(gather, *inputs)


def _clipping_scatter(converter: Any, is_nd: bool) -> Any:
    """TVM's converter of ONNX ScatterElements or ScatterND, on indices that are inside."""

    class ClippingScatter(converter):  # type: ignore[misc]  # TVM has no types
        @classmethod
        def get_converter(cls, opset: int) -> Any:
            convert = super().get_converter(opset)

            def clipped(bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
                axis = attr.get("axis", 0)

                def clip(data: Any, indices: Any) -> Any:
                    def index(*at: Any) -> Any:
                        extents = [data.shape[i] for i in range(int(indices.shape[-1]))] if is_nd else []
                        found = _inside(indices(*at), extents[-1] if is_nd else data.shape[axis])
                        for i, extent in enumerate(extents[:-1]):
                            found = te.if_then_else(at[-1] == i, _inside(indices(*at), extent), found)
                        return found

                    return te.compute(indices.shape, index, name="clip_indices")

                return convert(bb, [inputs[0], bb.emit_te(clip, inputs[0], inputs[1]), *inputs[2:]], attr, params)

            return clipped

    return ClippingScatter


def _inside(index: Any, extent: Any) -> Any:
    """An index counted from the end where it is negative, and clipped into an axis of this extent."""
    extent = tvm.tirx.Cast(index.ty.dtype, extent) if str(extent.ty.dtype) != str(index.ty.dtype) else extent
    counted = te.if_then_else(index < 0, index + extent, index)
    return te.max(te.min(counted, extent - 1), tvm.tirx.const(0, str(index.ty.dtype)))


class _Expand(onnx_frontend.Expand):  # type: ignore[misc]  # TVM has no types
    """ONNX Expand to a constant shape; TVM's converter takes no tensor that has the batch."""

    @classmethod
    def _impl_v13(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        if not isinstance(inputs[1], tvm.ir.GenericConst) or isinstance(inputs[0], relax.ShapeExpr):
            return super()._impl_v13(bb, inputs, attr, params)
        target, given = inputs[1].value.numpy().tolist(), list(inputs[0].ty.shape)
        given = [tvm.tirx.const(1, "int64")] * (len(target) - len(given)) + given
        target = [1] * (len(given) - len(target)) + target
        extents = [
            have if want == 1 else tvm.tirx.const(want, "int64") for have, want in zip(given, target, strict=True)
        ]
        return relax.op.broadcast_to(inputs[0], relax.ShapeExpr(extents))


class _CumSum(onnx_frontend.CumSum):  # type: ignore[misc]  # TVM has no types
    """ONNX CumSum as an operator that Relax can lower; it cannot lower its own."""

    @classmethod
    def _impl_v14(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        axis = int(onnx_frontend.get_constant(inputs[1], params).value.numpy().item())

        def total(data: Any) -> Any:
            data = topi.flip(data, axis) if attr.get("reverse", 0) else data
            data = topi.cumsum(data, axis, exclusive=bool(attr.get("exclusive", 0)))
            return topi.flip(data, axis) if attr.get("reverse", 0) else data

        return bb.emit_te(total, inputs[0])


class _Div(onnx_frontend.Div):  # type: ignore[misc]  # TVM has no types
    """ONNX Div; by an integer 0 it gives 0, as numpy does, since the CPU would end the process."""

    @classmethod
    def base_impl(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        number, divisor = inputs[:2]
        if not (_may_trap(divisor) and isinstance(number.ty, relax.TensorType)):
            return super().base_impl(bb, inputs, attr, params)
        zero = relax.const(0, str(divisor.ty.dtype.dtype))
        safe, is_zero, is_minus_one = _guarded(bb, divisor)
        quotient = bb.normalize(relax.op.divide(number, safe))
        if is_minus_one is not None:
            negated = bb.normalize(relax.op.subtract(zero, number))
            quotient = bb.normalize(relax.op.where(is_minus_one, negated, quotient))
        return relax.op.where(is_zero, zero, quotient)


class _Mod(onnx_frontend.Mod):  # type: ignore[misc]  # TVM has no types
    """ONNX Mod; by an integer 0 it gives 0, as numpy does, since the CPU would end the process. So it would for
    the least number by -1, of which nothing is left either."""

    @classmethod
    def base_impl(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        number, divisor = inputs[:2]
        if not _may_trap(divisor):
            return super().base_impl(bb, inputs, attr, params)
        safe, *_ = _guarded(bb, divisor)  # what is left by 1 is 0
        return super().base_impl(bb, [number, safe], attr, params)


def _may_trap(divisor: Any) -> bool:
    """Whether the CPU may end the process that divides by these integers."""
    if not isinstance(divisor.ty, relax.TensorType) or "int" not in str(divisor.ty.dtype):
        return False
    return not isinstance(divisor, tvm.ir.GenericConst) or bool(np.isin(divisor.value.numpy(), (0, -1)).any())


def _guarded(bb: Any, divisor: Any) -> tuple[Any, Any, Any | None]:
    """The divisor with 1 for what the CPU does not divide by: 0, and of signed numbers -1, by which the least one
    overflows; and where either is, None for unsigned ones.
    """
    dtype = str(divisor.ty.dtype.dtype)
    unsafe = is_zero = bb.normalize(relax.op.equal(divisor, relax.const(0, dtype)))
    is_minus_one = None
    if not dtype.startswith("u"):
        is_minus_one = bb.normalize(relax.op.equal(divisor, relax.const(-1, dtype)))
        unsafe = bb.normalize(relax.op.logical_or(is_zero, is_minus_one))
    return bb.normalize(relax.op.where(unsafe, relax.const(1, dtype), divisor)), is_zero, is_minus_one


class _Resize(onnx_frontend.Resize):  # type: ignore[misc]  # TVM has no types
    """ONNX Resize by scales that fit; TVM takes the quotient of the extents for the scale."""

    @classmethod
    def _impl_v18(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        scales = onnx_frontend.get_constant(inputs[2], params) if len(inputs) > 2 and inputs[2] is not None else None
        corners = attr.get("coordinate_transformation_mode") == b"align_corners"
        if attr.get("antialias", 0):
            raise ModelError("antialias is not supported")
        if isinstance(scales, tvm.ir.GenericConst):
            given = scales.value.numpy()
            # In float32, as ONNX Runtime does. The converter asks for the extents of images alone.
            planes = list(zip(given, inputs[0].ty.shape, strict=True))[2:]
            extents = [float(scale * np.float32(int(dim))) for scale, dim in planes]
            if not corners and any(abs(extent - round(extent)) > SLACK for extent in extents):
                raise ModelError(f"scales {given.tolist()} give no whole extents")
            if (given[:2] != 1).any():
                raise ModelError(f"scales {given.tolist()} are not of images alone")
            sizes = [1, 1, *map(int, extents)]
            inputs = [*inputs[:2], None, relax.ShapeExpr(sizes)]
        return super()._impl_v18(bb, inputs, attr, params)


class _TypedOneHot(onnx_frontend.OneHot):  # type: ignore[misc]  # TVM has no types
    """ONNX OneHot in the type of its values; TVM turns float32 into float64."""

    @classmethod
    def _impl_v11(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        return relax.op.astype(super()._impl_v11(bb, inputs, attr, params), str(inputs[2].ty.dtype.dtype))


class _IsInf(onnx_frontend.IsInf):  # type: ignore[misc]  # TVM has no types
    """ONNX IsInf of one sign or both; TVM's converter knows no signs."""

    @classmethod
    def _impl_v10(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        found, zero = relax.op.isinf(inputs[0]), relax.const(0, str(inputs[0].ty.dtype.dtype))
        if not attr.get("detect_negative", 1):
            found = relax.op.logical_and(found, relax.op.greater(inputs[0], zero))
        if not attr.get("detect_positive", 1):
            found = relax.op.logical_and(found, relax.op.less(inputs[0], zero))
        return found


CONVERTERS = {  # by operator
    **UNORDERED,
    "Gather": _ClippingGather,
    "GatherElements": _ClippingGatherElements,
    "GatherND": _ClippingGatherND,
    "CumSum": _CumSum,
    "Div": _Div,
    "Expand": _Expand,
    "IsInf": _IsInf,
    "Mod": _Mod,
    "ScatterElements": _clipping_scatter(onnx_frontend.ScatterElements, is_nd=False),
    "ScatterND": _clipping_scatter(onnx_frontend.ScatterND, is_nd=True),
    "OneHot": _TypedOneHot,
    "Resize": _Resize,
}
