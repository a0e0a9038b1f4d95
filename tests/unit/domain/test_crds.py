"""The files under `crds/` and the chart say what the models say."""

import pathlib

import pytest
import yaml

from agentmemory_operator.domain.definitions import KINDS
from agentmemory_operator.entrypoints.crds import main, render_files

ROOT = pathlib.Path(__file__).resolve().parents[3]
FILES = list(render_files(ROOT))


@pytest.mark.parametrize(("path", "text"), FILES, ids=[str(path.relative_to(ROOT)) for path, _ in FILES])
def test_a_written_crd_is_current(path: pathlib.Path, text: str) -> None:
    assert path.is_file(), f"{path.name} is missing: run `make crds` and commit what it writes"
    assert path.read_text() == text, f"{path.name} is not what the models say: run `make crds` and commit it"


def test_no_other_file_lies_beside_the_written_ones() -> None:
    written = {path for path, _ in FILES}

    assert {found for path in written for found in path.parent.iterdir()} == written


def test_rendering_twice_gives_the_same() -> None:
    assert list(render_files(ROOT)) == FILES


def test_all_crds_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0

    printed = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [crd["spec"]["names"]["kind"] for crd in printed] == [kind.name for kind in KINDS]


def test_writing_makes_both_folders(tmp_path: pathlib.Path) -> None:
    assert main(["--write", "--root", str(tmp_path)]) == 0

    assert {path.relative_to(tmp_path) for path in tmp_path.rglob("*.yaml")} == {
        path.relative_to(ROOT) for path, _ in FILES
    }
