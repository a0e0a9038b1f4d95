"""`agentmemory init`: manifests to start with."""

import pathlib
import re

import pytest
import yaml
from typer.testing import CliRunner, Result

from agentmemory_operator.controllers.rules.preset_manifest import expand_preset
from agentmemory_operator.controllers.rules.starter_manifests import render_connection, render_memory
from agentmemory_operator.spec.presets import PRESETS
from tests.support.command_line import command_line


@pytest.fixture(autouse=True)
def _blank(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command_line(), list(arguments))


def uncommented(text: str, *blocks: str) -> str:
    """Return the text with some blocks of the spec uncommented."""
    lines, is_uncommented = [], False
    for line in text.splitlines():
        if found := re.match(r"  #(\w+):", line):
            is_uncommented = found[1] in blocks
        if not line.startswith("  #") or line.startswith("  # "):
            is_uncommented = is_uncommented and line.startswith("  #  ")
        lines.append(line.replace("#", "", 1) if is_uncommented else line)
    return "\n".join(lines)


def test_written_manifests_pass_validate() -> None:
    result = run("init", "support-bot", "--preset", "cortex")

    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == [
        "wrote support-bot/connection.yaml",
        "wrote support-bot/support-bot.yaml",
        "serve them here:      agentmemory dev --manifests support-bot",
        "apply to a cluster:   kubectl apply -f support-bot",
    ]
    validation = run("validate", "-f", "support-bot")
    assert validation.stdout == "2 objects checked, 0 of other groups ignored, 0 errors\n"


def test_second_agent_shares_the_connection() -> None:
    run("init", "one", "--into", "agents", "-n", "team")
    result = run("init", "two", "--into", "agents", "-n", "team")

    assert result.output.splitlines()[0] == "wrote agents/two.yaml"
    assert run("validate", "-f", "agents").output == "3 objects checked, 0 of other groups ignored, 0 errors\n"
    documents = [yaml.safe_load(path.read_text()) for path in sorted(pathlib.Path("agents").iterdir())]
    assert {document["metadata"]["namespace"] for document in documents} == {"team"}


def test_no_connection_is_written_beside_manifests() -> None:
    """A declared connection would disable the implied ones."""
    pathlib.Path("agents").mkdir()
    pathlib.Path("agents", "mine.yaml").write_text("")

    result = run("init", "bot", "--into", "agents")

    assert result.output.splitlines()[0] == "wrote agents/bot.yaml"
    assert not pathlib.Path("agents", "connection.yaml").exists()


@pytest.mark.parametrize("kind", ["file", "link"])
def test_existing_file_is_not_overwritten(tmp_path: pathlib.Path, kind: str) -> None:
    (tmp_path / "bot").mkdir()
    path = tmp_path / "bot" / "bot.yaml"
    path.write_text("mine") if kind == "file" else path.symlink_to(tmp_path / "nowhere")

    result = run("init", "bot")

    assert (result.exit_code, result.stderr) == (1, "agentmemory: bot/bot.yaml is there already: nothing was written\n")
    assert [entry.name for entry in (tmp_path / "bot").iterdir()] == ["bot.yaml"]
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("Support-Bot", "as support-bot"),
        ("my bot!", "as my-bot"),
        ("a--b", "as a-b"),
        ("../x", "as x"),
        ("x" * 49, f"as {'x' * 48}"),
        ("Ü", "at most 48 characters"),
        ("a: {b", "as a-b"),
    ],
)
def test_invalid_name_is_rejected_with_a_suggestion(name: str, suggestion: str) -> None:
    result = run("init", name)

    assert result.exit_code == 1
    assert result.stderr.strip().endswith(suggestion)
    assert list(pathlib.Path().iterdir()) == []


def test_invalid_namespace_is_rejected() -> None:
    assert "cannot be a namespace" in run("init", "bot", "-n", "Team: x").stderr


def test_name_of_the_connection_file_is_rejected() -> None:
    assert "choose another name" in run("init", "connection").stderr


@pytest.mark.parametrize("name", ["123", "null", "true", "y", "1e3", "0o7", "0x1"])
def test_ambiguous_yaml_name_is_quoted(name: str) -> None:
    document = yaml.safe_load(render_memory(name, "standard", name))

    assert document["metadata"] == {"name": name, "namespace": name}
    # PyYAML reads fewer words as booleans than kubectl.
    assert f'name: "{name}"' in render_memory(name, "standard", name)


@pytest.mark.parametrize("preset", PRESETS)
def test_comments_contain_the_figures_of_the_preset(preset: str) -> None:
    whole = expand_preset(preset)
    blocks = set(whole) - {"connectionRef", "preset", "embedding"}

    document = yaml.safe_load(uncommented(render_memory("bot", preset), *blocks))

    assert document["spec"] == {name: value for name, value in whole.items() if name != "embedding"}


@pytest.mark.parametrize("preset", PRESETS)
def test_examples_in_comments_are_valid(tmp_path: pathlib.Path, preset: str) -> None:
    text = uncommented(render_memory("bot", preset), "access", "embedding", "snapshots")
    (tmp_path / "bot.yaml").write_text(text)
    (tmp_path / "connection.yaml").write_text(uncommented(render_connection(), "apiKeySecretRef"))

    assert set(yaml.safe_load(text)["spec"]) == {"connectionRef", "preset", "access", "embedding", "snapshots"}
    assert "apiKeySecretRef" in yaml.safe_load((tmp_path / "connection.yaml").read_text())["spec"]
    validation = run("validate", "-f", str(tmp_path))
    assert validation.stdout == "2 objects checked, 0 of other groups ignored, 0 errors\n"
