"""FarmHash's Fingerprint64, which tf.strings.to_hash_bucket_fast uses, in plain Python: one string at a time."""

from __future__ import annotations

import struct
from collections.abc import Iterable

K0, K1, K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F
WORD = (1 << 64) - 1
CROSS_FACTOR = 0xC6A4A7935BD1E995
CROSS_KEY = 0xDECAFCAFFE  # where a cross begins, unless it says another


def fingerprint64(text: bytes) -> int:
    """farmhashna::Hash64: one formula for each class of lengths (up to 3, 7, 16, 32, 64 bytes, and above).

    >>> fingerprint64(b"") == K2
    True
    """
    size = len(text)
    if size > 64:
        return _long(text)
    mul = K2 + size * 2
    if size > 16:
        a = _word(text, 0) * (K1 if size <= 32 else K2) & WORD
        b, c = _word(text, 8), _word(text, size - 8) * mul & WORD
        d = _word(text, size - 16) * K2
        y = _rotate(a + b, 43) + _rotate(c, 30) + d
        z = a + _rotate(b + K2, 18) + c
        if size <= 32:
            return _mix(y, z, mul)
        z = _mix(y, z, mul)
        e, f = _word(text, 16) * mul, _word(text, 24)
        g, h = (y + _word(text, size - 32)) * mul, (z + _word(text, size - 24)) * mul
        return _mix(_rotate(e + f, 43) + _rotate(g, 30) + h, e + _rotate(f + a, 18) + g, mul)
    if size >= 8:
        a, b = _word(text, 0) + K2, _word(text, size - 8)
        return _mix(_rotate(b, 37) * mul + a, (_rotate(a, 25) + b) * mul, mul)
    if size >= 4:
        first, last = struct.unpack_from("<I", text)[0], struct.unpack_from("<I", text, size - 4)[0]
        return _mix(size + (first << 3), last, mul)
    if size:
        y, z = text[0] + (text[size >> 1] << 8), size + (text[-1] << 2)
        return _shift_mix(y * K2 ^ z * K0) * K2 & WORD
    return K2


def joined_fingerprint(fingerprint: int, other: int) -> int:
    """TensorFlow's FingerprintCat64: the fingerprint of two things that have one each.

    >>> joined_fingerprint(0, 0) == joined_fingerprint(0, 1)
    False
    """
    found = fingerprint ^ CROSS_FACTOR ^ _shift_mix((other & WORD) * CROSS_FACTOR) * CROSS_FACTOR & WORD
    return _shift_mix(_shift_mix(found * CROSS_FACTOR) * CROSS_FACTOR)


def crossed_fingerprint(key: int, values: Iterable[bytes | int]) -> int:
    """The fingerprint of a cross: those of its values joined, of which a whole number is its own.

    >>> crossed_fingerprint(CROSS_KEY, [b"a", 1]) == crossed_fingerprint(CROSS_KEY, [1, b"a"])
    False
    """
    for value in values:
        key = joined_fingerprint(key, fingerprint64(value) if isinstance(value, bytes) else value)
    return key


def _word(text: bytes, start: int) -> int:
    return int(struct.unpack_from("<Q", text, start)[0])


def _rotate(value: int, by: int) -> int:
    value &= WORD
    return (value >> by | value << (64 - by)) & WORD


def _shift_mix(value: int) -> int:
    value &= WORD
    return value ^ value >> 47


def _mix(u: int, v: int, mul: int) -> int:
    return _shift_mix((v ^ _shift_mix((u ^ v) * mul)) * mul) * mul & WORD


def _weak(text: bytes, at: int, a: int, b: int) -> tuple[int, int]:
    w, x, y, z = (_word(text, at + step) for step in (0, 8, 16, 24))
    a += w
    b = _rotate(b + a + z, 21)
    c = a
    a += x + y
    return (a + z) & WORD, (b + _rotate(a, 44) + c) & WORD


def _long(text: bytes) -> int:
    size = len(text)
    x, y = 81, (81 * K1 + 113) & WORD
    z = _shift_mix(y * K2 + 113) * K2
    v = w = (0, 0)
    x = (x * K2 + _word(text, 0)) & WORD
    for at in range(0, (size - 1) // 64 * 64, 64):
        x, y, z, v, w = _block(text, at, x, y, z, v, w, K1, 1)
    mul = (K1 + ((z & 0xFF) << 1)) & WORD
    w = (w[0] + ((size - 1) & 63), w[1])
    v = (v[0] + w[0], v[1])
    w = (w[0] + v[0], w[1])
    x, y, z, v, w = _block(text, size - 64, x, y, z, v, w, mul, 9)
    return _mix(_mix(v[0], w[0], mul) + _shift_mix(y) * K0 + z, _mix(v[1], w[1], mul) + x, mul)


Pair = tuple[int, int]


def _block(
    text: bytes, at: int, x: int, y: int, z: int, v: Pair, w: Pair, mul: int, factor: int
) -> tuple[int, int, int, Pair, Pair]:
    """64 bytes into the state; `factor` is 9 in the last block alone."""
    x = _rotate(x + y + v[0] + _word(text, at + 8), 37) * mul & WORD
    y = _rotate(y + v[1] + _word(text, at + 48), 42) * mul & WORD
    x ^= w[1] * factor & WORD
    y = (y + v[0] * factor + _word(text, at + 40)) & WORD
    z = _rotate(z + w[0], 33) * mul & WORD
    v = _weak(text, at, v[1] * mul & WORD, x + w[0])
    w = _weak(text, at + 32, z + w[1], y + _word(text, at + 16))
    return z, y, x, v, w
