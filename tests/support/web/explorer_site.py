"""The explorer of an API with filled agents, for tests in a browser and for the captures of its pages."""

import contextlib
import datetime
import pathlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx

from agentmemory_operator.adapters.clock import SystemClock
from agentmemory_operator.agents.callers import CallerCache
from agentmemory_operator.entrypoints.api.identity.auth import IdentityGuard
from tests.support.engine.fakes import FakeClock
from tests.support.spec.documents import ALL_PASS, agent_document, memory_document
from tests.support.web.api_stack import Stack, create_collection, running_api
from tests.support.web.dev_qdrant import dev_qdrant
from tests.support.web.mem0_site import NamedTokens
from tests.support.web.shown_objects import ShownObjects, restore_of, snapshot_of, told

if TYPE_CHECKING:
    from playwright.sync_api import Page

NOW = datetime.datetime(2026, 11, 28, 12, tzinfo=datetime.UTC)
SCRIPT = "<img src=x onerror=alert(1)><script>alert(1)</script>"
MANY_USERS = 10_000
_VERBS = {
    "chief": ["read", "write", "admin", "delegate", "impersonate"],
    "writer": ["read", "write"],
    "reader": ["read"],
}
_ACCESS = {
    "subjects": [
        {"kind": "ServiceAccount", "namespace": "agents", "name": name, "verbs": verbs}
        for name, verbs in _VERBS.items()
    ]
}
_WORDS = {"embedding": {"provider": "wordllama", "dimensions": 256}, "index": {"keyword": {"enabled": True}}}
FILLED = memory_document(
    "support-bot",
    **_WORDS,
    entities={"systems": [{"name": "Analytical Engine", "aliases": ["the engine"]}]},
    scoring={"scoreThreshold": 0.35, "minSimilarity": 0.1, "allowOverrides": True},
    access=_ACCESS,
)
EMPTY = memory_document("new-bot", **_WORDS, scoring=ALL_PASS, access=_ACCESS)
AWAY = memory_document("lost-bot", **_WORDS, access=_ACCESS)
HOSTILE = memory_document(
    "intake-bot",
    embedding={"provider": "wordllama", "dimensions": 64},
    types=[{"name": "fact", "halfLifeDays": 9, "meaning": f"{SCRIPT} {{{{ 7*7 }}}}"}],
    entities={},
    scoring=ALL_PASS,
    access=_ACCESS,
)
CROWDED = agent_document("archive-bot", access=_ACCESS)
BUSY = memory_document("busy-bot", **_WORDS, access=_ACCESS)
# In each row: creation, session, tags, type, content.
_ADA = (
    ("2026-02-20T09:00", "onboarding", ["billing"], "fact", "Ada pays by credit card"),
    ("2026-03-01T10:00", "onboarding", ["taste"], "preference", "Ada drinks tea, never coffee"),
    ("2026-03-04T11:30", "move", ["place"], "fact", "Ada Lovelace moved from Berlin to Lisbon"),
    ("2026-06-12T14:05", "engine", ["work"], "project", "Ada Lovelace and Charles Babbage build the Analytical Engine"),
    ("2026-06-12T14:06", "engine", ["work"], "person", "Charles Babbage works at the University of London"),
    ("2026-06-12T14:09", "engine", ["work"], "person", "Grace Hopper met Ada Lovelace in Paris"),
    ("2026-09-14T08:12", "letters", ["form"], "preference", "Ada Lovelace asked to be called Dr. Lovelace in letters"),
    ("2026-11-20T16:40", "refund", ["billing"], "episodic", "Invoice 4711 was refunded after Ada complained"),
    ("2026-11-27T12:00", "refund", ["taste"], "preference", "Ada likes green tea with mint in the afternoon"),
)  # fmt: skip
_OTHERS = ("bob", "grace", "linus", "\u0645\u0631\u064a\u0645", "team:billing")


