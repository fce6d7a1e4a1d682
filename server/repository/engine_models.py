"""`EngineModels`: the models of one engine process, as the front numbers them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from numpy.typing import NDArray

from veltair.errors import RequestError
from veltair.profiles.artifact.input_layout import InputLayout
from veltair.profiles.artifact.output_layout import read_outputs
from veltair.profiles.artifact.sealed_artifact import SealedFiles
from veltair.server.ipc.block_orders import bucket_number
from veltair.server.ipc.lane_descriptors import LaneDescriptors
from veltair.server.ipc.messages import InferQuery, TenantSpec
from veltair.server.ipc.tensor_pool import RegionSpace, TensorPool, create_tensor_pool, region_bytes
from veltair.server.protocol.datatypes import Tensor
from veltair.server.protocol.validation import batch_size
from veltair.server.repository.free_slots import FreeSlots
from veltair.server.repository.model_memory import ModelMemory, memory_of_models
from veltair.server.repository.served_tenant import ServedTenant
from veltair.server.wire.engine_link import EngineLink
from veltair.server.wire.io_threads import IoThreads
from veltair.server.wire.plan import SlotViews


class SlotContent(NamedTuple):
    """What a query has in its slot: `SlotContent(batch=1, bucket=0, extent=0)`."""

    batch: int
    bucket: int  # whose tensors it has there
    extent: int  # of the dimension that queries choose; 0: the model has none


class EngineModels:
    """Each model has a number, a region of the tensor pool, and slots, from `add` to `remove`.

    ::

        models = EngineModels(threads, capacity=64, slots=1024)
        spec = models.add(served)
        models.open(spec.number)  # its queries may take slots
        models.close(spec.number)
        models.remove(spec.number)  # nobody uses its region any more
    """

    def __init__(self, threads: IoThreads | None, capacity: int, slots: int) -> None:
        """`threads` send queries of their own. Raises VeltairError when there is no memory."""
        self.capacity, self._threads = capacity, threads
        self.descriptor = create_tensor_pool()  # closed by who gives it to the engine
        self.pool = TensorPool(self.descriptor, slots)
        try:
            self.link = None if threads is None else EngineLink(threads, self.pool, capacity)
        except BaseException:
            self.close_descriptor()
            raise
        self.slots = self.link or FreeSlots(slots, capacity)
        self._space = RegionSpace()
        self._specs: dict[int, TenantSpec] = {}
        self._served: dict[int, ServedTenant] = {}
        self._numbers: dict[ServedTenant, int] = {}

    @property
    def specs(self) -> tuple[TenantSpec, ...]:
        return tuple(self._specs.values())

    @property
    def lanes(self) -> LaneDescriptors | None:
        """What the engine needs of the link with the threads."""
        return None if self.link is None else self.link.descriptors

    @property
    def artifacts(self) -> dict[str, SealedFiles]:
        """The artifacts in use, by digest."""
        return {served.artifact.digest: served.artifact.files for served in self._served.values()}

    @property
    def passed(self) -> Sequence[int]:
        """Descriptors that the engine process gets, that of the pool first."""
        artifacts = chain.from_iterable(self.artifacts.values())
        return (self.descriptor, *(() if self.link is None else self.link.passed), *artifacts)

    def add(self, served: ServedTenant) -> TenantSpec:
        """Number a model. Raises RequestError when there are as many as the engine takes."""
        number = next((number for number in range(self.capacity) if number not in self._specs), None)
        if number is None:
            raise RequestError(f"{self.capacity} models are served, and no more than that (server.max_models)")
        copies = {spec.copy for spec in self._specs.values() if spec.name == served.name}
        copy = next(copy for copy in range(1, self.capacity + 1) if copy not in copies)
        offset = self._space.take(region_bytes(served.manifest, self.pool.slots))
        self.pool.add(number, served.manifest, offset)
        spec = self._specs[number] = served.spec(number, offset, copy)
        self._served[number], self._numbers[served] = served, number
        return spec

    def open(self, number: int) -> None:
        self.slots.open(number, self._specs[number].share)

    def close(self, number: int) -> None:
        self.slots.close(number)

    def remove(self, number: int) -> None:
        """The engine has forgotten it."""
        if self._threads is not None:
            self._threads.drain_counts()  # while the number is this one's
            self._threads.clear_plans_of([number])  # those that were made while its last queries ended
        self.pool.free_memory(number)
        self.pool.remove(number)
        self._space.give_back(self._specs.pop(number).offset)
        del self._numbers[self._served.pop(number)]

    def all(self) -> list[ServedTenant]:
        return list(self._served.values())

    def memory(self, live: Iterable[ServedTenant], workers: int) -> tuple[ModelMemory, ...]:
        """What each of the models costs, where so many worker processes hold them."""
        return memory_of_models(live, workers, self.slot_bytes)

    def slot_bytes(self, served: ServedTenant) -> int:
        """The memory that its slots take now."""
        number = self._numbers.get(served)
        return 0 if number is None else self.pool.used_bytes(number)

    def held(self, served: ServedTenant) -> int:
        """Slots that its queries hold."""
        number = self._numbers.get(served)
        return 0 if number is None else self.slots.held(number)

    def served_as(self, number: int) -> ServedTenant | None:
        """The model with this number; None where there is none."""
        return self._served.get(number)

    def number_of(self, served: ServedTenant) -> int | None:
        """The model's number in the engine; None where the engine does not have it."""
        return self._numbers.get(served)

    def numbers_of(self, served: Iterable[ServedTenant]) -> set[int]:
        """Numbers of those models that the engine has."""
        return {self._numbers[each] for each in served if each in self._numbers}

    def write_inputs(self, number: int, slot: int, inputs: Mapping[str, Tensor]) -> SlotContent:
        """Copy the inputs into a slot. Raises RequestError for arrays that do not fit."""
        manifest = self._served[number].manifest
        batch = batch_size(manifest.inputs, inputs)
        if not 1 <= batch <= manifest.max_batch:
            raise RequestError(f"expected a batch of 1 to {manifest.max_batch}, got {batch}")
        bucket = extent = 0
        if (dimension := manifest.dimension) is not None:
            extent, bucket, inputs = dimension.fit(manifest.model, inputs)
        views = self.pool.inputs(bucket_number(number, bucket), slot, batch)
        InputLayout.of(manifest.every_bucket[bucket]).fill(views, inputs, batch)
        return SlotContent(batch, bucket, extent)

    def read_outputs(self, query: InferQuery) -> dict[str, NDArray[Any]]:
        """Copies of the outputs in a query's slot, by name. Raises RequestError where one is larger than its room."""
        manifest = self._served[query.tenant].manifest
        tensors = self.pool.outputs(bucket_number(query.tenant, query.bucket), query.slot, query.batch)
        views = read_outputs(manifest.every_bucket[query.bucket], tensors)
        if manifest.dimension is not None:
            views = manifest.dimension.cut(views, query.extent)
        return {name: view.copy() for name, view in views.items()}

    def slot_views(self, served: ServedTenant, batch: int) -> tuple[int, SlotViews] | None:
        """The model's number, and views of its first slot; all its slots are laid out alike. None: it is not here."""
        number = self._numbers.get(served)
        if number is None:
            return None
        address = self.pool.address(number)
        return number, SlotViews(address, self.pool.inputs(number, 0, batch), self.pool.outputs(number, 0, batch))

    def leave(self, why: str) -> None:
        """There is no engine any more: give back what was shared with it, though errors of queries may hold on to this
        object until they are collected."""
        if self.link is not None:
            self.link.leave(why)
        self._numbers.clear()
        self.pool.close()

    def close_descriptor(self) -> None:
        """The engine has it by now; the mapping stays."""
        os.close(self.descriptor)
