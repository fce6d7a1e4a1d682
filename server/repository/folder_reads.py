"""`FolderReads`: looks at folders of models in threads that nothing has to wait for."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from veltair.errors import ArtifactError, OverloadedError, RefusalReason

PATIENCE_S = 60.0  # with a file system; thousands of folders over a network take seconds

Of = ParamSpec("Of")
Result = TypeVar("Result")


class FolderReads:
    """Runs what reads folders beside the event loop, and gives up where a file system does not answer.

    A network file system whose server is gone may never let its reader go, and no signal ends that. A pool of threads
    would have the process wait for such a reader at its end; these threads end with the process. ::

        reads = FolderReads()
        found = await reads.run(look_at, path)
        reads.close()
    """

    def __init__(self, patience_s: float | None = PATIENCE_S) -> None:
        """`patience_s`: None waits as long as it takes."""
        self._patience_s = patience_s
        self._waiting: set[asyncio.Future[Any]] = set()
        self._closed = False

    async def run(self, read: Callable[Of, Result], *args: Of.args, **kwargs: Of.kwargs) -> Result:
        """What `read` returns or raises. Raises ArtifactError where that takes too long, and OverloadedError once it is
        closed."""
        if self._closed:
            raise OverloadedError(RefusalReason.DRAINING)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Result] = loop.create_future()

        def settle(how: Callable[[Any], None], value: object) -> None:
            if not answer.done():
                how(value)

        def tell(how: Callable[[Any], None], value: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(settle, how, value)

        def work() -> None:
            try:
                result = read(*args, **kwargs)
            except BaseException as error:
                tell(answer.set_exception, error)
            else:
                tell(answer.set_result, result)

        self._waiting.add(answer)
        try:
            threading.Thread(target=work, name="folder-reads", daemon=True).start()
            return await asyncio.wait_for(answer, self._patience_s)
        except TimeoutError:
            raise ArtifactError(f"the file system has not answered for {self._patience_s:g} s") from None
        finally:
            self._waiting.discard(answer)

    def close(self) -> None:
        """Whoever waits is refused, since the server shuts down."""
        self._closed = True
        for answer in self._waiting:
            if not answer.done():
                answer.set_exception(OverloadedError(RefusalReason.DRAINING))
