"""What `agentmemory dev` says once it runs: where everything is, and calls to paste as soon as they are answered."""

import asyncio
import json
import shlex
from contextlib import suppress

from agentmemory_operator.agents.directory import AgentDirectory
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.main.api import Api
from agentmemory_operator.main.dev_folders import DevFolders
from agentmemory_operator.main.processes import say
from agentmemory_operator.settings import AuthMode
from agentmemory_operator.spec.printable import printable

LOOK_S, MOST_LOOK_S = 0.1, 2.0
USER, SAID, ASKED = "ada", "Ada drinks tea, never coffee", "what does she drink?"


def say_where(folders: DevFolders, stand_in: str, qdrant_url: str, api_url: str) -> None:
    """Say where everything is."""
    say(f"Manifests {printable(str(folders.manifests))}, watched; the status of each object in .status there")
    say(f"Data {printable(str(folders.data))}")
    say(f"{stand_in} is used for every QdrantConnection, whatever its URL")
    say(f"Qdrant {qdrant_url}")
    say(f"API {api_url}")


async def say_first_calls(api: Api, api_url: str, folders: DevFolders, auth: AuthMode) -> None:
    """Once an agent answers, say how it is asked; where none is declared, how one is. Then wait for ever."""
    while api.readiness.why_not_ready() is not None:
        await asyncio.sleep(LOOK_S)
    if not api.services.directory.list():
        folder = printable(str(folders.manifests))
        say(f"No AgentMemory is declared in {folder}. This writes one, which is served at once:")
        say(f"  agentmemory init my-agent --into {shlex.quote(folder)}")
    slug = await _first_agent(api.services.directory)
    say("Paste into another terminal:")
    for call in first_calls(f"{api_url}/v1/agents/{slug}", has_token=auth == "token"):
        say(f"  {call}")
    await asyncio.Event().wait()


async def _first_agent(directory: AgentDirectory) -> str:
    """The first agent by name that answers, and makes vectors of texts itself."""
    look_s = LOOK_S
    while True:
        for settings in directory.list():
            # Not yet, or not as its object stands: the log says why.
            with suppress(AgentMemoryError):
                if not (await directory.open(settings.slug)).takes_vectors:
                    return settings.slug
        await asyncio.sleep(look_s)
        look_s = min(2 * look_s, MOST_LOOK_S)


def first_calls(agent_url: str, *, has_token: bool) -> list[str]:
    """Two calls for a shell: one that stores a memory, one that finds it."""
    headers = "-H 'Content-Type: application/json'"
    if has_token:
        headers += ' -H "Authorization: Bearer $AGENTMEMORY_TOKEN"'
    bodies = {"memories": {"user_id": USER, "content": SAID}, "search": {"user_id": USER, "query": ASKED}}
    return [f"curl -sSw '\\n' {agent_url}/{path} {headers} -d '{json.dumps(body)}'" for path, body in bodies.items()]
