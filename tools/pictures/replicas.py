"""Two replicas of a processor over one register and one log, and a kill; the steps of `outbox/streams/replica.py`."""

from __future__ import annotations

from tools.pictures.steps import Steps

PLACE = "docs/replicas.svg"
PICTURE = Steps(
    title="Two replicas of a processor: one step, and one is killed",
    lanes=("A", "register", "log", "B"),
    steps="""
        1 read register>A register>B: both read the register
        2 handle A B: both read the inputs at its / cursors, and run the handler
        3 swap A>register: A's swap wins: new state, / new cursors, what to write
        4 lose B!register register>B: B's swap loses: it drops what / it has, and reads again
        5 kill A!: A is killed before it writes
        6 write B>log: B creates the cell, under an / identity made of the serial
        7 again register>A A!log: A starts again: its create / finds its identity: done
        8 next A>register B!register: both handle what comes next; / again one swap wins
    """,
    notes="""
        read handle: serial 8: / read up to 17, nothing to write
        swap again: serial 9: / read up to 18, a cell to write / at the first free place from 5.
            / Whoever reads this writes it, / and the log has it once.
        next next: serial 10: / read up to 19
    """,
    points=("swap", "cell 5"),
    notes_title="the register says",
    answers_title="The log, cell by cell",
    answers="""
        cell 3: an earlier step's
        cell 4: an earlier step's
        cell 5: identity: serial 9. / By B; A found it there
        next: free, for serial 10
    """,
    crashes="",
    pause=("A", "kill", "again"),
    legend="red: a swap or a create that loses",
)
draw = PICTURE.draw
