"""`agentmemory validate` names the file, the line, the field and the way out."""

import pathlib

import pytest

from agentmemory_operator.entrypoints.validation import findings_in, manifest_files, warnings_in

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
    return [str(finding).removeprefix(f"{tmp_path}/") for finding in findings_in(file)]


def test_a_good_manifest_has_no_findings(tmp_path: pathlib.Path) -> None:
    assert findings(tmp_path, GOOD) == []


def test_each_finding_names_line_and_field(tmp_path: pathlib.Path) -> None:
    found = sorted(line.split(": ")[0] for line in findings(tmp_path, BAD))

    assert found == [
        "a.yaml:13 spec.types[0].halfLifeDays",
        "a.yaml:15 spec.scoring.weights",
        "a.yaml:16 spec.nonsense",
    ]


def test_a_missing_field_is_shown_where_it_belongs(tmp_path: pathlib.Path) -> None:
    (found,) = findings(tmp_path, GOOD.replace("{connectionRef: {name: main}}", "{preset: cortex}"))

    assert found.startswith("a.yaml:4 spec.connectionRef: is required")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [1", "a.yaml:1 YAML: "),
        ("- 1\n", "a.yaml:1 object: a document is no Kubernetes object"),
    ],
)
def test_what_is_no_manifest_is_said(tmp_path: pathlib.Path, text: str, says: str) -> None:
    (found,) = findings(tmp_path, text)

    assert found.startswith(says)


def test_a_time_in_a_manifest_is_text_as_for_the_api_server(tmp_path: pathlib.Path) -> None:
    annotated = GOOD.replace("{name: probe}", "{name: probe, creationTimestamp: 2026-11-21T03:00:00Z}")

    assert findings(tmp_path, annotated) == []


def test_a_folder_is_its_manifests_by_name(tmp_path: pathlib.Path) -> None:
    for name in ("b.yaml", "a.json", "README.md"):
        (tmp_path / name).write_text("{}")

    assert [path.name for path in manifest_files([tmp_path])] == ["a.json", "b.yaml"]


def test_a_path_that_does_not_exist_is_an_error(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        list(manifest_files([tmp_path / "none"]))


def test_a_scoring_expression_is_refused_with_its_line_and_a_caret_under_the_place(tmp_path: pathlib.Path) -> None:
    scoring = "  scoring:\n    model: Expression\n    expression: 0.5 * similarty\n"
    text = GOOD.replace("spec: {connectionRef: {name: main}}\n", "spec:\n  connectionRef: {name: main}\n" + scoring)

    (found,) = findings(tmp_path, text)

    assert found == (
        'a.yaml:8 spec.scoring.expression: character 7: "similarty" is no variable: did you mean similarity?\n'
        "  0.5 * similarty\n"
        "        ^"
    )


@pytest.mark.parametrize(
    ("block", "says"),
    [
        ("lifecycle: {schedule: 0 3 30 2 *}", "a.yaml:6 spec.lifecycle.schedule: '0 3 30 2 *'"),
        ("lifecycle: {timeZone: Europe/Berlun}", "a.yaml:6 spec.lifecycle.timeZone: 'Europe/Berlun' is no time zone"),
        ("snapshots: {schedule: 0 3 30 2 *}", "a.yaml:6 spec.snapshots.schedule: '0 3 30 2 *'"),
    ],
)
def test_a_schedule_that_cannot_be_followed_is_refused(tmp_path: pathlib.Path, block: str, says: str) -> None:
    spec = f"spec:\n  connectionRef: {{name: main}}\n  {block}\n"

    (found,) = findings(tmp_path, GOOD.replace("spec: {connectionRef: {name: main}}\n", spec))

    assert found.startswith(says)


def warned(tmp_path: pathlib.Path, scoring: str, types: str | None) -> list[str]:
    file = tmp_path / "m.yaml"
    listed = f"\n  types: [{types}]" if types else ""
    spec = f"spec:\n  connectionRef: {{name: main}}\n  scoring: {scoring}{listed}"
    file.write_text(GOOD.replace("spec: {connectionRef: {name: main}}", spec))
    assert list(findings_in(file)) == []
    return [str(warning.error) for warning in warnings_in(file)]


HIDES, OUTRANKED = "spec.scoring.scoreThreshold: 0.3 hides old memories", "a good match of"


@pytest.mark.parametrize(
    ("scoring", "types", "expected"),
    [
        ("{}", None, [f"{HIDES} that match well (episodic from 59 days on, task from 126 days on): set 0"]),
        ("{scoreThreshold: 0}", None, []),
        ("{scoreThreshold: 0.28}", None, []),
        ("{scoreThreshold: 0.9}", None, ["spec.scoring.scoreThreshold: 0.9 leaves out good matches"]),
        ("{minSimilarity: 0.6, scoreThreshold: 0}", None, ["spec.scoring.minSimilarity: 0.6 leaves out good"]),
        ("{}", "{name: note, decay: false}", []),
        ("{model: Confidence}", "{name: note, halfLifeDays: 9}", [HIDES, "spec.scoring.confidence.dailyFactor: under"]),
        ("{model: Confidence, confidence: {dailyFactor: 1}}", None, []),
        ("{model: Importance, scoreThreshold: 0}", None, ["spec.scoring.importance.dailyRate: under model Importance"]),
        ("{model: Priority, scoreThreshold: 0}", None, []),
        ("{model: Expression, expression: similarity / (1 + ageDays), scoreThreshold: 0}", None, []),
        (
            "{model: Expression, expression: 'similarity * decay(ageDays, 30)', scoreThreshold: 0}",
            "{name: note, halfLifeDays: 9}",
            [f"spec.scoring.expression: under model Expression {OUTRANKED} note"],
        ),
    ],
)
def test_a_ranking_that_loses_old_memories_is_warned_of(
    tmp_path: pathlib.Path, scoring: str, types: str | None, expected: list[str]
) -> None:
    told = warned(tmp_path, scoring, types)

    assert len(told) == len(expected), told
    assert [words for words, warning in zip(expected, told, strict=True) if words not in warning] == []


@pytest.mark.parametrize("levels", [100, 1_000, 100_000])
def test_a_document_is_told_apart_however_deep_it_is(tmp_path: pathlib.Path, levels: int) -> None:
    deep = "[" * levels + "]" * levels
    (finding,) = findings(tmp_path, GOOD.replace("spec: {", f"spec: {{scoring: {deep}, "))

    assert ("nested too deeply" in finding) is (levels > 100)


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ("cortex", ["spec.scoring.scoreThreshold: 0.3 hides old memories"]),
        ("brain", ["spec.scoring.confidence.dailyFactor"]),
        ("keyed", ["spec.scoring.scoreThreshold: 0.7 leaves out good matches"]),
        ("cognitive", []),
        (
            "importance",
            ["spec.scoring.minSimilarity: 0.7 leaves out good matches", "spec.scoring.importance.dailyRate"],
        ),
        ("none", []),
    ],
)
def test_what_a_preset_costs_is_warned_of(tmp_path: pathlib.Path, preset: str, expected: list[str]) -> None:
    file = tmp_path / "m.yaml"
    file.write_text(
        GOOD.replace("{connectionRef: {name: main}}", f"{{connectionRef: {{name: main}}, preset: {preset}}}")
    )

    told = [str(warning.error) for warning in warnings_in(file)]

    assert len(told) == len(expected), told
    assert all(warning.startswith(words) for words, warning in zip(expected, told, strict=True))
