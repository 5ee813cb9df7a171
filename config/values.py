"""Reading, checking and writing the value of one setting, by Kafka's types (ConfigDef) and with its messages.

| type | Python | accepts |
|---|---|---|
| BOOLEAN | bool | true, false in any case |
| SHORT, INT, LONG | int | decimal digits with a sign, 16, 32, 64 bits |
| DOUBLE | float | what Java's Double.parseDouble accepts, without hexadecimal |
| LIST | list[str] | items between commas; an empty text is the empty list |
| STRING, CLASS, PASSWORD | str | anything, blanks around it are cut |
"""

from __future__ import annotations

import re
from typing import Any

from pybroker.config.errors import invalid
from pybroker.config.modes import MESSAGE_FORMATS

_BITS = {"SHORT": 15, "INT": 31, "LONG": 63}
# Texts, not compiled: most starts parse few values, and re keeps what it compiled.
_INTEGER = r"[+-]?[0-9]+\Z"
_DOUBLE = r"[+-]?(NaN|Infinity|([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[dDfF]?)\Z"
_RANGE = r"\[(-?[0-9.]+?),\.\.\.(?:,(-?[0-9.]+))?\]\Z"
_THROTTLED = r"([0-9]+:[0-9]+)?\Z"

GZIP_LEVEL = "[1,...,9] or -1"
THROTTLED_REPLICAS = "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
POOL_SIZE = "-1 or greater than 0"


def parse(name: str, kind: str, text: str) -> Any:
    """ConfigDef.parseType. Raises ConfigError."""
    trimmed = text.strip()
    if kind in _BITS:
        return _parse_integer(name, kind, text, trimmed)
    if kind == "BOOLEAN":
        lower = trimmed.lower()
        if lower not in ("true", "false"):
            raise invalid(name, text, "Expected value to be either true or false")
        return lower == "true"
    if kind == "DOUBLE":
        if not re.match(_DOUBLE, trimmed):
            raise invalid(name, text, "Not a number of type DOUBLE")
        return float(trimmed.rstrip("dDfF") if trimmed[-1] in "dDfF" else trimmed)
    if kind == "LIST":
        return [item.strip() for item in trimmed.split(",")] if trimmed else []
    return trimmed


def _parse_integer(name: str, kind: str, text: str, trimmed: str) -> int:
    # 40 digits are more than any type holds and keep int() cheap.
    if len(trimmed) <= 40 and re.match(_INTEGER, trimmed):
        value = int(trimmed)
        bound = 1 << _BITS[kind]
        if -bound <= value < bound:
            return value
    raise invalid(name, text, f"Not a number of type {kind}")


def check(name: str, kind: str, valid: str | None, value: Any) -> None:
    """Hold a parsed value against its bounds (in the notation of Kafka's documentation). Raises ConfigError."""
    if not valid:
        return
    if bounds := re.match(_RANGE, valid):
        low, high = bounds.groups()
        if value < float(low):
            raise invalid(name, render(kind, value), f"Value must be at least {low}")
        if high is not None and value > float(high):
            raise invalid(name, render(kind, value), f"Value must be no more than {high}")
    elif valid == GZIP_LEVEL:
        if value != -1 and not 1 <= value <= 9:
            raise invalid(name, value, "Value must be between 1 and 9 or equal to -1")
    elif valid == POOL_SIZE:
        if value < -1 or value == 0:
            raise invalid(name, value, "Value can be -1 or greater than 0")
    elif valid == THROTTLED_REPLICAS:
        _check_throttled(name, value)
    elif valid == "non-empty string":
        if not value:
            raise invalid(name, value, "String must be non-empty")
    elif valid == MESSAGE_FORMATS:
        _check_release(name, value)
    elif valid.startswith("(case insensitive) ["):
        _check_one_of(name, value, valid[valid.index("[") :], ignore_case=True)
    elif valid.startswith("["):
        for item in value if kind == "LIST" else (value,):
            _check_one_of(name, item, valid, ignore_case=False)


def _check_one_of(name: str, value: str, valid: str, *, ignore_case: bool) -> None:
    allowed = valid[1:-1].split(", ")
    if ignore_case:
        if value.upper() not in (item.upper() for item in allowed):
            raise invalid(name, value, f"String must be one of (case insensitive): {', '.join(allowed)}")
    elif value not in allowed:
        raise invalid(name, value, f"String must be one of: {', '.join(allowed)}")


