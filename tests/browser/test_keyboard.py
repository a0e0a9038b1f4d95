"""The explorer by keyboard, and without JavaScript."""

import pytest

from tests.support.web.chromium import Chromium, Tab
from tests.support.web.explorer_site import VIEWS

AGENT = "/agents/support-bot"
PLAIN_VIEWS = [name for name, view in VIEWS.items() if view.act is None]


def focused(tab: Tab) -> str:
    return str(tab.page.evaluate("document.activeElement.id || document.activeElement.name"))


def test_the_skip_link_leads_to_the_content(tab: Tab) -> None:
    tab.open(f"{AGENT}/users")

    tab.page.keyboard.press("Tab")
    skip = tab.page.get_by_role("link", name="Skip to content")
    box = skip.bounding_box()
    tab.page.keyboard.press("Enter")
    tab.page.keyboard.press("Tab")

    assert box is not None
    assert box["x"] >= 0
    assert tab.page.evaluate("document.querySelector('main').contains(document.activeElement)")


def test_arrow_keys_on_a_slider_search_again(tab: Tab) -> None:
    tab.open(f"{AGENT}/ask", user_id="ada", query="how does Ada pay?")
    tab.page.focus("#w_recency")
    weight = tab.page.locator("#w_recency + output").inner_text()

    tab.page.keyboard.press("ArrowRight")
    tab.page.get_by_role("heading", name="With these weights").wait_for()
    once = tab.page.locator("#w_recency + output").inner_text()
    # The focus stays, so that the next key moves the same slider.
    tab.page.keyboard.press("ArrowRight")
    tab.page.get_by_text(f"recency: {float(weight) + 0.02:g}").wait_for()

    assert float(once) == pytest.approx(float(weight) + 0.01)
    assert focused(tab) == "w_recency"
    assert "w_recency=" in tab.page.url


def test_arrow_keys_move_the_day_of_the_timeline(tab: Tab) -> None:
    tab.open(f"{AGENT}/timeline", user_id="ada")
    tab.page.get_by_label("Day of the view").focus()

    tab.page.keyboard.press("Home")
    tab.page.get_by_text("What the agent believed at the end of").wait_for()

    assert "Lisbon" not in tab.page.locator("main").inner_text()


def test_going_back_returns_to_the_settings_before(tab: Tab) -> None:
    tab.open(f"{AGENT}/ask", user_id="ada", query="how does Ada pay?")
    tab.page.focus("#w_recency")
    tab.page.keyboard.press("ArrowRight")
    tab.page.get_by_role("heading", name="With these weights").wait_for()

    tab.page.go_back()
    tab.page.get_by_role("heading", name="With these weights").wait_for(state="detached")

    assert "w_recency" not in tab.page.url


def test_enter_sends_a_question(tab: Tab) -> None:
    tab.open(f"{AGENT}/ask")
    tab.page.focus("[name=user_id]")

    tab.page.keyboard.type("ada")
    tab.page.keyboard.press("Tab")
    tab.page.keyboard.type("how does Ada pay?")
    tab.page.keyboard.press("Enter")

    tab.page.get_by_text("Ada pays by bank transfer").first.wait_for()


def test_a_user_is_erased_by_keyboard(tab: Tab) -> None:
    tab.site.store("typed", "Typed lives in Oslo")
    tab.open(f"{AGENT}/user", user_id="typed")
    tab.page.get_by_role("button", name="Show what would be erased").press("Enter")
    tab.page.get_by_label("Type the user's id").press_sequentially("typed")
    tab.page.keyboard.press("Enter")

    tab.page.get_by_text("Erased: 1 memory").wait_for()


@pytest.mark.parametrize("name", PLAIN_VIEWS)
def test_a_view_needs_no_javascript(chromium: Chromium, name: str) -> None:
    view = VIEWS[name]
    with chromium.tab(view.caller, java_script_enabled=False) as tab:
        assert tab.show(view) == view.status
        assert view.heading in tab.page.locator("h1").inner_text()
        assert tab.find_cut() == []


def test_without_javascript_forms_and_filters_work(chromium: Chromium) -> None:
    id_ = chromium.site.store("plain", "Plain drinks coffee", tags=["taste"])
    chromium.site.store("plain", "Plain lives in Oslo", tags=["place"])
    with chromium.tab(java_script_enabled=False) as tab:
        page = tab.page
        tab.open(f"{AGENT}/timeline", user_id="plain")
        page.get_by_label("Tag").fill("taste")
        page.keyboard.press("Enter")
        page.wait_for_url("**tag=taste**")
        texts = page.locator(".memory .text").all_inner_texts()
        tab.open(f"{AGENT}/memories/{id_}", user_id="plain")
        page.get_by_role("button", name="Pin").click()
        page.get_by_role("button", name="Unpin").wait_for()
        tab.open(f"{AGENT}/ask")
        page.get_by_label("User").fill("plain")
        page.get_by_label("Question").fill("coffee")
        page.get_by_label("recency").press("End")
        page.keyboard.press("Enter")
        page.get_by_text("With these weights").wait_for()

        assert texts == ["Plain drinks coffee"]
        assert tab.faults == []


def test_running_work_is_not_read_again_under_the_keyboard(tab: Tab) -> None:
    tab.page.clock.install()
    tab.open("/agents/busy-bot")
    tab.page.evaluate("document.querySelector('#state').dataset.read = 'first'")

    tab.page.focus("#state button")
    tab.page.keyboard.press("Tab")
    tab.page.keyboard.press("Shift+Tab")
    tab.page.clock.run_for(60_000)
    stays = tab.page.locator("#state[data-read]").count()
    tab.page.evaluate("document.activeElement.blur()")
    tab.page.clock.run_for(6_000)
    tab.page.locator("#state:not([data-read])").wait_for(state="attached")

    assert stays == 1


def test_changes_appear_as_they_happen(tab: Tab) -> None:
    tab.open(f"{AGENT}/changes", user_id="live")
    tab.page.get_by_text("Live:").wait_for()

    id_ = tab.site.store("live", "Live drinks tea")

    tab.page.locator("tr.new", has_text=id_).wait_for()


def test_a_command_is_copied_by_keyboard(chromium: Chromium) -> None:
    with chromium.context(permissions=["clipboard-read", "clipboard-write"]) as context:
        tab = chromium.add_tab(context)
        tab.open(f"{AGENT}/backups")

        tab.page.get_by_role("button", name="Copy").first.press("Enter")
        tab.page.get_by_role("status").get_by_text("Copied").wait_for()

        copied = tab.page.evaluate("navigator.clipboard.readText()")
        assert copied == tab.page.locator("pre code").first.inner_text()
        assert tab.faults == []


def test_without_a_clipboard_a_command_is_selected(tab: Tab) -> None:
    tab.page.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    tab.open(f"{AGENT}/backups")

    tab.page.get_by_role("button", name="Copy").first.press("Enter")
    tab.page.get_by_text("Selected").wait_for()

    assert tab.page.evaluate("getSelection().toString()") == tab.page.locator("pre code").first.inner_text()


def test_a_style_of_a_replaced_element_is_not_copied(tab: Tab) -> None:
    """The policy forbids the attribute `style`. By default htmx copies it, for example that of a browser extension."""
    tab.open(f"{AGENT}/ask", user_id="ada", query="how does Ada pay?")
    tab.page.evaluate("document.querySelector('#w_recency').style.color = 'red'")

    tab.page.locator("#w_recency").press("ArrowRight")
    tab.page.get_by_role("heading", name="With these weights").wait_for()

    assert tab.faults == []
