"""Collections and aliases of a data folder.

    <data>/lock                          locked by the server that uses the folder
    <data>/aliases.json                  alias -> collection
    <data>/collections/<id>/             one collection; the id is unrelated to its name
    <data>/collections/creating-<id>/    removed at the next start
    <data>/collections/deleting-<id>/    removed at the next start

One rename creates a collection, another deletes it. So no crash leaves a part of one.
"""

import pathlib
import shutil
import uuid
from collections.abc import Mapping

from qdrant_devserver.error_answers import collection_missing, conflict, invalid, not_found, wrong_input
from qdrant_devserver.fields import Document
from qdrant_devserver.storage.collection import Record, ServedCollection, load_record, new_record, save_record
from qdrant_devserver.storage.configuration import has_unsafe_character
from qdrant_devserver.storage.files import read_json, remove_leftovers, rename, write_json

MAX_NAME_LENGTH = 255
_CREATING, _DELETING = "creating-", "deleting-"


def resolve(name: str, collections: Mapping[str, ServedCollection], aliases: Mapping[str, str]) -> ServedCollection:
    """Return a collection by its name or one of its aliases.

    Raises:
        ErrorAnswer: 404 if there is neither.
    """
    collection = collections.get(name) or collections.get(aliases.get(name, ""))
    if collection is None:
        raise collection_missing(name)
    return collection


class Catalogue:
    """All collections and aliases, in memory and on disk."""

    def __init__(self, data_dir: pathlib.Path) -> None:
        self._collections_dir = data_dir / "collections"
        self._aliases_path = data_dir / "aliases.json"
        self.collections: dict[str, ServedCollection] = {}
        self.aliases: dict[str, str] = {}

    def load(self) -> None:
        """Read the folder; complete or undo creations, deletions and recoveries that a crash interrupted."""
        self._collections_dir.mkdir(parents=True, exist_ok=True)
        for folder in sorted(self._collections_dir.iterdir()):
            if folder.name.startswith((_CREATING, _DELETING)):
                remove_leftovers(folder)
                continue
            collection = ServedCollection(folder, load_record(folder), awake=False)
            self.collections[collection.name] = collection
            _remove_other_generations(collection)
            _end_recoveries(collection)
        stored = read_json(self._aliases_path) if self._aliases_path.exists() else {}
        self.aliases = {alias: name for alias, name in stored.items() if name in self.collections}
        if self.aliases != stored:
            self._save_aliases()

    def resolve(self, name: str) -> ServedCollection:
        """Return a collection by name or alias. Raises: As `resolve`."""
        return resolve(name, self.collections, self.aliases)

    def exists(self, name: str) -> bool:
        """Return whether a collection or an alias has the name."""
        return name in self.collections or name in self.aliases

    def check_free(self, name: str) -> None:
        """Raise unless a new collection can have the name.

        Raises:
            ErrorAnswer: 422 for a name that is not allowed, 409 if a collection has it, 400 if an alias has it.
        """
        if not 0 < len(name) <= MAX_NAME_LENGTH or has_unsafe_character(name):
            raise invalid("name", f"value {name!r} invalid, must have 1 to 255 characters that file names allow")
        if name in self.collections:
            raise conflict(f"Collection `{name}` already exists!")
        if name in self.aliases:
            message = f"Can't create collection with name {name}. Alias with the same name already exists"
            raise wrong_input(message)

    def create(
        self, name: str, configuration: Document, replicas: dict[str, dict[str, str]] | None = None
    ) -> ServedCollection:
        """Create a collection. Its first request for points creates the engine's files. Raises: As `check_free`."""
        self.check_free(name)
        return self.adopt(self.new_folder(), new_record(name, configuration, replicas or {}))

    def new_folder(self) -> pathlib.Path:
        """Create a folder to build a collection in. The next start removes it unless it was adopted."""
        building = self._collections_dir / f"{_CREATING}{uuid.uuid4().hex}"
        building.mkdir()
        return building

    def adopt(self, building: pathlib.Path, record: Record) -> ServedCollection:
        """Turn a folder of `new_folder` into the collection that the record describes.

        Raises:
            ErrorAnswer: As `check_free`; the folder is unchanged then.
        """
        self.check_free(record.name)
        save_record(building, record)
        folder = building.with_name(building.name.removeprefix(_CREATING))
        rename(building, folder)
        self.collections[record.name] = ServedCollection(folder, record, awake=True)
        return self.collections[record.name]

    def remove(self, collection: ServedCollection) -> pathlib.Path:
        """Delete a collection and its aliases; return the renamed folder, which the caller must delete."""
        doomed = self._collections_dir / f"{_DELETING}{collection.folder.name}"
        rename(collection.folder, doomed)
        collection.deleted = True
        del self.collections[collection.name]
        kept = {alias: name for alias, name in self.aliases.items() if name != collection.name}
        if kept != self.aliases:
            self.aliases = kept
            self._save_aliases()
        return doomed

    def create_alias(self, alias: str, name: str) -> None:
        """Point an alias to a collection; move the alias if it exists. `save_aliases` stores the change.

        Raises:
            ErrorAnswer: 404 if there is no such collection; 409 if a collection has the name of the alias.
        """
        if name not in self.collections:
            raise collection_missing(name)
        if alias in self.collections:
            raise conflict(f"Collection `{alias}` already exists!")
        self.aliases[alias] = name

    def delete_alias(self, alias: str) -> None:
        """Delete an alias; an unknown one is no error. `save_aliases` stores the change."""
        self.aliases.pop(alias, None)

    def rename_alias(self, old: str, new: str) -> None:
        """Rename an alias; it replaces an alias that has the new name. `save_aliases` stores the change.

        Raises:
            ErrorAnswer: 404 if there is no alias `old`; 409 if a collection is named `new`.
        """
        if old not in self.aliases:
            raise not_found(f"Alias {old} does not exists!")
        if new in self.collections:
            raise conflict(f"Collection `{new}` already exists!")
        self.aliases[new] = self.aliases.pop(old)

    def save_aliases(self, before: dict[str, str]) -> None:
        """Store the aliases if they differ from `before`."""
        if self.aliases != before:
            self._save_aliases()

    def _save_aliases(self) -> None:
        write_json(self._aliases_path, self.aliases)


def _remove_other_generations(collection: ServedCollection) -> None:
    generation = collection.record.generation
    current = "" if generation is None else collection.shard_folder(generation).name
    for folder in collection.folder.glob("shard-*"):
        if folder.name != current:
            remove_leftovers(folder)


def _end_recoveries(collection: ServedCollection) -> None:
    """Mark replicas as Dead that were not active when the server stopped.

    After an interrupted recovery the points of its shards are lost, so none of their replicas stays active.
    """
    cut_off = list(collection.folder.glob("recovering-*"))
    for folder in cut_off:
        shutil.rmtree(folder)
    replicas = collection.record.replicas
    for shard, states in replicas.items():
        if set(states.values()) != {"Active"}:
            kept = {} if cut_off else {peer: state for peer, state in states.items() if state == "Active"}
            replicas[shard] = dict.fromkeys(states, "Dead") | kept
            collection.save()
