"""The bucket of a value, in plain Python: by its fingerprint, by SipHash with a key, or by its remainder."""

from __future__ import annotations

from veltair.compiler.features.fingerprint import fingerprint64
from veltair.compiler.features.siphash import siphash

WHITE_SPACE = b"\t\n\v\f\r "


def clean_text(text: bytes, case: str | None, *, strip: bool) -> bytes:
    """A text in another letter case, of ASCII letters alone, and without the ASCII white space around it.

    >>> clean_text(b" Rome ", "lower", strip=True)
    b'rome'
    """
    stripped = text.strip() if strip else text
    return stripped.lower() if case == "lower" else stripped.upper() if case == "upper" else stripped


def bucket_of(
    value: bytes | int, buckets: int, strong_key: tuple[int, int] | None = None, *, remainder: bool = False
) -> int:
    """The bucket of a text or a whole number, which is hashed in decimal digits.

    >>> bucket_of(-1, 3, remainder=True)
    2
    """
    if remainder and not isinstance(value, bytes):
        return int(value) % buckets
    text = value if isinstance(value, bytes) else str(value).encode()
    return (fingerprint64(text) if strong_key is None else siphash(strong_key, text)) % buckets


def white_space_without(removed: bytes) -> bytes:
    """The bytes of ASCII white space that separate tokens: those that are not left out before.

    >>> white_space_without(b"\\t!")
    b'\\n\\x0b\\x0c\\r '
    """
    return bytes(byte for byte in WHITE_SPACE if byte not in removed)
