"""Workflows: pinned actions, and in a release no right that a job does not use."""

import re
from typing import Any

import pytest
import yaml

from tests.support.programs import ROOT

TEXTS = {path.name: path.read_text() for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))}
RELEASE = yaml.safe_load(TEXTS["release.yml"])
JOBS: dict[str, dict[str, Any]] = RELEASE["jobs"]
# Steps that need the identity of the workflow.
IDENTIFIED = ("cosign sign", "actions/attest@", "pypa/gh-action-pypi-publish@", "npm publish")


@pytest.mark.parametrize("name", TEXTS)
def test_actions_are_pinned_by_commit(name: str) -> None:
    used = re.findall(r"uses: (.*)", TEXTS[name])

    assert used
    assert [action for action in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action)] == []


@pytest.mark.parametrize("name", JOBS)
def test_only_signing_jobs_have_an_identity(name: str) -> None:
    permissions = JOBS[name]["permissions"]
    steps = yaml.safe_dump(JOBS[name]["steps"], width=1000)

    assert RELEASE["permissions"] == {}
    assert (permissions.get("id-token") == "write") == any(word in steps for word in IDENTIFIED)
    assert (permissions.get("attestations") == "write") == ("actions/attest@" in steps)
    assert (permissions.get("packages") == "write") == ("docker login" in steps)
    assert (permissions.get("contents") == "write") == ("gh release create" in steps)
    assert ("contents" in permissions) == ("actions/checkout@" in steps or "gh release create" in steps)


def test_published_files_are_those_of_the_check() -> None:
    """No job but the first builds a package."""
    steps = {name: yaml.safe_dump(job["steps"], width=1000) for name, job in JOBS.items()}

    assert [name for name, text in steps.items() if "make release-check" in text] == ["build"]
    assert [name for name, text in steps.items() if "actions/download-artifact@" in text] == [
        "chart",
        "pypi",
        "npm",
        "publish",
    ]
    assert [name for name, text in steps.items() if "actions/checkout@" in text] == ["build", "image"]


def test_release_appears_after_everything_else() -> None:
    def before(name: str) -> set[str]:
        needs = JOBS[name].get("needs", [])
        direct = {needs} if isinstance(needs, str) else set(needs)
        return direct.union(*(before(other) for other in direct))

    assert before("publish") == set(JOBS) - {"publish"}
    assert before("pypi") == before("npm") == {"build", "image", "chart"}
