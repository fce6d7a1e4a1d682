"""`Where(IsNaN(p), 0, p)` around the softmax p of an attention, which exporters write for rows without any key."""

from __future__ import annotations

import numpy as np
import onnx

from veltair.compiler.graph.model_view import ModelView

HIDDEN = -1e30  # what is added to a key's score so that it counts for nothing, or less


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


def leaves_a_key(mask: str, view: ModelView) -> bool:
    """Whether every row keeps a key whatever the inputs are, so that no softmax of finite scores is NaN.

    mask: what is added to the scores, "" for none. It may be a constant, or a choice between constants that hide no
    key altogether.
    """
    if not mask:
        return True
    constants, maker = view.constants, view.makers.get(mask)
    if mask in constants:
        return bool((constants[mask] > HIDDEN).any(-1).all() and constants[mask].max() < np.inf)
    if maker is None or maker.op_type != "Where" or any(name not in constants for name in maker.input[1:]):
        return False
    return all(constants[name].min() > HIDDEN and constants[name].max() < np.inf for name in maker.input[1:])
