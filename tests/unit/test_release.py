"""One version in every place; what the audit and the search for credentials find, and what they leave."""

import pathlib
import shutil
from typing import Any

import pytest

from agentmemory_operator import __version__
from release import audit, secret_scan
from release.check import CheckFailed, write_notes
from release.version import PLACES, disagreements
from tests.support.programs import ROOT


def test_every_place_has_the_version() -> None:
    assert disagreements() == (__version__, [])


def test_another_version_is_written_into_every_place(tmp_path: pathlib.Path) -> None:
    for place in PLACES:
        (tmp_path / place.file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / place.file, tmp_path / place.file)
    PLACES[0].write(tmp_path, "7.1.0rc2")
    version, wrong = disagreements(tmp_path)
    assert (version, len(wrong) >= len(PLACES) - 1) == ("7.1.0rc2", True)

    for place in PLACES:
        place.write(tmp_path, "7.1.0rc2")

    assert disagreements(tmp_path) == ("7.1.0rc2", [])


def test_the_version_has_its_part_of_the_changelog(tmp_path: pathlib.Path) -> None:
    write_notes(tmp_path, __version__)

    assert (tmp_path / "RELEASE_NOTES.md").read_text().startswith("### ")
    with pytest.raises(CheckFailed, match=r"no section '## 99\.0\.0'"):
        write_notes(tmp_path, "99.0.0")


def advisory(*ranges: list[str | None], versions: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"id": "PYSEC-0", "aliases": [], "ranges": list(ranges), "versions": list(versions)}


@pytest.mark.parametrize(
    ("version", "found"),
    [("1.9", False), ("2.0", True), ("2.9.9", True), ("2.10rc1", True), ("2.10", False), ("3.1", True), ("4.0", False)],
)
def test_a_version_is_affected_from_the_first_of_a_range_up_to_the_one_that_mends_it(version: str, found: bool) -> None:
    assert audit.is_affected(version, advisory(["2.0", "2.10"], ["3.0", "4.0"])) is found


def test_a_range_without_an_end_is_open_and_a_list_of_versions_counts_where_there_is_no_range() -> None:
    assert audit.is_affected("99", advisory(["0", None]))
    assert audit.is_affected("1.1", advisory(versions=("1.1",)))
    assert not audit.is_affected("1.2", advisory(versions=("1.1",)))


def test_ranges_are_read_as_osv_writes_them() -> None:
    events = [{"introduced": "0"}, {"fixed": "1.2"}, {"introduced": "2.0"}]
    spans = [{"type": "GIT", "events": [{"introduced": "abc"}]}, {"type": "ECOSYSTEM", "events": events}]

    assert list(audit.ranges_of({"ranges": spans})) == [["0", "1.2"], ["2.0", None]]
    last = [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"last_affected": "1.1"}]}]
    assert list(audit.ranges_of({"ranges": last})) == []


def test_an_affected_version_and_an_unknown_package_fail_the_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "locked", lambda: {("orjson", "0.0.1"), ("not-audited", "1.0")})
    monkeypatch.setattr(audit.json, "loads", lambda _: {"packages": {"orjson": [advisory(["0", "1"])]}})
    monkeypatch.setattr(audit, "accepted", set)

    assert [problem.partition(":")[0] for problem in audit.problems()] == ["not-audited 1.0", "orjson 0.0.1"]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("key = '" + "AKIA" + "Q3EGRZ4ZJ5T7XK2M'", "AWS Access Key"),
        ("-----BEGIN " + "EC PRIVATE KEY-----", "Private Key"),
        ("token: ghp_" + "a1B2" * 9, "GitHub Token"),
    ],
)
def test_a_credential_is_found(tmp_path: pathlib.Path, text: str, rule: str) -> None:
    (tmp_path / "settings.py").write_text(text + "\n")

    assert [found[1] for found in secret_scan.findings_in(str(tmp_path / "settings.py"))] == [rule]


def test_what_only_looks_random_is_left(tmp_path: pathlib.Path) -> None:
    (tmp_path / "lock.txt").write_text("--hash=sha256:" + "0123456789abcdef" * 4 + "\npassword = 'example'\n")

    assert secret_scan.findings_in(str(tmp_path / "lock.txt")) == []
