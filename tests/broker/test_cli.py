from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from pybroker import __version__
from pybroker.broker.cli import main
from pybroker.config import BrokerConfig


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("os.environ", {"HOME": str(tmp_path), "PATH": "/usr/bin"})


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Stands in for the broker: keeps what it would have been started with."""
    seen = SimpleNamespace(config=None, ready_file=None)

    def run(config: BrokerConfig, *, ready_file: str | None = None) -> int:
        seen.config, seen.ready_file = config, ready_file
        return 7

    module = ModuleType("pybroker.broker.server")
    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pybroker.broker.server", module)
    return seen


def test_start(started: SimpleNamespace, tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("num.partitions: 3\n")
    arguments = ["start", str(file), "--override", "broker.id=4", "--override", "log.segment.bytes=1MiB"]
    arguments += ["--port", "0", "--data-dir", str(tmp_path / "d"), "--ready-file", "ready"]
    assert main(arguments) == 7
    assert started.ready_file == "ready"
    assert started.config.int("num.partitions") == 3
    assert started.config.int("broker.id") == 4
    assert started.config.int("log.segment.bytes") == 1 << 20
    assert started.config.listeners[0].port == 0
    assert started.config.log_dirs == [str(tmp_path / "d")]


def test_start_without_anything(started: SimpleNamespace, tmp_path: Path) -> None:
    assert main(["start"]) == 7
    assert started.ready_file is None
    assert started.config.log_dirs == [str(tmp_path / ".local/share/pybroker")]


def test_errors_stop_the_start(started: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["start", "--override", "num.partitions=x"]) == 1
    assert started.config is None
    assert capsys.readouterr().err == (
        "pybroker: num.partitions=x (--override): Not a number of type INT; allowed is a whole number of at least 1\n"
    )
    assert main(["start", "--override", "num.partitions=x", "--override", "broker.id=y"]) == 1
    assert capsys.readouterr().err.startswith("pybroker: 2 settings are wrong:\n  num.partitions=x ")


def test_config_print(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "print", "--override", "num.partitions=3", "--override", "ssl.key.password=hush"]) == 0
    output = capsys.readouterr()
    lines = output.out.splitlines()
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in lines}
    assert len(lines) > 400
    assert lines == sorted(lines, key=lambda line: line.split()[0])
    assert rows["num.partitions"] == ["3", "--override"]
    assert rows["ssl.key.password"] == ["[hidden]", "--override"]
    assert rows["log.retention.ms"] == ["-", "default"]
    assert rows["offsets.topic.replication.factor"] == ["1", "embedded"]
    assert "hush" not in output.out + output.err
    assert output.err == "warning: known but not served yet, so without effect: ssl.key.password\n"
    columns = {line.rindex("  ") for line in lines if len(line.split()) == 3 and len(line.split()[1]) <= 60}
    assert len(columns) == 1, "the sources stand below each other"


def test_config_print_changed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "print", "--changed", "--override", "num.partitions=3"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == [
        "group.consumer.migration.policy",
        "group.coordinator.rebalance.protocols",
        "group.initial.rebalance.delay.ms",
        "num.partitions",
        "offsets.topic.replication.factor",
        "transaction.state.log.min.isr",
        "transaction.state.log.replication.factor",
    ]


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["start", "--port", "x"], ["start", "--port", "65536"], ["start", "a", "b"]]
)
def test_wrong_command_lines(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: pybroker" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["config"]])
def test_no_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "usage: pybroker" in capsys.readouterr().err


def test_version_as_a_module() -> None:
    root = Path(sys.modules["pybroker"].__file__ or "").parent
    # The import root is the folder that holds pybroker, whatever that is linked to.
    path = root.parent if root.name == "pybroker" else root / ".src"
    output = subprocess.run(
        [sys.executable, "-m", "pybroker", "--version"], capture_output=True, text=True, env={"PYTHONPATH": str(path)}
    )
    assert output.stdout == f"pybroker {__version__}\n"


def test_the_command_line_imports_nothing_heavy() -> None:
    root = Path(sys.modules["pybroker"].__file__ or "").parent
    path = root.parent if root.name == "pybroker" else root / ".src"
    code = "import sys, pybroker.broker.cli; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": str(path)})
    heavy = {"asyncio", "click", "dataclasses", "inspect", "kazoo", "uvloop", "yaml", "sqlite3"}
    assert not heavy & set(output.stdout.split())
