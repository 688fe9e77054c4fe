"""What runs where, and which ports and protocols join it."""

from __future__ import annotations

from tools.pictures.plan import Plan

PLACE = "docs/architecture.svg"
PICTURE = Plan(
    title="What runs where",
    width=900,
    height=608,
    boxes="""
        area 24 56 276 304: one process, no service
        area 312 56 276 304: workers, Azure Functions
        area 600 56 276 304: Spark: local, Synapse, Fabric
        box 40 92 244 50: your handlers / processors, pipelines
        box 328 92 244 50: your handlers / the same code
        box 616 92 116 80: feed / rows of files, / each once
        box 744 92 116 80: consume / into a Delta / ledger
        point 40 162 244 50: runtime / engine scope
        point 328 162 244 50: runtime / partition scope or item scope
        box 40 280 244 64: engine / queues, states and markers / in memory, one log on disk
        box 328 280 244 64: adapters / azure-servicebus, azure-cosmos, / azure-storage-blob
        box 616 280 244 64: azure-servicebus / the SDK for Python
        box 312 390 564 32: AMQP and HTTP; a connection string says where to
        area 24 452 416 136: emulators, on the engine: this machine
        area 460 452 416 136: Azure
        box 40 488 122 84: Service Bus / AMQP, / port 5672
        box 171 488 122 84: Cosmos DB / HTTP, / port 8081
        box 302 488 122 84: Blob Storage / HTTP, / port 10000
        box 476 488 122 84: Service Bus / queues, topics, / sessions
        box 607 488 122 84: Cosmos DB / states, / records, logs
        box 738 488 122 84: Blob Storage / large bodies, / files, logs
    """,
    arrows="""
        line 162,142 162,162
        line 450,142 450,162
        line 162,212 162,280
        line 450,212 450,280
        line 674,172 674,280
        line 802,280 802,172
        line 450,344 450,390
        line 738,344 738,390
        line 376,422 376,452
        line 668,422 668,452
        later 101,452 101,344
    """,
    words="""
        text+code 172 250: Journal
        text+code 460 233: StateStore / MessageBus / BlobStore
        muted 111 404: serves its queues and / states over the wire
    """,
)
draw = PICTURE.draw
