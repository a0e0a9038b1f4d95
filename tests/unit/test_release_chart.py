"""Published chart: the addresses of the release, the annotations of Artifact Hub, a README with every value."""

import pathlib
import re
import shutil
from typing import Any

import pytest
import yaml

from agentmemory_operator import __version__
from release.chart import CHART, fill_in
from release.commands import PLACEHOLDER, Release
from tests.chart.readme import README, comments, page
from tests.support.programs import ROOT

RELEASE = Release(__version__, "https://git.example/team/memory", "images.example/team/memory")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return a copy of the chart as a release packs it."""
    folder = tmp_path_factory.mktemp("chart") / CHART.name
    shutil.copytree(CHART, folder)
    fill_in(folder, RELEASE)
    return folder


@pytest.fixture
def metadata(published: pathlib.Path) -> dict[str, Any]:
    return dict(yaml.safe_load((published / "Chart.yaml").read_text()))


def test_readme_is_up_to_date() -> None:
    assert README.read_text() == page(), "run `make chart-readme`"


def test_readme_has_a_line_for_each_value() -> None:
    lines = README.read_text().splitlines()
    paths = [".".join(path) for path, _ in comments()]
    listed = [path for path in paths if any(line.startswith((f"| `{path}` |", f"### {path}")) for line in lines)]

    assert len(paths) > 90
    assert listed == paths


def test_no_published_file_has_the_placeholder(published: pathlib.Path) -> None:
    files = [path for path in published.rglob("*") if path.is_file()]

    assert [path.name for path in files if PLACEHOLDER in path.read_text() or "/HEAD/" in path.read_text()] == []
    assert (published / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_published_chart_installs_the_image_of_the_release(published: pathlib.Path) -> None:
    values = yaml.safe_load((published / "values.yaml").read_text())

    assert values["image"]["repository"] == RELEASE.image
    text = (published / "README.md").read_text()
    assert f"helm install agentmemory oci://images.example/team/charts/{CHART.name} --version {__version__}" in text
    assert "](../" not in text


def test_addresses_are_files_of_the_tag(metadata: dict[str, Any]) -> None:
    links = [link["url"] for link in yaml.safe_load(metadata["annotations"]["artifacthub.io/links"])]
    text = " ".join([*links, metadata["icon"]])
    addresses = re.findall(rf"{RELEASE.homepage}/(?:raw|blob)/v{__version__}/(\S+)", text)

    assert len(addresses) == 4
    assert [name for name in addresses if not (ROOT / name).is_file()] == []
    assert {metadata["home"], *(maintainer["url"] for maintainer in metadata["maintainers"])} == {RELEASE.homepage}
    assert metadata["icon"].endswith("/icon.svg")


def test_annotations_list_kinds_images_and_changes(metadata: dict[str, Any]) -> None:
    annotations = {name: yaml.safe_load(text) for name, text in metadata["annotations"].items()}
    definitions = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "crds").glob("*.yaml"))]

    kinds = annotations["artifacthub.io/crds"]
    assert [kind["name"] for kind in kinds] == [definition["metadata"]["name"] for definition in definitions]
    assert {example["kind"] for example in annotations["artifacthub.io/crdsExamples"]} <= {
        kind["kind"] for kind in kinds
    }
    assert annotations["artifacthub.io/images"][0]["image"] == f"{RELEASE.image}:{__version__}"
    assert annotations["artifacthub.io/changes"][0]["kind"] == "added"
    assert (annotations["artifacthub.io/operator"], annotations["artifacthub.io/prerelease"]) == (True, False)
