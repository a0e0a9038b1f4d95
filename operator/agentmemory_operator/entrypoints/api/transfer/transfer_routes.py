"""The routes of export and import, streamed in bounded memory as NDJSON.

Each line is a memory. Lines with the user's entity relations and name follow, and at last one with the counts, or with
the error that interrupted the export.
"""

from codecs import BOM_UTF8
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from agentmemory_operator.agents.authorisation import AgentRights
from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.agents.fenced_store import retry_if_moved
from agentmemory_operator.entities.rules.sheet import EntitySheet
from agentmemory_operator.entities.sheets import change_sheet, read_sheet
from agentmemory_operator.entrypoints.api.bodies import media_type_of, wrong_media_type
from agentmemory_operator.entrypoints.api.edge import REQUEST_ID
from agentmemory_operator.entrypoints.api.identity.rights import GuardedRoute, rights_of
from agentmemory_operator.entrypoints.api.load.body_receiver import has_body
from agentmemory_operator.entrypoints.api.load.json_limits import MAX_ITEM_PARTS, max_parts
from agentmemory_operator.entrypoints.api.load.request_slots import MIB, REQUEST_SLOT, RETRY_AFTER_S, RequestSlot
from agentmemory_operator.entrypoints.api.memories.batches import MAX_ITEM_ERRORS
from agentmemory_operator.entrypoints.api.memories.memory_routes import default_type_of
from agentmemory_operator.entrypoints.api.memory_spans import record_result
from agentmemory_operator.entrypoints.api.openapi import READ_PROBLEMS, WRITE_PROBLEMS, build_router, describe
from agentmemory_operator.entrypoints.api.problems import ProblemRaised, problem_of
from agentmemory_operator.entrypoints.api.response_views import json_response
from agentmemory_operator.entrypoints.api.transfer.sheet_lines import render_profile_line, render_sheet_line
from agentmemory_operator.entrypoints.api.transfer.transfer_requests import (
    MAX_ERRORS,
    MEDIA_TYPE,
    ExportParameters,
    ImportedOut,
    ImportParameters,
    LineIn,
    read_line,
    render_end,
    render_error,
    render_line,
)
from agentmemory_operator.entrypoints.api.use_cases import open_agent, services_of
from agentmemory_operator.errors import (
    AgentMemoryError,
    EmbedderOutputInvalid,
    EmbedderUnavailable,
    FieldError,
    Forbidden,
    KeysUnavailable,
    OutcomeUnknown,
    RequestInvalid,
    StoreUnavailable,
    TransientError,
)
from agentmemory_operator.memories.rules.profile import UserProfile
from agentmemory_operator.memories.transfer.exports import ExportedMemory, export_memories
from agentmemory_operator.memories.transfer.import_batch import ImportLine, Outcome
from agentmemory_operator.memories.transfer.imports import BATCH, embedding_name, import_lines
from agentmemory_operator.runtime.tasks import run_in_slices
from agentmemory_operator.search.users import import_profile, read_profile
from agentmemory_operator.spec.caller_rights import Verb

MAX_LINE_BYTES = MIB
# Approximate size of a batch of imported lines.
BATCH_BYTES = MIB // 2
# The classes with a problem type of their own. CollectionMoved is none of them: it would repeat the request, whose body
# is already consumed.
_FIRST_BATCH_ERRORS: tuple[type[TransientError], ...] = (
    *(OutcomeUnknown, StoreUnavailable, KeysUnavailable, EmbedderOutputInvalid, EmbedderUnavailable, TransientError),
)
MEDIA_TYPES = frozenset({MEDIA_TYPE, "application/ndjson", "application/jsonl", "application/json"})

router = build_router("Transfer", GuardedRoute)


@router.get(
    "/{agent}/export",
    summary="Export a user's memories",
    **describe(LineIn, problems=READ_PROBLEMS, media_type=MEDIA_TYPE),
)
async def export_user_memories(
    agent: str, request: Request, parameters: Annotated[ExportParameters, Query()]
) -> Response:
    """Stream the memories of a user as NDJSON, one per line, oldest version first.

    Expired and working memories are omitted. The last line has the counts, or the error that interrupted the export.
    """
    slot: RequestSlot = request.scope[REQUEST_SLOT]
    slot.start_export()
    opened = await open_agent(request, agent)
    if parameters.plain and not rights_of(request).has_verb(Verb.ADMIN):
        raise Forbidden("exporting sealed memories in plain text needs the verb admin: omit plain", field="plain")
    pages = export_memories(opened, parameters.user_id, has_vectors=parameters.vectors, opens_sealed=parameters.plain)
    # Read the first page before the response starts, so that an error gets its own status.
    no_memories: list[ExportedMemory] = []
    first = await anext(pages, no_memories)
    lines = _lines(opened, first, pages, user_id=parameters.user_id, request_id=request.scope[REQUEST_ID])
    return StreamingResponse(lines, media_type=MEDIA_TYPE)


