"""`Certificates`: the files of `[server.tls]`, which are used again whenever they change."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from veltair.access_config import TlsConfig
from veltair.errors import ConfigError
from veltair.machine.regular_file import read_regular_file
from veltair.server.access.certificate_dates import DAY_S, ValidTime, authorities_time, chain_time
from veltair.server.ipc.daemon_events import EventKind, Report, report_nothing

LOOK_S = 5.0  # between two looks at the files
MOST_BYTES = 16 << 20  # of each

_log = logging.getLogger("veltair.server")


class UsesTls(Protocol):
    """What encrypts connections: `IoThreads`."""

    def use_tls(self, tls: TlsConfig, names: Sequence[str]) -> bool: ...


class Certificates:
    """Connections that are open keep what they began with.

    ::

        certificates = Certificates(threads, config.server.tls)
        certificates.load(["shop.internal"])
        following = asyncio.create_task(certificates.follow())
    """

    def __init__(
        self,
        threads: UsesTls,
        tls: TlsConfig,
        report: Report = report_nothing,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock`: seconds since 1970. `report` hears of certificates that expire, once a day for each file."""
        self._threads, self._tls, self._report, self._clock = threads, tls, report, clock
        self._times: Mapping[str, ValidTime] = {}  # of the files in use, by their keys in the configuration
        self._told: dict[str, tuple[str, int]] = {}  # what was said about each, on which day
        self._names: Sequence[str] = ()
        self._seen: object = None  # the files' state at the last try
        self._used: object = None  # and at the last that went well

    def load(self, names: Sequence[str]) -> bool:
        """Use the files as they are now; `names` are those in clients' certificates that mean something.

        Returns whether anything is new. Raises ConfigError where they cannot be used; those before stay in use then.
        """
        self._seen = seen = self._look()
        if (seen, list(names)) == (self._used, list(self._names)):
            return False
        check_files(self._tls)
        if not self._threads.use_tls(self._tls, names):
            raise ConfigError("server.tls: OpenSSL 3 (libssl.so.3) is not there, or refuses the files")
        self._names, self._used = names, seen
        self._times = valid_times(self._tls)
        self._tell()
        return True

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
        while True:
            await asyncio.sleep(LOOK_S)
            self._tell()
            try:
                if self._look() != self._seen and self.load(self._names):
                    _log.info("the certificate was read again")
            except ConfigError as error:
                _log.error("the certificate before stays in use: %s", error)

    def _look(self) -> object:
        """What tells one state of the files from another."""
        files = (self._tls.certificate, self._tls.key, self._tls.client_authorities)
        return [_state(file) for file in files if file is not None]


def valid_times(tls: TlsConfig) -> dict[str, ValidTime]:
    """When the certificates in the files are valid, by key; without those that cannot be read."""
    kinds = {"certificate": chain_time, "client_authorities": authorities_time}
    found = {}
    for key, read in kinds.items():
        if (path := getattr(tls, key)) is not None and (valid := read(_content(key, path))) is not None:
            found[key] = valid
    return found


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


def _state(path: str) -> object:
    try:
        found = Path(path).stat()
    except OSError as error:
        return error.errno
    return found.st_ino, found.st_size, found.st_mtime_ns


def check_files(tls: TlsConfig) -> None:
    """Say what is wrong with the files, which the I/O threads cannot. Raises ConfigError."""
    for key in ("certificate", "key", "client_authorities"):
        if (path := getattr(tls, key)) is not None:
            _content(key, path)
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
