"""From what a Python user has, an array, a list or strings, to the arrays of a query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from veltair.errors import RequestError

Inputs: TypeAlias = Mapping[str, ArrayLike] | ArrayLike  # by name; the value alone where there is one input


def named_inputs(inputs: Inputs, names: Sequence[str]) -> Mapping[str, ArrayLike]:
    """The inputs by name. Raises RequestError for a value alone where the model has several inputs.

    >>> named_inputs([1.0, 2.0], ["x"])
    {'x': [1.0, 2.0]}
    """
    if isinstance(inputs, Mapping):
        return inputs
    if len(names) != 1:
        raise RequestError(f"the model has {len(names)} inputs: give a dict of {', '.join(names)}")
    return {names[0]: inputs}


def as_array(values: ArrayLike, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The values as an array; lists are of the model's type, arrays keep their own. Strings are bytes in UTF-8.

    >>> as_array([1, 2], np.dtype(np.float32)).dtype, as_array(["ab"], np.dtype(object)).tolist()
    (dtype('float32'), [b'ab'])
    """
    if dtype.hasobject:
        flat = np.asarray(values, object)
        texts = [text.encode() if isinstance(text, str) else text for text in flat.ravel().tolist()]
        found = np.empty(len(texts), object)
        found[:] = texts
        return found.reshape(flat.shape)
    return np.asarray(values, None if isinstance(values, np.ndarray) else dtype, order="C")