@dataclass(slots=True)
class ExplorerSite:
    """Running API with the explorer. Its callers have the tokens `token-NAME`.

    Attributes:
        clock: Clock of the API; its time is constant.
        ids: Id of each memory of `ada` by its content.
    """

    stack: Stack
    clock: FakeClock
    ids: dict[str, str] = field(default_factory=dict)

    def ask(self, method: str, path: str, body: Any = None, *, agent: str = "support-bot", **query: str) -> Any:
        """Send a request about an agent to the API as the account `chief`; return the document."""
        answer = httpx.request(
            method,
            f"{self.stack.api_url}/v1/agents/{agent}{path}",
            json=body,
            params=query,
            headers={"Authorization": "Bearer token-chief"},
            timeout=60,
        )
        assert answer.is_success, f"{method} {path}: {answer.text}"
        return answer.json() if answer.content else None

    def store(self, user_id: str, content: str, *, agent: str = "support-bot", **more: object) -> str:
        """Store a memory; return its id."""
        return str(self.ask("POST", "/memories", {"user_id": user_id, "content": content} | more, agent=agent)["id"])

    def fill(self) -> None:
        """Store the memories of `support-bot`."""
        for created, session, tags, type_, content in _ADA:
            self.ids[content] = self.store(
                "ada", content, created_at=f"{created}:00Z", session_id=session, tags=tags, type=type_
            )
        card, transfer = self.ids["Ada pays by credit card"], "Ada pays by bank transfer, no longer by credit card"
        told = {"session_id": "refund", "tags": ["billing"], "metadata": {"ticket": "SUP-311"}, "importance": 0.75}
        self.ids[transfer] = self.store("ada", transfer, created_at="2026-11-24T09:30:00Z", supersedes=card, **told)
        summary = "Ada is careful with money: she checks each invoice"
        sources = [self.ids[transfer], self.ids["Invoice 4711 was refunded after Ada complained"]]
        self.ids[summary] = self.store("ada", summary, source_ids=sources, pinned=True)
        for number, user in enumerate(_OTHERS, 1):
            for place in range(number):
                created_at = f"2026-1{place % 2}-0{number}T0{place}:00:00Z"
                self.store(user, f"{user} opened ticket {place + 1} in Oslo", created_at=created_at)
        self.ask("PUT", "/users/ada", {"name": "Ada Lovelace"})
        self.ask("POST", "/forget", {"user_id": "linus", "everything": True})
        for query in ("how does Ada pay?", "what does she drink?"):
            self.ask("POST", "/search", {"user_id": "ada", "query": query})

    def report(self, shown: ShownObjects) -> None:
        """Report states: `support-bot` is well, `busy-bot` waits for approval, drifts and is restored."""
        verified = "the restored copy has all 1,204 points"
        shown.report(
            FILLED,
            told("Ready", "True", "Serving", "agent_memory_support-bot__1 serves"),
            told("InSync", "True", "Converged", "the collection matches the spec"),
            told("SnapshotFresh", "True", "Fresh", "the newest is 9 hours old"),
            told("SnapshotVerified", "True", "Verified", verified),
            nextSnapshotTime="2026-11-29T03:00:00Z",
        )
        for night, size in ((28, 9_412_000), (27, 9_391_000), (26, 9_377_000)):
            time, where = f"2026-11-{night}T03:00:00Z", [{"type": "S3", "bucket": "memories"}]
            points = {"before": 1204, "after": 1204}
            document = snapshot_of("support-bot", f"support-bot-202611{night}", points=points, sizeBytes=size)
            messages = (
                ("Succeeded", "SnapshotTaken", "complete"),
                ("Verified", "Verified", "restored, and all points compared"),
            )
            conditions = [
                told(kind, "True", reason, words) | {"lastTransitionTime": time} for kind, reason, words in messages
            ]
            document["status"] |= {"startTime": time, "locations": where, "conditions": conditions}
            shown.put(document)
        bad = told(
            "Verified", "False", "CopyDiffers", "12 of 1,190 points differ: the disk of the server may be failing"
        )
        shown.put(
            snapshot_of("support-bot", "by-hand", told("Succeeded", "True", "SnapshotTaken"), bad, sizeBytes=9_200_000)
        )
        drilled = told("Succeeded", "True", "Restored", "restored and compared; the agent was not changed")
        shown.put(restore_of("support-bot", "drill", drilled, source={"snapshotRef": {"name": "support-bot-20261121"}}))
        change = {"change": "rebuild the collection", "class": "Rebuild", "field": "embedding.dimensions", "held": True}
        plan = {
            "digest": "3f9c2ab41d07",
            "refusal": "a Rebuild waits for an approval of this plan",
            "changes": [change | {"from": "64", "to": "256", "cost": "1,204 texts are embedded again"}],
            "costs": {"points": 1204},
        }
        shown.report(
            BUSY,
            told("Ready", "True", "Serving", "agent_memory_busy-bot__1 serves"),
            told("InSync", "False", "AwaitingApproval", "approve the plan 3f9c2ab41d07, or set the object back"),
            told("Stalled", "False", "Progressing", "nothing is in the way"),
            plan=plan,
            drift=[{"path": "index.hnsw.m", "desired": "16", "observed": "24", "since": "2026-11-28T09:12:00Z"}],
            rebuild={
                "kind": "Rebuild",
                "state": "Running",
                "step": "Copy",
                "copied": 480,
                "total": 1204,
                "message": "copying",
            },
        )
        runs = told("Progressing", "True", "Restoring", "step 3 of 7: Verify")
        shown.put(restore_of("busy-bot", "back-to-monday", runs, progress="step 3 of 7: Verify"))
        lost = told(
            "Ready",
            "False",
            "QdrantUnavailable",
            "http://qdrant:6333 cannot be reached: start Qdrant, or correct spec.url",
        )
        shown.report(AWAY, lost, told("Stalled", "True", "QdrantUnavailable", "it is tried again every minute"))
        shown.put(EMPTY)
        shown.connection = {
            "capacity": {"memoryMaps": {"used": 21_400, "limit": 65_530}, "openFiles": {"used": 800, "limit": 10_000}}
        }

    def fill_crowd(self) -> None:
        """Store a memory of each of `MANY_USERS` users."""
        for start in range(0, MANY_USERS, 1_000):
            users = range(start, start + 1_000)
            vector = [1.0, *[0.0] * 7]
            memories = [{"user_id": f"user-{number:05}", "content": "note", "vector": vector} for number in users]
            self.ask("POST", "/memories/batch", {"memories": memories}, agent="archive-bot")


