"""Every setting once, and how it is read, checked, changed and told."""

from __future__ import annotations

from pybroker.config.broker import BrokerConfig
from pybroker.config.errors import ConfigError, ConfigErrors, NotDynamic
from pybroker.config.listeners import Endpoint
from pybroker.config.topic import LogConfig

__all__ = ["BrokerConfig", "ConfigError", "ConfigErrors", "Endpoint", "LogConfig", "NotDynamic"]
