"""Memories that writers may change: of one writer alone, or shared, so that the writers compete for them."""

import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.support.cluster.traffic.journal import CROWD, Journal, Unit, UnitKind, Version

WORDS = ("invoice", "garden", "harbour", "train", "letter", "winter", "piano", "bicycle", "cheese", "mountain")
# Maximum units of a writer: enough to detect losses, few enough for the final check.
MAX_UNITS = 80
# Limits of shared users. A search returns all memories of one.
MAX_MEMORIES_PER_USER = 24
ACTIVE_USERS = 4


@dataclass(slots=True)
class Pool:
    """Memories of one user that only one writer changes, so that their state is always known."""

    journal: Journal
    name: str
    chance: random.Random
    count: int = 0
    units: list[Unit] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def is_full(self) -> bool:
        """True if another version is to be stored instead of another unit."""
        return len(self.units) >= MAX_UNITS

    def user(self) -> str:
        """Return a user to store a memory for."""
        return self.name

    def crowded_user(self) -> str:
        """Return a user whose keys several writers write."""
        return CROWD

    def guest(self) -> str:
        """Return a user to forget."""
        with self.lock:
            self.count += 1
            return f"{self.name}-guest-{self.count}"

    def new_unit(self, kind: UnitKind) -> Unit:
        with self.lock:
            self.count += 1
            user = self.user()
            return Unit(kind, user, f"{user}-{kind}-{self.count}")

    def content(self, user: str) -> str:
        """Return a unique text."""
        with self.lock:
            self.count += 1
            named = user if user.startswith(self.name) else f"{user} {self.name}"
            return f"{named} {self.count} {' '.join(self.chance.choices(WORDS, k=4))}"

    def add(self, unit: Unit, version: Version) -> None:
        """Record an acknowledged version of a unit."""
        unit.versions.append(version)
        if all(unit is not known for known in self.units):
            self.units.append(unit)
            self.journal.units.append(unit)

    def pick(self, suits: Callable[[Unit], bool]) -> Unit | None:
        """Return a random unit to change, none with an unknown outcome; None if no unit suits."""
        fitting = [unit for unit in self.units if not unit.in_doubt and suits(unit)]
        return self.chance.choice(fitting) if fitting else None


@dataclass(slots=True)
class SharedPool(Pool):
    """Memories that all writers change; each is a unit of its own. Users change: a full one gets no more memories."""

    users: list[str] = field(default_factory=list)
    all_users: list[str] = field(default_factory=list)
    _stored: Counter[str] = field(default_factory=Counter)

    @property
    def is_full(self) -> bool:
        return False

    def user(self) -> str:
        """Return one of the users that currently get new memories."""
        with self.lock:
            while len(self.users) < ACTIVE_USERS:
                self.all_users.append(f"user-{len(self.all_users)}")
                self.users.append(self.all_users[-1])
            return self.chance.choice(self.users)

    def any_user(self) -> str:
        """Return a user with memories, mostly one that currently gets new ones."""
        user = self.user()
        return self.chance.choice(self.all_users) if self.chance.random() < 0.3 else user

    def crowded_user(self) -> str:
        return self.user()

    def guest(self) -> str:
        """Return a user to forget, who may get new memories later."""
        return self.user()

    def content(self, user: str) -> str:
        """Return a unique text. A user with enough memories gets no further ones."""
        with self.lock:
            self._stored[user] += 1
            if self._stored[user] >= MAX_MEMORIES_PER_USER and user in self.users:
                self.users.remove(user)
            return Pool.content(self, user)

    def add(self, unit: Unit, version: Version) -> None:
        with self.lock:
            self.units.append(Unit(unit.kind, unit.user, unit.name, [version]))

    def pick(self, suits: Callable[[Unit], bool]) -> Unit | None:
        """Return a recent memory, because fewer of these are superseded already; None if none suits."""
        with self.lock:
            fitting = {user: [unit for unit in self.units if unit.user == user and suits(unit)] for user in self.users}
            recent = [unit for units in fitting.values() for unit in units[-4:]]
            return self.chance.choice(recent) if recent else None
