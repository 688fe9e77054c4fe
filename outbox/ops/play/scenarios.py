"""The guided scenarios: the actions of each step, and a sentence or two on their effect and its reason."""

from __future__ import annotations

from dataclasses import dataclass

from outbox.ops.play.gate import Step
from outbox.ops.play.world import Act

RANDOM = "random"
"""The scenario that plays by itself."""
RANDOM_END = (
    "The faults are over, and nothing is on its way: nails and parcels are as the distinct orders ask for. Copies of a "
    "parcel have left as well; each has the id of the first, by which its reader drops it."
)


@dataclass(frozen=True, slots=True)
class Scene:
    """A step of a scenario: the button's label, the actions, and the text afterwards."""

    label: str
    acts: tuple[Act, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario: its name, its title, the text before the first step, and its steps."""

    name: str
    title: str
    intro: str
    scenes: tuple[Scene, ...]


SEND = Act("send")
TIME = Act("time")
SWEEP = Act("sweep")


def _to(step: Step, worker: int = 1) -> Act:
    return Act("until", worker=worker, step=step)


def _finish(worker: int = 1) -> Act:
    return Act("finish", worker=worker)


def _go(worker: int = 1) -> Act:
    return Act("go", worker=worker)


def _start(worker: int = 1) -> Act:
    return Act("start", worker=worker)


SCENARIOS: dict[str, Scenario] = {
    "duplicate": Scenario(
        "A duplicate",
        "A duplicate",
        "A sender that hears nothing sends again, so an order may arrive twice. Both copies carry one id.",
        (
            Scene("Send order o1", (SEND,), "o1 waits in the queue. Nothing else has changed."),
            Scene(
                "Let worker 1 handle it",
                (_finish(),),
                "97 nails, one parcel, and a record of o1. The record is how a duplicate will be recognised.",
            ),
            Scene(
                "Send o1 again",
                (Act("duplicate", id="o1"),),
                "The same order under the same id. The queue does not compare ids: it will deliver this copy too.",
            ),
            Scene(
                "Go on, up to the commit",
                (_to("commit"),),
                "The handler has run again, but only on a copy in memory. Its batch would leave 94 nails, and it would "
                "create the record of o1. There is one already.",
            ),
            Scene(
                "Let the commit go",
                (_go(),),
                "The record could not be created, so nothing of the batch was written: still 97 nails. The worker now "
                "follows the record that it met.",
            ),
            Scene("Settle the copy", (_finish(),), "Two messages, one effect: 97 nails, one parcel."),
        ),
    ),
    "crash": Scenario(
        "Crash after commit",
        "Killed after the commit",
        "The worst moment for a crash: the stock has changed, and the parcel has not left.",
        (
            Scene(
                "Send o1, go on to the commit",
                (SEND, _to("commit")),
                "Worker 1 has o1 under its lock, and the handler has run. All of that is in its memory; the store "
                "still has 100 nails.",
            ),
            Scene(
                "Kill worker 1 after the commit",
                (Act("kill-after", worker=1),),
                "97 nails are stored, and in the same batch a record of o1 with the parcel inside. No parcel has been "
                "sent, and nobody alive knows that one should be.",
            ),
            Scene(
                "Start a new process",
                (_start(),),
                "It remembers nothing. o1 is still in the queue, locked for the dead process: nobody can receive it.",
            ),
            Scene("Let a minute pass", (TIME,), "The lock ran out. The queue will deliver o1 a second time."),
            Scene(
                "Receive o1",
                (_go(),),
                "Because this is a second delivery, the worker first looks into the store: is o1 on record?",
            ),
            Scene(
                "Look for the record",
                (_go(),),
                "It is, so the handler does not run again. What is left to do stands in the record: the parcel.",
            ),
            Scene(
                "Push the parcel",
                (_go(),),
                "The parcel has left, as the dead process would have sent it: its id was stored with it.",
            ),
            Scene("Settle o1", (_finish(),), "97 nails, one parcel. The crash cost a minute and no effect."),
        ),
    ),
    "lost-reply": Scenario(
        "Lost at the commit",
        "The reply to the commit is lost, then the call",
        "A worker writes to the store, and the connection breaks. Was it written? To write again could apply the "
        "order twice, to give up could apply it never.",
        (
            Scene(
                "Send o1, go on to the commit",
                (SEND, _to("commit")),
                "Worker 1 is about to write its batch. Keep an eye on the nails and on the record.",
            ),
            Scene(
                "Lose the reply",
                (Act("lose", worker=1),),
                "The batch was written: 97 nails. But all that worker 1 got is an error, the same as if nothing had "
                "arrived. So it does not guess: it will read the record. Nails and record were one batch, so both are "
                "there, or neither is.",
            ),
            Scene(
                "Read the record",
                (_go(),),
                "The record is there, and it is this attempt's own: the commit was written. Were it another worker's, "
                "this one would follow it all the same: o1 is applied, and the record has its parcel.",
            ),
            Scene("Push and settle", (_finish(),), "97 nails, one parcel. The lost reply cost one read."),
            Scene(
                "Send o2, go on to the commit",
                (SEND, _to("commit")),
                "The other half: this time the call itself is lost, and the store never sees it.",
            ),
            Scene(
                "Lose the call",
                (Act("lose-call", worker=1),),
                "Worker 1 got the same error as before. But nothing was written: still 97 nails, and no record of o2.",
            ),
            Scene(
                "Read the record",
                (_go(),),
                "No record, so o2 was not applied. The worker does not write its old batch again: it loads the state "
                "and runs the handler again. Should the old batch arrive late, one of the two finds the record there "
                "and writes nothing.",
            ),
            Scene(
                "Go on, up to the commit",
                (_to("commit"),),
                "The handler has run a second time, on a copy of the 97 nails. Nothing is left of the first run.",
            ),
            Scene("Commit, push and settle", (_finish(),), "94 nails, two parcels: one for each order."),
        ),
    ),
    "lost-push": Scenario(
        "Lost at the push",
        "The reply to a push is lost",
        "The parcel was sent, and its reply is lost. A queue cannot be asked what it has got, so the worker must send "
        "the parcel again.",
        (
            Scene(
                "Send o1, go on to the push", (SEND, _to("push")), "Stock and record are stored; the parcel is next."
            ),
            Scene(
                "Lose the reply",
                (Act("lose", worker=1),),
                "The parcel is in its queue, and worker 1 does not know. Not to send it could lose a parcel.",
            ),
            Scene(
                "Send it again",
                (_go(),),
                "Two messages with one id, because the id comes from the record and not from the attempt. Whoever "
                "reads the parcels drops the second, as this shop does with a duplicate order.",
            ),
            Scene("Settle o1", (_finish(),), "97 nails, one parcel: the copy is counted apart."),
        ),
    ),
    "two-workers": Scenario(
        "Two workers",
        "Two workers, one order",
        "A lock is good for a minute. A worker whose machine stalls loses it without noticing, and then goes on.",
        (
            Scene(
                "Send o1, let worker 1 stall at the commit",
                (SEND, _to("commit")),
                "Worker 1 has o1 under its lock, is about to write, and stands still.",
            ),
            Scene(
                "Let a minute pass, start worker 2",
                (TIME, _start(2)),
                "The lock ran out. o1 is free again, and worker 1 does not know.",
            ),
            Scene(
                "Let worker 2 go on to the commit",
                (_to("commit", 2),),
                "Now both have o1 in hand. Both are about to write 97 nails, if the ETag is still 1, and to create the "
                "record of o1. No lock keeps them apart; the store does.",
            ),
            Scene("Let worker 2 commit", (_go(2),), "Worker 2 won: 97 nails, ETag 2, and the record of o1."),
            Scene(
                "Let worker 1 commit",
                (_go(),),
                "Worker 1 lost, because o1 is on record. Nothing of its batch was written. It follows the record, "
                "which still holds the parcel.",
            ),
            Scene(
                "Let worker 1 finish",
                (_finish(),),
                "It sent the parcel from the record. Its settlement was refused: the lock is worker 2's by now.",
            ),
            Scene(
                "Let worker 2 finish",
                (_finish(2),),
                "Worker 2 sent it as well, under the same id, and settled o1. 97 nails, one parcel and a copy of it.",
            ),
        ),
    ),
    "sweep": Scenario(
        "No redelivery",
        "Nobody receives it again",
        "After a crash the redelivered message finishes what was begun. What if nobody receives it: the queue is "
        "paused, or the message is gone? Then the store alone must do.",
        (
            Scene(
                "Send o1, kill worker 1 after the commit",
                (SEND, _to("commit"), Act("kill-after", worker=1)),
                "97 nails are stored, and the record of o1 has the parcel, not sent yet. Nobody starts a worker.",
            ),
            Scene(
                "Let the sweeper look",
                (SWEEP,),
                "It reads the records without a mark, as each worker does every half minute. "
                "This one is younger than a minute, so it lets it be: its worker might still be at work.",
            ),
            Scene("Let a minute pass", (TIME,), "o1 is free again, and still nobody receives it."),
            Scene(
                "Sweep again",
                (SWEEP,),
                "The parcel has left, under the id stored with it, and the record is marked. No message was needed: "
                "what was committed is in the store until it is sent.",
            ),
            Scene(
                "Start a worker and let it receive o1",
                (_start(), _finish()),
                "It found o1 on record with nothing left to send, and settled it: 97 nails, one parcel.",
            ),
        ),
    ),
    RANDOM: Scenario(
        "200 faults",
        "At least 200 faults at random",
        "Two workers are killed, refused and left without replies, orders are repeated and locks run out, 200 times or "
        "a few more. Then the faults end. Watch the verdict: it comes right whenever nothing is on its way.",
        (),
    ),
}
