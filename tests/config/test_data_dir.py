from __future__ import annotations

from pathlib import Path

from pybroker.config.data_dir import default_data_dir, request_memory


def test_where_data_lives() -> None:
    assert default_data_dir({"XDG_DATA_HOME": "/x", "HOME": "/h"}) == Path("/x/pybroker")
    assert default_data_dir({"HOME": "/h"}) == Path("/h/.local/share/pybroker")
    assert default_data_dir({"XDG_DATA_HOME": "relative", "HOME": "/h"}) == Path("/h/.local/share/pybroker")


def test_memory_for_requests(tmp_path: Path) -> None:
    free = request_memory(str(tmp_path))
    (tmp_path / "memory.max").write_text("max\n")
    assert request_memory(str(tmp_path)) == free
    (tmp_path / "memory.max").write_text("1073741824\n")
    assert request_memory(str(tmp_path)) == 128 << 20
