"""Parses the values of options. Each function raises argparse.ArgumentTypeError for a text that it does not accept."""

from __future__ import annotations

import argparse
import math
import re

from glgpt.inference.arguments.sampling_options import MAX_SEED
from glgpt.system.network import is_web_address, origin_of, url_parts

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
MAX_DIGITS = 18  # maximum digits of an integer


def count(text: str) -> int:
    """Parses a non-negative integer."""
    if not text.isdecimal() or len(text) > MAX_DIGITS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a non-negative integer")
    return int(text)


def seed(text: str) -> int:
    """Parses a non-negative integer with at most as many digits as `MAX_SEED`."""
    if not text.isdecimal() or len(text) > len(str(MAX_SEED)):
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer from 0 to {MAX_SEED}")
    return int(text)


def positive(text: str) -> int:
    """Parses a positive integer."""
    if not text.isdecimal() or len(text) > MAX_DIGITS or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def not_negative(text: str) -> float:
    """Parses a finite number of at least 0."""
    value = _number(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is negative; it must be 0 or more")
    return value


def above_zero(text: str) -> float:
    """Parses a finite number above 0."""
    value = _number(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0")
    return value


def bias(text: str) -> tuple[int, float]:
    """Parses ID=B: a token id, and a number or -inf."""
    name, equals, value = text.partition("=")
    try:
        if equals and (found := int(name)) >= 0 and ((number := float(value)) < math.inf):
            return found, number
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not a token id and a number, such as 198=-100")


def share(text: str) -> float:
    """Parses a number from 0 to 1."""
    value = _number(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not from 0 to 1")
    return value


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return value


def size(text: str) -> int:
    """Parses a size in bytes: 2GiB, 512MiB, 3e9."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?(?:[eE]\d+)?)\s*([a-zA-Z]*)", text)
    if not found or found[2].upper() not in UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 2GiB or 512MiB")
    value = float(found[1]) * UNITS[found[2].upper()]
    if value >= 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is too large; a size is below 2^63 bytes")
    return int(value)


def ids(text: str) -> list[int]:
    """Parses token ids separated by commas or spaces."""
    parts = text.replace(",", " ").split()
    if not all(part.isdecimal() and len(part) <= MAX_DIGITS for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of token ids such as 464,3290")
    return [int(part) for part in parts]


def names(text: str) -> list[str]:
    """Parses names separated by commas."""
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of names with commas between them")
    return parts


def origin(text: str) -> str:
    """Parses the origin of a web page. Returns it as browsers send it."""
    parts = url_parts(text)
    other = parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc
    if other or not is_web_address(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not an origin, such as https://chat.example.org")
    return origin_of(text)


def device(text: str) -> str:
    """Checks the name of a device: `auto`, `software`, `gpu` or the number of an EGL device."""
    if text not in ("auto", "software", "gpu") and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not auto, software, gpu or the number of an EGL device")
    return text
