"""Settings of the generator; `docs/site/build.py` runs it over the staged pages."""

import os

from agentmemory_operator import __version__

project = "agentmemory-operator"
version = release = __version__
copyright = "the authors of agentmemory-operator"
extensions = ["myst_parser"]
root_doc = "index"
nitpicky = True
# JSON with an ellipsis is invalid. Highlight it as far as possible.
suppress_warnings = ["misc.highlighting_failure"]

myst_heading_anchors = 6
myst_enable_extensions = ["attrs_inline", "deflist"]
# Smart quotes would change quotes and dashes, also in options.
smartquotes = False

html_theme = "furo"
html_title = f"agentmemory-operator {version}"
templates_path = [os.path.join(os.path.dirname(__file__), "templates")]
html_static_path = [os.path.join(os.path.dirname(__file__), folder) for folder in ("theme", "tabs_files")]
html_css_files = ["site.css", "tabs.css"]
html_js_files = [(name, {"defer": "defer"}) for name in ("copy.js", "tabs.js")]
html_search_scorer = os.path.join(os.path.dirname(__file__), "search.js")
html_copy_source = False
html_show_sourcelink = False
html_last_updated_fmt = None
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}
