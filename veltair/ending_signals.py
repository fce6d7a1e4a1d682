"""What signals do to a command: while it is loaded, and while it runs."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)  # beside SIGINT, which Python raises as KeyboardInterrupt


@contextlib.contextmanager
def interruptible_at_once(what: str, also: Collection[signal.Signals] = ENDING) -> Iterator[None]:
    """Ctrl-C ends the process with 130 and one line, and each of `also` with 128 and its number, without an exception.

    That is for imports: the module that happens to be read would print a traceback, or take the interrupt for a module
    that is missing, and nothing has been begun that anybody would have to tidy up.
    """

    def end(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            os.write(sys.stderr.fileno(), f"{what}: interrupted\n".encode())
        os._exit(128 + number)

    with contextlib.ExitStack() as stack:
        stack.enter_context(_handled(signal.SIGINT, end, instead_of=signal.default_int_handler))
        for each in also:
            stack.enter_context(_handled(each, end, instead_of=signal.SIG_DFL))
        yield


@contextlib.contextmanager
def tidied_up() -> Iterator[None]:
    """SIGTERM, SIGHUP and SIGQUIT end the command with 128 and their number, and what it has begun is tidied up on the
    way. A second one ends it at once. One that is ignored, as under nohup, stays so."""
    with contextlib.ExitStack() as stack:
        for number in ENDING:
            stack.enter_context(_handled(number, _leave, instead_of=signal.SIG_DFL))
        yield


def end_by_signals() -> None:
    """SIGTERM, SIGHUP and SIGQUIT end this program with 128 and their number, and `with` and `finally` tidy up.

    Ctrl-C that nobody has caught is one line, no traceback.
    """
    for number in ENDING:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _leave)
    show = sys.excepthook

    def show_error(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            print("interrupted", file=sys.stderr)
        else:
            show(kind, error, where)

    sys.excepthook = show_error


@contextlib.contextmanager
def handled_in(loop: AbstractEventLoop, handler: Callable[[int], None]) -> Iterator[None]:
    """SIGINT and its like call the handler between two callbacks of a loop that runs.

    As an exception a signal comes out of whichever callback runs, and a loop in C takes it for that one's failure.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *ENDING)}
    numbers = [number for number, how in before.items() if how != signal.SIG_IGN]
    for number in numbers:
        loop.add_signal_handler(number, handler, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
            signal.signal(number, before[number])


def free_what_was_interrupted(error: BaseException) -> None:
    """Free what the calls held that a signal has ended, without a word of it. A second Ctrl-C ends the process at once.

    What was being made then may not be complete enough to be unmade, and Python prints a traceback for each such.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of coroutines that were never awaited
            each: BaseException | None = error
            while each is not None:
                traceback.clear_frames(each.__traceback__)
                each.__traceback__ = None
                each = each.__context__
            gc.collect()
    finally:
        sys.unraisablehook = hook


def _leave(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    raise SystemExit(128 + number)


@contextlib.contextmanager
def _handled(
    number: signal.Signals, handler: Callable[[int, FrameType | None], None], *, instead_of: object
) -> Iterator[None]:
    """Outside of the main thread, which alone may set handlers, nothing changes."""
    before = signal.getsignal(number)
    if before is not instead_of or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)
