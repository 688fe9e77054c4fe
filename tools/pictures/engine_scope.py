"""Engine scope, step by step; the rows of `docs/protocol/engine.md`."""

from __future__ import annotations

from tools.pictures.steps import Steps

PLACE = "docs/protocol/engine.svg"
PICTURE = Steps(
    title="Engine scope: one attempt at a batch of messages",
    lanes=("worker", "memory", "log"),
    steps="""
        - claim memory>worker memory>log: lock messages; the claim is / written, and not waited for
        - admit worker: find handler, value, key, / state id and inbox key
        - load memory>worker: the states and markers / that the batch needs
        - decide worker: on record? too old?
        - run worker: the handlers, in turn, each / on a state decoded anew
        - add worker: state, outputs and marker / join the batch's one commit
        - settle worker: each message's end joins it: / consumed or dead-lettered
        - commit worker>memory memory>log: if all locks are held and all / states at their versions:
            / one record, all or nothing
        - gate log>worker: the record is synced: only / now may anything leave
    """,
    notes="""
        claim settle: Nothing is stored but the / claims. The next open of the / log voids all locks, and any
            / worker handles the messages: / a delivery that never ended / counts.
        commit commit: The record is there whole, / or not at all. Nothing of it / has left the process.
        gate gate: Nothing is left to do: outputs / are queue entries of the record.
    """,
    legend="",
    points=("commit", "done"),
    notes_title="a crash here",
    answers_title="The commit has three answers",
    answers="""
        done: inputs, states, outputs / and markers are stored
        conflict: nothing was written: run / each message again, singly
        unknown: is the lock still held? Then / run again; else it was committed
    """,
)
draw = PICTURE.draw
