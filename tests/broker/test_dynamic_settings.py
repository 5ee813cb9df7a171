"""What a broker does when settings in the store change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from pybroker.broker.server import Broker
from pybroker.config import BrokerConfig


def test_the_controller_hears_of_another_default_for_unclean_elections() -> None:
    defaults: dict[str, str] = {}
    listeners: dict[str, Callable[..., None]] = {}
    heard: list[str] = []
    configs: Any = SimpleNamespace(
        broker=lambda _: {}, broker_defaults=lambda: defaults, on_change=lambda kind, on: listeners.setdefault(kind, on)
    )
    broker: Any = SimpleNamespace(
        config=BrokerConfig({}),
        log_manager=SimpleNamespace(update_topic_config=None),
        services=None,
        controller=SimpleNamespace(defaults_changed=lambda: heard.append("changed")),
        _topic_settings_changed=None,
    )
    Broker._follow_configs(broker, configs, 1)

    def change(settings: Mapping[str, str]) -> int:
        defaults.clear()
        defaults.update(settings)
        listeners["brokers"]("<default>", defaults)
        return len(heard)

    assert change({"log.cleaner.threads": "2"}) == 0
    assert change({"unclean.leader.election.enable": "true"}) == 1
    assert change({"unclean.leader.election.enable": "true", "log.cleaner.threads": "2"}) == 1
    assert change({}) == 2
