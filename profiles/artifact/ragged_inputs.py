"""Bags of ids that differ in length: how clients give them, and how they lie in memory.

A client gives the ids of all bags in one tensor, and beside it where each bag begins, or how many ids it has. Kernels
get a row with room for `room` ids for each bag, and the bag's length beside. So a bag has its first dimension in
common with every other input: queries are merged row after row, as they are, and no offset has to be rebased.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from veltair.errors import RequestError

Array: TypeAlias = NDArray[Any]
# offsets: where each bag begins; ends: these, and the end of the last one; lengths: how many ids each bag has
IdRanges: TypeAlias = Mapping[str, tuple[int | None, int | None]]  # both ends inclusive, by the kernels' input
BagForm: TypeAlias = Literal["offsets", "ends", "lengths"]


class FeatureBags(NamedTuple):
    """The kernels' inputs for the bags of one feature.

    >>> FeatureBags(0, "ids", "ids/lengths", {"weights": "weights"}).ids
    'ids'
    """

    feature: int
    ids: str  # (bags, room)
    lengths: str  # (bags, 1, 1), int64
    weights: Mapping[str, str]  # by the client's name, (bags, room, 1)


class RaggedInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The bags of one tensor of ids.

    >>> bags = RaggedInput("ids", "ids/lengths", "offsets", "int64", "offsets", room=3)
    >>> rows = bags.to_rows("m", {"ids": np.array([7, 8, 9]), "offsets": np.array([0, 2, 2])}, {})
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
    features: int = 1  # whose lengths, and whose ids, the client's tensors hold one after the other
    used: tuple[int, ...] = (0,)  # those that the model reads

    @property
    def flat(self) -> tuple[str, ...]:
        """The client's inputs with a number for each id."""
        return (self.ids, *self.weights)

    @property
    def views(self) -> tuple[FeatureBags, ...]:
        """The kernels' inputs, of each feature that the model reads."""
        return tuple(self.view(feature) for feature in self.used)

    def view(self, feature: int) -> FeatureBags:
        if self.features == 1:
            return FeatureBags(feature, self.ids, self.lengths, {name: name for name in self.weights})
        weights = {name: f"{name}/{feature}" for name in self.weights}
        return FeatureBags(feature, f"{self.ids}/{feature}", f"{self.lengths}/{feature}", weights)

    @property
    def rows(self) -> dict[str, str]:
        """The client's name of each of the kernels' inputs; of lengths that of what says which ids a bag has."""
        found: dict[str, str] = {}
        for view in self.views:
            found |= {view.ids: self.ids, view.lengths: self.bounds}
            found |= {own: name for name, own in view.weights.items()}
        return found

    def open_extents(self, max_batch: int) -> dict[str, tuple[int, int]]:
        """The least and the greatest extent of the client's inputs, of those with an extent of 0 in their shapes."""
        most = self.features * max_batch
        bounds = (2, max_batch + 1) if self.form == "ends" else (self.features, most)
        return dict.fromkeys(self.flat, (0, self.room * most)) | {self.bounds: bounds}

    def to_rows(self, model: str, values: Mapping[str, Any], ranges: IdRanges) -> dict[str, Array]:
        """What kernels read, of a client's inputs by name. Raises RequestError for bags that are not in the ids, and
        for ids of a feature that are not in its range."""
        ids = np.asarray(values[self.ids])
        lengths = self._lengths(model, np.asarray(values[self.bounds]), len(ids))
        if lengths.size and int(lengths.max()) > self.room:
            bag = int((lengths > self.room).argmax())
            raise RequestError(
                f"{model}: input {self.bounds!r} gives bag {bag} {lengths[bag]} ids of {self.ids!r}; at most "
                f"{self.room} are taken"
            )
        if len(lengths) % self.features:
            raise RequestError(
                f"{model}: input {self.bounds!r} has {len(lengths)} lengths; expected a multiple of {self.features}, "
                "one of each feature for every sample"
            )
        for name in self.weights:
            if len(values[name]) != len(ids):
                raise RequestError(
                    f"{model}: input {name!r} has {len(values[name])} values, {self.ids!r} has {len(ids)}"
                )
        found: dict[str, Array] = {}
        by_feature = lengths.reshape(self.features, -1)
        starts = np.concatenate([[0], by_feature.sum(1).cumsum()]).tolist()
        for view in self.views:
            own, part = by_feature[view.feature], slice(starts[view.feature], starts[view.feature + 1])
            if self.features > 1:
                self._check_ids(model, view, ids[part], part.start, ranges)
            inside = np.arange(self.room) < own[:, None]
            found[view.lengths] = own.reshape(-1, 1, 1)
            for name, to in ((self.ids, view.ids), *view.weights.items()):
                value = np.asarray(values[name])
                rows = np.zeros(inside.shape, value.dtype)
                rows[inside] = value[part]
                found[to] = rows if name == self.ids else rows[..., None]
        return found

    def _check_ids(self, model: str, view: FeatureBags, ids: Array, start: int, ranges: IdRanges) -> None:
        low, high = ranges.get(view.ids, (None, None))
        bad = np.zeros(ids.shape, bool)
        bad |= False if low is None else ids < low
        bad |= False if high is None else ids > high
        if bad.any():
            at = int(bad.argmax())
            raise RequestError(
                f"{model}: input {self.ids!r} has {ids[at]} at [{start + at}], an id of feature {view.feature}; its "
                f"ids go from {'any' if low is None else low} to {'any' if high is None else high}"
            )

    def to_ragged(self, rows: Mapping[str, Array]) -> dict[str, Array]:
        """What a client would have given, of what kernels read: nothing of features that the model does not read.
        Lengths out of range are brought into it."""
        bags = rows[self.views[0].lengths].size
        lengths = np.zeros((self.features, bags), np.int64)
        parts: dict[str, list[Array]] = {name: [] for name in self.flat}
        for view in self.views:
            lengths[view.feature] = rows[view.lengths].reshape(-1).clip(0, self.room)
            inside = np.arange(self.room) < lengths[view.feature][:, None]
            for name, own in ((self.ids, view.ids), *view.weights.items()):
                parts[name].append(rows[own].reshape(inside.shape)[inside])
        ends = np.concatenate([[0], lengths.reshape(-1).cumsum()])
        bounds = {"offsets": ends[:-1], "ends": ends, "lengths": lengths.reshape(-1)}[self.form]
        found = {name: np.concatenate(each) for name, each in parts.items()}
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


def all_to_rows(
    model: str, ragged: Sequence[RaggedInput], values: Mapping[str, Any], batch: int, ranges: IdRanges
) -> dict[str, Any]:
    """A query's inputs as kernels read them. Raises RequestError as `RaggedInput.to_rows`, and where there are not as
    many bags as samples. `batch`: the samples of other inputs; 0: they do not say."""
    given = {name for each in ragged for name in (*each.flat, each.bounds)}
    found = {name: value for name, value in values.items() if name not in given}
    for each in ragged:
        rows = each.to_rows(model, values, ranges)
        bags = len(rows[each.views[0].lengths])
        batch = batch or bags
        if bags != batch:
            raise RequestError(f"{model}: input {each.bounds!r} has {bags} bags, other inputs have {batch} samples")
        found |= rows
    return found


def all_to_ragged(ragged: Sequence[RaggedInput], rows: Mapping[str, Array]) -> dict[str, Array]:
    """What a client would have given, of what kernels read."""
    own = {name for each in ragged for name in each.rows}
    found = {name: value for name, value in rows.items() if name not in own}
    for each in ragged:
        found |= each.to_ragged(rows)
    return found
