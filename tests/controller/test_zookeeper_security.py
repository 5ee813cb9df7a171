"""SASL, ACLs and TLS between broker and ZooKeeper."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pybroker.config import BrokerConfig
from pybroker.controller import paths
from pybroker.controller.registration import prepare_store
from pybroker.controller.store import StoreError
from tests.support.zookeeper import ZooKeeperServer, free_port, need_zookeeper

need_zookeeper()
from pybroker.broker.zookeeper_settings import zookeeper_settings  # noqa: E402
from pybroker.controller.zookeeper_store import ZooKeeperStore  # noqa: E402

JAAS = 'Server {{ org.apache.zookeeper.server.auth.DigestLoginModule required user_kafka="{0}"; }};\n'
LOGIN = 'org.apache.zookeeper.server.auth.DigestLoginModule required username="kafka" password="{0}";'
ALL, READ = 31, 1


def secured(server: ZooKeeperServer, **settings: str) -> BrokerConfig:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return BrokerConfig.of({"zookeeper.connect": server.address, **named})


@pytest.fixture(scope="module")
def sasl_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    directory = tmp_path_factory.mktemp("sasl")
    jaas = directory / "jaas.conf"
    jaas.write_text(JAAS.format("a \\\\ secret"))
    settings = {"authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"}
    properties = {"java.security.auth.login.config": str(jaas)}
    with ZooKeeperServer(directory, settings=settings, properties=properties) as server:
        yield server


def acls_of(client: Any, path: str) -> Any:
    from kazoo.exceptions import NoAuthError

    try:
        return sorted((acl.id.scheme, acl.id.id, acl.perms) for acl in client.get_acls(path)[0])
    except NoAuthError:
        return "not to be read"


async def test_acls_are_those_of_kafka(sasl_server: ZooKeeperServer) -> None:
    login = LOGIN.format("a \\\\ secret")
    settings = zookeeper_settings(secured(sasl_server, zookeeper_set_acl="true", zookeeper_sasl_jaas_config=login))
    assert settings.sasl == ("kafka", "a \\ secret")
    store = await ZooKeeperStore.connect(settings)
    client = sasl_server.client()  # anybody
    try:
        await prepare_store(store, None, own_store=False)
        await store.create("/config/users/alice", b"{}")
        await store.create("/brokers/ids/1", b"{}", ephemeral=True)
        made = (*paths.PERSISTENT, "/cluster/id", "/brokers/ids/1", "/config/users/alice")
        found = {path: await asyncio.to_thread(acls_of, client, path) for path in made}
    finally:
        client.stop()
        client.close()
        await store.close()
    ours, anyone = ("sasl", "kafka", ALL), ("world", "anyone", READ)
    assert found.pop("/consumers") == [("world", "anyone", ALL)]
    for path, acls in found.items():
        secret = path.startswith(("/config/users", "/config/brokers"))
        assert acls == ("not to be read" if secret else [ours, anyone]), path


async def test_a_wrong_password_is_refused_at_once(sasl_server: ZooKeeperServer) -> None:
    config = secured(sasl_server, zookeeper_sasl_jaas_config=LOGIN.format("wrong"))
    with pytest.raises(StoreError, match="refused our credentials"):
        await ZooKeeperStore.connect(zookeeper_settings(config))


async def test_credentials_come_from_the_jvm_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "kafka jaas.conf"
    file.write_text('KafkaServer { x required username="no"; };\nClient {\n ' + LOGIN.format("pw") + "\n};\n")
    monkeypatch.setenv("KAFKA_OPTS", f"-Xmx1g '-Djava.security.auth.login.config={file}'")
    config = BrokerConfig.of({"zookeeper.connect": "zk:2181"})
    assert zookeeper_settings(config).sasl == ("kafka", "pw")
    monkeypatch.setenv("KAFKA_OPTS", "-Djava.security.auth.login.config=/nowhere")
    with pytest.raises(StoreError, match=r"/nowhere \(from KAFKA_OPTS\) can't be read"):
        zookeeper_settings(config)


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAFKA_OPTS", raising=False)
    config = BrokerConfig.of({"zookeeper.connect": "zk:2181", "zookeeper.set.acl": "true"})
    with pytest.raises(StoreError, match="nothing says who we are"):
        zookeeper_settings(config)
    config = BrokerConfig.of({"zookeeper.connect": "zk:2181", "zookeeper.sasl.jaas.config": "x required;"})
    with pytest.raises(StoreError, match="must name username"):
        zookeeper_settings(config)
    config = BrokerConfig.of(
        {
            "zookeeper.connect": "zk:2181",
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.ssl.truststore.location": "/nowhere.pem",
        }
    )
    with pytest.raises(StoreError, match="TLS to ZooKeeper can't be set up"):
        zookeeper_settings(config)


def test_times_and_pipeline() -> None:
    settings = zookeeper_settings(
        BrokerConfig.of({"zookeeper.connect": "a:1,b:2/x/y/", "zookeeper.session.timeout.ms": "6000"})
    )
    assert (settings.hosts, settings.chroot) == ("a:1,b:2", "/x/y")
    assert (settings.session_timeout_ms, settings.connection_timeout_ms) == (6000, 6000)
    more = {"zookeeper.connect": "a", "zookeeper.connection.timeout.ms": "1", "zookeeper.max.in.flight.requests": "3"}
    settings = zookeeper_settings(BrokerConfig.of(more))
    assert (settings.connection_timeout_ms, settings.max_in_flight, settings.chroot) == (1, 3, "")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca.pem; server.pem and client.pem with key and certificate, for localhost."""
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=60)

    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca")
    (folder / "names.cnf").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    for name in ("server", "client"):
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", "csr", "-subj", f"/CN={name}")
        signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names.cnf")
        openssl("x509", "-req", "-in", "csr", "-out", f"{name}.crt", *signing)
        both = (folder / f"{name}.key").read_text() + (folder / f"{name}.crt").read_text()
        (folder / f"{name}.pem").write_text(both)
    return folder


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Iterator[ZooKeeperServer]:
    port = free_port()
    settings = {
        "secureClientPort": str(port),
        "secureClientPortAddress": "127.0.0.1",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": str(certificates / "server.pem"),
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": str(certificates / "ca.pem"),
        "ssl.trustStore.type": "PEM",
        "authProvider.x509": "org.apache.zookeeper.server.auth.X509AuthenticationProvider",
    }
    server = ZooKeeperServer(tmp_path_factory.mktemp("tls"), settings=settings)
    server.secure_port = port
    with server:
        yield server


