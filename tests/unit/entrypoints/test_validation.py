"""`agentmemory validate`: findings with file, line, field and remedy."""

import pathlib
import re

import pytest
from typer.testing import CliRunner

from agentmemory_operator.adapters.folder.manifests import MAX_BYTES
from agentmemory_operator.entrypoints.cli.look.validate import check_manifests, warnings_in
from agentmemory_operator.spec.presets import PRESETS
from tests.support.command_line import command_line

GOOD = """apiVersion: agentmemory.dev/v1alpha1
kind: AgentMemory
metadata: {name: probe}
spec: {connectionRef: {name: main}}
"""
BAD = """apiVersion: v1
kind: Namespace
metadata: {name: agents}
---
apiVersion: agentmemory.dev/v1alpha1
kind: AgentMemory
metadata:
  name: probe
spec:
  connectionRef: {name: main}
  types:
    - name: fact
      halfLifeDays: 0
  scoring:
    weights: {similarity: 0.5, recency: 0.3, utility: 0.3}
  nonsense: 1
"""


def findings(tmp_path: pathlib.Path, text: str) -> list[str]:
    file = tmp_path / "a.yaml"
    file.write_text(text)
    return [
        str(finding).removeprefix(f"{tmp_path}/") for finding in check_manifests([file], is_recursive=False).findings
    ]


def test_good_manifest_has_no_findings(tmp_path: pathlib.Path) -> None:
    assert findings(tmp_path, GOOD) == []


def test_finding_names_line_and_field(tmp_path: pathlib.Path) -> None:
    found = sorted(line.split(": ")[0] for line in findings(tmp_path, BAD))

    assert found == [
        "a.yaml:13 spec.types[0].halfLifeDays",
        "a.yaml:15 spec.scoring.weights",
        "a.yaml:16 spec.nonsense",
    ]


def test_missing_field_is_reported_at_its_parent(tmp_path: pathlib.Path) -> None:
    (found,) = findings(tmp_path, GOOD.replace("{connectionRef: {name: main}}", "{preset: cortex}"))

    assert found.startswith("a.yaml:4 spec.connectionRef: is required")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "a.yaml:1 YAML: "),
        ("- 1\n", "a.yaml:1 object: a document is not a Kubernetes object"),
    ],
)
def test_document_that_is_no_manifest_is_reported(tmp_path: pathlib.Path, text: str, message: str) -> None:
    (found,) = findings(tmp_path, text)

    assert found.startswith(message)


def test_unquoted_time_is_text(tmp_path: pathlib.Path) -> None:
    annotated = GOOD.replace("{name: probe}", "{name: probe, creationTimestamp: 2026-11-21T03:00:00Z}")

    assert findings(tmp_path, annotated) == []


def test_expression_error_has_line_and_caret(tmp_path: pathlib.Path) -> None:
    scoring = "  scoring:\n    model: Expression\n    expression: 0.5 * similarty\n"
    text = GOOD.replace("spec: {connectionRef: {name: main}}\n", "spec:\n  connectionRef: {name: main}\n" + scoring)

    (found,) = findings(tmp_path, text)

    assert found == (
        'a.yaml:8 spec.scoring.expression: character 7: "similarty" is not a variable: did you mean similarity?\n'
        "  0.5 * similarty\n"
        "        ^"
    )


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("lifecycle: {schedule: 0 3 30 2 *}", "a.yaml:6 spec.lifecycle.schedule: '0 3 30 2 *'"),
        (
            "lifecycle: {timeZone: Europe/Berlun}",
            "a.yaml:6 spec.lifecycle.timeZone: 'Europe/Berlun' is not an IANA time zone",
        ),
        ("snapshots: {schedule: 0 3 30 2 *}", "a.yaml:6 spec.snapshots.schedule: '0 3 30 2 *'"),
    ],
)
def test_invalid_schedule_is_reported(tmp_path: pathlib.Path, block: str, message: str) -> None:
    spec = f"spec:\n  connectionRef: {{name: main}}\n  {block}\n"

    (found,) = findings(tmp_path, GOOD.replace("spec: {connectionRef: {name: main}}\n", spec))

    assert found.startswith(message)


