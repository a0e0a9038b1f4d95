"""`agentmemory validate`: check manifests as admission and the operator do, and print errors with line numbers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from agentmemory_operator.adapters.folder.manifests import (
    STDIN,
    InvalidDocument,
    Manifest,
    ManifestPaths,
    UnreadableManifest,
    count_noun,
    expand_paths,
    find_line,
    read_manifests,
)
from agentmemory_operator.entrypoints.cli.options import Files, Recursive
from agentmemory_operator.entrypoints.cli.run import exit_on_error
from agentmemory_operator.errors import AgentMemoryError, FieldError
from agentmemory_operator.runtime.object_table import AGENT_MEMORY
from agentmemory_operator.search.rules.ranking_warnings import (
    DECAY_FIELDS,
    GOOD_MATCH,
    find_cut_off_days,
    find_outranked_types,
    find_strict_gate,
)
from agentmemory_operator.snapshots.rules.due import snapshots_fault
from agentmemory_operator.spec.effective.policies import lifecycle_fault
from agentmemory_operator.spec.effective.scoring_model import FIELD as SCORING_EXPRESSION
from agentmemory_operator.spec.effective.settings import (
    Ranking,
    effective_lifecycle,
    effective_ranking,
    scoring_choice,
)
from agentmemory_operator.spec.expression.scoring_parameters import model_name
from agentmemory_operator.spec.kinds.parse import find_errors, is_own_group, parse_agent_memory
from agentmemory_operator.spec.printable import printable

STRICT_GATES = {"minSimilarity": "min_similarity", "scoreThreshold": "score_threshold"}


@dataclass(frozen=True, slots=True)
class ManifestFinding:
    """An error or a warning at a line of a file; lines count from 1."""

    path: Path
    line: int
    error: FieldError

    def __str__(self) -> str:
        path = "stdin" if self.path == STDIN else printable(str(self.path))
        return f"{path}:{self.line} {self.error}"


@dataclass(slots=True)
class CheckedManifests:
    """Results for the manifests that a command line names.

    Attributes:
        valid: File and manifest of each valid object of this operator's kinds.
        findings: Errors, by file and line.
        ignored: Number of objects of other API groups.
        wrong: Number of invalid objects, unreadable documents and unreadable files.
    """

    paths: ManifestPaths
    valid: list[tuple[Path, Manifest]] = field(default_factory=list)
    findings: list[ManifestFinding] = field(default_factory=list)
    ignored: int = 0
    wrong: int = 0

    def __str__(self) -> str:
        summary = (
            f"{count_noun(len(self.valid) + self.wrong, 'object')} checked, {self.ignored} of other groups ignored, "
        )
        summary += count_noun(len(self.findings), "error")
        skipped = count_noun(len(self.paths.skipped), "subfolder")
        return f"{summary}; {skipped} skipped: -R includes them" if self.paths.skipped else summary

    @property
    def is_empty(self) -> bool:
        """True if the files contain neither objects nor errors."""
        return not (self.valid or self.findings or self.ignored)


def add_checks(cli: typer.Typer) -> None:
    """Add `validate` to a command line."""

    @cli.command()
    def validate(paths: Files, is_recursive: Recursive = False) -> None:
        """Validate manifests as strictly as the API server does; exit 1 if something is wrong."""
        with exit_on_error():
            found = check_manifests(paths, is_recursive=is_recursive)
        for finding in found.findings:
            typer.echo(str(finding))
        if not found.findings:
            for warning in warnings_in(found):
                typer.echo(f"warning: {warning}", err=True)
        typer.echo(str(found))
        raise typer.Exit(bool(found.findings))


def check_manifests(paths: Sequence[Path], *, is_recursive: bool) -> CheckedManifests:
    """Check the files that a command line names: as admission would, and for the errors of `find_figure_errors`.

    Raises:
        AgentMemoryError: If a path does not exist, a folder has no manifest, or the files contain no object.
        OSError: If a folder cannot be read.
    """
    found = CheckedManifests(expand_paths(paths, is_recursive=is_recursive))
    for path in found.paths.files:
        _check(path, found)
    if found.is_empty:
        raise AgentMemoryError(f"no objects found in {', '.join(map(str, paths))}")
    return found


def _check(path: Path, found: CheckedManifests) -> None:
    try:
        manifests, invalid = read_manifests(path)
    except UnreadableManifest as exc:
        manifests, invalid = [], [exc.document]
    except OSError as exc:
        manifests, invalid = [], [InvalidDocument(1, FieldError("file", f"cannot be read: {exc.strerror}"))]
    findings = [ManifestFinding(path, item.line, item.error) for item in invalid]
    found.wrong += len(invalid)
    for manifest in manifests:
        document = manifest.document
        if errors := find_errors(document) or find_figure_errors(document):
            findings += [ManifestFinding(path, find_line(manifest.node, error.field), error) for error in errors]
            found.wrong += 1
        elif is_own_group(document):
            found.valid.append((path, manifest))
        else:
            found.ignored += 1
    found.findings += sorted(findings, key=lambda finding: finding.line)


def find_figure_errors(document: dict[str, Any]) -> list[FieldError]:
    """Return errors that admission cannot detect: in scoring expression and schedules. Only an AgentMemory has any."""
    if not (is_own_group(document) and document["kind"] == AGENT_MEMORY):
        return []
    memory = parse_agent_memory(document)
    scoring = scoring_choice(memory).fault
    schedules = (lifecycle_fault(effective_lifecycle(memory)), snapshots_fault(memory.spec.snapshots))
    found = [FieldError(SCORING_EXPRESSION, scoring)] if scoring else []
    return found + [FieldError(*fault) for fault in schedules if fault]


def warnings_in(checked: CheckedManifests) -> Iterator[ManifestFinding]:
    """Yield warnings about valid AgentMemories whose scoring hides or outranks good matches.

    Effects that the preset alone has are left out: docs/presets.md describes them, and `init` writes presets alone.
    """
    for path, manifest in checked.valid:
        if manifest.document["kind"] != AGENT_MEMORY:
            continue
        memory = parse_agent_memory(manifest.document)
        preset_spec = memory.spec.model_copy(update={"scoring": None, "types": None})
        known = list(_forgetting(effective_ranking(memory.model_copy(update={"spec": preset_spec}))))
        for warning in _forgetting(effective_ranking(memory)):
            if warning not in known:
                yield ManifestFinding(path, find_line(manifest.node, warning.field), warning)


def _forgetting(ranking: Ranking) -> Iterator[FieldError]:
    if gate := find_strict_gate(ranking):
        yield FieldError(
            f"spec.scoring.{gate}",
            f"{getattr(ranking, STRICT_GATES[gate]):g} excludes good matches (a similarity of {GOOD_MATCH}), however"
            " new they are: lower it, or measure the effect with your embedder (docs/presets.md)",
        )
    cut_off = find_cut_off_days(ranking)
    if cut_off:
        names = ", ".join(f"{name} from {days} days on" for name, days in sorted(cut_off.items(), key=lambda of: of[1]))
        yield FieldError(
            "spec.scoring.scoreThreshold",
            f"{ranking.score_threshold:g} hides old memories that match well ({names}): set it to 0 to find them, or "
            f"set decay: false for types that must not decay (docs/presets.md)",
        )
    if types := find_outranked_types(ranking):
        model = model_name(ranking.model)
        yield FieldError(
            f"spec.scoring.{DECAY_FIELDS[model]}",
            f"under model {model} a good match of {', '.join(types)} ranks below a poor one that is 100 days newer"
            " when both are a year old: lower the weight of recency, or set decay: false for types that must not decay"
            " (docs/presets.md)",
        )
