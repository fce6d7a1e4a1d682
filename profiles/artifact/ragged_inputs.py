"""Bags of ids that differ in length: how clients give them, and how they lie in memory.

A client gives the ids of all bags in one tensor, and beside it where each bag begins, or how many ids it has. Kernels
get a row with room for `room` ids for each bag, and the bag's length beside. So a bag has its first dimension in
common with every other input: queries are merged row after row, as they are, and no offset has to be rebased.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from veltair.errors import RequestError

Array: TypeAlias = NDArray[Any]
# offsets: where each bag begins; ends: these, and the end of the last one; lengths: how many ids each bag has
BagForm: TypeAlias = Literal["offsets", "ends", "lengths"]


class RaggedInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The bags of one tensor of ids.

    >>> bags = RaggedInput("ids", "ids/lengths", "offsets", "int64", "offsets", room=3)
    >>> rows = bags.to_rows("m", {"ids": np.array([7, 8, 9]), "offsets": np.array([0, 2, 2])})
    >>> rows["ids"].tolist(), rows["ids/lengths"].ravel().tolist()
    ([[7, 8, 0], [0, 0, 0], [9, 0, 0]], [2, 0, 1])
    >>> bags.to_ragged(rows)["offsets"].tolist()
    [0, 2, 2]
    """

    ids: str  # the client's (ids,), the kernels' (bags, room)
    lengths: str  # the kernels' (bags, 1, 1), int64
    bounds: str  # the client's tensor that says which ids each bag has, (bags,), or (bags + 1,) of ends
    bounds_dtype: str
    form: BagForm
    room: int  # ids of a bag, at most
    weights: tuple[str, ...] = ()  # of each id one: the client's (ids,), the kernels' (bags, room, 1), float32

    @property
    def flat(self) -> tuple[str, ...]:
        """The client's inputs with a number for each id."""
        return (self.ids, *self.weights)

    def open_extents(self, max_batch: int) -> dict[str, tuple[int, int]]:
        """The least and the greatest extent of the client's inputs, of those with an extent of 0 in their shapes."""
        return dict.fromkeys(self.flat, (0, self.room * max_batch)) | {self.bounds: (2, max_batch + 1)}

    def to_rows(self, model: str, values: Mapping[str, Any]) -> dict[str, Array]:
        """What kernels read, of a client's inputs by name. Raises RequestError for bags that are not in the ids."""
        ids = np.asarray(values[self.ids])
        lengths = self._lengths(model, np.asarray(values[self.bounds]), len(ids))
        if lengths.size and int(lengths.max()) > self.room:
            bag = int((lengths > self.room).argmax())
            raise RequestError(
                f"{model}: input {self.bounds!r} gives bag {bag} {lengths[bag]} ids of {self.ids!r}; at most "
                f"{self.room} are taken"
            )
        inside = np.arange(self.room) < lengths[:, None]
        found: dict[str, Array] = {self.lengths: lengths.reshape(-1, 1, 1)}
        for name in self.flat:
            value = np.asarray(values[name])
            if len(value) != len(ids):
                raise RequestError(f"{model}: input {name!r} has {len(value)} values, {self.ids!r} has {len(ids)}")
            rows = np.zeros(inside.shape, value.dtype)
            rows[inside] = value
            found[name] = rows if name == self.ids else rows[..., None]
        return found

    def to_ragged(self, rows: Mapping[str, Array]) -> dict[str, Array]:
        """What a client would have given, of what kernels read. Lengths out of range are brought into it."""
        lengths = rows[self.lengths].reshape(-1).clip(0, self.room)
        inside = np.arange(self.room) < lengths[:, None]
        ends = np.concatenate([[0], lengths.cumsum()])
        bounds = {"offsets": ends[:-1], "ends": ends, "lengths": lengths}[self.form]
        found = {name: rows[name].reshape(inside.shape)[inside] for name in self.flat}
        return found | {self.bounds: bounds.astype(self.bounds_dtype)}

    def _lengths(self, model: str, bounds: Array, ids: int) -> NDArray[np.int64]:
        """The length of each bag. Where bags are not one after the other from 0 to all `ids`: RequestError."""
        where, bounds = f"{model}: input {self.bounds!r}", bounds.astype(np.int64)
        outside = np.flatnonzero((bounds < 0) | (bounds > ids))
        if outside.size:
            at = int(outside[0])
            raise RequestError(f"{where} has {bounds[at]} at [{at}]; {self.ids!r} has {ids} ids")
        if self.form == "lengths":
            if (total := int(bounds.sum())) != ids:
                raise RequestError(f"{where} adds up to {total}; {self.ids!r} has {ids} ids")
            return bounds
        if bounds.size and bounds[0] != 0:
            raise RequestError(f"{where} begins with {bounds[0]}; expected 0")
        if self.form == "ends" and bounds[-1] != ids:
            raise RequestError(f"{where} ends with {bounds[-1]}; {self.ids!r} has {ids} ids")
        lengths = np.diff(bounds if self.form == "ends" else np.append(bounds, ids))
        falls = np.flatnonzero(lengths < 0)
        if falls.size:
            at = int(falls[0])
            raise RequestError(f"{where} falls from {bounds[at]} at [{at}] to {bounds[at + 1]}; expected no descent")
        return lengths


def all_to_rows(model: str, ragged: Sequence[RaggedInput], values: Mapping[str, Any], batch: int) -> dict[str, Any]:
    """A query's inputs as kernels read them. Raises RequestError as `RaggedInput.to_rows`, and where there are not as
    many bags as samples. `batch`: the samples of other inputs; 0: they do not say."""
    given = {name for each in ragged for name in (*each.flat, each.bounds)}
    found = {name: value for name, value in values.items() if name not in given}
    for each in ragged:
        rows = each.to_rows(model, values)
        bags = len(rows[each.lengths])
        batch = batch or bags
        if bags != batch:
            raise RequestError(f"{model}: input {each.bounds!r} has {bags} bags, other inputs have {batch} samples")
        found |= rows
    return found


def all_to_ragged(ragged: Sequence[RaggedInput], rows: Mapping[str, Array]) -> dict[str, Array]:
    """What a client would have given, of what kernels read."""
    lengths = {each.lengths for each in ragged}
    found = {name: value for name, value in rows.items() if name not in lengths}
    for each in ragged:
        found |= each.to_ragged(rows)
    return found