def warnings_of(tmp_path: pathlib.Path, scoring: str, types: str | None) -> list[str]:
    file = tmp_path / "m.yaml"
    listed = f"\n  types: [{types}]" if types else ""
    spec = f"spec:\n  connectionRef: {{name: main}}\n  preset: cortex\n  scoring: {scoring}{listed}"
    file.write_text(GOOD.replace("spec: {connectionRef: {name: main}}", spec))
    found = check_manifests([file], is_recursive=False)
    assert found.findings == []
    return [str(warning.error) for warning in warnings_in(found)]


HIDES, OUTRANKED = "spec.scoring.scoreThreshold: 0.3 hides old memories", "a good match of"


@pytest.mark.parametrize(
    ("scoring", "types", "expected"),
    [
        ("{}", "{name: note, halfLifeDays: 30}", [f"{HIDES} that match well (note from 126 days on): set it to 0"]),
        ("{scoreThreshold: 0}", None, []),
        ("{scoreThreshold: 0.28}", None, []),
        ("{scoreThreshold: 0.9}", None, ["spec.scoring.scoreThreshold: 0.9 excludes good matches"]),
        ("{minSimilarity: 0.6, scoreThreshold: 0}", None, ["spec.scoring.minSimilarity: 0.6 excludes good"]),
        ("{}", "{name: note, decay: false}", []),
        ("{model: Confidence}", "{name: note, halfLifeDays: 9}", [HIDES, "spec.scoring.confidence.dailyFactor: under"]),
        ("{model: Confidence, confidence: {dailyFactor: 1}}", None, []),
        ("{model: Importance, scoreThreshold: 0}", None, ["spec.scoring.importance.dailyRate: under model Importance"]),
        ("{model: Priority, scoreThreshold: 0}", None, []),
        ("{model: Expression, expression: similarity / (1 + ageDays), scoreThreshold: 0}", None, []),
        ("{model: Expression, expression: similarity - 2, scoreThreshold: -1}", None, []),
        (
            "{model: Expression, expression: 'similarity * decay(ageDays, 30)', scoreThreshold: 0}",
            "{name: note, halfLifeDays: 9}",
            [f"spec.scoring.expression: under model Expression {OUTRANKED} note"],
        ),
    ],
)
def test_ranking_that_hides_old_memories_is_reported(
    tmp_path: pathlib.Path, scoring: str, types: str | None, expected: list[str]
) -> None:
    output = warnings_of(tmp_path, scoring, types)

    assert len(output) == len(expected), output
    assert [words for words, warning in zip(expected, output, strict=True) if words not in warning] == []


@pytest.mark.parametrize("levels", [100, 100_000])
def test_deep_document_is_reported_at_any_depth(tmp_path: pathlib.Path, levels: int) -> None:
    deep = "[" * levels + "]" * levels
    (finding,) = findings(tmp_path, GOOD.replace("spec: {", f"spec: {{scoring: {deep}, "))

    assert ("nested too deeply" in finding) is (levels > 100)


@pytest.mark.parametrize(
    ("preset", "own", "expected"),
    [
        ("cortex", "types: [{name: note, halfLifeDays: 9}]", ["spec.scoring.scoreThreshold: 0.3 hides old memories"]),
        ("brain", "types: [{name: note, halfLifeDays: 9}]", ["spec.scoring.confidence.dailyFactor"]),
        ("keyed", "scoring: {scoreThreshold: 0.8}", ["spec.scoring.scoreThreshold: 0.8 excludes good matches"]),
        ("cognitive", "types: [{name: note, halfLifeDays: 9}]", []),
        ("importance", "scoring: {minSimilarity: 0.8}", ["spec.scoring.minSimilarity: 0.8 excludes good matches"]),
        ("importance", "types: [{name: note, halfLifeDays: 9}]", ["spec.scoring.importance.dailyRate"]),
        ("none", "types: [{name: note, halfLifeDays: 9}]", []),
    ],
)
def test_warnings_depend_on_the_preset(tmp_path: pathlib.Path, preset: str, own: str, expected: list[str]) -> None:
    warnings = warnings_with(tmp_path, preset, f", {own}")

    assert len(warnings) == len(expected), warnings
    assert all(warning.startswith(words) for words, warning in zip(expected, warnings, strict=True))


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("own", ["", ", scoring: {limit: 5}"])
def test_effects_of_a_preset_are_no_warnings(tmp_path: pathlib.Path, preset: str, own: str) -> None:
    assert warnings_with(tmp_path, preset, own) == []


