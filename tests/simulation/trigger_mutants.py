"""Faults under a Functions trigger that exploring finds, each planted alone: where each must show, and as what."""

from __future__ import annotations

from tests.simulation.planting import mutant

BUS = "outbox/azure/functions/bus.py"
LETTERS = "outbox/runtime/delivery/stored_dead_letters.py"
PROCESSOR = "outbox/azure/functions/processor.py"

TRIGGER_MUTANTS = (
    mutant("triggers: a refused message is completed and not kept", "partition", "NoLost", BUS,
        ("            await self._dead_letters.keep(delivery, settle.reason, settle.description)\n",
         "            pass\n"),
        triggered=True, amounts=(-50,),
    ),
    mutant("triggers: a refused message that could not be kept is completed", "item", "NoLost", BUS,
        ("            await self._dead_letters.keep(delivery, settle.reason, settle.description)\n",
         "            try:\n                await self._dead_letters.keep(delivery, settle.reason, settle.description)\n            except Exception:\n                pass\n"),
        triggered=True, amounts=(-50,), faults={"error": 1},
    ),
    mutant("triggers: what failed within the runtime is completed", "partition", "NothingLeavesEarly", PROCESSOR,
        ("        except TimeoutError:\n            return invocation",
         "        except TimeoutError:\n            invocation.is_done = True\n            return invocation"),
        triggered=True, faults={"timeout": 1},
    ),
    mutant("triggers: a kept dead letter goes before it is sent again", "partition", "NoLost", LETTERS,
        ("        await send([Output(queue.partition(SUBSCRIPTIONS)[0], 0, again)])\n        for copy in sorted({sequence, *copies}):\n            if (there := await self.read(queue, copy)) is not None:\n                await self.delete(there)\n",
         "        for copy in sorted({sequence, *copies}):\n            if (there := await self.read(queue, copy)) is not None:\n                await self.delete(there)\n        await send([Output(queue.partition(SUBSCRIPTIONS)[0], 0, again)])\n"),
        triggered=True, amounts=(-50,), resubmissions=1, faults={"crash": 1},
    ),
)  # fmt: skip
