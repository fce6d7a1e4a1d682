"""`veltair cache` on a folder with a few entries."""

import hashlib
import json
from pathlib import Path

import pytest

from veltair.cli import main
from veltair.commands.compile import reused
from veltair.compiler.tuning.kernel_cache import CacheCounts
from veltair.profiles.cache.cache_folder import PAGE, CacheFolder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CacheFolder:
    monkeypatch.setenv("VELTAIR_CACHE", str(tmp_path / "cache"))
    found = CacheFolder(tmp_path / "cache")
    for number in range(6):
        found.write("objects", hashlib.sha256(bytes([number])).hexdigest(), bytes(100))
    return found


def test_it_shows_bounds_and_clears(folder: CacheFolder, capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*arguments: str) -> dict[str, object]:
        assert main(["cache", *arguments, "--json"]) == 0
        facts: dict[str, object] = json.loads(capsys.readouterr().out)
        return facts

    assert main(["cache"]) == 0
    table = capsys.readouterr().out
    assert str(folder.path) in table and "objects" in table and "0.0 MB of 1,073.7 MB" in table
    facts = shown("show")
    assert facts["path"] == str(folder.path)
    assert facts["bytes"] == 6 * PAGE
    facts = shown("limit", f"{3 * PAGE}")
    assert (facts["bytes"], facts["limit_bytes"]) == (3 * PAGE, 3 * PAGE)
    facts = shown("clear")
    assert (facts["bytes"], facts["limit_bytes"]) == (0, 3 * PAGE)


def test_an_empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("VELTAIR_CACHE", str(tmp_path / "none"))
    for arguments in (["show"], ["clear"]):
        assert main(["cache", *arguments]) == 0
        assert "0.0 MB of" in capsys.readouterr().out
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["limit"], "expected `cache limit SIZE`"),
        (["clear", "2G"], "expected `cache limit SIZE`"),
        (["limit", "much"], "expected a size such as 500M or 2G, found 'much'"),
    ],
)
def test_what_it_does_not_understand(
    folder: CacheFolder, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", *arguments]) == 2
    assert says in capsys.readouterr().err
    assert folder.usage()["objects"].entries == 6


def test_a_compile_says_what_it_reused_and_since_when() -> None:
    assert reused(CacheCounts(objects_built=3, tables_measured=3, oldest_s=86400)) == ""
    assert reused(CacheCounts(objects_built=1, objects_reused=2, tables_measured=3)) == (
        "Reused from earlier compiles: 2 of 3 kernels."
    )
    assert reused(CacheCounts(objects_reused=3, tables_reused=2, tables_measured=1, oldest_s=86400)) == (
        "Reused from earlier compiles: 3 of 3 kernels and 2 of 3 latency tables, measured on this machine since "
        "1970-01-02T00:00:00Z; --fresh-timings measures again."
    )
