"""Queue with fair shares: each tenant (namespace) has a share of the slots, and each lane (server) a share of that.

Admission rule: a tenant can start another key only while fewer of its own keys run than slots are free. A tenant that
is alone gets at most half of the slots, and a second tenant at most half of the rest. A released slot goes to the
tenant with the fewest running keys, so shares become equal. Among tenants with equally many, the least recently served
tenant is first.

The slots of a lane that several tenants share are assigned by the same rule.
"""

from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)


class TenantLane(NamedTuple):
    """Tenant and lane of a key in the queue.

    Attributes:
        tenant: Owner of the key, such as a namespace. Each owner has a share of the slots.
        lane: Resource that can delay the key, such as a server.
    """

    tenant: Hashable
    lane: Hashable


DEFAULT_LANE = TenantLane(None, None)


@dataclass(slots=True)
class _Tenant(Generic[K]):
    """Waiting keys of a tenant by lane; the first lane is served next.

    Attributes:
        ready: Lanes that may have a free slot.
        full: Lanes that had no free slot for this tenant at the last check.
    """

    running: int = 0
    ready: OrderedDict[Hashable, OrderedDict[K, None]] = field(default_factory=OrderedDict)
    full: dict[Hashable, OrderedDict[K, None]] = field(default_factory=dict)


class FairQueue(Generic[K]):
    """Waiting keys, and the number of running keys by tenant and lane.

    Args:
        share: Maximum number of running keys of a single tenant. All tenants together may have twice as many.
        width: Maximum number of running keys of one tenant in a lane. All tenants together may have twice as many.
    """

    def __init__(self, share: int, width: int) -> None:
        self._all = self._free = 2 * share
        self._width = width
        self._tenants: OrderedDict[Hashable, _Tenant[K]] = OrderedDict()
        self._tenant_lanes: dict[K, TenantLane] = {}
        self._in_lane: Counter[Hashable] = Counter()
        self._in_tenant_lane: Counter[TenantLane] = Counter()
        # Tenants that wait for a slot in a lane, longest wait first.
        self._shut_out: dict[Hashable, OrderedDict[Hashable, None]] = {}

    def __len__(self) -> int:
        return len(self._tenant_lanes)

    def __contains__(self, key: K) -> bool:
        return key in self._tenant_lanes

    def put(self, key: K, tenant_lane: TenantLane) -> None:
        """Add a key; a key that is already waiting keeps its position."""
        if key in self._tenant_lanes:
            return
        self._tenant_lanes[key] = tenant_lane
        tenant = self._tenants.setdefault(tenant_lane.tenant, _Tenant())
        lanes = tenant.full if tenant_lane.lane in tenant.full else tenant.ready
        lanes.setdefault(tenant_lane.lane, OrderedDict())[key] = None

    def drop(self, key: K) -> None:
        """Remove a waiting key. A key that does not wait is no error."""
        tenant_lane = self._tenant_lanes.pop(key, None)
        if tenant_lane is None:
            return
        tenant = self._tenants[tenant_lane.tenant]
        lanes = tenant.full if tenant_lane.lane in tenant.full else tenant.ready
        del lanes[tenant_lane.lane][key]
        if not lanes[tenant_lane.lane]:
            del lanes[tenant_lane.lane]
            self._shut_out.get(tenant_lane.lane, OrderedDict()).pop(tenant_lane.tenant, None)
            self._recheck_lane(tenant_lane.lane)
        self._forget_idle(tenant_lane.tenant)

    def take(self) -> tuple[K, TenantLane] | None:
        """Remove and return the next key with its tenant and lane, or None if no waiting key may start.

        Call `release` with tenant and lane when the work on the key is done.
        """
        found = self._next_tenant()
        if found is None:
            return None
        name, tenant = found
        lane, keys = next(iter(tenant.ready.items()))
        key, _ = keys.popitem(last=False)
        # Move the served lane and tenant to the end of their queues.
        tenant.ready.move_to_end(lane)
        self._tenants.move_to_end(name)
        if not keys:
            del tenant.ready[lane]
        del self._tenant_lanes[key]
        tenant_lane = TenantLane(name, lane)
        self._free -= 1
        tenant.running += 1
        self._in_lane[lane] += 1
        self._in_tenant_lane[tenant_lane] += 1
        return key, tenant_lane

    def release(self, tenant_lane: TenantLane) -> None:
        """Release the slot of a key that `take` returned."""
        self._free += 1
        self._tenants[tenant_lane.tenant].running -= 1
        _count_down(self._in_lane, tenant_lane.lane)
        _count_down(self._in_tenant_lane, tenant_lane)
        self._recheck_lane(tenant_lane.lane)
        self._forget_idle(tenant_lane.tenant)

    def _next_tenant(self) -> tuple[Hashable, _Tenant[K]] | None:
        """Return the admissible tenant with the fewest running keys; among equals, the least recently served tenant."""
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
        """Move lanes without a free slot from `ready` to `full`; return whether one with a free slot was found."""
        while tenant.ready:
            lane = next(iter(tenant.ready))
            if self._in_tenant_lane[TenantLane(name, lane)] < 2 * self._width - self._in_lane[lane]:
                return True
            tenant.full[lane] = tenant.ready.pop(lane)
            self._shut_out.setdefault(lane, OrderedDict())[name] = None
        return False

    def _recheck_lane(self, lane: Hashable) -> None:
        """Let tenants check a lane for a free slot again: at most as many as there are slots in total.

        If the lane has a free slot, only tenants with a running key may be refused. Fewer keys run than there are
        slots, so if that many tenants wait, at least one of them gets the slot.
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


def _count_down(counter: Counter[K], key: K) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
