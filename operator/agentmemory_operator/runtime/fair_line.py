"""Whose turn is next: a line in which each tenant has a share, and each lane of a tenant (a server) has one of that.

A tenant begins another turn only while fewer of its own run than places are free. So one alone gets half of the places,
each one more finds some, and of many all get the same; who waits with the fewest running comes first. The places of a
lane that several tenants share are given out by the same rule.
"""

from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)


class LinePlace(NamedTuple):
    """Whose turn it is, and what it may be held up by."""

    tenant: Hashable
    lane: Hashable


NOWHERE = LinePlace(None, None)


@dataclass(slots=True)
class _Tenant(Generic[K]):
    """What waits of a tenant, by lane: whose turn is next stands first.

    Attributes:
        full: lanes that had no place for this tenant when it was last looked for one.
    """

    running: int = 0
    ready: OrderedDict[Hashable, OrderedDict[K, None]] = field(default_factory=OrderedDict)
    full: dict[Hashable, OrderedDict[K, None]] = field(default_factory=dict)


class FairLine(Generic[K]):
    """Keys that wait, and how many of each tenant and lane have their turn.

    Args:
        share: turns at a time of a tenant that is alone; all together have twice as many.
        width: turns at a time of a tenant in one lane; all tenants together have twice as many there.
    """

    def __init__(self, share: int, width: int) -> None:
        self._all = self._free = 2 * share
        self._width = width
        self._tenants: OrderedDict[Hashable, _Tenant[K]] = OrderedDict()
        self._places: dict[K, LinePlace] = {}
        self._in_lane: Counter[Hashable] = Counter()
        self._at_place: Counter[LinePlace] = Counter()
        # Who waits for a place in a lane, the longest first.
        self._shut_out: dict[Hashable, OrderedDict[Hashable, None]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: K) -> bool:
        return key in self._places

    def put(self, key: K, place: LinePlace) -> None:
        """Let a key wait; one that waits already stays where it is."""
        if key in self._places:
            return
        self._places[key] = place
        tenant = self._tenants.setdefault(place.tenant, _Tenant())
        lanes = tenant.full if place.lane in tenant.full else tenant.ready
        lanes.setdefault(place.lane, OrderedDict())[key] = None

    def drop(self, key: K) -> None:
        """Let a key wait no longer; one that does not is no error."""
        place = self._places.pop(key, None)
        if place is None:
            return
        tenant = self._tenants[place.tenant]
        lanes = tenant.full if place.lane in tenant.full else tenant.ready
        del lanes[place.lane][key]
        if not lanes[place.lane]:
            del lanes[place.lane]
            self._shut_out.get(place.lane, OrderedDict()).pop(place.tenant, None)
            self._let_in(place.lane)
        self._forget_idle(place.tenant)

    def take(self) -> tuple[K, LinePlace] | None:
        """Give a key its turn; None where nobody who waits may have one."""
        found = self._next_tenant()
        if found is None:
            return None
        name, tenant = found
        lane, keys = next(iter(tenant.ready.items()))
        key, _ = keys.popitem(last=False)
        # Whoever had a turn stands behind the others.
        tenant.ready.move_to_end(lane)
        self._tenants.move_to_end(name)
        if not keys:
            del tenant.ready[lane]
        del self._places[key]
        place = LinePlace(name, lane)
        self._free -= 1
        tenant.running += 1
        self._in_lane[lane] += 1
        self._at_place[place] += 1
        return key, place

    def end(self, place: LinePlace) -> None:
        """Take a turn back."""
        self._free += 1
        self._tenants[place.tenant].running -= 1
        _count_down(self._in_lane, place.lane)
        _count_down(self._at_place, place)
        self._let_in(place.lane)
        self._forget_idle(place.tenant)

    def _next_tenant(self) -> tuple[Hashable, _Tenant[K]] | None:
        """Who waits, may begin, and has the fewest running: of several the one whose turn is longest ago."""
        if not self._free:
            return None
        best: tuple[Hashable, _Tenant[K]] | None = None
        fewest = self._free
        for name, tenant in self._tenants.items():
            if tenant.running < fewest and self._has_ready_lane(name, tenant):
                best, fewest = (name, tenant), tenant.running
                if not fewest:
                    break
        return best

    def _has_ready_lane(self, name: Hashable, tenant: _Tenant[K]) -> bool:
        """Put the lanes aside that have no place for a tenant, until the first that has; tell whether there is one."""
        while tenant.ready:
            lane = next(iter(tenant.ready))
            if self._at_place[LinePlace(name, lane)] < 2 * self._width - self._in_lane[lane]:
                return True
            tenant.full[lane] = tenant.ready.pop(lane)
            self._shut_out.setdefault(lane, OrderedDict())[name] = None
        return False

    def _let_in(self, lane: Hashable) -> None:
        """Let tenants look once more for a place in a lane, no more than there are places in all.

        Whoever finds none has a turn already; so of as many as there are places at least one finds one.
        """
        names = self._shut_out.get(lane, OrderedDict())
        for name in list(islice(names, self._all)):
            tenant = self._tenants[name]
            tenant.ready[lane] = tenant.full.pop(lane)
            del names[name]
        if not names:
            self._shut_out.pop(lane, None)

    def _forget_idle(self, name: Hashable) -> None:
        tenant = self._tenants[name]
        if not (tenant.running or tenant.ready or tenant.full):
            del self._tenants[name]


def _count_down(counter: Counter[K], counted: K) -> None:
    counter[counted] -= 1
    if not counter[counted]:
        del counter[counted]
