"""`agentmemory validate`: what admission would say to manifests, with the line to look at."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from agentmemory_operator.domain.effective import effective_lifecycle, effective_ranking, scoring_choice
from agentmemory_operator.domain.forgetting import DECAYS, GOOD_MATCH, cut_off_days, outranked, strict_gate
from agentmemory_operator.domain.lifecycle import lifecycle_fault
from agentmemory_operator.domain.manifests import errors_of, parse_agent_memory
from agentmemory_operator.domain.resources import GROUP
from agentmemory_operator.domain.scoring_choice import FIELD as SCORING_EXPRESSION
from agentmemory_operator.domain.scoring_models import name_of
from agentmemory_operator.domain.snapshot_schedule import snapshots_fault
from agentmemory_operator.errors import FieldError
from agentmemory_operator.services.objects import AGENT_MEMORY

STRICT_GATES = {"minSimilarity": "min_similarity", "scoreThreshold": "score_threshold"}
SUFFIXES = {".yaml", ".yml", ".json"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong in a file; lines count from 1."""

    path: Path
    line: int
    error: FieldError

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.error}"


def manifest_files(paths: list[Path]) -> Iterator[Path]:
    """Yield the files, and of each folder its manifests by name; folders are not searched recursively.

    Raises:
        FileNotFoundError: there is no such path.
    """
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"{path}: there is no such file or folder")
        inside = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES) if path.is_dir() else [path]
        yield from inside


def findings_in(path: Path) -> Iterator[Finding]:
    """Yield what is wrong in one file."""
    text = path.read_text(encoding="utf-8")
    try:
        nodes = [node for node in yaml.compose_all(text, Loader=yaml.SafeLoader) if node is not None]
    except RecursionError:
        yield Finding(
            path, 1, FieldError("YAML", "is nested too deeply to be read: no object of ours needs ten levels")
        )
        return
    except yaml.MarkedYAMLError as exc:
        line = exc.problem_mark.line + 1 if exc.problem_mark else 1
        yield Finding(path, line, FieldError("YAML", f"{exc.problem}: correct the file's syntax"))
        return
    for node in nodes:
        document = ManifestLoader.construct(node)
        if not isinstance(document, dict):
            yield Finding(path, node.start_mark.line + 1, FieldError("object", "a document is no Kubernetes object"))
            continue
        for error in errors_of(document) or figure_errors_of(document):
            yield Finding(path, line_of(node, error.field), error)


def figure_errors_of(document: dict[str, Any]) -> list[FieldError]:
    """Return what keeps an object that admission takes from being followed: its scoring expression, its schedules."""
    if not _is_memory(document):
        return []
    memory = parse_agent_memory(document)
    scoring = scoring_choice(memory).fault
    schedules = (lifecycle_fault(effective_lifecycle(memory)), snapshots_fault(memory.spec.snapshots))
    found = [FieldError(SCORING_EXPRESSION, scoring)] if scoring else []
    return found + [FieldError(*fault) for fault in schedules if fault]


def warnings_in(path: Path) -> Iterator[Finding]:
    """Yield what admission takes and is worth a look, in a file in which nothing was found wrong."""
    for node in yaml.compose_all(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader):
        document = ManifestLoader.construct(node) if node is not None else None
        if isinstance(document, dict) and _is_memory(document):
            for warning in _forgetting(document):
                yield Finding(path, line_of(node, warning.field), warning)


def _forgetting(document: dict[str, Any]) -> Iterator[FieldError]:
    ranking = effective_ranking(parse_agent_memory(document))
    if gate := strict_gate(ranking):
        yield FieldError(
            f"spec.scoring.{gate}",
            f"{getattr(ranking, STRICT_GATES[gate]):g} leaves out good matches (a similarity of {GOOD_MATCH}), however"
            " new they are: lower it, or measure what it costs with your embedder (docs/presets.md)",
        )
    cut_off = cut_off_days(ranking)
    if cut_off:
        named = ", ".join(f"{name} from {days} days on" for name, days in sorted(cut_off.items(), key=lambda of: of[1]))
        yield FieldError(
            "spec.scoring.scoreThreshold",
            f"{ranking.score_threshold:g} hides old memories that match well ({named}): set 0 to find them, or decay:"
            " false on a type that must not fade (docs/presets.md)",
        )
    if types := outranked(ranking):
        model = name_of(ranking.model)
        yield FieldError(
            f"spec.scoring.{DECAYS[model]}",
            f"under model {model} a good match of {', '.join(types)} ranks behind a poor one that is 100 days newer,"
            " when both are a year old: let age count less, or set decay: false on a type that must not fade"
            " (docs/presets.md)",
        )


def _is_memory(document: dict[str, Any]) -> bool:
    return document.get("kind") == AGENT_MEMORY and str(document.get("apiVersion", "")).partition("/")[0] == GROUP


def documents_in(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file in which nothing was found wrong."""
    for node in yaml.compose_all(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader):
        document = ManifestLoader.construct(node) if node is not None else None
        if isinstance(document, dict):
            yield document


class ManifestLoader(yaml.SafeLoader):
    """Reads what looks like a time as text, as the API server would."""

    @classmethod
    def construct(cls, node: yaml.Node) -> object:
        """Return the value of a composed document."""
        loader = cls("")
        try:
            return loader.construct_document(node)
        finally:
            loader.dispose()


ManifestLoader.add_constructor("tag:yaml.org,2002:timestamp", lambda _, node: str(node.value))


def line_of(node: yaml.Node, field: str) -> int:
    """Return the line of the deepest part of a field's path that the document has, from 1."""
    line = node.start_mark.line + 1
    for step in field.replace("[", ".[").split("."):
        entry = _child(node, step)
        if entry is None:
            return line
        line, node = entry
    return line


def _child(node: yaml.Node, step: str) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == step:
                return key.start_mark.line + 1, value
    if isinstance(node, yaml.SequenceNode) and step.startswith("["):
        number = int(step.strip("[]"))
        if number < len(node.value):
            return node.value[number].start_mark.line + 1, node.value[number]
    return None
