"""The page that lists each rule of the protocol with its planted faults and what finds them.

    python -m tests.docs.rules [--all]

Writes docs/verification-rules.md from `tests/simulation/rules.py`.  What the page has of a fault is kept, where that is
still one of those that may find it; the others are planted and run, with `--all` every one, which takes some minutes.
"""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from tests.docs.blocks import ROOT
from tests.simulation.mutants import MUTANTS
from tests.simulation.planting import Mutant, Table
from tests.simulation.rules import RULES, Rule

PAGE = ROOT / "docs/verification-rules.md"
PAGES = {
    "README": "What all scopes share",
    "engine": "Engine scope",
    "partition": "Partition scope",
    "item": "Item scope",
    "http": "Requests over HTTP",
}
"""The pages of docs/protocol that have rules, and their titles here."""
GAPS = "\n## Known gaps\n"
"""From here on a page has no rules."""
TESTED = (
    "tests.simulation.direct_mutants",
    "tests.unit.engine_log.log_mutants",
    "tests.wire.on_azure.adapter_mutants",
)
"""The tables of faults that tests find."""
PROCESS_COUNT = 2
HEAD = """# The rules, and what finds their faults

Made by `python -m tests.docs.rules`. {rules} rules of [the protocol](protocol/README.md), each with the faults that
take it out of the code: {faults} of {all} planted faults, and these are planted in every run of the tests. Of
{explored} rules at least one fault is found by exploring, or by comparing the engine with its model; of the other
{tested} tests find all.
Each fault is planted alone, as a change of one module's text, and stands in one of
[these tables](verification.md#why-believe-the-explorer).

*Found by* is the [promise](verification.md#exploring) that breaks first, with the scope that is explored; `Differs`
where drawn operations on the engine and on its model come to different ends; or the test that fails. *Steps* is the
length of the shortest way to it. *Seconds* are CPU seconds, of that exploration or of the test up to where it fails,
on the machine that made this page.
"""
ROW = re.compile(
    r"^\| .*? \| (?P<fault>[^|]+) \| (?P<finder>[^|]+) \| (?P<steps>\d*) \| (?P<seconds>[\d.]+) \|$", re.MULTILINE
)
NAME = re.compile(r"\*\*([^*]+?)\.\*\*")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


class Finding(NamedTuple):
    """What found a fault: the promise or the test, the steps of the way to it, and the CPU seconds."""

    finder: str
    steps: str
    seconds: str


def tables() -> dict[str, Table]:
    """The tables of faults that tests find, by module."""
    return {module: importlib.import_module(module).TABLE for module in TESTED}


def every_fault() -> list[Mutant]:
    """All planted faults of all tables."""
    return [*MUTANTS, *(mutant for table in tables().values() for mutant in table.mutants)]


def rules_on(page: str) -> dict[str, str]:
    """The rules that a page names, in its order, and the heading that each stands under."""
    text = (ROOT / f"docs/protocol/{page}.md").read_text().split(GAPS)[0]
    return {" ".join(name[1].split()): HEADING.findall(text[: name.start()])[-1] for name in NAME.finditer(text)}


def anchor(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


# What finds a fault


def may_find(mutant: Mutant) -> list[str]:
    """The finders of a fault as the page writes them."""
    if mutant in MUTANTS:
        where = "" if mutant.scope in ("journal", "store", "bus") else f", {mutant.scope} scope"
        return [f"{promise}{where}" for promise in mutant.promises]
    return [f"`{test.rpartition('::')[2]}`" for test in mutant.promises]


def explored(mutant: Mutant) -> Finding:
    """Plant a fault and explore."""
    command = [sys.executable, "-m", "tests.simulation.run_mutant", mutant.name]
    told = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
    first = told["anomalies"][0]
    (finder,) = (found for found in may_find(mutant) if found.split(",")[0] == first["promise"])
    return Finding(finder, str(first["steps"]), f"{told['cpu_s']:.2f}")


def tested(module: str, names: Iterable[str]) -> Iterator[tuple[str, Finding]]:
    """Plant faults of a table one after the other, and run their tests."""
    command = [sys.executable, "-m", "tests.simulation.run_planted", module, *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for told in map(json.loads, done.stdout.splitlines()):
        test = re.split(r"[\[:]", told["failed"][0])[0]
        yield told["name"], Finding(f"`{test}`", "", f"{told['cpu_s']:.2f}")


def measured(faults: Iterable[Mutant]) -> dict[str, Finding]:
    """Plant each of these faults, and see what finds it."""
    wanted = {fault.name for fault in faults}
    mutants = [mutant for mutant in MUTANTS if mutant.name in wanted]
    with ThreadPoolExecutor(PROCESS_COUNT) as pool:
        found = dict(zip((mutant.name for mutant in mutants), pool.map(explored, mutants), strict=True))
    for module, table in tables().items():
        if names := [mutant.name for mutant in table.mutants if mutant.name in wanted]:
            found.update(tested(module, names))
    return found


def kept(page: str) -> dict[str, Finding]:
    """What a page has of each fault."""
    return {row["fault"]: Finding(row["finder"], row["steps"], row["seconds"]) for row in ROW.finditer(page)}


def unknown(faults: Iterable[Mutant], found: dict[str, Finding]) -> list[Mutant]:
    """The faults without a finder, or with one that is not named for them any more."""
    return [one for one in faults if one.name not in found or found[one.name].finder not in may_find(one)]


# The page


def planted_for(rules: Iterable[Rule]) -> list[Mutant]:
    """The faults of these rules, each once."""
    wanted = {name for rule in rules for name in rule.faults}
    return [mutant for mutant in every_fault() if mutant.name in wanted]


def written(found: dict[str, Finding]) -> str:
    """The page, with what found each fault."""
    counts = {
        "rules": len(RULES),
        "faults": len(planted_for(RULES)),
        "all": len(every_fault()),
        "explored": sum(rule.is_explored for rule in RULES),
        "tested": sum(not rule.is_explored for rule in RULES),
    }
    parts = [HEAD.format(**counts)]
    for page, title in PAGES.items():
        parts.append(f"\n## {title}\n\n| rule | fault | found by | steps | seconds |\n|---|---|---|---:|---:|\n")
        headings = rules_on(page)
        for rule in RULES:
            if rule.page == page:
                name = f"[{rule.name}](protocol/{page}.md#{anchor(headings[rule.name])})"
                for fault in rule.faults:
                    one = found[fault]
                    parts.append(f"| {name} | {fault} | {one.finder} | {one.steps} | {one.seconds} |\n")
                    name = ""
    return "".join(parts)


def main(*, is_anew: bool) -> None:
    faults = planted_for(RULES)
    found = kept(PAGE.read_text()) if PAGE.exists() and not is_anew else {}
    found.update(
        measured(one for one in faults if one.name not in found or found[one.name].finder not in may_find(one))
    )
    PAGE.write_text(written(found))


if __name__ == "__main__":
    main(is_anew="--all" in sys.argv[1:])
