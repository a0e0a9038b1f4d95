"""`make install` and `make uninstall` in a home folder; tests/api/test_five_minutes.py installs all of it."""

import pathlib

import pytest

from release.commands import CheckFailed
from release.install import COMMANDS, Places, main, report


@pytest.fixture
def places(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    """Places of a user who has installed it, and has memories."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", "")
    places = Places()
    for folder in (places.program / "bin", places.wheels, places.memories, places.commands):
        folder.mkdir(parents=True)
    for link, target in places.links().items():
        target.touch()
        link.symlink_to(target)
    return places


def test_data_folder_follows_xdg(places: Places, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert places.program == tmp_path / ".local" / "share" / "agentmemory" / "program"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))

    assert Places().wheels == tmp_path / "data" / "agentmemory" / "wheels"


def test_uninstall_keeps_memories_and_other_files(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    (places.commands / "other").touch()

    assert main(["--remove"]) == 0

    assert [path.name for path in places.commands.iterdir()] == ["other"]
    assert [places.program.exists(), places.wheels.exists(), places.memories.exists()] == [False, False, True]
    assert f"kept    {places.memories}" in capsys.readouterr().out


def test_uninstall_twice_succeeds(places: Places) -> None:
    assert [main(["--remove"]), main(["--remove"])] == [0, 0]


@pytest.mark.parametrize("arguments", [[], ["--remove"]])
def test_foreign_command_is_never_replaced(
    places: Places, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    (places.commands / COMMANDS[0]).unlink()
    (places.commands / COMMANDS[0]).write_text("of pipx")

    assert main(arguments) == 1

    assert (places.commands / COMMANDS[0]).read_text() == "of pipx"
    assert places.program.exists()
    assert "is not a link of `make install`: remove it first" in capsys.readouterr().err


def test_missing_path_is_reported(
    places: Places, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = f'export PATH="{places.commands}:$PATH"'
    monkeypatch.setenv("PATH", "/usr/bin")
    report(places)
    missing = capsys.readouterr().out
    monkeypatch.setenv("PATH", f"/usr/bin:{places.commands}")
    report(places)

    assert (line in missing, line in capsys.readouterr().out) == (True, False)


def test_links_of_another_data_folder_are_refused(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(places.program))

    with pytest.raises(CheckFailed):
        Places().links()
