"""One export in a process that kills itself: python export_process.py CALL POINT ARGUMENTS OF `stream export`.

It dies `before` or `behind` the given write; a file has five rows.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from outbox.ops.cli.parser import main
from outbox.ops.streams import export
from spark_jobs.exporting.delta import DeltaExport
from spark_jobs.exporting.files import Files

if __name__ == "__main__":
    call, point, *arguments = sys.argv[1:]
    export.FILE_ROWS_MAX = 5
    kind: Any = DeltaExport if "delta" in arguments else Files
    write, calls = kind.add, list[int]()

    def dying(self: Any, *given: Any) -> Any:
        calls.append(1)
        if point == "before" and len(calls) == int(call):
            os.kill(os.getpid(), signal.SIGKILL)
        found = write(self, *given)
        if point == "behind" and len(calls) == int(call):
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    kind.add = dying
    sys.exit(main(["stream", "export", *arguments]))
