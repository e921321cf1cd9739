"""Ed25519 verification as in RFC 8032, section 5.1, sharing nothing with the package."""

from __future__ import annotations

import hashlib

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P

Point = tuple[int, int]


def _recover_x(y: int, sign: int) -> int:
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * pow(2, (P - 1) // 4, P) % P
    if (x * x - square) % P or (x == 0 and sign):
        raise ValueError("not on the curve")
    return P - x if x & 1 != sign else x


def _decode(data: bytes) -> Point:
    number = int.from_bytes(data, "little")
    y, sign = number & (1 << 255) - 1, number >> 255
    if y >= P:
        raise ValueError("not canonical")
    return _recover_x(y, sign), y


def _add(a: Point, b: Point) -> Point:
    product = D * a[0] * b[0] * a[1] * b[1] % P
    x = (a[0] * b[1] + b[0] * a[1]) * pow(1 + product, -1, P) % P
    y = (a[1] * b[1] + a[0] * b[0]) * pow(1 - product, -1, P) % P
    return x, y


def _multiply(factor: int, point: Point) -> Point:
    total = (0, 1)
    while factor:
        if factor & 1:
            total = _add(total, point)
        point = _add(point, point)
        factor >>= 1
    return total


_BASE_Y = 4 * pow(5, -1, P) % P
BASE = (_recover_x(_BASE_Y, 0), _BASE_Y)


def verify(public: bytes, message: bytes, signature: bytes) -> bool:
    """Whether ``signature`` is that of ``public`` over ``message``."""
    if (len(public), len(signature)) != (32, 64):
        return False
    s = int.from_bytes(signature[32:], "little")
    if s >= ORDER:
        return False
    try:
        key, r = _decode(public), _decode(signature[:32])
    except ValueError:
        return False
    digest = hashlib.sha512(signature[:32] + public + message).digest()
    k = int.from_bytes(digest, "little") % ORDER
    return _multiply(s, BASE) == _add(r, _multiply(k, key))
