"""Write explorer/*.webp: each page of the explorer in Chromium, light, dark, and narrow.

`.venv/bin/python -m docs.captures.explorer`; with names of pages, only those.
"""

import io
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from tests.support.web.chromium import DESKTOP, MISSING, NARROW, Tab, find_chromium, running_chromium
from tests.support.web.explorer_site import VIEWS, running_site

PLACE = Path(__file__).with_name("explorer")
STYLES = {"light": ("light", DESKTOP), "dark": ("dark", DESKTOP), "narrow": ("light", NARROW)}
MAX_HEIGHT = 1_100
"""Pixels; longer pages are cut."""
QUALITY = 72


def main(names: Sequence[str]) -> None:
    """Capture the pages of these names, or all."""
    if find_chromium() is None:
        sys.exit(MISSING)
    PLACE.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        running_site(Path(folder)) as site,
        running_chromium(site) as chromium,
    ):
        for name in names or VIEWS:
            with chromium.tab(VIEWS[name].caller) as tab:
                tab.show(VIEWS[name])
                capture(tab, name)


def capture(tab: Tab, name: str) -> None:
    """Write the page of a tab in each style."""
    for style, (scheme, width) in STYLES.items():
        tab.page.emulate_media(color_scheme=scheme)
        tab.resize(width)
        # The sticky navigation is drawn at the scroll position.
        tab.page.evaluate("scrollTo(0, 0)")
        picture = Image.open(io.BytesIO(tab.page.screenshot(full_page=True))).convert("RGB")
        shown = picture.crop((0, 0, picture.width, min(picture.height, MAX_HEIGHT)))
        shown.save(PLACE / f"{name}-{style}.webp", quality=QUALITY, method=6)


if __name__ == "__main__":
    main(sys.argv[1:])
