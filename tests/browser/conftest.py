"""One Chromium, and one API with the explorer, for the tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.support.web.chromium import MISSING, Chromium, Tab, find_chromium, running_chromium
from tests.support.web.explorer_site import ExplorerSite, running_site


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print that nothing was tested in a browser, because a short report does not list what was skipped."""
    if find_chromium() is None:
        terminalreporter.write_line(f"tests/browser was skipped: {MISSING}", red=True)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExplorerSite]:
    if find_chromium() is None:
        pytest.skip(MISSING)
    with running_site(tmp_path_factory.mktemp("explorer")) as running:
        yield running


# Not for the session: the event loop of Playwright prevents asynchronous tests from running theirs.
@pytest.fixture(scope="module")
def chromium(site: ExplorerSite) -> Iterator[Chromium]:
    with running_chromium(site) as running:
        yield running


@pytest.fixture
def tab(chromium: Chromium) -> Iterator[Tab]:
    """A tab of the account `chief`, in which nothing happens that no page may do."""
    with chromium.tab() as opened:
        yield opened
        assert opened.faults == []
