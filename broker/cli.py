"""The command line: `pybroker start`, `pybroker config print`, and the commands of other modules.

argparse on purpose: importing click costs 44 ms of a start that may take 150, argparse 11. For the same reason nothing
that only the running broker needs is imported here.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from pybroker import __version__
from pybroker.config.broker import BrokerConfig, Static
from pybroker.config.errors import ConfigErrors
from pybroker.config.loader import load

OK = 0
FAILED = 1
# 2, argparse's own, is for a wrong command line.

# Command → (help, module with `add_arguments`, which sets `run`): imported only for its own command.
COMMANDS = {
    "metadata": ("save the embedded metadata store, or make it from a cluster's", "pybroker.broker.metadata_commands"),
    "cluster": ("run several brokers and a ZooKeeper on this machine", "pybroker.broker.cluster.command"),
    "health": ("ask whether a broker is fit to serve", "pybroker.broker.health_command"),
    "log": ("look at log directories, and bring them into order", "pybroker.broker.log_commands"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; SystemExit for --help, --version and a wrong command line."""
    words = sys.argv[1:] if argv is None else list(argv)
    parser = _parser(words[0] if words else "")
    arguments = parser.parse_args(words)
    if arguments.command == "start":
        return _start(arguments)
    if arguments.command == "config" and arguments.action == "print":
        return _config_print(arguments)
    if arguments.command in COMMANDS:
        return int(arguments.run(arguments))
    (arguments.parser if arguments.command else parser).print_help(sys.stderr)
    return 2


def _parser(command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pybroker",
        description="An Apache Kafka broker in Python.",
        epilog="Settings have Kafka's names. Later ones win: default, FILE, environment (KAFKA_LOG_DIRS for log.dirs), "
        "--override.",
    )
    parser.add_argument("--version", action="version", version=f"pybroker {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    start = commands.add_parser("start", help="run a broker until it is told to stop")
    add_settings(start)
    start.add_argument("--ready-file", metavar="F", help="write the bound address to F, as JSON, once clients can come")

    config = commands.add_parser("config", help="look at the settings")
    config.set_defaults(parser=config, action=None)
    actions = config.add_subparsers(dest="action", metavar="ACTION")
    show = actions.add_parser("print", help="print every setting with its value and where it came from")
    add_settings(show)
    show.add_argument("--changed", action="store_true", help="only what isn't at its default")

    for name, (text, module) in COMMANDS.items():
        one = commands.add_parser(name, help=text)
        if name == command:
            importlib.import_module(module).add_arguments(one)
    return parser


def add_settings(parser: argparse.ArgumentParser) -> None:
    """FILE and the options that settings come from."""
    parser.add_argument("file", nargs="?", metavar="FILE", help="server.properties, as Kafka has it, or server.yaml")
    parser.add_argument(
        "--override", action="append", default=[], metavar="KEY=VALUE", help="set one setting; may be given repeatedly"
    )
    parser.add_argument("--port", type=_port, metavar="N", help="port of the first listener; 0 takes a free one")
    parser.add_argument("--data-dir", metavar="DIR", help="where the data lives, the same as --override log.dirs=DIR")


def _port(text: str) -> int:
    port = int(text) if text.isdecimal() else -1
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is not a port between 0 and 65535")
    return port


def load_settings(arguments: argparse.Namespace) -> BrokerConfig | None:
    """The settings, or None after saying on stderr why there are none."""
    options = {}
    if arguments.data_dir is not None:
        options["log.dirs"] = Static(arguments.data_dir, "--data-dir")
    try:
        return load(arguments.file, arguments.override, options=options, port=arguments.port)
    except ConfigErrors as error:
        if len(error.errors) == 1:
            print(f"pybroker: {error.errors[0]}", file=sys.stderr)
        else:
            print(f"pybroker: {len(error.errors)} settings are wrong:", file=sys.stderr)
            for problem in error.errors:
                print(f"  {problem}", file=sys.stderr)
        return None


def _start(arguments: argparse.Namespace) -> int:
    config = load_settings(arguments)
    if config is None:
        return FAILED
    from pybroker.broker.server import run

    return run(config, ready_file=arguments.ready_file)


def _config_print(arguments: argparse.Namespace) -> int:
    config = load_settings(arguments)
    if config is None:
        return FAILED
    from pybroker.config.printing import printed

    for warning in config.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    try:
        sys.stdout.write(printed(config, changed_only=arguments.changed))
        sys.stdout.flush()
    except BrokenPipeError:  # into `head`, say
        sys.stderr.close()
    return OK
