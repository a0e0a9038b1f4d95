"""Release: one version in every place, the scan for credentials, the locked packages."""

import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

import pytest

from agentmemory_operator import __version__
from release import secret_scan
from release.changelog import KINDS, changes, notes, read_section
from release.commands import CheckFailed, Release
from release.links import LINK, absolute
from release.signing import SIGNERS, Signer, rehearse
from release.version import PLACES, disagreements
from release.wheels import PROJECTS, stage
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


def test_candidate_has_the_form_of_npm_and_helm() -> None:
    written = {place.file for place in PLACES if place.is_semver}

    assert written == {
        "client-ts/package.json",
        "client-ts/package-lock.json",
        "charts/agentmemory-operator/Chart.yaml",
    }
    assert (Release("0.2.0rc1").semver, Release("0.2.0").semver) == ("0.2.0-rc.1", "0.2.0")
    assert (Release("0.2.0rc1").is_prerelease, Release("0.2.0").is_prerelease) == (True, False)


def test_version_has_release_notes_with_links() -> None:
    text = notes(Release(__version__, "https://git.example/memory"))

    assert text.startswith("### ")
    assert f"](https://git.example/memory/blob/v{__version__}/docs/" in text
    assert "](docs/" not in text


CHANGELOG = """# Changelog

## Unreleased

## 0.2.0 - 2027-01-01

### Added

- **One** thing
  in `two` lines ([docs](docs/a.md)).

### Breaking

- Another.

## 0.1.0

### Fixed

- An old one.
"""


def test_section_of_a_version_becomes_changes() -> None:
    assert changes(read_section("0.2.0", CHANGELOG)) == [
        {"kind": "added", "description": "One thing in two lines (docs)."},
        {"kind": "changed", "description": "Another."},
    ]
    assert {change["kind"] for change in changes(read_section("0.1.0", CHANGELOG))} <= set(KINDS)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (CHANGELOG.replace("## 0.2.0", "## 0.3.0"), r"no section '## 0\.2\.0'"),
        (CHANGELOG.replace("## Unreleased\n", "## Unreleased\n\n- New.\n"), "lines under Unreleased"),
    ],
)
def test_incomplete_changelog_is_rejected(text: str, fault: str) -> None:
    with pytest.raises(CheckFailed, match=fault):
        read_section("0.2.0", text)


@pytest.mark.parametrize("signer", SIGNERS, ids=[signer.program for signer in SIGNERS])
def test_signature_with_local_key_is_verified(tmp_path: pathlib.Path, signer: Signer) -> None:
    if shutil.which(signer.program) is None:
        pytest.skip(f"no {signer.program} here")
    (tmp_path / "SHA256SUMS").write_text("0123  file\n")

    rehearse(tmp_path / "SHA256SUMS", signer)

    assert [path.name for path in tmp_path.iterdir()] == ["SHA256SUMS"]


def test_signer_that_accepts_everything_is_rejected(tmp_path: pathlib.Path) -> None:
    (tmp_path / "SHA256SUMS").write_text("0123  file\n")

    with pytest.raises(CheckFailed, match="accepts a changed SHA256SUMS"):
        rehearse(tmp_path / "SHA256SUMS", Signer("careless", lambda *_: None, lambda *_: None))


def test_staged_packages_have_the_addresses_of_the_release(tmp_path: pathlib.Path) -> None:
    folders = stage(tmp_path, Release(__version__, "https://git.example/memory"))

    assert [folder.name for folder in folders] == sorted(PROJECTS)
    for folder in folders:
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        assert project["urls"]["Homepage"] == "https://git.example/memory"
        targets = [link["target"] for link in LINK.finditer((folder / "README.md").read_text())]
        assert [target for target in targets if not target.startswith(("#", "https://"))] == []
        files = [target.partition(f"/v{__version__}/")[2].partition("#")[0] for target in targets]
        assert [name for name in files if name and not (ROOT / name).exists()] == []


def test_links_become_absolute() -> None:
    release = Release("1.0.0", "https://git.example/memory")
    page = '[a](../docs/a.md#b) [c](#d) [e](https://f.example) ![g](h.svg) <img src="h.svg">'

    assert absolute(page, release, "client") == (
        "[a](https://git.example/memory/blob/v1.0.0/docs/a.md#b) [c](#d) [e](https://f.example) "
        "![g](https://git.example/memory/raw/v1.0.0/client/h.svg) "
        '<img src="https://git.example/memory/raw/v1.0.0/client/h.svg">'
    )


def test_built_wheels_are_listed(tmp_path: pathlib.Path) -> None:
    command = [sys.executable, str(ROOT / "release" / "wheels.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)

    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == sorted(str(path) for path in tmp_path.iterdir())
    assert len([path for path in done.stdout.split() if path.endswith(".whl")]) == 3
    assert [path for path in done.stdout.split() if not path.endswith((".whl", ".tgz"))] == []


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
    assert len(locked) <= 96


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