def tls_config(server: ZooKeeperServer, certificates: Path, **more: str) -> BrokerConfig:
    settings = {
        "zookeeper.connect": f"localhost:{server.secure_port}",
        "zookeeper.connection.timeout.ms": "8000",
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
        "zookeeper.ssl.keystore.location": str(certificates / "client.pem"),
        "zookeeper.ssl.truststore.location": str(certificates / "ca.pem"),
    }
    return BrokerConfig.of(settings | {name.replace("_", "."): value for name, value in more.items()})


async def test_tls(tls_server: ZooKeeperServer, certificates: Path) -> None:
    config = tls_config(tls_server, certificates, zookeeper_set_acl="true")
    store = await ZooKeeperStore.connect(zookeeper_settings(config))
    try:
        await store.create("/tls")
        paths_made = [f"/tls/{number}" for number in range(3000)]
        for path in paths_made[:300]:
            await store.create(path, b"x" * 1000)
        found = await store.get_many(paths_made)
        assert [node is not None for node in found] == [True] * 300 + [False] * 2700
        with pytest.raises(StoreError):
            await store.create("/tls")
    finally:
        await store.close()


async def test_tls_with_an_authority_that_is_not_trusted(tls_server: ZooKeeperServer, certificates: Path) -> None:
    config = tls_config(
        tls_server,
        certificates,
        zookeeper_ssl_truststore_location=str(certificates / "client.crt"),
        zookeeper_connection_timeout_ms="1000",
    )
    with pytest.raises(StoreError, match="did not answer within 1000 ms"):
        await ZooKeeperStore.connect(zookeeper_settings(config))
