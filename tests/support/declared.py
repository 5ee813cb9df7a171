"""The messages that pybroker.protocol.messages declares, found by importing them all."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

import pybroker.protocol.messages
from pybroker.protocol.schema import Message


@cache
def declared() -> dict[str, type[Message]]:
    """Every declared message by its schema's name."""
    found: dict[str, type[Message]] = {}
    for module in pkgutil.iter_modules(pybroker.protocol.messages.__path__):
        loaded = importlib.import_module(f"pybroker.protocol.messages.{module.name}")
        for name, each in vars(loaded).items():
            if isinstance(each, type) and issubclass(each, Message) and each.__module__ == loaded.__name__:
                found[name] = each
    return found


@cache
def api_classes(kind: str) -> dict[int, type[Message]]:
    """Declared requests or responses by API key."""
    return {each.API_KEY: each for each in declared().values() if kind == each.KIND}
