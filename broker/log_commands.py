"""`pybroker log dump`, `verify` and `repair`: looking at log directories, and bringing them into order."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pybroker.storage.tools.items import Item, Options

OK = 0
FAILED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The actions of `pybroker log`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_dump(actions.add_parser("dump", help="print files of a log directory, as Kafka's DumpLogSegments does"))
    _add_verify(actions.add_parser("verify", help="look for damage in everything below log directories"))
    _add_repair(actions.add_parser("repair", help="put right what keeps a broker from starting"))


def _add_dump(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_dump)
    parser.add_argument("files", nargs="*", metavar="FILE", type=Path, help="a file, or a directory for all in it")
    parser.add_argument("--files", dest="listed", metavar="F,...", help="more files, separated by commas")
    parser.add_argument("--deep", "--deep-iteration", action="store_true", help="the records inside the batches too")
    parser.add_argument("--print-data-log", action="store_true", help="--deep, with keys and values")
    parser.add_argument("--verify-index-only", action="store_true", help="compare indexes, print only what is wrong")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    decoders = parser.add_mutually_exclusive_group()
    decoders.add_argument("--offsets-decoder", action="store_true", help="the records are those of __consumer_offsets")
    decoders.add_argument(
        "--transaction-log-decoder", action="store_true", help="the records are those of __transaction_state"
    )


def _add_verify(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_verify)
    parser.add_argument("directories", nargs="+", metavar="DIR", type=Path, help="an entry of log.dirs")
    parser.add_argument("--deep", action="store_true", help="decompress every batch, look at every record")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, metavar="N", help="processes to use")
    parser.add_argument("--quiet", action="store_true", help="only errors, not what the next start settles by itself")


def _verify(arguments: argparse.Namespace) -> int:
    """Print what is wrong; 1 if anything is."""
    from pybroker.storage.meta_properties import WrongDirectory
    from pybroker.storage.tools.verify import Verification, lock

    errors = 0
    try:
        held = lock(arguments.directories)
        verification = Verification(arguments.directories, deep=arguments.deep, workers=arguments.workers)
        for path, severity, text in verification.run():
            errors += severity == "error"
            if severity == "error" or not arguments.quiet:
                print(f"{severity}: {told(path, text)}", flush=True)
    except (OSError, WrongDirectory) as error:
        print(f"pybroker: {error}", file=sys.stderr)
        return FAILED
    for each in held:
        each.release()
    reports = verification.reports
    size = sum(report.bytes for report in reports)
    batches = sum(report.batches for report in reports)
    outcome = f"{errors or 'no'} error{'' if errors == 1 else 's'}"
    print(f"{len(reports)} partitions, {batches} batches, {size} bytes: {outcome}")
    return FAILED if errors else OK


def _add_repair(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_repair)
    parser.description = (
        "Finds what keeps a broker from starting on these log directories, and says what can be done. "
        "Nothing is changed without --apply; what is changed is kept in a backup beside the log directory."
    )
    parser.add_argument("directories", nargs="+", metavar="DIR", type=Path, help="an entry of log.dirs")
    parser.add_argument("--apply", action="store_true", help="do it")
    parser.add_argument("--broker-id", type=int, metavar="N", help="the broker that the directories belong to")
    parser.add_argument("--cluster-id", metavar="ID", help="the cluster that the directories belong to")
    parser.add_argument("--backup", metavar="DIR", type=Path, help="where to keep what is changed")


def _repair(arguments: argparse.Namespace) -> int:
    """Tell the remedies, or apply them; 1 while something is wrong."""
    from pybroker.storage.meta_properties import WrongDirectory
    from pybroker.storage.tools.repair import Backup, Identity, find_remedies
    from pybroker.storage.tools.verify import lock

    directories = [each.absolute() for each in arguments.directories]
    try:
        held = lock(directories)
        cluster_id = arguments.cluster_id or next(filter(None, map(_store_cluster_id, directories)), None)
        identity = Identity(arguments.broker_id, cluster_id)
        backups = {each: Backup(each, arguments.backup and arguments.backup / each.name) for each in directories}
        remedies = list(find_remedies(directories, identity))
        for remedy in remedies:
            print(f"{remedy.path} {remedy.wrong}\n  remedy: {remedy.what}")
            if arguments.apply:
                remedy.apply(backups[remedy.directory])
        remaining = list(find_remedies(directories, identity)) if arguments.apply else remedies
    except (OSError, WrongDirectory) as error:
        print(f"pybroker: {error}", file=sys.stderr)
        return FAILED
    for each in held:
        each.release()
    if not remedies:
        print("Nothing keeps a broker from starting here; `pybroker log verify` looks closer.")
    elif arguments.apply:
        print(
            "Done. What was changed is kept in " + ", ".join(str(b.root) for b in backups.values() if b.root.exists())
        )
    else:
        print("Nothing was changed. Repeat with --apply to apply this; a backup is kept.")
    return FAILED if remaining else OK


def _store_cluster_id(directory: Path) -> str | None:
    """The cluster's id according to an embedded metadata store in the directory, if there is one."""
    from pybroker.controller import paths
    from pybroker.controller.embedded_store import FILE_NAME, read_node

    try:
        return paths.decode_cluster_id(read_node(directory / FILE_NAME, paths.CLUSTER_ID))
    except (OSError, ValueError):
        return None


