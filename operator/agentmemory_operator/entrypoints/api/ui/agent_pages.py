"""The pages of the agents: all that the caller may read, one with its state and settings, and one with its backups."""

from starlette.requests import Request
from starlette.responses import Response

from agentmemory_operator.entrypoints.api.inner_requests import ApiRequest
from agentmemory_operator.entrypoints.api.ui.api_view import ApiRefused, ApiView, Json, send_request
from agentmemory_operator.entrypoints.api.ui.pages import render_page

# States of a rebuild that change without a person.
_MOVING = frozenset({"Running", "Waiting"})


async def list_agents(request: Request) -> Response:
    """Show every agent that the caller may read."""
    agents = await send_request(request, ApiRequest("GET", "/v1/agents"))
    return render_page(request, "agents.html", {"agents": agents["results"]})


async def show_agent(request: Request) -> Response:
    """Show the state of an agent with reasons and remedies, its settings and counts."""
    view = ApiView(request)
    can, stats = view.can(), None
    try:
        detail, obstacle = await view.get(), None
    except ApiRefused as refusal:
        # An agent that is not ready has no settings to show; the error has the reason.
        if refusal.status < 500 and refusal.status != 403:
            raise
        detail, obstacle = {}, refusal.document
    # The state is of the whole agent: a caller that is limited to some users sees the settings only.
    is_limited = view.rights().scopes.users is not None
    if detail and not is_limited:
        stats, _ = await view.try_get("/stats")
    state = None if is_limited else (await view.try_get("/state"))[0]
    values = {"agent": view.agent, "detail": detail, "can": can, "stats": stats, "state": state}
    return render_page(
        request, "agent.html", values | {"checks": list_checks(detail, obstacle), "runs": is_running(state)}
    )


async def show_backups(request: Request) -> Response:
    """Show snapshots with their proof and restores with their progress, and the commands for both.

    The API changes no objects of Kubernetes, so the page has manifests and commands to copy.
    """
    view = ApiView(request)
    state, problem = await view.try_get("/state")
    settings = view.rights().settings
    values: Json = {"agent": view.agent, "can": view.can(), "namespace": settings.namespace, "name": settings.name}
    values |= {"state": state, "problem": problem, "runs": is_running(state)}
    return render_page(request, "backups.html", values)


def is_running(state: Json | None) -> bool:
    """Return whether a rebuild, snapshot or restore makes progress, so that the page has to be read again."""
    if state is None:
        return False
    jobs = [*(state["snapshots"] or ()), *(state["restores"] or ())]
    rebuild = state["rebuild"] or {}
    return rebuild.get("state") in _MOVING or any(job["phase"] == "Running" for job in jobs)


def list_checks(detail: Json, obstacle: Json | None) -> list[tuple[str, str, str]]:
    """Return the state of an agent as rows: what is checked, its mood, and a sentence.

    The mood is 'good', 'bad', or empty for a choice.
    """
    if obstacle is not None:
        return [("Not ready", "bad", obstacle["detail"])]
    checks = [("Ready", "good", "Searches and writes are served.")]
    if fault := detail.get("scoring_fault"):
        remedy = "The last accepted scoring stays in effect. Correct spec.scoring of the object."
        checks.append(("Scoring", "bad", f"{fault}. {remedy}"))
    else:
        checks.append(("Scoring", "good", f"The model {detail['model']} of generation {detail['generation']} ranks."))
    if detail.get("keyword"):
        checks.append(("Words", "good", f"Searches use words too, in the language {detail['keyword']['language']}."))
    else:
        checks.append(("Words", "", "Searches use vectors only: spec.index.keyword is not enabled."))
    return checks