@contextlib.contextmanager
def running_site(folder: pathlib.Path) -> Iterator[ExplorerSite]:
    """Serve the agents of this module: `support-bot` has memories, `lost-bot` has no collection."""
    clock = FakeClock(int(NOW.timestamp() * 1000))
    guard = IdentityGuard(CallerCache(NamedTokens(), SystemClock()))
    agents, shown = (FILLED, EMPTY, HOSTILE, CROWDED, BUSY), ShownObjects()
    with contextlib.ExitStack() as stack:
        qdrant_url = stack.enter_context(dev_qdrant(folder))
        for document in agents:
            create_collection(qdrant_url, document)
        api = running_api(qdrant_url, *agents, AWAY, guard=guard, clock=clock, shown=shown, serves_ui=True)
        site = ExplorerSite(stack.enter_context(api), clock)
        site.fill()
        site.report(shown)
        yield site


@dataclass(frozen=True, slots=True)
class View:
    """A page in a state that its path, or steps on it, lead to.

    Attributes:
        path: Path below /ui; `{CONTENT}` is replaced by the id of the memory of `ada` with that content.
        heading: Text of its first heading.
        caller: Account that is signed in; None before the sign-in.
        act: Steps after the page has been opened.
        status: HTTP status of the page.
    """

    path: str
    heading: str
    caller: str | None = "chief"
    act: "Callable[[ExplorerSite, Page], None] | None" = None
    status: int = 200


def _preview(site: ExplorerSite, page: "Page") -> None:
    page.get_by_role("button", name="Show what would be erased").click()
    page.get_by_role("button", name="Erase for good").wait_for()


def _erase(site: ExplorerSite, page: "Page") -> None:
    for content in ("Eve lives in Oslo", "Eve drinks coffee"):
        site.store("eve", content)
    _preview(site, page)
    page.get_by_label("Type the user's id").fill("eve")
    page.get_by_role("button", name="Erase for good").click()
    page.get_by_text("Erased:").wait_for()


def _open_details(site: ExplorerSite, page: "Page") -> None:
    for summary in page.locator("main summary").all():
        summary.click()


def _open_first(site: ExplorerSite, page: "Page") -> None:
    page.locator("main summary").first.click()


_A, _N = "/agents/support-bot", "/agents/new-bot"
_ASKED = f"{_A}/ask?user_id=ada&query=how+does+Ada+pay%3F"
_MEMORY = f"{_A}/memories/{{Ada pays by bank transfer, no longer by credit card}}?user_id=ada"
VIEWS: dict[str, View] = {
    "agents": View("/agents", "Agents"),
    "agents-none": View("/agents", "Agents", caller="stranger"),
    "agent": View(_A, "support-bot"),
    "agent-busy": View("/agents/busy-bot", "busy-bot"),
    "agent-away": View("/agents/lost-bot", "lost-bot"),
    "ask": View(_ASKED, "Ask"),
    "ask-two-settings": View(f"{_ASKED}&w_similarity=20&w_recency=70&w_utility=10", "Ask", act=_open_first),
    "ask-empty": View(f"{_A}/ask", "Ask"),
    "timeline": View(f"{_A}/timeline?user_id=ada", "Timeline"),
    "timeline-as-of": View(f"{_A}/timeline?user_id=ada&at=2026-03-03", "Timeline"),
    "timeline-empty": View(f"{_A}/timeline?user_id=nobody", "Timeline"),
    "memory": View(_MEMORY, "", act=_open_details),
    "memory-read-only": View(_MEMORY, "", caller="reader"),
    "users": View(f"{_A}/users", "Users"),
    "users-empty": View(f"{_N}/users", "Users"),
    "user": View(f"{_A}/user?user_id=ada", "ada"),
    "user-forget-preview": View(f"{_A}/user?user_id=ada", "ada", act=_preview),
    "user-forget-receipt": View(f"{_A}/user?user_id=eve", "eve", act=_erase),
    "graph": View(f"{_A}/graph?user_id=ada", "Graph"),
    "graph-empty": View(f"{_N}/graph", "Graph"),
    "changes": View(f"{_A}/changes?user_id=ada", "Changes"),
    "changes-empty": View(f"{_N}/changes", "Changes"),
    "receipts": View(f"{_A}/receipts", "Receipts of erasures"),
    "receipts-empty": View(f"{_N}/receipts", "Receipts of erasures"),
    "receipts-proof": View(f"{_A}/receipts?user_id=linus", "Receipts of erasures"),
    "backups": View(f"{_A}/backups", "Backups"),
    "backups-empty": View(f"{_N}/backups", "Backups"),
    "sign-in": View("/sign-in", "Sign in", caller=None),
    "problem": View("/nothing", "Not found (404)", status=404),
}
"""Every page, and the states that look different, by name."""
