"""Read manifests from files, folders and standard input, with line numbers, by kubectl's rules.

All commands and the development stack use this reader, so that they accept the same files. It reports documents that
are no objects. `spec/kinds/parse.py` validates the content of objects.
"""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from agentmemory_operator.errors import AgentMemoryError, FieldError
from agentmemory_operator.ports.base import Json
from agentmemory_operator.spec.kubectl_yaml import KubectlLoader

SUFFIXES = (".json", ".yaml", ".yml")
"""Suffixes of the files that kubectl reads in a folder. A file that the user names can have any suffix."""

STDIN = Path("-")
MAX_BYTES = 32 * 1024 * 1024
"""Maximum size of one file in bytes. An endless device or pipe would otherwise fill the memory."""
MAX_NODES = 3 * 1024 * 1024 // 2
"""Maximum number of values in a document with aliases expanded.

The API server accepts 3 MiB, and a value needs 2 bytes.
"""


@dataclass(frozen=True, slots=True)
class Manifest:
    """An object, and the YAML node that it was read from."""

    document: Json
    node: yaml.Node


@dataclass(frozen=True, slots=True)
class InvalidDocument:
    """A document that is no Kubernetes object.

    Attributes:
        line: Line of the fault in the file, from 1.
        error: Field at fault, and a message with the remedy.
    """

    line: int
    error: FieldError


class UnreadableManifest(AgentMemoryError):
    """The content of a file is not usable, so none of its objects is used.

    Args:
        line: Line of the fault, from 1.
        error: Part at fault, and a message with the remedy.
    """

    def __init__(self, line: int, error: FieldError) -> None:
        super().__init__(f"line {line}: {error}")
        self.document = InvalidDocument(line, error)


@dataclass(slots=True)
class ManifestPaths:
    """Files that a command line names.

    Attributes:
        files: Files in the order of the command line; `STDIN` is standard input.
        skipped: Subfolders that were not read, because `is_recursive` was False.
    """

    files: list[Path] = field(default_factory=list)
    skipped: list[Path] = field(default_factory=list)


def expand_paths(paths: Sequence[Path], *, is_recursive: bool = False) -> ManifestPaths:
    """Expand paths: files as they are, folders to their manifests, sorted by name.

    A link to a folder is followed only if `paths` contains it.

    Args:
        paths: Files, folders, or `STDIN`.
        is_recursive: True also reads subfolders.

    Raises:
        AgentMemoryError: If a path does not exist, a folder has no manifest, or standard input is named twice.
        OSError: If a folder cannot be read.
    """
    if paths.count(STDIN) > 1:
        raise AgentMemoryError("-f - is given twice: standard input can be read only once")
    collected = ManifestPaths()
    for path in paths:
        if path != STDIN and not path.exists():
            raise AgentMemoryError(f"{path}: there is no such file or folder")
        if path.is_dir():
            _take_folder(path, collected, is_recursive=is_recursive)
        else:
            collected.files.append(path)
    return collected


def _take_folder(folder: Path, collected: ManifestPaths, *, is_recursive: bool) -> None:
    files: list[Path] = []
    skipped: list[Path] = []
    for parent, subfolders, names in os.walk(folder, onerror=_raise):
        subfolders.sort()
        files += [Path(parent, name) for name in sorted(names) if Path(name).suffix in SUFFIXES]
        if not is_recursive:
            skipped += [subfolder for name in subfolders if not (subfolder := Path(parent, name)).is_symlink()]
            subfolders.clear()
    if not files:
        remedy = f"; -R also reads its {count_noun(len(skipped), 'subfolder')} too" if skipped else ""
        raise AgentMemoryError(f"{folder}: no manifest found (a file that ends in {', '.join(SUFFIXES)}){remedy}")
    collected.files += files
    collected.skipped += skipped


def _raise(exc: OSError) -> None:
    raise exc


