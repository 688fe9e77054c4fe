"""The engine's folder, its live segment and a record, and what an open does about damage; `docs/engine.md`."""

from __future__ import annotations

from tools.pictures.plan import Plan

PLACE = "docs/log.svg"
PICTURE = Plan(
    title="The log on disk",
    width=900,
    height=592,
    lines="""
        lane 638,132 24,186
        lane 876,132 876,186
        line 26,242 26,250 356,250 356,242
        line 362,242 362,250 556,250 556,242
        crash 562,242 562,250 656,250 656,242
        line 662,242 662,250 874,250 874,242
        line 96,352 96,344 804,344 804,352
    """,
    boxes="""
        empty 24 62 180 70: ~
        box 214 62 212 70: ~
        box 436 62 192 70: ~
        point 638 62 238 70: ~
        strip-box 24 186 134 48: 53 / log id, epoch
        strip-box 158 186 101 48: 54 / durable 53
        strip-box 259 186 101 48: 55 / durable 54
        strip-box 360 186 100 48: 56 / durable 55
        strip-box 460 186 100 48: 57 / durable 55
        strip-fault 560 186 98 48: half of 58
        strip-empty 658 186 218 48: zeros
        strip-box 24 356 70 48: FE FD
        strip-box 94 356 100 48: ordinal / 57
        strip-box 194 356 100 48: durable / 55
        strip-box 294 356 90 48: epoch / 2
        strip-box 384 356 110 48: crc32
        strip-box 494 356 60 48: type
        strip-box 554 356 252 48: payload / MessagePack
        strip-box 806 356 70 48: FE FD
        box 24 502 276 70: torn above the last synced / cut at the last whole record; / nothing acknowledged is lost
        box 312 502 276 70: damage at or below it / refused: CorruptRecord; / also in a sealed segment
        box 600 502 276 70: a snapshot that does not decode / an older one, or the records; / else refused
    """,
    words="""
        text+code 34 84: 0000000000000001.log
        text 34 104: records 1 to 30: / removed
        text+code 224 84: 000000000000001e.snapshot
        text 224 104: what records 1 to 30 / have made
        text+code 446 84: 000000000000001f.log
        text 446 104: records 31 to 52: / sealed, synced whole
        text+code 648 84: 0000000000000035.log
        text 648 104: records from 53 on: live, / written at its end
        text+middle 191 270: synced, so acknowledged; / the last that 57 knows to be synced is 55
        text+middle 459 270: written, not yet synced: / a kill leaves them, / a power loss may not
        crash-text+middle 609 270: torn
        text+middle 768 270: room ahead of the / records, up to 256 KiB
        text+name 24 338: record 57
        muted+middle 500 336: stuffed: FE FD is nowhere within, so it is a boundary and nothing else
        muted 24 426: ordinals have no gaps; durable is the last one known to be synced; the epoch rises with each open;
            / the checksum is over all other fields, and from a seed of the log's own
        text+name 24 484: What an open does
    """,
)
draw = PICTURE.draw
