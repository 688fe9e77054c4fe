"""Play the stories and compare their pages: `python -m tests.transcripts`, which prints what differs.

With `--write` the pages are written anew; what changed in them is then for a person to read, in the diff of the commit.
"""

from __future__ import annotations

import asyncio
import logging
import sys

from tests.transcripts.stories import STORIES, path_of, played
from tests.transcripts.test_transcripts import difference


def main(arguments: list[str]) -> int:
    """Compare all pages, or write them; 1 where one differs and is not written."""
    if arguments not in ([], ["--write"]):
        print("usage: python -m tests.transcripts [--write]", file=sys.stderr)
        return 2
    logging.disable(logging.ERROR)  # what the runtime logs of refusals is part of the stories
    differing = 0
    for name in STORIES:
        page = asyncio.run(played(name))
        changes = difference(name, page)
        if not changes:
            continue
        differing += 1
        print(changes)
        if arguments:
            path_of(name).write_text(page, encoding="utf-8")
    print(f"{differing} of {len(STORIES)} pages {'written' if arguments else 'differ'}")
    return 1 if differing and not arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
