"""`Certificates`: the files of `[server.tls]`, which are used again whenever they change."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from veltair.access_config import TlsConfig
from veltair.errors import ArtifactError, ConfigError
from veltair.machine.regular_file import read_regular_file
from veltair.server.access.certificate_dates import DAY_S, ValidTime, authorities_time, chain_time
from veltair.server.ipc.daemon_events import EventKind, Report, report_nothing
from veltair.server.repository.folder_reads import PATIENCE_S, FolderReads

LOOK_S = 5.0  # between two looks at the files
KEYS = ("certificate", "key", "client_authorities")  # of the configuration, each a file
MOST_BYTES = 16 << 20  # of each

_log = logging.getLogger("veltair.server")


class UsesTls(Protocol):
    """What encrypts connections: `IoThreads`."""

    def use_tls(self, tls: TlsConfig, names: Sequence[str]) -> bool: ...


class TlsFiles(NamedTuple):
    """What the files had when they were read: `read_files(tls)`."""

    state: object  # tells one state of the files from another
    contents: Mapping[str, bytes]  # by key


class Certificates:
    """Connections that are open keep what they began with.

    The files are read in threads of their own, since a file system may never answer, and used from memory, so that what
    was checked is what is used. ::

        certificates = Certificates(threads, config.server.tls)
        await certificates.load(["shop.internal"], FolderReads())
        following = asyncio.create_task(certificates.follow())
    """

    def __init__(
        self,
        threads: UsesTls,
        tls: TlsConfig,
        report: Report = report_nothing,
        clock: Callable[[], float] = time.time,
        look_s: float = LOOK_S,
    ) -> None:
        """`clock`: seconds since 1970. `report` hears of certificates that expire, once a day for each file."""
        self._threads, self._tls, self._report, self._clock, self._look_s = threads, tls, report, clock, look_s
        self._times: Mapping[str, ValidTime] = {}  # of the files in use, by their keys in the configuration
        self._told: dict[str, tuple[str, int]] = {}  # what was said about each, on which day
        self._names: Sequence[str] = ()
        self._seen: object = None  # the files' state at the last try
        self._used: object = None  # and at the last that went well

    async def load(self, names: Sequence[str], reads: FolderReads) -> bool:
        """Use the files as they are now; `names` are those in clients' certificates that mean something.

        Returns whether anything is new. Raises ConfigError where they cannot be used, or do not come; those before stay
        in use then. OverloadedError once `reads` is closed.
        """
        try:
            self._seen = seen = await reads.run(_state_of, self._tls)
            if (seen, list(names)) == (self._used, list(self._names)):
                return False
            self._use(await reads.run(read_files, self._tls), names)
        except ArtifactError as error:
            raise ConfigError(f"server.tls: {error}") from None
        return True

    def _use(self, files: TlsFiles, names: Sequence[str]) -> None:
        """Raises ConfigError."""
        self._seen = files.state
        with _in_memory(self._tls, files) as tls:
            _check(tls)
            if not self._threads.use_tls(tls, names):
                raise ConfigError("server.tls: OpenSSL 3 (libssl.so.3) is not there, or refuses the files")
        self._names, self._used = names, files.state
        self._times = _times_of(files)
        self._tell()

    def days_left(self) -> dict[str, float]:
        """Days until the certificates in use expire, by the key of their file; below zero since then."""
        now_s = self._clock()
        return {key: valid.days_left(now_s) for key, valid in self._times.items()}

    def _tell(self) -> None:
        now_s = self._clock()
        for key, valid in self._times.items():
            fault, today = valid.fault(now_s), int(now_s / DAY_S)
            if self._told.get(key, ("", today)) == (fault, today):
                continue
            self._told[key] = fault, today
            if fault:
                text = f"server.tls.{key}: {getattr(self._tls, key)}: {fault}"
                _log.warning("%s", text)
                in_force = valid.is_in_force(now_s)
                self._report(EventKind.CERTIFICATE_EXPIRES if in_force else EventKind.CERTIFICATE_INVALID, "", text)

    async def follow(self) -> None:
        """Use the files again when they have changed, as those who renew certificates expect."""
        looking: asyncio.Task[None] | None = None  # one at a time: each that hangs keeps a thread
        begun_s = 0.0
        try:
            while True:
                await asyncio.sleep(self._look_s)
                self._tell()
                if looking is None or looking.done():
                    looking, begun_s = asyncio.create_task(self._look_again()), time.monotonic()
                elif begun_s and time.monotonic() - begun_s > PATIENCE_S:
                    _log.error("the certificate stays in use: the file system of [server.tls] does not answer")
                    begun_s = 0.0  # it is said once
        finally:
            if looking is not None:
                looking.cancel()

    async def _look_again(self) -> None:
        reads = FolderReads(patience_s=None)
        try:
            seen = await reads.run(_state_of, self._tls)
            if seen == self._seen:
                return
            self._seen = seen
            self._use(await reads.run(read_files, self._tls), self._names)
            _log.info("the certificate was read again")
        except ConfigError as error:
            _log.error("the certificate before stays in use: %s", error)
        except (OSError, MemoryError, RuntimeError) as error:  # for want of descriptors, memory or threads
            self._seen = None
            _log.error("the certificate before stays in use: %s", error)


def read_files(tls: TlsConfig) -> TlsFiles:
    """Raises ConfigError, with the first of them that cannot be read."""
    state = _state_of(tls)
    return TlsFiles(state, {key: _content(key, path) for key in KEYS if (path := getattr(tls, key)) is not None})


def valid_times(tls: TlsConfig) -> dict[str, ValidTime]:
    """When the certificates in the files are valid, by key; without those that are none. Raises ConfigError."""
    return _times_of(read_files(tls))


def _times_of(files: TlsFiles) -> dict[str, ValidTime]:
    kinds = {"certificate": chain_time, "client_authorities": authorities_time}
    times = {key: read(files.contents[key]) for key, read in kinds.items() if key in files.contents}
    return {key: valid for key, valid in times.items() if valid is not None}


def find_faults(tls: TlsConfig) -> list[str]:
    """What is wrong with the files now that serving does not end for: they expire soon, or are not valid."""
    now_s = time.time()
    faults = {key: valid.fault(now_s) for key, valid in valid_times(tls).items()}
    return [f"server.tls.{key}: {getattr(tls, key)}: {fault}" for key, fault in faults.items() if fault]


def _content(key: str, path: str) -> bytes:
    """Raises ConfigError."""
    try:
        return read_regular_file(Path(path), MOST_BYTES)
    except OSError as error:
        raise ConfigError(f"server.tls.{key}: {path}: {error.strerror}") from None


def _state_of(tls: TlsConfig) -> object:
    """What tells one state of the files from another."""
    return [_state(path) for key in KEYS if (path := getattr(tls, key)) is not None]


def _state(path: str) -> object:
    try:
        found = Path(path).stat()
    except OSError as error:
        return error.errno
    return found.st_ino, found.st_size, found.st_mtime_ns


@contextmanager
def _in_memory(tls: TlsConfig, files: TlsFiles) -> Iterator[TlsConfig]:
    """The same configuration with files that have these contents, which no file system has to answer for."""
    with ExitStack() as held:
        paths = {}
        for key, content in files.contents.items():
            file = held.enter_context(os.fdopen(os.memfd_create(f"tls-{key}"), "wb", buffering=0))
            file.write(content)
            paths[key] = f"/proc/self/fd/{file.fileno()}"
        yield replace(tls, **paths)


def check_files(tls: TlsConfig) -> None:
    """Say what is wrong with the files, which the I/O threads cannot. Raises ConfigError."""
    with _in_memory(tls, read_files(tls)) as copied:
        _check(copied)


def _check(tls: TlsConfig) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(tls.certificate, tls.key, password=_no_passphrase)
    except ssl.SSLError as error:
        raise ConfigError(f"server.tls: certificate and key: {_words(error)}") from None
    try:
        if tls.client_authorities is not None:
            context.load_verify_locations(tls.client_authorities)
    except ssl.SSLError as error:
        raise ConfigError(f"server.tls.client_authorities: {_words(error)}") from None


def _no_passphrase() -> str:
    raise ConfigError("server.tls.key: it has a passphrase, which nobody is there to give")


def _words(error: ssl.SSLError) -> str:
    """What OpenSSL calls it.

    >>> _words(ssl.SSLError())
    'expected PEM files that belong together'
    """
    reason = getattr(error, "reason", None) or "expected PEM files that belong together"
    return str(reason).replace("_", " ")
