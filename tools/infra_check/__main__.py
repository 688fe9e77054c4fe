"""python -m tools.infra_check [FOLDER]: print what is wrong with the templates; exit code 1 if anything is."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tools.infra_check.checks import check

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    started = time.monotonic()
    findings = check(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
    for finding in findings:
        print(finding)
    print(f"infra_check: {len(findings) or 'no'} findings in {time.monotonic() - started:.1f} s")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
