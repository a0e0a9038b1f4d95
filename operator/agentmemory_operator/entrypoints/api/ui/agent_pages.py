"""The pages of the agents: all that the caller may read, and one with its settings and counts."""

from starlette.requests import Request
from starlette.responses import Response

from agentmemory_operator.entrypoints.api.inner_requests import ApiRequest
from agentmemory_operator.entrypoints.api.ui.api_view import ApiRefused, ApiView, Json, send_request
from agentmemory_operator.entrypoints.api.ui.pages import render_page


async def list_agents(request: Request) -> Response:
    """Show every agent that the caller may read."""
    agents = await send_request(request, ApiRequest("GET", "/v1/agents"))
    return render_page(request, "agents.html", {"agents": agents["results"]})


async def show_agent(request: Request) -> Response:
    """Show whether an agent is ready, with the reason and the remedy if not, its settings and counts."""
    view = ApiView(request)
    can, stats = view.can(), None
    try:
        detail, obstacle = await view.get(), None
    except ApiRefused as refusal:
        # An agent that is not ready has no settings to show; the error has the reason.
        if refusal.status < 500 and refusal.status != 403:
            raise
        detail, obstacle = {}, refusal.document
    if detail and view.rights().scopes.users is None:
        stats, _ = await view.try_get("/stats")
    values = {"agent": view.agent, "detail": detail, "obstacle": obstacle, "can": can, "stats": stats}
    return render_page(request, "agent.html", values | {"checks": list_checks(detail, obstacle)})


def list_checks(detail: Json, obstacle: Json | None) -> list[tuple[str, bool, str]]:
    """Return the state of an agent as rows: what is checked, True if it is as it should be, and a sentence."""
    if obstacle is not None:
        return [("Ready", False, obstacle["detail"])]
    checks = [("Ready", True, "Searches and writes are served.")]
    if fault := detail.get("scoring_fault"):
        remedy = "The last accepted scoring stays in effect. Correct spec.scoring of the object."
        checks.append(("Scoring", False, f"{fault}. {remedy}"))
    else:
        checks.append(("Scoring", True, f"The model {detail['model']} of generation {detail['generation']} ranks."))
    if detail.get("keyword"):
        checks.append(("Words", True, f"Searches use words too, in the language {detail['keyword']['language']}."))
    else:
        checks.append(("Words", True, "Searches use vectors only: spec.index.keyword is not enabled."))
    return checks
