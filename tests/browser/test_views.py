"""Each page of the explorer: it opens, is accessible, fits every width, and is used by keyboard alone."""

from collections.abc import Iterator

import pytest

from tests.support.web.chromium import DESKTOP, NARROW, WIDE, Chromium, Tab
from tests.support.web.explorer_site import VIEWS, View

# A browser that shows 1280 pixels at 200 % gives the page half of them.
ZOOMED = DESKTOP // 2


@pytest.fixture(scope="module", params=VIEWS)
def view(request: pytest.FixtureRequest) -> View:
    return VIEWS[request.param]


@pytest.fixture(scope="module")
def shown(chromium: Chromium, view: View) -> Iterator[Tab]:
    """A tab that shows the view."""
    with chromium.tab(view.caller) as tab:
        assert tab.show(view) == view.status
        yield tab


def test_a_view_opens_without_an_error(shown: Tab, view: View) -> None:
    # Chromium reports the status of a page that is an error in its console too.
    expected = [] if view.status == 200 else ["Failed to load resource"]

    assert view.heading in shown.page.locator("h1").inner_text()
    assert [fault[: len("Failed to load resource")] for fault in shown.faults] == expected


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation(shown: Tab, scheme: str) -> None:
    shown.page.emulate_media(color_scheme=scheme)

    assert shown.find_violations() == []


@pytest.mark.parametrize("width", [NARROW, ZOOMED, WIDE])
def test_nothing_is_cut_at_any_width(shown: Tab, width: int) -> None:
    shown.resize(width)
    found = shown.find_cut()
    shown.resize(DESKTOP)

    assert found == []


def test_tab_reaches_every_control_in_order(shown: Tab) -> None:
    stops, visited, hidden = shown.walk()

    assert visited == list(range(len(stops)))
    assert [stops[number] for number in hidden] == []


def test_axe_and_the_widths_find_what_is_wrong(tab: Tab) -> None:
    tab.open("/agents")
    tab.page.evaluate("document.querySelector('main').innerHTML += '<img src=/ui/static/icon.svg width=3000>'")

    assert any(violation.startswith("image-alt") for violation in tab.find_violations())
    assert [found.split(" ")[0] for found in tab.find_cut()] == ["page:", "outside:"]


def test_a_script_without_the_nonce_does_not_run(chromium: Chromium) -> None:
    with chromium.tab() as tab:
        tab.open("/agents")
        tab.page.evaluate("document.body.append(Object.assign(document.createElement('script'), {text: 'alert(1)'}))")

        assert [fault for fault in tab.faults if fault.startswith("dialog")] == []
        assert any("Content Security Policy" in fault for fault in tab.faults)
