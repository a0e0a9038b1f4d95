"""Chromium in tests: the browser of this machine, its tabs, and checks of the page in a tab."""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from tests.support.web.explorer_site import ExplorerSite, View

# The import takes 0.5 s, which each process of a test run would spend.
if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page, StorageState

NAMES = ("chromium", "chromium-browser", "google-chrome")
MISSING = "no Chromium: run `apt-get install chromium fonts-noto-core`, or set CHROMIUM to the path of one"
# Limit of each wait. A wait ends as soon as its condition is met.
TIMEOUT_MS = 60_000
DESKTOP, NARROW, WIDE = 1280, 390, 1920
HEIGHT = 900
# Lists elements that are wider than the page, or have cut text. Elements in a region that scrolls may be wider.
_FIND_CUT = """() => {
  const root = document.documentElement, width = root.clientWidth, found = [];
  if (root.scrollWidth > width) found.push(`page: ${root.scrollWidth} of ${width}`);
  const scrolls = (element) => element
    && (/auto|scroll/.test(getComputedStyle(element).overflowX) || scrolls(element.parentElement));
  for (const element of document.body.querySelectorAll(":not(.skip, option, svg *)")) {
    if (!element.checkVisibility()) continue;
    const box = element.getBoundingClientRect(), style = getComputedStyle(element);
    const name = `${element.tagName}.${element.className} ${element.textContent.trim().slice(0, 30)}`;
    if (!scrolls(element) && (box.right > width + 1 || box.left < -1)) found.push(`outside: ${name}`);
    const isHidden = (overflow) => overflow === "hidden" || overflow === "clip";
    if (isHidden(style.overflowX) && element.scrollWidth > element.clientWidth + 1) found.push(`cut: ${name}`);
    if (isHidden(style.overflowY) && element.scrollHeight > element.clientHeight + 1) found.push(`cut below: ${name}`);
  }
  return found;
}"""
# Numbers the elements that Tab should reach, in order; returns their names.
_NUMBER_STOPS = """() => {
  const controls = 'a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex="0"]';
  const stops = [...document.querySelectorAll(controls)].filter((stop) => stop.checkVisibility() && !stop.disabled);
  stops.forEach((stop, number) => { stop.dataset.stop = number; });
  // Begin before the first, also where a control has the focus or was clicked.
  document.body.tabIndex = -1;
  document.body.focus();
  document.body.removeAttribute("tabindex");
  return stops.map((stop) => `${stop.tagName} ${stop.name || stop.textContent.trim().slice(0, 30)}`);
}"""
_READ_STOP = """() => {
  const stop = document.activeElement, style = getComputedStyle(stop), box = stop.getBoundingClientRect();
  const isInside = box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth;
  const isMarked = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
  return [stop.dataset.stop === undefined ? null : Number(stop.dataset.stop), isInside && isMarked];
}"""


