"""The words that the tables of settings are written in."""

from __future__ import annotations

BOOLEAN = "BOOLEAN"
SHORT = "SHORT"
INT = "INT"
LONG = "LONG"
DOUBLE = "DOUBLE"
STRING = "STRING"
LIST = "LIST"
CLASS = "CLASS"
PASSWORD = "PASSWORD"

HIGH = "HIGH"
MEDIUM = "MEDIUM"
LOW = "LOW"

# Where a setting may change (Kafka's dynamic update modes).
READ_ONLY = "read-only"
PER_BROKER = "per-broker"
CLUSTER_WIDE = "cluster-wide"

# What the broker makes of a setting.
SERVED = "served"
OTHERWISE = "otherwise"
LATER = "later"
NOTHING = "nothing"

Row = tuple[str, str, str | None, str | None, str, str, str, str]

LONG_MAX = "9223372036854775807"
INT_MAX = "2147483647"

MESSAGE_FORMATS = (
    "[0.8.0, 0.8.1, 0.8.2, 0.9.0, 0.10.0-IV0, 0.10.0-IV1, 0.10.1-IV0, 0.10.1-IV1, 0.10.1-IV2, 0.10.2-IV0, 0.11.0-IV0,"
    " 0.11.0-IV1, 0.11.0-IV2, 1.0-IV0, 1.1-IV0, 2.0-IV0, 2.0-IV1, 2.1-IV0, 2.1-IV1, 2.1-IV2, 2.2-IV0, 2.2-IV1,"
    " 2.3-IV0, 2.3-IV1, 2.4-IV0, 2.4-IV1, 2.5-IV0, 2.6-IV0, 2.7-IV0, 2.7-IV1, 2.7-IV2, 2.8-IV0, 2.8-IV1, 3.0-IV0,"
    " 3.0-IV1, 3.1-IV0, 3.2-IV0, 3.3-IV0, 3.3-IV1, 3.3-IV2, 3.3-IV3, 3.4-IV0, 3.5-IV0, 3.5-IV1, 3.5-IV2, 3.6-IV0,"
    " 3.6-IV1, 3.6-IV2, 3.7-IV0, 3.7-IV1, 3.7-IV2, 3.7-IV3, 3.7-IV4, 3.8-IV0, 3.9-IV0, 4.0-IV0, 4.0-IV1]"
)
