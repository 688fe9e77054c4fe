"""`python -m outbox` is the command `outbox`."""

from __future__ import annotations

import sys

from outbox.ops.cli.parser import main

if __name__ == "__main__":
    sys.exit(main())
