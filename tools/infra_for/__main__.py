"""python -m tools.infra_for FOLDER MODULE:APP: put the templates of infra/ into a project of your own.

    python -m tools.infra_for ../myapp myapp.handlers:app

Run it again after the queues of the application have changed: what follows from the code is written anew, templates
that you have changed are left as they are.  Then all is checked as `make check-infra` checks the sample; exit code 1 if
anything is wrong.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from outbox.errors import OutboxError
from tools.infra_check.checks import check
from tools.infra_for.writing import WHEEL, Written, own_code, write

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Write and check; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.infra_for", description=__doc__, allow_abbrev=False)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the project: where host.json is")
    parser.add_argument("app", metavar="MODULE:APP", help="its application, as for `outbox run`")
    options = parser.parse_args()
    folder = options.folder.resolve()
    try:
        code, name = own_code(folder, options.app)
        written = write(ROOT, folder, code, name)
    except (OutboxError, OSError, ValueError) as error:
        print(f"infra_for: {error}", file=sys.stderr)
        return 1
    findings = check(folder, code, is_sample=False)
    for finding in findings:
        print(finding)
    print("\n".join(told(folder, written, len(findings))))
    return 1 if findings else 0


def told(folder: Path, written: Written, finding_count: int) -> list[str]:
    """What was done and what is next, for a person."""
    lines = [f"{folder.name}: {len(written.made)} files written, {finding_count or 'no'} findings"]
    lines += [f"{path} is yours and was left as it is; the clone's is another" for path in written.kept]
    if WHEEL not in (folder / "requirements.txt").read_text(encoding="utf-8"):
        lines += [
            "",
            "the library is on no index; so that the app has it on Azure, in the project's folder:",
            f"    rm -rf wheels && pip wheel --no-deps --wheel-dir wheels {ROOT}",
            f"    sed -i '/outbox_azure-/d' requirements.txt && ls ./{WHEEL}*.whl >> requirements.txt",
        ]
    return lines


if __name__ == "__main__":
    sys.exit(main())
