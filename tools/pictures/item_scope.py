"""Item scope, step by step; the rows of `docs/protocol/item.md`."""

from __future__ import annotations

from tools.pictures.steps import Steps

PLACE = "docs/protocol/item.svg"
PICTURE = Steps(
    title="Item scope: one attempt at a message",
    lanes=("queues", "worker", "states", "markers"),
    steps="""
        - receive queues>worker: a message, under a lock
        1 load states~worker: the state: from the cache, / or read
        2 finish worker~queues worker~markers: it points to a transaction: / finish that first, 7 and 8
        3 decide markers>worker: read the marker, as fresh as / the token in the state says
        4 run worker: the handler, on a copy
        5 prepare worker worker~markers: record and outputs go into the / next state; else are staged
        6 commit worker>states: swap the state: next version, / pointer to the transaction
        7 push worker>queues: publish the outputs, / under their ids
        8 mark worker>markers: create the message's marker
        - settle worker>queues: complete the message, / or dead-letter it
        9 clear worker~states: the key's next swap replaces / the pointer; if none, a write
    """,
    notes="""
        receive prepare: Nothing new is stored but what / was staged, which nothing
            / points to. The message is / delivered again, as if for / the first time.
        commit push: The state with its pointer is / stored. The key's next message,
            / or the sweeper, goes on with / 7, under the same ids.
        mark settle: The marker is stored too: the / message, if it comes again, / follows it. The key's next
            / message or the sweeper: 9.
        clear clear: Nothing is left to do.
    """,
    points=("commit", "won"),
    notes_title="a crash here",
    answers_title="The swap has three answers",
    answers="""
        won: the state points to this / transaction: go on with 7
        lost: the state has moved: / read it, run again
        unknown: read the state. It points / here: won. A marker: follow / it. Neither: run again
    """,
)
draw = PICTURE.draw
