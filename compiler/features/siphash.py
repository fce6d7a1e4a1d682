"""SipHash-2-4, which tf.strings.to_hash_bucket_strong and Keras' salted Hashing use, in plain Python.

Aumasson and Bernstein, "SipHash: a fast short-input PRF". The names v0 to v3 are theirs.
"""

from __future__ import annotations

WORD = (1 << 64) - 1
START = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


def siphash(key: tuple[int, int], text: bytes) -> int:
    """The hash of a text, 64 bits.

    >>> hex(siphash((0x0706050403020100, 0x0F0E0D0C0B0A0908), bytes(range(15))))
    '0xa129ca6149be45e5'
    """
    v = [start ^ key[place % 2] & WORD for place, start in enumerate(START)]
    whole = len(text) & ~7
    words = [int.from_bytes(text[at : at + 8], "little") for at in range(0, whole, 8)]
    for word in [*words, int.from_bytes(text[whole:], "little") | (len(text) & 0xFF) << 56]:
        v[3] ^= word
        _round(v, 2)
        v[0] ^= word
    v[2] ^= 0xFF
    _round(v, 4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def _round(v: list[int], times: int) -> None:
    for _ in range(times):
        for one, other, by in ((0, 1, 13), (2, 3, 16)):
            v[one] = v[one] + v[other] & WORD
            v[other] = _rotate(v[other], by) ^ v[one]
        v[0] = _rotate(v[0], 32)
        for one, other, by in ((2, 1, 17), (0, 3, 21)):
            v[one] = v[one] + v[other] & WORD
            v[other] = _rotate(v[other], by) ^ v[one]
        v[2] = _rotate(v[2], 32)


def _rotate(value: int, by: int) -> int:
    """The word rotated left by a number of bits."""
    return (value << by | value >> (64 - by)) & WORD
