"""`to_its_end`: what is begun is done, whoever has asked for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

Of = ParamSpec("Of")
Result = TypeVar("Result")


def to_its_end(change: Callable[Of, Coroutine[Any, Any, Result]]) -> Callable[Of, Coroutine[Any, Any, Result]]:
    """Decorates a change of models, which goes on when its caller is cancelled.

    Half of a change would be a model that nobody can use or unload, and clients go away at any moment. ::

        @to_its_end
        async def load(self, name: str) -> None: ...
    """

    @wraps(change)
    async def shielded(*args: Of.args, **kwargs: Of.kwargs) -> Result:
        under_way = asyncio.create_task(change(*args, **kwargs))
        under_way.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may be left to hear it
        return await asyncio.shield(under_way)

    return shielded
