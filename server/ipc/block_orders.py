"""`Order` and `BlockEnd`: what an engine orders of a worker, and how it ended. `worker_cell` carries both."""

from __future__ import annotations

from struct import Struct, pack, unpack
from typing import NamedTuple

import msgspec

from veltair.types import CoreSet

BATCH = 0xFFFF_FFFF  # in place of a slot: several queries, gathered in memory of the worker's own
_MEMBER, _KEY = Struct("<II"), Struct("<IIII")
TENANT_BITS = 16
MEMBER_BYTES, VERSION_BYTES = _MEMBER.size, 4


def bucket_number(tenant: int, bucket: int) -> int:
    """What an order and a worker call a tenant's model at one of the extents that it was compiled at.

    >>> bucket_number(5, 0), bucket_number(5, 2)
    (5, 131077)
    """
    return tenant | bucket << TENANT_BITS


def tenant_of(number: int) -> int:
    """The tenant of a `bucket_number`.

    >>> tenant_of(bucket_number(5, 2))
    5
    """
    return number & ((1 << TENANT_BITS) - 1)


class Members(msgspec.Struct, frozen=True, gc=False):
    """The queries of a batch, mostly one, each with its slot and its number of samples.

    >>> members = Members.of([(3, 1), (9, 2)])
    >>> members.samples, members.slot == BATCH, Members.of([(3, 1)]).slot
    (3, True, 3)
    """

    slot: int  # of the only query, or BATCH
    samples: int  # of all
    packed: bytes  # slot and samples of each, as in the cell

    @classmethod
    def of(cls, queries: list[tuple[int, int]]) -> Members:
        """Members from the slot and the samples of each query."""
        if len(queries) == 1:
            slot, samples = queries[0]
            return cls(slot, samples, _MEMBER.pack(slot, samples))
        flat = [number for query in queries for number in query]
        return cls(BATCH, sum(flat[1::2]), pack(f"<{len(flat)}I", *flat))


def unpack_members(packed: bytes) -> list[tuple[int, int]]:
    """The slot and the samples of each query.

    >>> unpack_members(Members.of([(3, 1), (9, 2)]).packed)
    [(3, 1), (9, 2)]
    """
    flat = unpack(f"<{len(packed) // 4}I", packed)
    return list(zip(flat[::2], flat[1::2], strict=True))


class Order(msgspec.Struct, frozen=True, gc=False):
    """Run layers [start, start + len(versions)) of a query or a batch, on these cores unless the cell holds others by
    then; the worker reports those.

    >>> Order(7, 0, Members.of([(3, 1)]), start=0, versions=(0, 2), cores=(0, 1)).members.slot
    3
    """

    query: int  # the batch's first
    tenant: int  # a `bucket_number`
    members: Members
    start: int
    versions: tuple[int, ...]
    cores: CoreSet
    callers: bytes = b""  # `done_queries.pack_callers`, one for each query; none: the engine tells of their end
    begin_ns: int = 0  # of the queries' first block; 0: it is this one
    execute_ns: int = 0  # in their blocks before this one


class BlockKey(NamedTuple):
    """What a worker prepares a block from: blocks of one key differ in nothing but the rows of a batch.

    >>> BlockKey(tenant=0, start=4, slot=3, samples=1, versions=(0, 2)).slot
    3
    """

    tenant: int  # a `bucket_number`
    start: int
    slot: int  # or BATCH
    samples: int
    versions: tuple[int, ...]


def pack_key(key: BlockKey) -> bytes:
    """The key as an order has it.

    >>> key = BlockKey(tenant=0, start=4, slot=3, samples=1, versions=(0, 2))
    >>> unpack_key(pack_key(key)) == key
    True
    """
    head = _KEY.pack(key.tenant, key.start, key.slot, key.samples)
    return head + pack(f"<{len(key.versions)}I", *key.versions)


def unpack_key(packed: bytes) -> BlockKey:
    """The key of an order, whose bytes serve as it is where it is only compared."""
    tenant, start, slot, samples = _KEY.unpack_from(packed)
    layers = (len(packed) - _KEY.size) // VERSION_BYTES
    return BlockKey(tenant, start, slot, samples, unpack(f"<{layers}I", packed[_KEY.size :]))


class BlockEnd(msgspec.Struct, frozen=True, gc=False):
    """The block reached layer `stop`, before its end if the cell asked it to stop.

    >>> BlockEnd(query=7, stop=3, reported=False, begin_ns=100, end_ns=350).stop
    3
    """

    query: int
    stop: int
    reported: bool  # the worker sent messages during the block, which come before its end
    begin_ns: int
    end_ns: int
    told_ns: int = 0  # when the worker told the front that the queries are done; 0: it did not
    refused: bool = False  # it was claimed, and would have begun late
