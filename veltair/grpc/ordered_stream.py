"""`answer_in_order`: the requests of one stream side by side, their answers in the order of the requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import TypeVar

Request = TypeVar("Request")
Answer = TypeVar("Answer")


async def answer_in_order(
    requests: AsyncIterator[Request], answer: Callable[[Request], Awaitable[Answer]], depth: int
) -> AsyncGenerator[Answer, None]:
    """`depth`: requests that run at the same time, besides the one whose answer is next and one that was read. Those
    that run are cancelled when the reader of the answers leaves.

    >>> async def requests():
    ...     for number in (3, 1, 2):
    ...         yield number
    >>> async def double(number):
    ...     await asyncio.sleep(number / 1000)
    ...     return 2 * number
    >>> async def answers():
    ...     return [each async for each in answer_in_order(requests(), double, depth=2)]
    >>> asyncio.run(answers())
    [6, 2, 4]
    """
    running: asyncio.Queue[asyncio.Future[Answer] | None] = asyncio.Queue(depth)

    async def read() -> None:
        try:
            async for request in requests:
                await running.put(asyncio.ensure_future(answer(request)))
        finally:
            await running.put(None)

    reader = asyncio.create_task(read())
    next_one: asyncio.Future[Answer] | None = None
    try:
        while (next_one := await running.get()) is not None:
            yield await next_one
    finally:
        reader.cancel()
        for left in (next_one, *(running.get_nowait() for _ in range(running.qsize()))):
            if left is not None:
                left.cancel()
