"""`Where(IsNaN(p), 0, p)` around the softmax p of an attention, which exporters write for rows without any key."""

from __future__ import annotations

import numpy as np
import onnx

from veltair.compiler.graph.model_view import ModelView


def match_nan_guard(softmax: onnx.NodeProto, view: ModelView) -> tuple[onnx.NodeProto, ...]:
    """IsNaN and Where, if they read the softmax and nothing else does; else nothing."""
    name, users = softmax.output[0], view.users_of(softmax.output[0])
    tests, choices = ([user for user in users if user.op_type == kind] for kind in ("IsNaN", "Where"))
    if len(tests) != 1 or len(choices) != 1 or len(users) != 2 or name in view.output_names:
        return ()
    (test,), (choice,) = tests, choices
    zero = view.constants.get(choice.input[1])
    if view.only_user(test.output[0]) is None or list(choice.input[::2]) != [test.output[0], name]:
        return ()
    if zero is None or zero.any() or view.shape_of(choice.output[0]) != view.shape_of(name):
        return ()
    return test, choice


def is_kept(mask: str, view: ModelView) -> bool:
    """Whether an attention layer gives what the guard gives, for finite scores.

    A softmax of finite numbers is never NaN, and the layer gives zeros for a row where -infinity hides every key, but
    not in bfloat16.

    mask: what is added to the scores, "" for none. It may be a constant, or a choice between constants.
    """
    if not mask:
        return True
    constants, maker = view.constants, view.makers.get(mask)
    names = [mask] if mask in constants or maker is None else maker.input[1:] if maker.op_type == "Where" else [mask]
    if any(name not in constants or not (constants[name] < np.inf).all() for name in names):
        return False
    if all((constants[name] > -np.inf).all() for name in names) or view.precision == "fp32":
        return True
    return mask in constants and bool((constants[mask] > -np.inf).any(-1).all())
