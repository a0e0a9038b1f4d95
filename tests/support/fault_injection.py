"""Planted faults: a fault that never took effect proves nothing, so it fails the test.

A fake declares its fault attributes (`Plantable`). A server records faults that took effect (`faults.met.STEP` next to
its `faults.json`). `conftest.py` checks them at the end of each test that has passed so far.
"""

import contextlib
import json
import pathlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from qdrant_devserver.injected_faults import FAULT_MARKER, FAULTS


@dataclass(slots=True, eq=False)
class Planting:
    """One planted fault.

    Attributes:
        what: Description for the message.
        where: The fake and its attribute, or a server's folder and step.
        look: Returns whether it took effect, for faults of a server.
    """

    what: str
    where: tuple[object, str]
    look: Callable[[], bool] = lambda: False
    is_met: bool = False


# Faults of the current test. Fakes may be used in its other threads.
_planted: list[Planting] = []


def check_all_effective() -> None:
    """Fail if a planted fault never took effect."""
    unmet = [planting.what for planting in _planted if not (planting.is_met or planting.look())]
    assert not unmet, f"planted and never met: {'; '.join(unmet)}"


def clear() -> None:
    """Clear all records at the start of a test."""
    _planted.clear()


def record_planted(owner: object, name: str, what: str) -> None:
    """Record a fault planted in a fake. Calls of other threads are ignored, because they may outlive the test."""
    if threading.current_thread() is not threading.main_thread():
        return
    _planted.append(Planting(what, (owner, name)))


def record_effect(owner: object, name: str) -> None:
    """Record that a fault took effect."""
    for planting in _planted:
        if planting.where[0] is owner and planting.where[1] == name:
            planting.is_met = True


class Plantable:
    """Base of fakes with attributes that plant a fault when they are set.

    Attributes:
        PLANTABLE: Names of these attributes. A value that is set must take effect; None, False and empty ones need not.
    """

    __slots__ = ()
    PLANTABLE: ClassVar[tuple[str, ...]] = ()

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        # 0 is a valid value (the first of something); empty lists, texts and sets plant nothing.
        if name in self.PLANTABLE and (value or (value == 0 and value is not False)):
            record_planted(self, name, f"{type(self).__name__}.{name} = {value!r:.200}")


class Plants(dict[str, Any]):
    """Planted values by name. Each must take effect."""

    def __init__(self, what: str, planted: dict[str, Any] | None = None) -> None:
        super().__init__()
        self._what = what
        self.update(planted or {})

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        record_planted(self, name, f"{self._what}[{name!r}] = {value!r:.200}")

    def update(self, *planted: Any, **more: Any) -> None:
        """Plant several values."""
        for name, value in dict(*planted, **more).items():
            self[name] = value

    def take(self, name: str) -> Any:
        """Return the planted value of a name and record its effect; None if nothing was planted."""
        if name in self:
            record_effect(self, name)
        return self.get(name)


def plant(data: pathlib.Path, *, engine: Mapping[str, str] | None = None, **steps: str) -> None:
    """Replace the faults of a development server.

    Args:
        data: Data folder of the server.
        engine: Variations of the engine that are not faults, and so need not take effect.
        steps: Fault by step, see `qdrant_devserver/injected_faults.py`; an empty one plants nothing.

    Raises:
        AssertionError: If a previous fault never took effect.
    """
    remove_faults(data)
    # Replaced atomically, because the server reads the file at each step.
    fresh = (data / FAULTS).with_suffix(".new")
    fresh.write_text(json.dumps({**(engine or {}), **steps}))
    fresh.replace(data / FAULTS)
    for step, fault in steps.items():
        if fault:
            look = (data / f"{FAULT_MARKER}.{step}").exists
            _planted.append(Planting(f"{step}: {fault} in the development server", (data, step), look))


def remove_faults(data: pathlib.Path) -> None:
    """Remove all faults of a development server.

    Raises:
        AssertionError: If a fault never took effect.
    """
    (data / FAULTS).unlink(missing_ok=True)
    mine = [planting for planting in _planted if planting.where[0] == data]
    for planting in mine:
        planting.is_met = planting.is_met or planting.look()
    for noted in data.glob(f"{FAULT_MARKER}.*"):
        noted.unlink()
    unmet = [planting.what for planting in mine if not planting.is_met]
    assert not unmet, f"planted and never met: {'; '.join(unmet)}"


@contextlib.contextmanager
def with_faults(data: pathlib.Path, **steps: str) -> Iterator[None]:
    """Plant faults in a development server inside the context. Raises: As `plant` and `remove_faults`."""
    plant(data, engine=None, **steps)
    try:
        yield
    except BaseException:
        # Report the original failure, not that a fault did not take effect.
        (data / FAULTS).unlink(missing_ok=True)
        raise
    remove_faults(data)
