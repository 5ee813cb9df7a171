"""What is built holds the rooms' modules and nothing else, also when it is built a second time in the same tree."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.architecture.rooms import ROOMS, ROOT

# The top of the repository, as far as a build looks at it.
FILES = ("pyproject.toml", "README.md", "LICENSE", "__init__.py", "__main__.py", "py.typed")


class Built(NamedTuple):
    modules: set[str]
    """What has to be inside."""
    packages: list[tuple[Path, Path]]
    """(sdist, wheel) of each build."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Two builds, one after the other, in a copy of the tree with tests and bench beside the rooms."""
    tree = tmp_path_factory.mktemp("tree") / "pybroker"
    tree.mkdir()
    for name in FILES:
        if (ROOT / name).exists():
            shutil.copy2(ROOT / name, tree)
    for room in (*ROOMS, "tests/architecture", "bench"):
        shutil.copytree(ROOT / room, tree / room, ignore=shutil.ignore_patterns("__pycache__"))
    (tree / ".src").mkdir()
    (tree / ".src" / "pybroker").symlink_to("..")
    return Built(_modules(tree), [_build(tree) for _ in range(2)])


def _build(tree: Path) -> tuple[Path, Path]:
    """Builds with the interpreter's own setuptools: nothing is fetched."""
    command = [sys.executable, "-c", BUILD]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    kept = Path(tempfile.mkdtemp(prefix="built-", dir=tree.parent))
    (sdist,), (wheel,) = (tree / "dist").glob("*.tar.gz"), (tree / "dist").glob("*.whl")
    return Path(shutil.move(sdist, kept)), Path(shutil.move(wheel, kept))


BUILD = """
import os
from setuptools import build_meta
os.makedirs("dist", exist_ok=True)
build_meta.build_sdist("dist")
build_meta.build_wheel("dist")
"""


def _modules(tree: Path) -> set[str]:
    """The package's modules by their path in the installed package."""
    inside = {f"pybroker/{path.relative_to(tree)}" for room in ROOMS for path in (tree / room).rglob("*.py")}
    return inside | {"pybroker/__init__.py", "pybroker/__main__.py"}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [0, 1], ids=["first", "second"])
def test_wheel_holds_the_rooms_and_nothing_else(built: Built, number: int) -> None:
    with zipfile.ZipFile(built.packages[number][1]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names - {"pybroker/py.typed"} == built.modules


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [0, 1], ids=["first", "second"])
def test_sdist_builds_the_same(built: Built, number: int) -> None:
    with tarfile.open(built.packages[number][0]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    modules_of_it = {name.replace(".src/", "") for name in names if name.endswith(".py") and name != "setup.py"}
    assert modules_of_it == built.modules
    assert not [name for name in names if name.startswith(("tests", "bench", "build"))]


@pytest.mark.timeout(300)
def test_wheel_from_the_sdist_is_the_same(built: Built, tmp_path: Path) -> None:
    with tarfile.open(built.packages[0][0]) as sdist:
        sdist.extractall(tmp_path, filter="data")
    (tree,) = list(tmp_path.iterdir())
    _, rebuilt = _build(tree)
    with zipfile.ZipFile(rebuilt) as one, zipfile.ZipFile(built.packages[0][1]) as other:
        assert sorted(one.namelist()) == sorted(other.namelist())
