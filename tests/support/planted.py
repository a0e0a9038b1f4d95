"""What tests plant for something to go wrong: what nothing met proves nothing, so it fails the test.

A fake says which of its attributes are such (`Plantable`), a server notes what it met (`faults.met.STEP` beside its
`faults.json`). `conftest.py` asks at the end of each test that has gone well so far.
"""

import contextlib
import json
import pathlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from qdrant_devserver.injected_faults import FAULTS, MET


@dataclass(slots=True, eq=False)
class Planting:
    """One thing that was planted.

    Attributes:
        what: told where it was never met.
        where: the fake and its attribute, or a server's folder and step.
        look: tells whether it was met by now, where nobody says so.
    """

    what: str
    where: tuple[object, str]
    look: Callable[[], bool] = lambda: False
    is_met: bool = False


# Of the test under way; fakes may live in other threads of it.
_planted: list[Planting] = []


def check_met() -> None:
    """Fail where something was planted and never met."""
    unmet = [planting.what for planting in _planted if not (planting.is_met or planting.look())]
    assert not unmet, f"planted and never met: {'; '.join(unmet)}"


def forget() -> None:
    """Begin another test."""
    _planted.clear()


def note(owner: object, name: str, what: str) -> None:
    """Note that something was planted in a fake; not by a thread that a test has begun, which may outlive it."""
    if threading.current_thread() is not threading.main_thread():
        return
    _planted.append(Planting(what, (owner, name)))


def met(owner: object, name: str) -> None:
    """Note that it was met."""
    for planting in _planted:
        if planting.where[0] is owner and planting.where[1] == name:
            planting.is_met = True


class Plantable:
    """A fake in which tests plant something by setting attributes.

    Attributes:
        PLANTABLE: their names; what is set and is not empty is to be met.
    """

    __slots__ = ()
    PLANTABLE: ClassVar[tuple[str, ...]] = ()

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        # 0 is the first of something; empty lists, names and sets are nothing.
        if name in self.PLANTABLE and (value or (value == 0 and value is not False)):
            note(self, name, f"{type(self).__name__}.{name} = {value!r:.200}")


class Plants(dict[str, Any]):
    """What is planted by name: each is to be met on its own."""

    def __init__(self, what: str, planted: dict[str, Any] | None = None) -> None:
        super().__init__()
        self._what = what
        self.update(planted or {})

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        note(self, name, f"{self._what}[{name!r}] = {value!r:.200}")

    def update(self, *planted: Any, **more: Any) -> None:
        """Plant several."""
        for name, value in dict(*planted, **more).items():
            self[name] = value

    def meet(self, name: str) -> Any:
        """Return what was planted by a name, None where nothing was."""
        if name in self:
            met(self, name)
        return self.get(name)


def plant(data: pathlib.Path, *, engine: Mapping[str, str] | None = None, **steps: str) -> None:
    """Let a development server meet other faults from now on than before.

    Args:
        data: the server's data folder.
        engine: steps that are no faults: they make an engine of another kind, which a test need not tell apart.
        steps: fault by step, as `qdrant_devserver/injected_faults.py` has them; of an empty one nothing is met.

    Raises:
        AssertionError: one of before was never met.
    """
    lift(data)
    # Whole, or not at all: the server reads it at each step.
    fresh = (data / FAULTS).with_suffix(".new")
    fresh.write_text(json.dumps({**(engine or {}), **steps}))
    fresh.replace(data / FAULTS)
    for step, fault in steps.items():
        if fault:
            look = (data / f"{MET}.{step}").exists
            _planted.append(Planting(f"{step}: {fault} in the development server", (data, step), look))


def lift(data: pathlib.Path) -> None:
    """Let the server meet no fault from now on.

    Raises:
        AssertionError: one was never met.
    """
    (data / FAULTS).unlink(missing_ok=True)
    mine = [planting for planting in _planted if planting.where[0] == data]
    for planting in mine:
        planting.is_met = planting.is_met or planting.look()
    for noted in data.glob(f"{MET}.*"):
        noted.unlink()
    unmet = [planting.what for planting in mine if not planting.is_met]
    assert not unmet, f"planted and never met: {'; '.join(unmet)}"


@contextlib.contextmanager
def planted(data: pathlib.Path, **steps: str) -> Iterator[None]:
    """Let the server meet faults while the context is open; raises as `plant` and `lift`."""
    plant(data, engine=None, **steps)
    try:
        yield
    except BaseException:
        # What has failed already is to be told, and not that it came to no fault.
        (data / FAULTS).unlink(missing_ok=True)
        raise
    lift(data)
