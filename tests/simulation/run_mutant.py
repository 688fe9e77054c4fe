"""Run one exploration with one fault planted in the package's source, and print what was found as JSON.

    python -m tests.simulation.run_mutant NAME
    python -m tests.simulation.run_mutant --each NAME...

No file changes.  With `--each` each has a line of its own, with its name, and a process of its own, forked from one
that has imported the package: functions get the bodies that the fault gives them (swapping.py).  A fault that lies
outside of them, or that is not found so, is planted while its module is imported, as one alone is (importing.py).
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import time
from collections.abc import Collection
from functools import partial

from tests.simulation.forked import Answer, each
from tests.simulation.importing import ROOT, module_of, plant, planted
from tests.simulation.mutants import MUTANTS
from tests.simulation.planting import Mutant
from tests.simulation.swapping import Functions, exchanged, functions_below

SEED_COUNT, DRAWN_STEP_COUNT = 40, 60
RUN_S_MAX = 60.0
TEXT_LENGTH_MAX = 1_000
"""How much is kept of a report, from its end: an answer's pipe takes no more in one piece."""
IMPORTED = (
    "outbox.testing", "tests.simulation.mutant_apps", "tests.simulation.streamed", "tests.simulation.sunk",
    "tests.simulation.piped",
    "tests.simulation.discarding", "tests.contract.model_duels", "tests.contract.queue_model_duels",
)  # fmt: skip
"""What explorations and comparisons need."""


def main(name: str) -> None:
    """Explore with one fault."""
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    plant(mutant, known=set(sys.modules))
    print(json.dumps(found_with(mutant)))


def main_each(names: Collection[str]) -> None:
    """Explore with each of some faults."""
    mutants = [mutant for mutant in MUTANTS if mutant.name in names]
    known = set(sys.modules)
    for name in IMPORTED:
        importlib.import_module(name)
    for mutant in mutants:
        importlib.import_module(module_of(mutant))
    functions = functions_below(str(ROOT))
    left = []
    for mutant, answer in each(mutants, partial(swapped, functions), within_s=RUN_S_MAX):
        if answer is not None and answer.get("anomalies"):
            print(json.dumps({"name": mutant.name, **answer}), flush=True)
        else:
            left.append(mutant)
    for mutant, answer in each(left, partial(anew, known), within_s=RUN_S_MAX):
        if not answer:
            raise RuntimeError(f"{mutant.name}: no end in {RUN_S_MAX} s, or none at all; its own output says why")
        print(json.dumps({"name": mutant.name, **answer}), flush=True)


def swapped(functions: Functions, mutant: Mutant) -> Answer:
    """What is found with a fault in functions; nothing if it lies outside of them."""
    text = (ROOT / mutant.file).read_text()
    if mutant.edits and not exchanged(functions, str(ROOT / mutant.file), text, planted(text, mutant)):
        return {}
    return cut(found_with(mutant))


def anew(known: Collection[str], mutant: Mutant) -> Answer:
    """What is found in a package that is imported with the fault."""
    plant(mutant, known)
    return cut(found_with(mutant))


def cut(found: Answer) -> Answer:
    """What was found, short enough for an answer."""
    return {**found, "text": found["text"][-TEXT_LENGTH_MAX:]}


def found_with(mutant: Mutant) -> Answer:
    """What is found with a fault that is planted."""
    return compared(mutant.scope) if mutant.scope in ("journal", "store", "bus") else explored(mutant)


def explored(mutant: Mutant) -> Answer:
    """What an exploration of the runtime, or of logs and processors, finds."""
    from outbox.verify.explorer.search import search
    from tests.simulation import discarding, piped, streamed
    from tests.simulation.mutant_apps import scenario
    from tests.simulation.sunk import SinkScope

    options = dict(mutant.options)
    live = options.pop("live", False)
    if mutant.scope == "log":
        report = streamed.explored(mutant.app, live=live, **options)
    elif mutant.scope == "pipeline":
        report = piped.explored(*options.pop("pages"), **options)
    elif mutant.scope == "letters":
        report = discarding.acted(**options)
    elif mutant.scope == "sink":
        faults = options.pop("faults")
        report = SinkScope(mutant.app, **options).explored(**faults)
    else:
        report = search(scenario(mutant.scope, mutant.app, **options), live=live)
    found = [{"promise": a.promise, "steps": len(a.trace.steps)} for a in report.anomalies]
    return {"anomalies": found, "states": report.states, "cpu_s": report.cpu_s, "text": report.text}


def compared(port: str) -> Answer:
    """Where the engine and its model differ first: the shortest way among those drawn."""
    found: list[tuple[int, str]] = []
    started_s = time.process_time()
    for seed in range(SEED_COUNT):
        steps = min((steps for steps, _ in found), default=DRAWN_STEP_COUNT)
        try:
            asyncio.run(duel(port, seed, steps))
        except Exception as error:  # an engine that raises what its model does not differs, too
            found.append((first_step(port, seed, steps), str(error)))
    shortest = min(found, default=None)
    anomalies = [] if shortest is None else [{"promise": "Differs", "steps": shortest[0]}]
    text = "no difference" if shortest is None else shortest[1]
    return {"anomalies": anomalies, "states": 0, "cpu_s": time.process_time() - started_s, "text": text}


def first_step(port: str, seed: int, step_count: int) -> int:
    """After how many steps a drawn way first shows a difference."""
    for steps in range(1, step_count):
        try:
            asyncio.run(duel(port, seed, steps))
        except Exception:
            return steps
    return step_count


async def duel(port: str, seed: int, step_count: int) -> None:
    """Drawn operations on a port of a fresh engine and on its model."""
    from outbox.engine.backend.apart import EngineBus, EngineStore
    from outbox.engine.backend.journal import EngineJournal
    from outbox.engine.engine import Engine
    from outbox.testing import START_S, VirtualClock
    from tests.contract import model_duels, queue_model_duels

    clock = VirtualClock(START_S)
    engine = Engine.in_memory(clock=clock)

    async def wait(seconds: float) -> None:
        clock.seconds += seconds
        engine.tick()

    bench = queue_model_duels.Bench(engine.ports().operations, wait, engine.broker.lapse_lock)
    match port:
        case "journal":
            journal = EngineJournal(engine.core, engine.broker)
            await queue_model_duels.check_journal_model(journal, bench, seed=seed, step_count=step_count)
        case "bus":
            await queue_model_duels.check_bus_model(
                EngineBus(engine.core, engine.broker), bench, seed=seed, step_count=step_count
            )
        case _:
            await model_duels.check_store_model(
                EngineStore(engine.core, engine.documents), wait, seed=seed, step_count=step_count
            )


if __name__ == "__main__":
    main_each(sys.argv[2:]) if sys.argv[1] == "--each" else main(sys.argv[1])
