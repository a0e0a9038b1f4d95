"""Release: one version in every place, the scan for credentials, the locked packages."""

import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from agentmemory_operator import __version__
from release import secret_scan
from release.check import CheckFailed, write_notes
from release.version import PLACES, disagreements
from tests.support.programs import ROOT


def test_every_place_has_the_version() -> None:
    assert disagreements() == (__version__, [])


def test_new_version_is_written_to_every_place(tmp_path: pathlib.Path) -> None:
    for place in PLACES:
        (tmp_path / place.file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / place.file, tmp_path / place.file)
    PLACES[0].write(tmp_path, "7.1.0rc2")
    version, wrong = disagreements(tmp_path)
    assert (version, len(wrong) >= len(PLACES) - 1) == ("7.1.0rc2", True)

    for place in PLACES:
        place.write(tmp_path, "7.1.0rc2")

    assert disagreements(tmp_path) == ("7.1.0rc2", [])


def test_version_has_a_changelog_section(tmp_path: pathlib.Path) -> None:
    write_notes(tmp_path, __version__)

    assert (tmp_path / "RELEASE_NOTES.md").read_text().startswith("### ")
    with pytest.raises(CheckFailed, match=r"no section '## 99\.0\.0'"):
        write_notes(tmp_path, "99.0.0")


IMPORTS_BLOCKED = """
import sys
sys.modules |= dict.fromkeys(["huggingface_hub", "prompt_toolkit"])
from agentmemory_operator.adapters.embedding.wordllama_embedder import _embed
from agentmemory_operator.spec.kinds.admission import _compiled
print(len(_embed(["one text"], 256)[0]), _compiled("self.name == 'a'").execute({"self": {"name": "a"}}))
"""


def test_excluded_packages_are_never_imported() -> None:
    excluded = re.findall(r"(?m)^([\w-]+) ;", (ROOT / "requirements" / "unused.in").read_text())
    done = subprocess.run([sys.executable, "-c", IMPORTS_BLOCKED], capture_output=True, text=True, timeout=60)

    assert excluded == ["huggingface-hub", "prompt-toolkit"]
    assert done.stdout.split() == ["256", "True"], done.stderr
    locked = re.findall(r"(?m)^([\w-]+)==", (ROOT / "requirements" / "run.txt").read_text())
    assert not {*excluded} & {*locked}
    assert len(locked) <= 95


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("key = '" + "AKIA" + "Q3EGRZ4ZJ5T7XK2M'", "AWS Access Key"),
        ("-----BEGIN " + "EC PRIVATE KEY-----", "Private Key"),
        ("token: ghp_" + "a1B2" * 9, "GitHub Token"),
    ],
)
def test_credential_is_found(tmp_path: pathlib.Path, text: str, rule: str) -> None:
    (tmp_path / "settings.py").write_text(text + "\n")

    assert [found[1] for found in secret_scan.findings_in(str(tmp_path / "settings.py"))] == [rule]


def test_hashes_and_placeholders_are_ignored(tmp_path: pathlib.Path) -> None:
    (tmp_path / "lock.txt").write_text("--hash=sha256:" + "0123456789abcdef" * 4 + "\npassword = 'example'\n")

    assert secret_scan.findings_in(str(tmp_path / "lock.txt")) == []
