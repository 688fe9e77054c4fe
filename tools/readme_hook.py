"""README.md as an index shows it: Hatchling calls this when it reads the metadata.

Links in README.md are relative to its file, which an index does not have.  With a `Repository` among `[project.urls]`
they lead to the forge, at the tag of this version; without one a link is its text, and a picture is left out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

URL = "Repository"
_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\[\]]*)\]\((?!\w+:|#)(?P<path>[^)\s]+)\)\n?")


class ReadmeHook(MetadataHookInterface):
    """Sets the field `readme`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Put in the text of README.md with whole links."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        address = metadata.get("urls", {}).get(URL, "")
        version = metadata["version"]
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": with_whole_links(text, address and f"{address.rstrip('/')}/{{kind}}/v{version}/{{path}}"),
        }


def with_whole_links(text: str, address: str) -> str:
    """Make relative links whole by an address, whose `{kind}` is `blob` or `raw`; without one, leave their texts."""

    def whole(found: re.Match[str]) -> str:
        end = "\n" if found[0].endswith("\n") else ""
        if address:
            kind = "raw" if found["image"] else "blob"
            target = address.format(kind=kind, path=found["path"])
            return f"{found['image']}[{found['text']}]({target}){end}"
        return "" if found["image"] else found["text"] + end

    pieces, begin = [], 0
    for fence in _FENCED.finditer(text):
        pieces += [_LINK.sub(whole, text[begin : fence.start()]), fence[0]]
        begin = fence.end()
    return "".join([*pieces, _LINK.sub(whole, text[begin:])])