async def _lines(
    agent: Agent,
    first: list[ExportedMemory],
    pages: AsyncIterator[list[ExportedMemory]],
    *,
    user_id: str,
    request_id: str,
) -> AsyncIterator[bytes]:
    counts: Counter[str] = Counter()
    render = partial(render_line, embedding=embedding_name(agent.source))
    page: list[ExportedMemory] | None = first
    try:
        while page is not None:
            counts.update(exported.record.type for exported in page)
            yield b"".join(map(render, page))
            page = await anext(pages, None)
        yield render_sheet_line(await read_sheet(agent, user_id))
        yield render_profile_line(await read_profile(agent, user_id))
    except AgentMemoryError as error:
        # Write the error as the last line, because the response has started.
        yield render_error(problem_of(error).body(request_id))
        return
    yield render_end(counts)


@router.post(
    "/{agent}/import",
    summary="Import memories of a user",
    **describe(ImportedOut, problems=WRITE_PROBLEMS, body=LineIn, media_type=MEDIA_TYPE),
)
async def import_user_memories(
    agent: str, request: Request, parameters: Annotated[ImportParameters, Query()]
) -> Response:
    """Import the lines of an export, each on its own. Existing memories stay unchanged."""
    services = services_of(request)
    rights = rights_of(request)
    _check_media_type(request)
    # Check before the body is read that the agent can be opened.
    await services.directory.open(agent)
    slot: RequestSlot = request.scope[REQUEST_SLOT]
    slot.is_in_pieces = True
    open_agent = partial(services.directory.open, agent)
    run = _Import(open_agent, parameters, rights, request.scope[REQUEST_ID])
    try:
        async for batch in _batches(request.stream(), slot.release_body_bytes):
            async with slot.run_piece():
                await run.import_batch(batch)
            slot.release_body_bytes(batch.body_bytes)
    except ProblemRaised as refusal:
        raise run.interrupted_by(refusal) from refusal
    record_result(request, run.counts["imported"])
    return json_response(run.render())


@dataclass(slots=True)
class _Import:
    """An import in progress.

    The agent is opened for each batch, so the import continues if its alias moves to another collection.
    """

    open_agent: Callable[[], Awaitable[Agent]]
    parameters: ImportParameters
    rights: AgentRights
    request_id: str
    counts: Counter[str] = field(default_factory=Counter)
    errors: list[dict[str, Any]] = field(default_factory=list)
    processed_lines: int = 0

    async def import_batch(self, batch: "_Batch") -> None:
        """Import a batch of lines.

        Raises:
            TransientError: If the batch failed and can be repeated. The message gives the number of lines before it.
            AgentMemoryError: Any other error of the whole batch, such as StoreRejected.
        """
        read = await run_in_slices(self._read_all(batch))
        memories = [(number, line) for number, line in read if isinstance(line, ImportLine)]
        try:
            outcomes = await retry_if_moved(partial(self._store, [line for _, line in memories])) if memories else []
            await self._join([(number, line) for number, line in read if isinstance(line, EntitySheet | UserProfile)])
        except TransientError as error:
            raise _interrupted(error, batch.first - 1) from error
        self.processed_lines = batch.first + len(batch.lines) - 1
        for (number, _), outcome in zip(memories, outcomes, strict=True):
            if isinstance(outcome, AgentMemoryError):
                self._fail(number, outcome)
            else:
                self.counts[outcome] += 1

    def interrupted_by(self, refusal: ProblemRaised) -> Exception:
        """Return the error of an import that is rejected midway; `refusal` itself if no batch was processed yet."""
        if not self.processed_lines:
            return refusal
        return _interrupted(TransientError(refusal.problem.detail, retry_after_s=RETRY_AFTER_S), self.processed_lines)

    def render(self) -> dict[str, Any]:
        """Render the JSON of `ImportedOut`."""
        counts = {name: self.counts[name] for name in ("imported", "present", "failed")}
        more_errors = self.counts["failed"] - len(self.errors)
        return {"counts": {"lines": sum(counts.values()), **counts}, "errors": self.errors, "more_errors": more_errors}

    async def _store(self, lines: Sequence[ImportLine]) -> list[Outcome]:
        erased = self.parameters.include_erased
        return await import_lines(await self.open_agent(), lines, can_restore_erased=erased)

    async def _join(self, facts: Sequence[tuple[int, EntitySheet | UserProfile]]) -> None:
        """Store relations, aliases and the user's name that do not exist yet, and count rejected lines as failed.

        An agent without entities ignores relations and aliases.

        Raises:
            TransientError: If a line could not be stored now.
        """
        user_id = self.parameters.user_id
        for number, fact in facts:

            async def join(fact: EntitySheet | UserProfile = fact) -> None:
                agent = await self.open_agent()
                if isinstance(fact, UserProfile):
                    await import_profile(agent, user_id, fact)
                elif agent.entity_lists is not None:
                    await change_sheet(agent, user_id, lambda existing: existing.merged_with(fact))

            try:
                await retry_if_moved(join)
            except TransientError:
                raise
            except AgentMemoryError as error:
                self._fail(number, error)

    def _read_all(
        self, batch: "_Batch"
    ) -> Generator[None, None, list[tuple[int, ImportLine | EntitySheet | UserProfile]]]:
        read: list[tuple[int, ImportLine | EntitySheet | UserProfile]] = []
        for number, text in enumerate(batch.lines, batch.first):
            if text is not None and not text.strip():
                continue
            try:
                line = self._read(text)
            except AgentMemoryError as error:
                self._fail(number, error)
            else:
                read.extend([(number, line)] if line else [])
            yield
        return read

    def _read(self, text: bytes | None) -> ImportLine | EntitySheet | UserProfile | None:
        if text is None:
            raise RequestInvalid([FieldError("line", f"is longer than {MAX_LINE_BYTES // MIB} MiB")])
        user_id, default_type = self.parameters.user_id, default_type_of(self.rights.settings)
        return read_line(text, user_id=user_id, default_type=default_type, rights=self.rights)

    def _fail(self, number: int, error: AgentMemoryError) -> None:
        self.counts["failed"] += 1
        if len(self.errors) < MAX_ERRORS:
            self.errors.append(
                {"line": number, "error": problem_of(error).body(self.request_id, max_errors=MAX_ITEM_ERRORS)}
            )