def warnings_with(tmp_path: pathlib.Path, preset: str, own: str) -> list[str]:
    """Return the warnings about an object of a preset, with fields of its own."""
    file = tmp_path / "m.yaml"
    file.write_text(
        GOOD.replace("{connectionRef: {name: main}}", f"{{connectionRef: {{name: main}}, preset: {preset}{own}}}")
    )
    return [str(warning.error) for warning in warnings_in(check_manifests([file], is_recursive=False))]


def validate(*arguments: object, stdin: str | bytes = "") -> tuple[int, list[str]]:
    """Return the exit status of `agentmemory validate` and its output lines without warnings."""
    result = CliRunner().invoke(command_line(), ["validate", *map(str, arguments)], input=stdin)
    return result.exit_code, [line for line in result.output.splitlines() if not line.startswith("warning: ")]


@pytest.mark.parametrize(
    ("version", "kind", "message"),
    [
        (
            "agentmemory.dev/v1alpha1",
            "Agentmemory",
            '2 kind: "Agentmemory" is not a kind of agentmemory.dev: did you mean Ag',
        ),
        ("agentmemory.dev/v1alpha1", "QdrantConection", "2 kind: .* did you mean QdrantConnection"),
        ("agentmemory.dev/v1alpha1", "Snapshot", "2 kind: .* did you mean MemorySnapshot"),
        (
            "agentmemory.dev/v1alpha1",
            "Deployment",
            "2 kind: .* use one of AgentMemory, QdrantConnection, MemorySnapshot",
        ),
        ("agentmemory.dev/v1alpha1", "x" * 5_000, "2 kind: "),
        ("agentmemory.dev/v9", "Agentmemory", "2 kind: .* did you mean AgentMemory"),
        ("agentmemory.dev/v1", "AgentMemory", '1 apiVersion: "agentmemory.dev/v1": give agentmemory.dev/v1alpha1'),
        ("agentmemory.dev", "AgentMemory", '1 apiVersion: "agentmemory.dev": give agentmemory.dev/v1alpha1'),
        ("v1", "AgentMemory", '1 apiVersion: "v1" has no kind "AgentMemory": for AgentMemory give agentmemory.dev/'),
        ("apps/v1", "memorySnapshot", "1 apiVersion: .* for MemorySnapshot give agentmemory.dev/v1alpha1"),
        ("agent-memory.dev/v1alpha1", "AgentMemory", "1 apiVersion: .* give agentmemory.dev/v1alpha1"),
        ("''", "AgentMemory", "1 apiVersion: "),
        ("5", "AgentMemory", "1 apiVersion: "),
        ("v1", "''", "2 kind: "),
    ],
)
def test_unknown_kind_is_reported_with_a_suggestion(
    tmp_path: pathlib.Path, version: str, kind: str, message: str
) -> None:
    text = GOOD.replace("agentmemory.dev/v1alpha1", version).replace("kind: AgentMemory", f"kind: {kind}")

    (found,) = findings(tmp_path, text)

    assert re.match(rf"a.yaml:{message}", found), found


@pytest.mark.parametrize(
    ("version", "kind"),
    [
        ("v1", "Namespace"),
        ("example.com/v1", "AgentMemory"),
        ("agentmemory.io/v1", "MemorySnapshot"),
        ("snapshot.storage.k8s.io/v1", "VolumeSnapshot"),
    ],
)
def test_foreign_kind_is_ignored(tmp_path: pathlib.Path, version: str, kind: str) -> None:
    (tmp_path / "a.yaml").write_text(f"apiVersion: {version}\nkind: {kind}\nmetadata: {{name: a}}\n")

    assert validate("-f", tmp_path) == (0, ["0 objects checked, 1 of other groups ignored, 0 errors"])


