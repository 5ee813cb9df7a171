"""The documents name only what exists: files, commands and settings; every API served has its table."""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from pybroker.broker.cli import main
from pybroker.broker.kafka_apis import HANDLERS
from pybroker.config import definitions
from pybroker.config.topic import TOPIC_SETTINGS
from tests.architecture.rooms import ROOMS, ROOT

DOCUMENTS = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").rglob("*.md")})
ENTRIES = {*ROOMS, "docs", "bench", "tests", ".ci"}

CODE = re.compile(r"`([^`\n]+)`")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
SETTING = re.compile(r"[a-z]+(?:\.[a-z]+){2,}(?:=.*)?")
FILE = re.compile(r"(?:[\w.-]+/)+[\w.-]*\.(?:py|md|sh|txt|toml)|(?:[\w.-]+/)+")


def _spans(document: Path) -> list[str]:
    """What stands in backquotes outside fenced blocks."""
    return CODE.findall(FENCE.sub("", document.read_text(encoding="utf-8")))


def _command_lines(document: Path) -> Iterator[list[str]]:
    text = document.read_text(encoding="utf-8")
    lines = [line for _, block in FENCE.findall(text) for line in block.splitlines()] + _spans(document)
    for line in lines:
        found = re.search(r"(?:^|[&$;|] *)(?:python3? -m )?pybroker ([a-z-]+.*)", line.strip())
        if found and not found[1].startswith(("is ", "as ")):
            yield shlex.split(found[1].split(" #")[0].split("&&")[0])


def _known_settings() -> set[str]:
    return set(definitions.names()) | set(TOPIC_SETTINGS)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
class TestDocument:
    def test_links_lead_to_files(self, document: Path) -> None:
        links = [link for link in LINK.findall(document.read_text(encoding="utf-8")) if "://" not in link]
        assert not [link for link in links if not (document.parent / link).exists()]

    def test_named_files_exist(self, document: Path) -> None:
        """`storage/log.py` and `tests/faults/` are of the repository; paths that start elsewhere are not looked at."""
        named = [span for span in _spans(document) if FILE.fullmatch(span) and span.partition("/")[0] in ENTRIES]
        assert not [name for name in named if not (ROOT / name).exists()]

    def test_commands_exist(self, document: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Commands, their actions and their options, as the command line's own help knows them."""
        for words in _command_lines(document):
            named = [word for word in words[:2] if re.fullmatch("[a-z-]+", word) and not word.startswith("-")]
            with pytest.raises(SystemExit) as ended:
                main([*named, "--help"])
            assert ended.value.code == 0, f"{document.name} names `pybroker {' '.join(words)}`"
            known = capsys.readouterr().out
            options = [word.partition("=")[0] for word in words if word.startswith("--")]
            assert not [option for option in options if option not in known], words

    def test_settings_exist(self, document: Path) -> None:
        """What follows --override, and `a.b.c` or `a.b.c=value`: settings of the broker or of a topic."""
        text = document.read_text(encoding="utf-8")
        named = set(re.findall(r"--override[ =]([a-z]+(?:\.[a-z]+)+)=", text))
        named |= {span.partition("=")[0] for span in _spans(document) if SETTING.fullmatch(span)}
        assert not named - _known_settings()


@pytest.mark.parametrize("api_key", sorted(HANDLERS))
def test_every_api_served_has_a_module_with_its_table(api_key: int) -> None:
    """The docstring opens with the API's name and key, and says what each of its versions adds."""
    handler = HANDLERS[api_key]
    module = importlib.import_module(f"pybroker.broker.apis.{handler.module}")
    assert callable(module.handle)
    head = (module.__doc__ or "").splitlines()
    name = "".join(word.capitalize() for word in handler.module.split("_"))
    assert re.match(rf"{name} \(API key {api_key}\b", head[0]), head[0]
    rule = next(number for number, line in enumerate(head) if re.fullmatch(r"-+ \| -+", line))
    assert head[rule - 1].startswith("versions | "), head[rule - 1]
    covered: set[int] = set()
    for line in head[rule + 1 :]:
        if re.match(r"\d.*\| ", line):  # "2-3 | ...; 3 ...": rows, and what a row says of single versions
            for first, last in re.findall(r"(?:^|[|;] )(\d+)(?:-(\d+))?(?= )", line):
                covered |= set(range(int(first), int(last or first) + 1))
    assert covered == set(range(handler.lowest, handler.highest + 1))


def test_every_handler_is_served() -> None:
    served = {handler.module for handler in HANDLERS.values()}
    written = {path.stem for path in (ROOT / "broker" / "apis").glob("*.py") if _has_handle(path)}
    assert written == served


def _has_handle(path: Path) -> bool:
    return re.search(r"^(?:async )?def handle\(", path.read_text(encoding="utf-8"), re.MULTILINE) is not None


def test_keys_are_those_of_the_messages() -> None:
    for api_key, handler in HANDLERS.items():
        messages = importlib.import_module(f"pybroker.protocol.messages.{handler.module}")
        name = "".join(word.capitalize() for word in handler.module.split("_"))
        request = getattr(messages, f"{name}Request")
        assert api_key == request.API_KEY
        assert request.VERSIONS[0] <= handler.lowest <= handler.highest <= request.VERSIONS[1]
