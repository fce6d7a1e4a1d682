"""From when to when the certificates in a PEM file are valid. Pure: the time is an argument.

Python's `ssl` tells the dates of certificates of peers alone, and those in a file are a few bytes into each
(RFC 5280, section 4.1).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

DAY_S = 86400.0
WARNING_DAYS = 14.0  # before its end that one tells of it, if that is less than ...
WARNING_SHARE = 0.25  # ... this part of its time: some are valid for hours, and renewed all the time

_PEM = re.compile(rb"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----([^-]*)-----END")
_SEQUENCE, _UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x30, 0x17, 0x18, 0xA0


class ValidTime(NamedTuple):
    """Seconds since 1970.

    >>> ValidTime(0.0, 100 * DAY_S).fault(90 * DAY_S)
    'it expires at 1970-04-11 00:00 UTC'
    """

    begins_s: float
    ends_s: float

    def is_in_force(self, now_s: float) -> bool:
        return self.begins_s <= now_s <= self.ends_s

    def days_left(self, now_s: float) -> float:
        """Below zero behind its end."""
        return (self.ends_s - now_s) / DAY_S

    def fault(self, now_s: float) -> str:
        """What its operator wants to know of it; "" for nothing."""
        if now_s > self.ends_s:
            return f"it expired at {_date(self.ends_s)}"
        if now_s < self.begins_s:
            return f"it is not valid before {_date(self.begins_s)}"
        warning_s = min(WARNING_DAYS * DAY_S, WARNING_SHARE * (self.ends_s - self.begins_s))
        return f"it expires at {_date(self.ends_s)}" if self.ends_s - now_s < warning_s else ""


def chain_time(pem: bytes) -> ValidTime | None:
    """While all certificates of a server's file are valid: a client checks each. None: their dates cannot be read."""
    times = read_times(pem)
    return ValidTime(max(t.begins_s for t in times), min(t.ends_s for t in times)) if times else None


def authorities_time(pem: bytes) -> ValidTime | None:
    """While any of a file's authorities is valid: an old one may stand beside the new."""
    times = read_times(pem)
    return ValidTime(min(t.begins_s for t in times), max(t.ends_s for t in times)) if times else None


def read_times(pem: bytes) -> list[ValidTime]:
    """Those of each certificate in a PEM file, without those that cannot be read."""
    return list(_times(pem))


def _times(pem: bytes) -> Iterator[ValidTime]:
    for match in _PEM.finditer(pem):
        try:
            yield _valid_time(base64.b64decode(match[1]))
        except (ValueError, IndexError, binascii.Error, OverflowError):
            continue


def _valid_time(der: bytes) -> ValidTime:
    """Certificate: SEQUENCE of TBSCertificate: SEQUENCE of [version], serial, signature, issuer, validity, …"""
    at, _ = _content(der, _content(der, 0, _SEQUENCE)[0], _SEQUENCE)
    if der[at] == _VERSION:
        at = _content(der, at)[1]
    for _ in range(3):
        at = _content(der, at)[1]
    begins, _ = _content(der, at, _SEQUENCE)
    return ValidTime(_time(der, begins), _time(der, _content(der, begins)[1]))


def _content(der: bytes, at: int, tag: int | None = None) -> tuple[int, int]:
    """Where the content of the element at `at` begins and ends. Raises ValueError, IndexError."""
    if tag is not None and der[at] != tag:
        raise ValueError("another element was expected")
    size, begin = der[at + 1], at + 2
    if size >= 0x80:
        begin += size & 0x7F
        size = int.from_bytes(der[at + 2 : begin])
    if begin + size > len(der):
        raise ValueError("the element is cut off")
    return begin, begin + size


def _time(der: bytes, at: int) -> float:
    """RFC 5280, section 4.1.2.5: in UTC, with seconds."""
    text = bytes(der[slice(*_content(der, at))]).decode("ascii")
    if der[at] == _UTC_TIME:
        text = ("19" if text[:2] >= "50" else "20") + text
    elif der[at] != _GENERALIZED_TIME:
        raise ValueError("a time was expected")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _date(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