LAUGHS = b"".join(b"a%d: &a%d [%s]\n" % (n, n, b",".join([b"*a%d" % (n - 1) if n else b"1"] * 99)) for n in range(9))
LISTED = """apiVersion: v1
kind: List
items:
- apiVersion: agentmemory.dev/v1alpha1
  kind: AgentMemory
  metadata: {name: probe}
  spec: {connectionRef: {name: main}, nonsense: 1}
- {apiVersion: v1, kind: Namespace, metadata: {name: agents}}
- {apiVersion: agentmemory.dev/v1alpha1, kind: QdrantConection, metadata: {name: main}}
- {apiVersion: v1, kind: List, items: []}
- 5
"""


def test_each_item_of_a_list_is_checked(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.yaml").write_text(LISTED)

    status, output = validate("-f", tmp_path)

    assert status == 1
    assert [line.removeprefix(f"{tmp_path}/").split(": ")[0] for line in output] == [
        "a.yaml:7 spec.nonsense",
        "a.yaml:9 kind",
        "a.yaml:10 kind",
        "a.yaml:11 object",
        "4 objects checked, 1 of other groups ignored, 4 errors",
    ]


def test_items_of_a_typed_list_inherit_its_kind(tmp_path: pathlib.Path) -> None:
    text = (
        "apiVersion: agentmemory.dev/v1alpha1\nkind: AgentMemoryList\nitems:\n- metadata: {name: probe}\n  spec: {}\n"
    )

    assert [line.split(": ")[0] for line in findings(tmp_path, text)] == ["a.yaml:5 spec.connectionRef"]


@pytest.mark.parametrize("items", ["", "items: 5\n", "items: {a: 1}\n"])
def test_list_without_items_is_reported(tmp_path: pathlib.Path, items: str) -> None:
    (found,) = findings(tmp_path, f"apiVersion: v1\nkind: List\n{items}")

    assert found.startswith('a.yaml:2 kind: "List" must have a list of items')


def test_subfolders_are_read_only_if_recursive(tmp_path: pathlib.Path) -> None:
    for name, text in {"b.yaml": GOOD, "a.json": "{}", "README.md": "[", "sub/deep/c.yml": BAD}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "sub" / "round").symlink_to(tmp_path)
    (tmp_path / "a.json").unlink()

    assert validate("-f", tmp_path) == (
        0,
        ["1 object checked, 0 of other groups ignored, 0 errors; 1 subfolder skipped: -R includes them"],
    )
    status, output = validate("-R", "-f", tmp_path)
    assert (status, output[-1]) == (1, "2 objects checked, 1 of other groups ignored, 3 errors")
    status, output = validate("-f", tmp_path / "sub")
    assert (status, len(output)) == (1, 1)
    assert "no manifest found (a file that ends in .json, .yaml, .yml); -R also reads its 1 subfolder" in output[0]


def test_nothing_to_check_is_an_error(tmp_path: pathlib.Path) -> None:
    status, output = validate("-f", tmp_path)
    assert (status, output) == (
        1,
        [f"agentmemory: {tmp_path}: no manifest found (a file that ends in .json, .yaml, .yml)"],
    )
    (tmp_path / "a.yaml").write_text("# nothing\n---\n---\nnull\n")
    assert validate("-f", tmp_path) == (1, [f"agentmemory: no objects found in {tmp_path}"])
    assert validate("-f", tmp_path / "none") == (
        1,
        [f"agentmemory: {tmp_path}/none: there is no such file or folder"],
    )


