"""`pybroker config print`: every setting, its value and where it came from."""

from __future__ import annotations

from collections.abc import Iterator

from pybroker.config import definitions
from pybroker.config.broker import BrokerConfig, find_setting

_WIDEST_VALUE = 60


def printed(config: BrokerConfig, *, changed_only: bool = False) -> str:
    """A table of three columns, sorted by name. Passwords, and what may be one, are hidden; null is `-`."""
    rows = sorted(_rows(config, changed_only=changed_only))
    if not rows:
        return ""
    names = max(len(name) for name, _, _ in rows)
    texts = max(min(len(value), _WIDEST_VALUE) for _, value, _ in rows)
    return "".join(f"{name:{names}}  {value:{texts}}  {source}".rstrip() + "\n" for name, value, source in rows)


def _rows(config: BrokerConfig, *, changed_only: bool) -> Iterator[tuple[str, str, str]]:
    for name in {**dict.fromkeys(definitions.names()), **dict.fromkeys(config.static)}:
        source = config.source(name)
        if changed_only and source == "default":
            continue
        setting = find_setting(name)
        text = config.text(name)
        if (setting is None or setting.sensitive) and text is not None:
            text = "[hidden]"
        yield name, "-" if text is None else text, source
