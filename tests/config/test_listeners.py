from __future__ import annotations

import socket

import pytest

from pybroker.config import BrokerConfig, ConfigError, Endpoint
from pybroker.config.listeners import bind_addresses, parse_listeners, parse_protocol_map

MAP = {"PLAINTEXT": "PLAINTEXT", "SSL": "SSL", "IN": "PLAINTEXT"}


def test_defaults() -> None:
    config = BrokerConfig.of({})
    assert config.listeners == (Endpoint("PLAINTEXT", "localhost", 9092, "PLAINTEXT"),)
    assert config.advertised_listeners == (Endpoint("PLAINTEXT", "127.0.0.1", 9092, "PLAINTEXT"),)
    assert config.inter_broker_listener == "PLAINTEXT"


def test_several_at_once() -> None:
    text = "plaintext://0.0.0.0:9092, IN://[::1]:0,SSL://host-1.example:9094,"
    assert parse_listeners("listeners", text, MAP) == (
        Endpoint("PLAINTEXT", "0.0.0.0", 9092, "PLAINTEXT"),
        Endpoint("IN", "::1", 0, "PLAINTEXT"),
        Endpoint("SSL", "host-1.example", 9094, "SSL"),
    )


def test_written_back() -> None:
    for text in ("IN://[::1]:5", "IN://:0", "IN://host:7"):
        assert str(parse_listeners("listeners", text, MAP)[0]) == text


@pytest.mark.parametrize(
    "text",
    ["PLAINTEXT", "PLAINTEXT:9092", "PLAINTEXT://host", "PLAINTEXT://host:x", "PLAINTEXT://::1:9092",
     "PLAINTEXT://host:65536", "PLAINTEXT://host:-1", "NONE://:1", "IN://:1,IN://:2", "IN://:1,PLAINTEXT://:1"],
)  # fmt: skip
def test_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_listeners("listeners", text, MAP)


def test_one_name_for_both_families_and_one_port_on_two_hosts() -> None:
    assert len(parse_listeners("listeners", "IN://127.0.0.1:1,IN://[::1]:1", MAP)) == 2
    assert len(parse_listeners("listeners", "IN://10.0.0.1:1,PLAINTEXT://10.0.0.2:1", MAP)) == 2
    assert len(parse_listeners("listeners", "IN://:0,PLAINTEXT://:0", MAP)) == 2


def test_protocol_map() -> None:
    assert parse_protocol_map("in:plaintext, OUT:SASL_SSL") == {"IN": "PLAINTEXT", "OUT": "SASL_SSL"}
    for text in ("IN", "IN:TLS", ":SSL", "A:SSL,a:SSL"):
        with pytest.raises(ConfigError):
            parse_protocol_map(text)


def test_what_is_advertised() -> None:
    config = BrokerConfig.of({"listeners": "PLAINTEXT://:9092"})
    assert config.advertised_listeners[0].host == socket.getfqdn()
    config = BrokerConfig.of({"listeners": "PLAINTEXT://localhost:9092"})
    assert config.advertised_listeners[0].host == "localhost"
    config = BrokerConfig.of({"listeners": "PLAINTEXT://:9092", "advertised.listeners": "PLAINTEXT://example.org:1"})
    assert config.advertised_listeners == (Endpoint("PLAINTEXT", "example.org", 1, "PLAINTEXT"),)


def test_listeners_of_a_kraft_controller_stay_closed() -> None:
    config = BrokerConfig.of(
        {
            "listeners": "PLAINTEXT://a:9092,CONTROLLER://a:9093",
            "advertised.listeners": "PLAINTEXT://a:9092,CONTROLLER://a:9093",
            "controller.listener.names": "CONTROLLER",
        }
    )
    assert [endpoint.name for endpoint in config.listeners] == ["PLAINTEXT"]
    assert [endpoint.name for endpoint in config.advertised_listeners] == ["PLAINTEXT"]


def test_addresses_to_bind() -> None:
    assert bind_addresses("localhost")[0] == (socket.AF_INET, "127.0.0.1")
    assert bind_addresses("")[0] == (socket.AF_INET, "0.0.0.0")
    assert bind_addresses("127.0.0.2") == [(socket.AF_INET, "127.0.0.2")]
    assert bind_addresses("0.0.0.0") == [(socket.AF_INET, "0.0.0.0")]
    with pytest.raises(OSError):
        bind_addresses("no-such-host.invalid")