def count_noun(number: int, noun: str) -> str:
    """Return a number with its noun: `1 file`, `2 files`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def read_manifests(path: Path) -> tuple[list[Manifest], list[InvalidDocument]]:
    """Read a file or standard input; return its objects, and its documents that are no objects.

    Raises:
        OSError: If the file cannot be read.
        UnreadableManifest: If the content cannot be parsed. None of its objects is returned.
    """
    if path == STDIN:
        return parse_manifests(sys.stdin.buffer.read(MAX_BYTES + 1))
    with path.open("rb") as file:
        return parse_manifests(file.read(MAX_BYTES + 1))


def parse_manifests(content: bytes) -> tuple[list[Manifest], list[InvalidDocument]]:
    """Parse the content of a file; return its objects, and its documents that are no objects. Lists are expanded.

    Raises:
        UnreadableManifest: If the content is no YAML or JSON in UTF-8, repeats a key, is nested too deeply, or
            exceeds `MAX_BYTES` or `MAX_NODES`.
    """
    if len(content) > MAX_BYTES:
        raise UnreadableManifest(1, FieldError("file", f"is larger than {MAX_BYTES} bytes: split it"))
    manifests: list[Manifest] = []
    invalid: list[InvalidDocument] = []
    for node in _nodes(content):
        for item in _objects(Manifest(_value(node), node)):
            if error := _error_of(item.document):
                invalid.append(InvalidDocument(find_line(item.node, error.field), error))
            else:
                manifests.append(item)
    return manifests, invalid


def _nodes(content: bytes) -> list[yaml.Node]:
    try:
        nodes = list(yaml.compose_all(content.decode("utf-8-sig"), Loader=KubectlLoader))
    except RecursionError:
        raise UnreadableManifest(
            1, FieldError("YAML", "is nested too deeply: no agentmemory.dev object needs ten levels")
        ) from None
    except UnicodeDecodeError as exc:
        raise UnreadableManifest(1, FieldError("file", f"is not UTF-8: {exc.reason}")) from exc
    except yaml.YAMLError as exc:
        raise _syntax(exc) from exc
    return [node for node in nodes if not (node is None or _is_null(node))]


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def _syntax(exc: Exception) -> UnreadableManifest:
    mark = getattr(exc, "problem_mark", None)
    problem = " ".join(str(getattr(exc, "problem", None) or exc).split())
    return UnreadableManifest(mark.line + 1 if mark else 1, FieldError("YAML", f"{problem}: correct the file's syntax"))


def _value(node: yaml.Node) -> Any:
    """Return the value of a document as JSON: like kubectl, replace YAML types that JSON lacks.

    Raises:
        UnreadableManifest: If the document has no JSON value, repeats a key, or has too many values.
    """
    line = node.start_mark.line + 1
    try:
        if _size(node, {}) > MAX_NODES:
            raise UnreadableManifest(
                line, FieldError("YAML", f"has more than {MAX_NODES} values with aliases expanded")
            )
        loader = KubectlLoader("")
        try:
            return json.loads(json.dumps(loader.construct_document(node), default=str))
        finally:
            loader.dispose()
    except RecursionError:
        raise UnreadableManifest(line, FieldError("YAML", "is nested too deeply")) from None
    except (yaml.YAMLError, TypeError, ValueError) as exc:
        raise _syntax(exc) from exc


def _size(node: yaml.Node, sizes_by_id: dict[int, int]) -> int:
    """Return the number of values of a node with aliases expanded.

    Raises:
        RecursionError: If the node contains itself.
        UnreadableManifest: If a mapping repeats a key.
    """
    if id(node) not in sizes_by_id:
        children: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            _check_keys(node)
            children = [child for entry in node.value for child in entry]
        elif isinstance(node, yaml.SequenceNode):
            children = node.value
        sizes_by_id[id(node)] = 1 + sum(_size(child, sizes_by_id) for child in children)
    return sizes_by_id[id(node)]


def _check_keys(node: yaml.MappingNode) -> None:
    """Raise for a repeated key. The last one would hide the others: whole objects if a `---` is missing."""
    keys: set[str] = set()
    for key, _ in node.value:
        # Skip merge keys (<<), which may occur several times.
        if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
            continue
        if key.value in keys:
            message = f"{json.dumps(key.value)[:60]} is given twice: remove one, or separate the objects with ---"
            raise UnreadableManifest(key.start_mark.line + 1, FieldError("YAML", message))
        keys.add(key.value)


def _objects(manifest: Manifest) -> Iterator[Manifest]:
    """Yield a document, or the items of a List of any kind, as kubectl expands it."""
    document, items = manifest.document, _child(manifest.node, "items")
    if not (isinstance(document, dict) and str(document.get("kind")).endswith("List") and items):
        yield manifest
        return
    entries = document["items"]
    if not isinstance(entries, list) or not isinstance(items[1], yaml.SequenceNode):
        yield manifest
        return
    defaults = {"apiVersion": document.get("apiVersion"), "kind": document["kind"].removesuffix("List")}
    for entry, node in zip(entries, items[1].value, strict=True):
        # Add apiVersion and kind to an item that omits them: a list of one kind, such as AgentMemoryList, implies them.
        is_typed = not isinstance(entry, dict) or entry.get("apiVersion") or entry.get("kind")
        yield Manifest(entry if is_typed else defaults | entry, node)


def _error_of(document: object) -> FieldError | None:
    """Return the reason why kubectl would not send a document as an object, or None."""
    if not isinstance(document, dict):
        return FieldError("object", "a document is not a Kubernetes object")
    kind = document.get("kind")
    if isinstance(kind, str) and kind.endswith("List") and document.get("apiVersion") == "v1":
        message = f"{json.dumps(kind)[:60]} must have a list of items, and none of them may be a List"
        return FieldError("kind", message)
    return None


def find_line(node: yaml.Node, field: str) -> int:
    """Return the line of a field, from 1. If the document lacks it, return the line of its deepest existing parent."""
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
        index = int(step.strip("[]"))
        if index < len(node.value):
            return node.value[index].start_mark.line + 1, node.value[index]
    return None
