"""`BlockHistory`: the last blocks of ended queries, which the front asks for in pages."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

from veltair.server.ipc.channel import PACKET_BYTES
from veltair.server.ipc.status_records import BlockRecord

KEPT_BLOCKS = 8192
PAGE_BYTES = PACKET_BYTES // 4  # the status around it has room, and workers are served between two pages


class BlockHistory:
    """Keeps the last 8,192 blocks. A cursor is the number of blocks up to a point in time.

    >>> history = BlockHistory()
    >>> history.add([BlockRecord(1, "mlp", 0, 3, (0, 2, 2), (0, 1), 100, 350, conflict=False, level=1.0)])
    >>> blocks, cursor = history.page(since=0)
    >>> blocks[0].stop, cursor, history.count
    (3, 1, 1)
    """

    def __init__(self) -> None:
        self._blocks: deque[BlockRecord] = deque(maxlen=KEPT_BLOCKS)
        self.count = 0  # all that were added
        self.last_end_ns = 0  # when the block ended that was added last

    def add(self, blocks: Sequence[BlockRecord]) -> None:
        self._blocks.extend(blocks)
        self.count += len(blocks)
        if blocks:
            self.last_end_ns = max(self.last_end_ns, blocks[-1].end_ns)

    def page(self, since: int) -> tuple[tuple[BlockRecord, ...], int]:
        """The kept blocks after the cursor `since`, oldest first, as many as PAGE_BYTES take; the cursor after them."""
        oldest = self.count - len(self._blocks)
        start = min(max(since, oldest), self.count)
        page: list[BlockRecord] = []
        left = PAGE_BYTES
        for block in islice(self._blocks, start - oldest, None):
            left -= encoded_bytes(block)
            if left < 0 and page:
                break
            page.append(block)
        return tuple(page), start + len(page)


def encoded_bytes(block: BlockRecord) -> int:
    """No fewer than the block takes in a message: 3 bytes for a core, layer, version or length, 9 for other numbers."""
    short = len(block.versions) + len(block.cores) + sum(2 + len(change.cores) for change in block.core_changes)
    return 80 + 4 * len(block.tenant) + 3 * short + 10 * len(block.core_changes)
