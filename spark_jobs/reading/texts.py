"""JSON's texts and numbers as the bytes of a body have them.

They are those that Spark 3.5's `to_json` writes, so a row keeps the body that earlier versions sent of it: characters
beyond ASCII as they stand, control characters with capital hexadecimal digits, a double as Java prints it.
"""

from __future__ import annotations

import re
import struct
from json.encoder import encode_basestring

LOOSE = re.compile(r'[\x00-\x1f"\\]')
"""The characters that a JSON text cannot hold unescaped."""
_LOWER = re.compile(r"\\u00(0[bef]|1[a-f])")
_RARE = re.compile(r"[\x0b\x0e\x0f\x1a-\x1f]")
FLOAT_DIGITS = range(6, 10)


def quoted(text: str) -> str:
    """A text with its quotes."""
    if not LOOSE.search(text):
        return f'"{text}"'
    if not _RARE.search(text):
        return encode_basestring(text)
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _escaped(character: str) -> str:
    if _RARE.match(character):
        return f"\\u{ord(character):04X}"
    return encode_basestring(character)[1:-1]


def double_text(value: float) -> str:
    """A finite double as Java's Double.toString writes it: 5.0, 0.001, 1.0E7, 1.5E-5."""
    return java_text(repr(value))


def float_text(value: float) -> str:
    """A finite float of 32 bits, by the fewest digits that give it back."""
    for digits in FLOAT_DIGITS:
        text = format(value, f".{digits}g")
        if struct.unpack("f", struct.pack("f", float(text)))[0] == value:
            break
    return java_text(repr(float(text)))


def java_text(text: str) -> str:
    """Python's shortest text of a float, placed as Java places it."""
    sign, text = ("-", text[1:]) if text[0] == "-" else ("", text)
    mantissa, _, exponent = text.partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return f"{sign}0.0"
    # The value is 0.DIGITS times ten to the power of `point`.
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0") or "0"
    if -2 <= point <= 7:  # 0.001 up to 10,000,000
        if point <= 0:
            return f"{sign}0.{'0' * -point}{digits}"
        return f"{sign}{digits[:point].ljust(point, '0')}.{digits[point:] or '0'}"
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{point - 1}"
