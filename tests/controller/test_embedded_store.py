"""What only the embedded store does: the file, crashes, group commit, a disk that refuses."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pybroker.controller import embedded_store
from pybroker.controller.embedded_store import FILE_NAME, EmbeddedStore
from pybroker.controller.store import Create, StoreError, WatchEvent


async def test_writes_that_wait_together_share_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits: list[int] = []
    commit = embedded_store._commit

    def counting(*arguments: object) -> None:
        commits.append(len(arguments[1]))  # type: ignore[arg-type]
        commit(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(embedded_store, "_commit", counting)
    store = await EmbeddedStore.open(tmp_path / FILE_NAME)
    await asyncio.gather(*(store.create(f"/n{number}") for number in range(30)))
    assert len(commits) == 1
    await store.close()


async def test_a_second_opener_is_refused(tmp_path: Path) -> None:
    store = await EmbeddedStore.open(tmp_path / FILE_NAME)
    with pytest.raises(StoreError, match="another process has it open"):
        await EmbeddedStore.open(tmp_path / FILE_NAME)
    await store.close()


async def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"not a database at all, but long enough to be looked at" * 40)
    with pytest.raises(StoreError, match="can't be opened"):
        await EmbeddedStore.open(tmp_path / FILE_NAME)


async def test_another_format_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / FILE_NAME) as database:
        database.execute("PRAGMA user_version=99")
    database.close()
    with pytest.raises(StoreError, match="format 99"):
        await EmbeddedStore.open(tmp_path / FILE_NAME)


async def test_a_commit_that_fails_takes_everything_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await EmbeddedStore.open(tmp_path / FILE_NAME)
    await store.create("/a", b"kept")
    seen: list[WatchEvent] = []
    await store.get("/a", seen.append)

    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(embedded_store, "_commit", full)
        results = await asyncio.gather(
            store.set("/a", b"lost"), store.get("/a"), store.create("/b"), return_exceptions=True
        )
    assert all(isinstance(result, StoreError) for result in results)
    assert seen == [WatchEvent("changed", "/a")]
    assert (await store.get("/a"))[0] == b"kept"
    assert await store.exists("/b") is None
    await store.create("/b", b"works again")
    await store.close()
    store = await EmbeddedStore.open(tmp_path / FILE_NAME)
    assert (await store.get("/b"))[0] == b"works again"
    await store.close()


async def test_ten_thousand_transactions_do_not_hold_the_loop(tmp_path: Path) -> None:
    store = await EmbeddedStore.open(tmp_path / FILE_NAME)
    await store.create("/t")
    work = asyncio.ensure_future(store.multi_many([[Create(f"/t/{number}", b"x" * 80)] for number in range(10_000)]))
    turns = 0
    while not work.done():
        turns += 1
        await asyncio.sleep(0)
    assert len(await work) == 10_000
    assert turns > 10
    await store.close()


_WRITER = """
    import asyncio, sys
    from pybroker.controller.embedded_store import EmbeddedStore

    async def main():
        store = await EmbeddedStore.open(sys.argv[1])
        await store.create("/e", b"", ephemeral=True)
        number = 0
        while True:
            await store.create(f"/n{number}", b"x")
            print(number, flush=True)
            number += 1

    asyncio.run(main())
"""


async def test_what_was_answered_survives_kill_9(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_WRITER), str(tmp_path / FILE_NAME)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    answered = -1
    while answered < 50:
        answered = int(process.stdout.readline())
    os.kill(process.pid, signal.SIGKILL)
    rest = process.stdout.read().split()
    process.stdout.close()
    process.wait()
    # The last line may be cut by the kill.
    answered = max([answered, *(int(line) for line in rest[:-1])])

    store = await EmbeddedStore.open(tmp_path / FILE_NAME)
    found = {int(name[1:]) for name in await store.children("/") if name.startswith("n")}
    assert found >= set(range(answered + 1))
    assert await store.exists("/e") is None
    await store.close()
