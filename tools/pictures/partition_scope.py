"""Partition scope, step by step; the rows of `docs/protocol/partition.md`."""

from __future__ import annotations

from tools.pictures.steps import Steps

PLACE = "docs/protocol/partition.svg"
PICTURE = Steps(
    title="Partition scope: one attempt at a message",
    lanes=("queues", "worker", "partition"),
    steps="""
        - receive queues>worker: a message, under a lock
        1 load partition~worker: the state: from the cache, / or by a point read
        3 decide partition~worker: redelivered or resubmitted: / read the record, before 1
        4 run worker: the handler, on a copy; / what it sends is captured
        5 prepare worker: state and record, which / holds the outputs: one batch
        6 commit worker>partition: create the record, and write / the state if its version is
            / the one that was loaded
        7 push worker>queues: what the record holds, / under its ids
        - settle worker>queues: complete the message, / or dead-letter it
        8 mark worker~partition: later: the record drops its / outputs, gets a time to live
    """,
    notes="""
        receive prepare: Nothing of the message is / stored. It is delivered again, / as if for the first time.
        commit push: The state is stored, and the / record, pending. The message
            / comes again, finds the record, / pushes what it holds, settles; / if not, the sweeper pushes.
        settle settle: The same. The sweeper pushes / again, same ids, and marks.
        mark mark: Nothing is left to do.
    """,
    points=("commit", "won"),
    notes_title="a crash here",
    answers_title="The batch has four answers",
    answers="""
        won: state and record are / stored: go on with 7
        lost on the record: the message was here: / do what its record says
        lost on the state: the state has moved: / read it, run again
        unknown: read the record. / Mine: won. Another's: lost / on it. None: run again
    """,
)
draw = PICTURE.draw