def _check_release(name: str, value: str) -> None:
    """A release stands for its last step, and its patch number means nothing: 2.8, 2.8.1 and 2.8-IV1 (Kafka's
    MetadataVersion)."""
    allowed = MESSAGE_FORMATS[1:-1].split(", ")
    segments = value.split(".")
    significant = ".".join(segments[: 3 if segments[0] == "0" else 2])
    if significant not in allowed and significant not in (each.partition("-")[0] for each in allowed):
        raise invalid(name, value, f"Version {value} is not a valid version")


def _check_throttled(name: str, value: list[str]) -> None:
    """Empty items mean nothing, behind the asterisk too."""
    if ",".join(value).rstrip(",") != "*" and not all(re.match(_THROTTLED, item) for item in value):
        raise invalid(
            name,
            "[" + ", ".join(value) + "]",
            f"{name} must be the literal '*' or a list of replicas in the following format: {THROTTLED_REPLICAS}",
        )


def render(kind: str, value: Any) -> str | None:
    """ConfigDef.convertToString: the text that parses to this value, as Kafka's answers carry it."""
    if value is None:
        return None
    if kind == "BOOLEAN":
        return "true" if value else "false"
    if kind == "LIST":
        return ",".join(value)
    if kind == "DOUBLE":
        return java_double(value)
    return str(value)


def java_double(value: float) -> str:
    """Double.toString: decimal between 1e-3 and 1e7, else with an exponent as in 1.5E8."""
    if value != value or value in (float("inf"), float("-inf")):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(float(value))
    mantissa, _, exponent = f"{value:e}".partition("e")
    digits = repr(float(value)).lower().partition("e")[0].replace("-", "").replace(".", "").strip("0") or "0"
    sign = "-" if mantissa.startswith("-") else ""
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{int(exponent)}"


_SIZES = {"B": 1}
for _power, _letter in enumerate("KMGTP", start=1):
    _SIZES[f"{_letter}iB"] = 1024**_power
    _SIZES[f"{_letter}B"] = 1000**_power
_SIZES["kB"] = 1000
_TIMES = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_WITH_UNIT = r"([0-9]+)(?:\.([0-9]+))?\s*([A-Za-z]+)\Z"
_TIME_SUFFIXES = {".ms": 1, ".millis": 1, ".seconds": 1000, ".secs": 1000, ".minutes": 60_000, ".hours": 3_600_000}


def without_unit(name: str, kind: str, text: str) -> str:
    """Turn 1GiB, 10MB, 7d, 500ms into the number that the setting counts in; any other text stays as it is.

    Only for what people write in files, environment and command line: over the wire Kafka knows no units.
    Raises ConfigError for a unit that doesn't fit the setting.
    """
    found = re.match(_WITH_UNIT, text.strip())
    if found is None or kind not in ("SHORT", "INT", "LONG", "DOUBLE"):
        return text
    whole, decimals, unit = found.groups(default="")
    count_in = next((size for suffix, size in _TIME_SUFFIXES.items() if name.endswith(suffix)), None)
    if count_in is not None:
        units, counted = _TIMES, count_in
    elif "bytes" in name or name.endswith("buffer.size"):
        units, counted = _SIZES, 1
    else:
        return text
    if unit not in units:
        raise invalid(name, text, f"unknown unit {unit}, known are {', '.join(units)}")
    value, rest = divmod(int(whole + decimals) * units[unit], counted * 10 ** len(decimals))
    if rest:
        raise invalid(name, text, f"not a whole number of {name.rpartition('.')[2]}")
    return str(value)


def allowed(kind: str, valid: str | None) -> str:
    """What a setting accepts, in words, for messages to people."""
    noun = {
        "BOOLEAN": "true or false",
        "LIST": "a list separated by commas",
        "STRING": "text",
        "PASSWORD": "text",
        "CLASS": "the name of a class",
        "DOUBLE": "a number",
    }.get(kind, "a whole number")
    if not valid:
        return noun
    if bounds := re.match(_RANGE, valid):
        low, high = bounds.groups()
        return f"{noun} of at least {low}" if high is None else f"{noun} from {low} to {high}"
    if valid.startswith("["):
        return f"{noun}, each of " * (kind == "LIST") + valid[1:-1] if len(valid) < 200 else noun
    return f"{noun}, {valid}"
