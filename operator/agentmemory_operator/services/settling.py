"""The end of a rebuild: what was replaced is kept for the way back, for as long as its object says."""

from agentmemory_operator.domain.collection import PREVIOUS_KEY
from agentmemory_operator.domain.rebuild_settings import rebuild_settings
from agentmemory_operator.domain.times import render_second
from agentmemory_operator.services.catching_up import restore_source
from agentmemory_operator.services.previous import mark_previous
from agentmemory_operator.services.rebuild_tasks import Task
from agentmemory_operator.services.retirement import retire


async def settle(task: Task) -> str:
    """Mark the source as replaced, or remove it where nothing is to be kept.

    Raises:
        TransientError: to be done again.
    """
    server, source = task.server, task.source_name
    # A collection that is live again is kept by nobody's leave.
    await server.snapshots.write_metadata(task.target_name, {PREVIOUS_KEY: None})
    if await server.snapshots.metadata(source) is None:
        return f"{source} is gone"
    hours = rebuild_settings(task.memory.spec).keep_previous_hours
    if hours == 0:
        await retire(server.collections, server.snapshots, source)
        return f"{source} is removed"
    await restore_source(server, source)
    now_s, moved_ms = task.clock.now_ms() / 1000, task.record.moved_ms or task.record.begun_ms
    until = render_second(now_s + hours * 3600)
    since = render_second(moved_ms / 1000)
    await mark_previous(server, source, since=since, until=until, by={"rebuild": task.target_name})
    return f"{source} is kept until {until}"