def find_chromium() -> str | None:
    """Return the path of Chromium, or None if this machine has none."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Tab:
    """Tab that records forbidden events.

    Attributes:
        faults: Errors of the console, dialogs, and requests to other hosts.
    """

    def __init__(self, page: "Page", site: ExplorerSite) -> None:
        self.page, self.site = page, site
        self.faults: list[str] = []
        page.on("console", lambda message: self.faults.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("dialog", lambda dialog: (self.faults.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: self._check_host(request.url))

    def _check_host(self, url: str) -> None:
        if not url.startswith(self.site.stack.api_url):
            self.faults.append(f"request to another host: {url[:200]}")

    def open(self, path: str, **query: str) -> int:
        """Open a path below /ui; return the HTTP status."""
        sent = f"?{urlencode(query)}" if query else ""
        response = self.page.goto(f"{self.site.stack.api_url}/ui{path}{sent}")
        assert response is not None
        return response.status

    def show(self, view: View) -> int:
        """Open a view; return the HTTP status of its page."""
        status = self.open(re.sub(r"\{(.+?)\}", lambda name: self.site.ids[name[1]], view.path))
        if view.act is not None:
            view.act(self.site, self.page)
        return status

    @property
    def path(self) -> str:
        """Path of the page."""
        return self.page.evaluate("location.pathname")

    def resize(self, width: int) -> None:
        """Set the width of the page; wait until its scripts have noticed, which takes a frame."""
        self.page.set_viewport_size({"width": width, "height": HEIGHT})
        self.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def find_cut(self) -> list[str]:
        """Return the elements that are wider than the page, or cut."""
        return self.page.evaluate(_FIND_CUT)

    def find_violations(self) -> list[str]:
        """Return the violations that axe finds."""
        self.page.evaluate(_axe())
        found: Sequence[Mapping[str, Any]] = self.page.evaluate(
            "axe.run({resultTypes: ['violations']}).then((result) => result.violations)"
        )
        return [f"{each['id']}: {node['target']} {node['failureSummary']}" for each in found for node in each["nodes"]]

    def walk(self) -> tuple[list[str], list[int], list[int]]:
        """Press Tab until the focus leaves the page.

        Returns:
            The names of all controls; the numbers of the controls that had the focus, in order; the numbers of those
            with an invisible focus.
        """
        # The elements of a part that the page requests again would lose their numbers.
        self.page.evaluate("document.addEventListener('htmx:beforeRequest', (event) => event.preventDefault())")
        stops: list[str] = self.page.evaluate(_NUMBER_STOPS)
        visited: list[int] = []
        hidden: list[int] = []
        # A date has a stop for each of its parts.
        for _ in range(8 * len(stops) + 8):
            self.page.keyboard.press("Tab")
            number, is_visible = self.page.evaluate(_READ_STOP)
            if number is None:
                break
            if not visited or number != visited[-1]:
                visited.append(number)
            if not is_visible:
                hidden.append(number)
        return stops, visited, hidden


@cache
def _axe() -> str:
    return files("axe_playwright_python").joinpath("axe.min.js").read_text()


class Chromium:
    """Chromium with tabs of signed-in callers."""

    def __init__(self, browser: "Browser", site: ExplorerSite) -> None:
        self._browser, self.site = browser, site
        self._states: dict[str, StorageState] = {}

    @contextlib.contextmanager
    def context(self, caller: str | None = "chief", **options: Any) -> "Iterator[BrowserContext]":
        """Open a context of its own, in which a caller is signed in.

        Args:
            options: Those of Playwright, for example `color_scheme` or `java_script_enabled`.
        """
        state = self._sign_in(caller) if caller else None
        context = self._browser.new_context(
            storage_state=state, viewport={"width": DESKTOP, "height": HEIGHT}, reduced_motion="reduce", **options
        )
        context.set_default_timeout(TIMEOUT_MS)
        try:
            yield context
        finally:
            context.close()

    @contextlib.contextmanager
    def tab(self, caller: str | None = "chief", **options: Any) -> Iterator[Tab]:
        """Open a tab in a context of its own."""
        with self.context(caller, **options) as context:
            yield self.add_tab(context)

    def add_tab(self, context: "BrowserContext") -> Tab:
        """Open a further tab in a context."""
        return Tab(context.new_page(), self.site)

    def _sign_in(self, caller: str) -> "StorageState":
        if caller not in self._states:
            with self.tab(None) as tab:
                sign_in(tab, f"token-{caller}")
                self._states[caller] = tab.page.context.storage_state()
        return self._states[caller]


def sign_in(tab: Tab, token: str) -> None:
    """Sign in by keyboard."""
    tab.open("/sign-in")
    tab.page.keyboard.type(token)
    tab.page.keyboard.press("Enter")
    tab.page.get_by_role("heading", name="Agents").wait_for()


@contextlib.contextmanager
def running_chromium(site: ExplorerSite) -> Iterator[Chromium]:
    """Run Chromium without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--disable-gpu"])
        try:
            yield Chromium(browser, site)
        finally:
            browser.close()
