"""Several requests at once, for peers that hardly gain from a second thread.

An engine whose request takes as long on two threads as on one still serves two requests in that time, one a thread. Its
figure on two threads is then the time for each of two requests at once. Needs the standard library alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

LEAST_GAIN = 1.2  # of more threads: below it, a peer gets a request for each thread


def gains(one_ms: float, all_ms: float) -> bool:
    """Whether an engine makes use of its threads: its times on one thread and on all.

    >>> gains(10.0, 6.0), gains(10.0, 9.0)
    (True, False)
    """
    return one_ms >= LEAST_GAIN * all_ms


def fairest_ms(one_ms: float, all_ms: float, at_once_ms: float | None) -> float:
    """A peer's time for a request on all threads, or for each of several at once where it makes no use of threads.

    at_once_ms: None: was not measured.

    >>> fairest_ms(10.0, 9.0, 5.5), fairest_ms(10.0, 6.0, 5.5), fairest_ms(10.0, 9.0, None)
    (5.5, 6.0, 9.0)
    """
    return all_ms if at_once_ms is None or gains(one_ms, all_ms) else min(all_ms, at_once_ms)


def time_at_once(runs: Sequence[Callable[[], Any]], budget_s: float) -> float:
    """Ms a request while each of `runs`, which must let go of the interpreter, is repeated in a thread of its own."""
    start = threading.Barrier(len(runs))
    counts, failures = [0] * len(runs), list[BaseException]()
    begins_s, ends_s = [0.0] * len(runs), [0.0] * len(runs)

    def serve(place: int, run: Callable[[], Any]) -> None:
        try:
            run()  # the first one does not count
            start.wait()
            begins_s[place] = time.perf_counter()
            while counts[place] == 0 or time.perf_counter() < begins_s[place] + budget_s:
                run()
                counts[place] += 1
            ends_s[place] = time.perf_counter()
        except BaseException as error:
            failures.append(error)
            start.abort()

    threads = [threading.Thread(target=serve, args=each) for each in enumerate(runs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise next((error for error in failures if not isinstance(error, threading.BrokenBarrierError)), failures[0])
    return (max(ends_s) - min(begins_s)) / sum(counts) * 1e3
