"""Documents that earlier builds have stored, byte by byte: today's code reads them, finishes them, and forgets nothing.

    python -m tests.unit.stores.test_golden_documents

writes those of today's code to `tests/histories/golden-documents/`, for a new form only: files that are there stay as
they are.  In each a message was applied and its outputs have left (m0), one was refused (m1), and one was applied by a
worker that died before its output had left (m2).
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from outbox import Worker
from outbox.engine.backend.apart import EngineStore
from outbox.ports import Create, DocumentKey
from tests.unit.messages import deliver
from tests.unit.stores.store_site import Add, Site, Sum, adding, site, swept

FOLDER = Path(__file__).resolve().parents[2] / "histories" / "golden-documents"
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "partition": ("partition", {}),
    "partition-ledger": ("partition", {"ledger": True}),
    "item-inline": ("item", {}),
    "item-staged": ("item", {"staged": True}),
}
MESSAGES = {"m0": Add("a", 5), "m1": Add("a", 1, text="reject"), "m2": Add("a", 2)}
KEPT = [path for path in sorted(FOLDER.glob("*.json")) if path.stem in FORMS]


async def crashed(at: Site) -> None:
    """Handle the messages, the last by a worker whose output cannot leave."""
    async with Worker(adding(), at) as worker:
        for id in ("m0", "m1"):
            await deliver(worker, "adds", MESSAGES[id], id=id)
    at.bus.is_mute = True
    async with Worker(adding(), at, drain_s=0.2) as worker:
        await worker.send("adds", MESSAGES["m2"], id="m2")
        await asyncio.sleep(0.3)


async def stored_by(at: Site) -> dict[str, str]:
    """All documents, by partition and id."""
    store = EngineStore(at.engine.core, at.engine.documents)
    found = [document async for document in store.unfinished()]
    found += [document async for document in store.scan("Sum:a")]
    return {f"{document.key.partition} {document.key.id}": document.body.decode() for document in found}


def kept_in(path: Path) -> dict[str, str]:
    """The documents of a form."""
    found: dict[str, str] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
async def test_what_an_earlier_build_has_stored_is_finished_and_remembered(path: Path) -> None:
    (scope, options), kept = FORMS[path.stem], kept_in(path)
    async with site(scope, ledger="ledger" in options) as at:
        store = EngineStore(at.engine.core, at.engine.documents)
        for name, body in kept.items():
            await store.write([Create(DocumentKey(*name.split(" ", 1)), body.encode())])
        async with Worker(adding(), at) as worker:
            await worker.declare()
        at.clock.seconds += 61
        assert (await swept(at, adding())).finished_count >= 1
        (left,) = at.engine.broker.queue("told").tasks.values()
        assert json.loads(left.message.body) == {"n": 7, "text": ""}
        async with Worker(adding(), at) as worker:
            for id, message in MESSAGES.items():
                await worker.send("adds", message, id=id)
            await worker.wait_idle()
            assert await worker.state(Sum, "a") == Sum(7)
            assert [dead.id for dead in await worker.dead_letters("adds")] == ["m1"]
        found = {json.loads(task.message.body)["n"] for task in at.engine.broker.queue("told").tasks.values()}
        assert found <= ({5, 7} if "ledger" in path.stem else {7}), "a copy under a ledger sends again, under its id"


def test_every_form_is_kept() -> None:
    assert {path.stem for path in KEPT} == FORMS.keys()


def main() -> None:
    """Write the forms that are not there yet."""

    async def written(form: str) -> dict[str, str]:
        scope, options = FORMS[form]
        async with site(scope, **options) as at:
            await crashed(at)
            return await stored_by(at)

    for form in FORMS:
        path = FOLDER / f"{form}.json"
        if not path.exists():
            path.write_text(json.dumps(asyncio.run(written(form)), indent=1, sort_keys=True) + "\n")
            print(path)


if __name__ == "__main__":
    main()