@dataclass(frozen=True, slots=True)
class _Batch:
    """Consecutive lines without line feeds, including empty ones. None stands for a line beyond the limit.

    Attributes:
        first: Number of the first line, from 1.
        body_bytes: Bytes of the lines that still count as body in memory.
    """

    first: int
    lines: Sequence[bytes | None]
    body_bytes: int


async def _batches(stream: AsyncIterator[bytes], release_bytes: Callable[[int], None]) -> AsyncIterator[_Batch]:
    """Yield batches of lines as they arrive, limited in number, in bytes and in JSON parts.

    Args:
        release_bytes: Called with the number of bytes that are no longer in memory.
    """
    first, lines, size, parts = 1, list[bytes | None](), 0, 0
    async for line in _split(stream, release_bytes):
        size += 1 if line is None else len(line) + 1
        is_start = first == 1 and not lines
        lines.append(line.removeprefix(BOM_UTF8) if line and is_start else line)
        parts += max_parts(line or b"")
        if len(lines) == BATCH or size >= BATCH_BYTES or parts >= MAX_ITEM_PARTS:
            yield _Batch(first, lines, size)
            first, lines, size, parts = first + len(lines), [], 0, 0
    if lines:
        yield _Batch(first, lines, size)


async def _split(stream: AsyncIterator[bytes], release_bytes: Callable[[int], None]) -> AsyncIterator[bytes | None]:
    """Yield lines, and None for each line beyond the limit, which is discarded."""
    pending, is_too_long = bytearray(), False
    async for chunk in stream:
        *ends, last = chunk.split(b"\n")
        for end in ends:
            if is_too_long or len(pending) + len(end) > MAX_LINE_BYTES:
                release_bytes(len(pending) + len(end))
                yield None
            else:
                yield bytes(pending + end)
            pending, is_too_long = bytearray(), False
        if is_too_long or len(pending) + len(last) > MAX_LINE_BYTES:
            release_bytes(len(pending) + len(last))
            pending, is_too_long = bytearray(), True
        else:
            pending += last
    if pending or is_too_long:
        yield None if is_too_long else bytes(pending)


def _interrupted(error: TransientError, lines: int) -> TransientError:
    """Build the error of an import that stops after its first `lines` lines.

    It is OutcomeUnknown. If no line was imported, it is of the first class in `_FIRST_BATCH_ERRORS` of `error`.
    """
    message = f"the first {lines} lines are imported, and possibly some of the next; send all lines again: {error}"
    kind = OutcomeUnknown if lines else next(cls for cls in _FIRST_BATCH_ERRORS if isinstance(error, cls))
    return kind(message, retry_after_s=error.retry_after_s)


def _check_media_type(request: Request) -> None:
    headers = dict(request.scope["headers"])
    media_type = media_type_of(headers)
    if has_body(headers) and media_type not in MEDIA_TYPES:
        raise wrong_media_type(media_type, expected=MEDIA_TYPE)
