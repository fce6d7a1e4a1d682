"""Which versions a folder has, and which of them are served."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veltair.errors import ArtifactError, ConfigError
from veltair.server.repository.model_folders import choose_versions, find_versions, scan_repository


def artifact(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    return folder


def test_versions_are_folders_with_numbers_and_a_manifest(tmp_path: Path) -> None:
    for name in ("10", "2", "007", "new", "-1", "3.5", "٣"):
        artifact(tmp_path / name)
    (tmp_path / "4").mkdir()  # still being copied
    assert list(find_versions(tmp_path).items()) == [
        ("2", tmp_path / "2"),
        ("7", tmp_path / "007"),
        ("10", tmp_path / "10"),
    ]


@pytest.mark.parametrize(
    ("names", "expected"),
    [(("2", "02"), "02 and 2 are the same version"), (("1", "9" * 19), "up to 9223372036854775807, found 99999")],
)
def test_numbers_that_mean_no_one_version_are_refused(tmp_path: Path, names: tuple[str, ...], expected: str) -> None:
    for name in names:
        artifact(tmp_path / name)
    with pytest.raises(ArtifactError, match=expected):
        find_versions(tmp_path)


def test_an_artifact_by_itself_is_version_1(tmp_path: Path) -> None:
    assert find_versions(artifact(tmp_path / "one")) == {"1": tmp_path / "one"}


def test_a_folder_without_any_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="nor one in a folder with a number"):
        find_versions(tmp_path)
    with pytest.raises(ArtifactError, match="No such file"):
        find_versions(tmp_path / "none")


@given(st.sets(st.integers(1, 50), min_size=1), st.integers(1, 60))
def test_the_highest_versions_are_chosen_and_all_where_there_are_fewer(numbers: set[int], count: int) -> None:
    found = [str(number) for number in sorted(numbers)]
    assert choose_versions(count, found) == found[max(0, len(found) - count) :]
    assert choose_versions("all", found) == found
    some = tuple(sorted(numbers))[::2]
    assert choose_versions(some, found) == [str(number) for number in some]
    with pytest.raises(ArtifactError, match="version 99 is asked for"):
        choose_versions((99,), found)


def test_a_repository_has_a_model_in_each_folder_with_its_settings(tmp_path: Path) -> None:
    artifact(tmp_path / "plain" / "1")
    artifact(tmp_path / "tuned" / "1")
    (tmp_path / "tuned" / "tenant.toml").write_text('qos_ms = 5.0\nversions = "all"\n')
    artifact(tmp_path / "wrong" / "1")
    (tmp_path / "wrong" / "tenant.toml").write_text("name = 'another'\n")
    artifact(tmp_path / "a b" / "1")
    artifact(tmp_path / ".hidden" / "1")
    (tmp_path / "README").write_text("no model")
    (tmp_path / "waits" / "1").mkdir(parents=True)
    os.mkfifo(tmp_path / "waits" / "tenant.toml")
    found, broken = scan_repository(tmp_path)
    assert broken["waits"] == "waits/tenant.toml: cannot be read: expected a file"
    assert sorted(broken) == ["a b", "waits", "wrong"]
    assert list(found) == ["plain", "tuned"]
    assert (found["tuned"].qos_ms, found["tuned"].versions) == (5.0, "all")
    assert found["plain"].artifact == str(tmp_path / "plain")
    with pytest.raises(ConfigError, match=r"server\.repository"):
        scan_repository(tmp_path / "none")
