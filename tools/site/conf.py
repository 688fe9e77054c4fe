"""Sphinx's settings for the site; `python -m tools.site` calls it.

The version and the forge's address, if there is one, are those of pyproject.toml.
"""

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # `tools` is importable wherever Sphinx is called
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_URLS: dict[str, str] = _PROJECT.get("urls", {})

project = "outbox"
release = _PROJECT["version"]
html_title = f"outbox {release}"
html_baseurl = _URLS.get("Documentation", "")
extensions = ["myst_parser", "sphinx_copybutton", "tools.site.page"]
root_doc = "index"

myst_heading_anchors = 6  # every heading has the anchor that a forge gives it
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True  # of a session the commands, of a program all
copybutton_line_continuation_character = "\\"

html_theme = "furo"
pygments_dark_style = "github-dark"  # furo's own underlines the names of modules and classes
html_use_index = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_favicon = "static/favicon.svg"
templates_path = ["templates"]
html_search_scorer = str(Path(__file__).with_name("scorer.js"))
html_copy_source = False
html_show_copyright = False
html_theme_options = {
    "top_of_page_buttons": [],  # a page is not its file here: links and navigation are put in
    "footer_icons": [
        {"name": name, "url": url, "html": name, "class": ""} for name, url in _URLS.items() if name != "Documentation"
    ],
}