def test_standard_input_is_one_of_the_files(tmp_path: pathlib.Path) -> None:
    (tmp_path / "some.txt").write_text(GOOD)

    status, output = validate("-f", "-", "-f", tmp_path / "some.txt", stdin=BAD)

    assert status == 1
    assert [line.split(": ")[0] for line in output] == [
        "stdin:13 spec.types[0].halfLifeDays",
        "stdin:15 spec.scoring.weights",
        "stdin:16 spec.nonsense",
        "2 objects checked, 1 of other groups ignored, 3 errors",
    ]
    assert validate("-f", "-", "-f", "-", stdin=GOOD)[0] == 1
    assert validate("-f", "-", stdin="") == (1, ["agentmemory: no objects found in -"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe\x00", "1 file: is not UTF-8"),
        (b"a: \x00", "1 YAML: "),
        (b"a: 1\nb: !!python/object:os.system {}", "2 YAML: "),
        (b"? {a: b}\n: c", "1 YAML: "),
        (b"a: .inf", "1 YAML: .inf has no value in JSON: use a finite number"),
        (b"a: &a [*a]", "1 YAML: is nested too deeply"),
        (b"a: 1\nkind: A\nkind: B", '3 YAML: "kind" is given twice: remove one, or separate the objects with ---'),
        (LAUGHS, "1 YAML: has more than"),
        (b"#" * (MAX_BYTES + 1), "1 file: is larger than 33554432 bytes"),
    ],
    ids=["not-utf8", "nul", "python", "key", "number", "itself", "twice", "laughs", "large"],
)
def test_unreadable_content_is_one_finding(tmp_path: pathlib.Path, content: bytes, message: str) -> None:
    (tmp_path / "a.yaml").write_bytes(content)
    (tmp_path / "b.yaml").write_text(GOOD)

    status, output = validate("-f", tmp_path)

    assert (status, len(output), output[-1]) == (1, 2, "2 objects checked, 0 of other groups ignored, 1 error")
    assert output[0].startswith(f"{tmp_path}/a.yaml:{message}")


def test_file_name_is_escaped(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a\n\x1b[2J.yaml").write_text("[")

    _, output = validate("-f", tmp_path)

    assert output[0].startswith(f"{tmp_path}/a\\n\\x1b[2J.yaml:1 YAML: ")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("connectionref: {name: main}", "spec.connectionref: unknown field; did you mean connectionRef?; known here"),
        (
            "index: {hnsw: {ef_construct: 100}}",
            "spec.index.hnsw.ef_construct: unknown field; did you mean efConstruct?",
        ),
        (
            "types: [{name: a, half_life_days: 3}]",
            "spec.types[0].half_life_days: unknown field; did you mean halfLifeDays?",
        ),
        ("preset: Cortx", 'spec.preset: "Cortx": give standard or .*; did you mean cortex?'),
        ("driftPolicy: correct", 'spec.driftPolicy: "correct": give .*; did you mean Correct?'),
        ("scoring: {candidates: auto}", 'spec.scoring.candidates: "auto": give .*; did you mean Auto?'),
        ("scoring: {model: Wieghted}", 'spec.scoring.model: "Wieghted": give .*; did you mean Weighted?'),
    ],
)
@pytest.mark.parametrize("verb", ["validate"])
def test_typo_is_reported_with_a_suggestion(tmp_path: pathlib.Path, verb: str, spec: str, message: str) -> None:
    (tmp_path / "a.yaml").write_text(
        "apiVersion: agentmemory.dev/v1alpha1\nkind: AgentMemory\nmetadata: {name: a}\n"
        f"spec:\n  {'' if 'onnection' in spec else 'connectionRef: {name: main}'}\n  {spec}\n"
    )

    result = CliRunner().invoke(command_line(), [verb, "-f", str(tmp_path)])

    assert result.exit_code == 1
    pattern = re.escape(message).replace(re.escape(".*"), ".*")
    assert re.search(pattern, result.output), result.output


def test_init_suggests_a_preset(tmp_path: pathlib.Path) -> None:
    result = CliRunner().invoke(command_line(), ["init", "bot", "--preset", "cortx", "--into", str(tmp_path / "bot")])

    assert result.exit_code == 2
    assert "Did you mean 'cortex'?" in " ".join(result.output.replace("│", " ").split())
    assert not (tmp_path / "bot").exists()