def told(path: Path, text: str) -> str:
    """Messages of the broker's own name their file already."""
    return text if text.startswith(f"{path} ") else f"{path}: {text}"


def _dump(arguments: argparse.Namespace) -> int:
    """Print every file; 1 if one of them is broken or can't be read."""
    from pybroker.storage.tools.dump import UnknownFile, dump, files_of

    options = _options(arguments)
    named = [*arguments.files, *(Path(each) for each in (arguments.listed or "").split(",") if each)]
    if not named:
        print("pybroker: no FILE to dump", file=sys.stderr)
        return 2
    show = _as_json if arguments.json else _as_text
    outcome = OK
    try:
        for path in (file for each in named for file in files_of(each)):
            if not arguments.json:
                print(f"Dumping {path}")
            try:
                for item in dump(path, options):
                    if item.kind == "problem":
                        outcome = FAILED
                    print(show(path, item))
            except BrokenPipeError:
                raise
            except (OSError, UnknownFile) as error:
                outcome = FAILED
                print(f"pybroker: {error}", file=sys.stderr)
        sys.stdout.flush()
    except BrokenPipeError:  # into `head`, say
        sys.stderr.close()
    return outcome


def _options(arguments: argparse.Namespace) -> Options:
    from pybroker.storage.tools.decoders import decode_group_record, decode_transaction_record
    from pybroker.storage.tools.items import Options

    decoder = None
    if arguments.offsets_decoder:
        decoder = decode_group_record
    elif arguments.transaction_log_decoder:
        decoder = decode_transaction_record
    data = arguments.print_data_log or decoder is not None
    return Options(arguments.deep or data, data, decoder, arguments.verify_index_only)


def _as_text(path: Path, item: Item) -> str:
    fields = item.fields
    if item.kind == "note":
        return str(fields["text"])
    if item.kind == "problem":
        where = f" at position {fields['position']}" if "position" in fields else ""
        return f"BROKEN{where}: {fields['text']}"
    line = " ".join(f"{name}: {_java(value)}" for name, value in fields.items())
    return f"| {line}" if item.kind == "record" else line


def _java(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _as_json(path: Path, item: Item) -> str:
    return json.dumps({"file": str(path), "kind": item.kind, **{name: _plain(v) for name, v in item.fields.items()}})


def _plain(value: Any) -> Any:
    """A number that may be missing is null or a number."""
    return value[0] if isinstance(value, tuple) else value
