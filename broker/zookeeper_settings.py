"""From the settings of Kafka (and two of ours) to how ZooKeeper is reached: timeouts, credentials, TLS."""

from __future__ import annotations

import os
import re
import shlex
import ssl
from pathlib import Path

from pybroker.config import BrokerConfig
from pybroker.controller.store import StoreError
from pybroker.controller.zookeeper_session import ZooKeeperSettings

_TLS_VERSIONS = {
    "TLSv1": ssl.TLSVersion.TLSv1,
    "TLSv1.1": ssl.TLSVersion.TLSv1_1,
    "TLSv1.2": ssl.TLSVersion.TLSv1_2,
    "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}
#: More than Kafka's default of 10: each waits for a disk's or a network's turn, and thousands are common at a start.
IN_FLIGHT = 512
_JAAS_OPTION = re.compile(r'(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"')
_JAAS_CLIENT = re.compile(r"\bClient\s*\{(.*?)\}\s*;", re.DOTALL)
_JAAS_FILE = "-Djava.security.auth.login.config="


def zookeeper_settings(config: BrokerConfig) -> ZooKeeperSettings:
    """Raises StoreError for files that can't be used."""
    session_timeout = config.int("zookeeper.session.timeout.ms")
    connection_timeout = config.get("zookeeper.connection.timeout.ms")
    in_flight = "zookeeper.max.in.flight.requests"
    tls = _tls(config) if config.bool("zookeeper.ssl.client.enable") else None
    sasl = _credentials(config)
    with_certificate = tls is not None and config.opt_str("zookeeper.ssl.keystore.location")
    if config.bool("zookeeper.set.acl") and not sasl and not with_certificate:
        raise StoreError(
            "/",
            reason="zookeeper.set.acl is true, but nothing says who we are: set zookeeper.sasl.jaas.config, or "
            "zookeeper.ssl.client.enable with zookeeper.ssl.keystore.location",
        )
    return ZooKeeperSettings(
        connect=config.zookeeper,
        session_timeout_ms=session_timeout,
        connection_timeout_ms=session_timeout if connection_timeout is None else connection_timeout,
        max_in_flight=config.int(in_flight) if config.is_set(in_flight) else IN_FLIGHT,
        set_acl=config.bool("zookeeper.set.acl"),
        sasl=sasl,
        tls=tls,
    )


def _credentials(config: BrokerConfig) -> tuple[str, str] | None:
    """User and password at ZooKeeper, from our own setting or from where the JVM of a Kafka broker would find them."""
    text = config.get("zookeeper.sasl.jaas.config")
    origin = "zookeeper.sasl.jaas.config"
    if text is None:
        options = shlex.split(os.environ.get("KAFKA_OPTS", ""))
        files = [option.removeprefix(_JAAS_FILE) for option in options if option.startswith(_JAAS_FILE)]
        if not files:
            return None
        origin = files[-1]
        try:
            found = _JAAS_CLIENT.search(Path(origin).read_text(encoding="utf-8"))
        except OSError as error:
            raise StoreError("/", reason=f"{origin} (from KAFKA_OPTS) can't be read: {error.strerror}") from error
        if found is None:
            return None
        text = found[1]
    options_found = {name: re.sub(r"\\(.)", r"\1", value) for name, value in _JAAS_OPTION.findall(str(text))}
    if "username" not in options_found or "password" not in options_found:
        raise StoreError("/", reason=f'{origin} must name username="..." and password="..."')
    return options_found["username"], options_found["password"]


def _tls(config: BrokerConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = config.str("zookeeper.ssl.endpoint.identification.algorithm").upper() == "HTTPS"
    versions = config.list("zookeeper.ssl.enabled.protocols") or [config.str("zookeeper.ssl.protocol"), "TLSv1.3"]
    known = [_TLS_VERSIONS[version] for version in versions if version in _TLS_VERSIONS]
    trusted = config.opt_str("zookeeper.ssl.truststore.location")
    own = config.opt_str("zookeeper.ssl.keystore.location")
    ciphers = config.list("zookeeper.ssl.cipher.suites")
    try:
        if known:
            context.minimum_version, context.maximum_version = min(known), max(known)
        if trusted:
            context.load_verify_locations(trusted)
        else:
            context.load_default_certs()
        if own:
            context.load_cert_chain(own, password=config.get("zookeeper.ssl.keystore.password"))
        if ciphers:
            context.set_ciphers(":".join(ciphers))
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise StoreError("/", reason=f"TLS to ZooKeeper can't be set up: {error}") from error
    if config.bool("zookeeper.ssl.crl.enable"):
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    return context
