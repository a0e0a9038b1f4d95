"""Sessions in several tabs, expired tokens, many users, and agents that are unavailable."""

import httpx
import pytest

from tests.support.programs import free_port
from tests.support.web.api_stack import running_api
from tests.support.web.chromium import Chromium, Tab, sign_in
from tests.support.web.explorer_site import AWAY, MANY_USERS

AGENT = "/agents/support-bot"
SESSION_S = 3600


def token_for(chromium: Chromium, user_id: str, *, ttl_s: int) -> str:
    body = {"user_id": user_id, "verbs": ["read"], "ttl_seconds": ttl_s}
    return str(chromium.site.ask("POST", "/tokens", body)["token"])


def test_two_users_in_two_browsers_see_their_own_memories(chromium: Chromium) -> None:
    for user in ("left", "right"):
        chromium.site.store(user, f"Note of {user}")
    with chromium.tab(None) as left, chromium.tab(None) as right:
        for tab, user in ((left, "left"), (right, "right")):
            sign_in(tab, token_for(chromium, user, ttl_s=SESSION_S))
        for tab, own, other in ((left, "left", "right"), (right, "right", "left")):
            assert tab.open(f"{AGENT}/timeline", user_id=own) == 200
            assert f"Note of {own}" in tab.page.locator("main").inner_text()
            assert tab.open(f"{AGENT}/timeline", user_id=other) == 403
            assert "Note of" not in tab.page.content()


def test_a_form_from_before_another_sign_in_changes_nothing(chromium: Chromium) -> None:
    id_ = chromium.site.store("shared", "Shared drinks tea")
    with chromium.context(None) as context:
        first, second = chromium.add_tab(context), chromium.add_tab(context)
        sign_in(first, "token-chief")
        first.open(f"{AGENT}/memories/{id_}", user_id="shared")
        sign_in(second, "token-writer")

        first.page.get_by_role("button", name="Pin").click()
        first.page.get_by_text("another or an expired session").wait_for()

        assert chromium.site.ask("GET", f"/memories/{id_}", user_id="shared")["pinned"] is False
        assert second.open(f"{AGENT}/memories/{id_}", user_id="shared") == 200
        second.page.get_by_role("button", name="Pin").click()
        second.page.get_by_role("button", name="Unpin").wait_for()


def test_a_sign_out_ends_all_tabs(chromium: Chromium) -> None:
    with chromium.context(None) as context:
        first, second = chromium.add_tab(context), chromium.add_tab(context)
        sign_in(first, "token-chief")
        second.open(AGENT)
        first.page.get_by_role("button", name="Sign out").click()
        first.page.get_by_role("heading", name="Sign in").wait_for()

        second.page.get_by_role("link", name="Timeline").click()
        second.page.get_by_role("heading", name="Sign in").wait_for()
        second.page.go_back()

        # No page of the session is kept by the browser.
        second.page.get_by_role("heading", name="Sign in").wait_for()


@pytest.mark.parametrize("is_slider", [False, True], ids=["link", "slider"])
def test_an_expired_token_leads_to_the_sign_in_and_back(chromium: Chromium, is_slider: bool) -> None:
    chromium.site.store("brief", "Brief drinks tea")
    with chromium.tab(None) as tab:
        sign_in(tab, token_for(chromium, "brief", ttl_s=60))
        tab.open(f"{AGENT}/ask", user_id="brief", query="tea")
        asked = tab.page.url
        chromium.site.clock.move(ms=180_000)
        if is_slider:
            tab.page.locator("#w_recency").press("ArrowRight")
        else:
            tab.page.get_by_role("link", name="Timeline").click()
        tab.page.get_by_role("heading", name="Sign in").wait_for()
        tab.page.get_by_label("Token").fill(token_for(chromium, "brief", ttl_s=60))
        tab.page.keyboard.press("Enter")
        tab.page.get_by_role("heading", name="Agents").wait_for()
        tab.page.goto(asked)

        tab.page.get_by_text("Brief drinks tea").first.wait_for()


def test_ten_thousand_users_are_shown_page_by_page(tab: Tab) -> None:
    tab.site.fill_crowd()
    tab.open("/agents/archive-bot/users")
    seen: list[str] = []
    sizes = []
    for _ in range(4):
        seen += tab.page.locator("tbody th").all_inner_texts()
        sizes.append(len(tab.page.content()))
        with tab.page.expect_navigation():
            tab.page.get_by_role("link", name="More users").click()

    assert seen == sorted(set(seen))
    assert (len(seen), max(sizes) < 100_000) == (200, True)
    tab.open("/agents/archive-bot/user", user_id=f"user-{MANY_USERS - 1:05}")
    assert "Active memories\n1" in tab.page.locator(".facts").first.inner_text()


def test_an_agent_whose_collection_is_deleted_says_so(chromium: Chromium) -> None:
    site = chromium.site
    with chromium.tab() as tab:
        for path in ("", "/timeline?user_id=ada", "/ask?user_id=ada&query=tea", "/users"):
            tab.open(f"/agents/lost-bot{path}")
            reason = httpx.get(
                f"{site.stack.api_url}/v1/agents/lost-bot", headers={"Authorization": "Bearer token-chief"}
            ).json()["detail"]
            assert reason in tab.page.locator("main").inner_text()


def test_an_unavailable_qdrant_is_shown_with_its_remedy(chromium: Chromium) -> None:
    with running_api(f"http://127.0.0.1:{free_port()}", AWAY, serves_ui=True) as stack, chromium.tab(None) as tab:
        response = tab.page.goto(f"{stack.api_url}/ui/agents/lost-bot/timeline?user_id=ada")
        assert response is not None
        assert response.status == 503
        assert "Qdrant" in tab.page.get_by_role("alert").inner_text()
