"""Every parser of bytes from outside, each with valid inputs and the errors that it may raise.

Whatever it is given, a parser returns or raises one of these, soon, and holds no more than a few times what it read.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from outbox import App
from outbox.emulator.amqp.errors import AmqpFault
from outbox.emulator.amqp.messages import BATCH_FORMAT, decode_transfer
from outbox.emulator.amqp.types import DecodeError, binary, decode, described, int_, map_, string, symbol
from outbox.emulator.blobs import blob_operations, conditions, requests, tags
from outbox.emulator.blobs.auth import ACCOUNT, WELL_KNOWN_KEY, Signatures
from outbox.emulator.blobs.batch_operations import read_boundary, read_parts
from outbox.emulator.blobs.blob_operations import read_block_list
from outbox.emulator.blobs.list_operations import read_marker
from outbox.emulator.blobs.requests import Rejection as BlobRejection
from outbox.emulator.blobs.requests import read_metadata
from outbox.emulator.bus import atom
from outbox.emulator.bus.entities_file import parse_entities
from outbox.emulator.cosmos.patch import Patch
from outbox.emulator.cosmos.query.parser import parse_query
from outbox.emulator.cosmos.wire import Rejection
from outbox.emulator.faults import rules_from_json
from outbox.engine.engine import Engine
from outbox.engine.log import framing, snapshot
from outbox.errors import CorruptRecord, FormatTooNew, NotRegistrable, OutboxError
from outbox.lineage import parse_state_id
from outbox.message import Message, message_from_properties, properties_of
from outbox.ops.shared.control_file import FILE_NAME, read_control_file
from outbox.ports import Document, DocumentKey, Output
from outbox.runtime.delivery.admission import admit
from outbox.runtime.http.requests import read_body, write_body
from outbox.runtime.start.plan import compile_app
from outbox.stored import Failures, IdempotencyClaim, Overflow, Record, Staged, StateItem, encode
from outbox.stored import decode as decode_document
from outbox.streams.cells import Position
from outbox.streams.pipeline.exchange import (
    Answer,
    Begin,
    Exchange,
    Failed,
    FromWorker,
    Look,
    Moved,
    ToWorker,
    Unframed,
    framed,
)
from outbox.streams.pipeline.operators import Frame
from outbox.verify.history import parse as parse_history
from outbox.verify.recorded import events
from spark_jobs.draining.entries import TornError, whole_progress
from spark_jobs.draining.keys import MAGIC as KEYS_MAGIC
from spark_jobs.draining.keys import DamagedKeysError, header_of
from tests.fuzz.nonsense import mutated
from tests.simulation.explored import T1, Transfer, bank
from tests.unit.amqp import amqp_client
from tests.unit.streams.pipeline.counting import Counting, Word
from tests.wire.blobs.batches import BATCH_TYPE, BOUNDARY, batch, deletes

AT_MS = 1_767_225_600_000
LEDGER_ENTRY = rb"""{"commitInfo":{"outbox":"{\"token\":\"t\",\"number\":2,\"files\":1,\"consumed\":[]}"}}
{"add":{"path":"data/a.parquet","size":3,"dataChange":true,"tags":null}}
{"txn":{"appId":"outbox-consume","version":2}}"""

EXCHANGE = Exchange(Counting(Engine.in_memory()).pipeline.plan(), 2)
MOVED = EXCHANGE.moved("count", 1, Frame([(Position(1), (n,), AT_MS, Word("a" * n)) for n in range(9)], Position(2)))


@dataclass(frozen=True)
class Parser:
    """What reads bytes, inputs that it takes, and what it may raise; `around` puts a changed input into its frame."""

    name: str
    inputs: tuple[bytes, ...]
    parse: Callable[[bytes], object]
    raises: tuple[type[BaseException], ...] = ()
    around: Callable[[bytes], bytes] = bytes

    def drawn(self, chance: random.Random) -> bytes:
        """A changed input."""
        return self.around(mutated(chance, chance.choice(self.inputs)))


def _message(**fields: Any) -> Message:
    return Message(body=b'{"id":"t1","source":"alice","target":"bob","amount":5}', outbox_id="t1", **fields)


def _record() -> Record:
    output = Output("deposits", AT_MS, _message(type="deposit", created_ms=AT_MS, session_id="alice"))
    return Record(tx="a" * 32, fingerprint=b"\x01" * 32, at_ms=AT_MS, pending=True, outputs=(output,))


def _document(kind: Any) -> Callable[[bytes], object]:
    return lambda data: decode_document(Document(DocumentKey("p", "i"), data, "v1"), kind)


def _snapshot() -> bytes:
    engine = Engine.in_memory()
    engine.close()
    return snapshot.encode(engine.state, 7)[sha256().digest_size :]


def _log() -> bytes:
    seed = framing.seed_of(b"x" * 16)
    return b"".join(framing.encode_record(n, n - 1, 1, 2, b"payload %d" % n, seed) for n in range(1, 5))


def _scan(data: bytes) -> object:
    return framing.scan(data, framing.seed_of(b"x" * 16), record_size_max_bytes=1 << 16)


def _admit(app: App) -> Callable[[bytes], object]:
    from outbox.ports import Delivery

    plan = compile_app(app)

    def parse(data: bytes) -> object:
        message = Message(body=data, outbox_id="t1", type="transfer", created_ms=AT_MS)
        return admit(plan, [Delivery("transfers", 1, message, 1, AT_MS, AT_MS + 60_000)], AT_MS)

    return parse


def _properties(data: bytes) -> object:
    """Properties of a message as JSON gives them, through both ways."""
    try:
        found = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    plain = {name: value for name, value in found.items() if value is None or isinstance(value, str | int | float)}
    return properties_of(message_from_properties(b"", plain))


def _control_file(data: bytes) -> object:
    with TemporaryDirectory() as folder:
        (Path(folder) / FILE_NAME).write_bytes(data)
        return read_control_file(Path(folder))


def _text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: read(data.decode(errors="replace"))


def _history() -> bytes:
    """Events as a host writes them, a line each."""
    delivered, ended = events.Delivered("a", "q", 1, True, 0, 7), events.Ended("q", 1, "a")
    commit = events.Commit(op=1, ended=[ended], changes=[events.Change("Account:\u00e9", 0, 1, 7)], refused=["b"])
    found = (events.Life(name="host"), events.Claim(deliveries=[delivered]), commit, events.Ok(op=1), events.End())
    return b"".join(encode(event) + b"\n" for event in found)


STORED: dict[type[Any], Any] = {
    StateItem: StateItem(msgspec.Raw(b'{"a":1}'), 1, 2, AT_MS),
    Record: _record(),
    Staged: Staged("t" * 32, b"\x02" * 32, "Account:a", 3, _record()),
    Overflow: Overflow("t" * 32, "blob", b"\x02" * 32, "Account:a", 3, AT_MS),
    IdempotencyClaim: IdempotencyClaim(b"\x01" * 32, "Account:a", "a", AT_MS),
    Failures: Failures(3),
}
ENTITIES = (
    b'{"UserConfig":{"Namespaces":[{"Name":"n","Queues":[{"Name":"q","Properties":{"LockDuration":"PT1M",'
    b'"MaxDeliveryCount":10,"RequiresSession":true}}],"Topics":[{"Name":"t","Subscriptions":[{"Name":"s","Rules":'
    b'[{"Name":"r","Properties":{"FilterType":"Correlation","CorrelationFilter":{"Label":"x"}}}]}]}]}]}}'
)
RULE = (
    b'<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription '
    b'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"><LockDuration>PT1M</LockDuration>'
    b"</QueueDescription></content></entry>"
)
QUERY = (
    (
        b"SELECT TOP 3 c.id, COUNT(1) AS n FROM c JOIN t IN c.n WHERE c.id IN (@a, 2) AND c.x LIKE 'a%' ESCAPE '!' "
        b"GROUP BY c.id"
    ),
    (
        b"SELECT VALUE {'a': c.b, 'd': [1, 2.5, null]} FROM c WHERE NOT (c.f BETWEEN 1 AND 2) ORDER BY c.g DESC "
        b"OFFSET 1 LIMIT 2"
    ),
)
PATCH = b'{"operations":[{"op":"incr","path":"/n/0","value":1},{"op":"move","from":"/a","path":"/b"}]}'


def _patched(data: bytes) -> object:
    try:
        body = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return Patch(body, None).apply({"n": [1], "a": {"x": 1}}) if isinstance(body, dict) else None


BLOB_HEADERS = {
    "authorization": "SharedKey devstoreaccount1:c2lnbmF0dXJl", "x-ms-date": "Sun, 22 Nov 2026 00:00:00 GMT",
    "x-ms-range": "bytes=1-3", "if-match": '"0x1", "0x2"', "if-modified-since": "Sun, 22 Nov 2026 00:00:00 GMT",
    "x-ms-if-tags": "\"n\" = '1' OR c <> 'red' AND \"n\" > '0'", "x-ms-meta-a_b": "1", "x-ms-tags": "n=1&c=red",
}  # fmt: skip
TAGS = b"<Tags><TagSet><Tag><Key>n</Key><Value>1</Value></Tag></TagSet></Tags>"
BLOCK_LIST = b'<?xml version="1.0"?><BlockList><Latest>MQ==</Latest><Committed>Mg==</Committed></BlockList>'


def _blob_head(data: bytes) -> object:
    """A first line and headers as JSON gives them: each part is read, whatever another is refused for."""
    try:
        found = msgspec.json.decode(data, type=dict[str, str])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    call = requests.Call("PUT", found.pop("path", ""), found)
    reads: tuple[Callable[[], object], ...] = (
        lambda: Signatures(ACCOUNT, WELL_KNOWN_KEY).check("PUT", call.raw_path, found),
        lambda: requests.read_line(call, ACCOUNT),
        lambda: conditions.read_conditions(found, is_write=False),
        lambda: conditions.read_conditions(found, is_write=True),
        lambda: conditions.read_conditions(found, is_write=True, prefix=requests.TAGS_PREFIX),
        lambda: requests.check_understood(call, AT_MS),
        lambda: blob_operations.read_range(found, 10),
        lambda: read_metadata(found),
        lambda: tags.read_header(found.get("x-ms-tags", "")),
        lambda: read_marker(call.raw_path),
    )
    for read in reads:
        with suppress(BlobRejection):
            read()
    return None


PARSERS = (
    *(
        Parser(f"stored {kind.__name__}", (encode(item),), _document(kind), (CorruptRecord,))
        for kind, item in STORED.items()
    ),
    Parser("message body", (encode(T1[1]), encode(Transfer("t", "a" * 3_000, "b", -1))), _admit(bank())),
    Parser("message properties", (encode(properties_of(_message(type="t", correlation_id="c", reply_to="q"))),),
           _properties),
    Parser("request body", (b'{"a":[1,2.5,{"b":null}],"c":"d"}',), lambda data: write_body(read_body(data)),
           (ValueError, RecursionError)),
    Parser("state id", (b"Account:i.5", b"Account:u.5f1c3cf2-7b5d-4d2c-9a6e-0f1e2d3c4b5a", b"A:h.00"),
           _text(parse_state_id)),
    Parser("log segment", (_log(),), _scan),
    Parser("snapshot", (_snapshot(),), snapshot.decode, (CorruptRecord, FormatTooNew),
           around=lambda body: sha256(body).digest() + body),
    Parser("history", (_history(),), lambda data: list(parse_history(data.splitlines(keepends=True))), (OutboxError,)),
    Parser("control file", (b'{"port":1,"pid":2,"token":"t","amqp_port":3}',), _control_file),
    Parser("fault rules", (b'[{"kind":"throttled","count":2,"probability":0.5,"seed":1}]',), rules_from_json,
           (ValueError,)),
    Parser("entities file", (ENTITIES,), _text(parse_entities), (NotRegistrable,)),
    Parser("administration XML", (RULE,), lambda data: atom.content(data, "QueueDescription"), (ValueError,)),
    Parser("Cosmos query", QUERY, _text(lambda text: parse_query(text, {"@a": 1})), (Rejection,)),
    Parser("Cosmos patch", (PATCH,), _patched, (Rejection,)),
    Parser("Blob Storage head", (encode({"path": "/devstoreaccount1/box/a%20b?comp=blocklist", **BLOB_HEADERS}),),
           _blob_head),
    Parser("block list", (BLOCK_LIST,), read_block_list, (BlobRejection,)),
    Parser("worker's messages", (framed(MOVED) + framed(Answer(1, Position(2), [b"x"])), framed(Failed("A", "b"))),
           lambda data: list(Unframed[FromWorker](FromWorker).feed(data)), (CorruptRecord,)),
    Parser("messages to a worker", (framed(MOVED) + framed(Look(1, "a")), framed(Begin(1, 0, 2, Position(3), "b"))),
           lambda data: list(Unframed[ToWorker](ToWorker).feed(data)), (CorruptRecord,)),
    Parser("moved frame", (bytes(MOVED.frame),), lambda data: EXCHANGE.frame(Moved("count", 0, msgspec.Raw(data))),
           (CorruptRecord,)),
    Parser("ledger entry", (LEDGER_ENTRY,), whole_progress, (TornError,)),
    Parser("ledger keys", (struct.pack("<16sQII", KEYS_MAGIC, 3, 0, 0) + bytes(120),), header_of, (DamagedKeysError,)),
    Parser("blob batch", (batch(*deletes("/box/a", "/box/b%20c", If_Match='"0x1"')),),
           lambda data: read_parts(data, BOUNDARY.encode()), (BlobRejection,)),
    Parser("blob batch boundary", (BATCH_TYPE.encode(), b'multipart/mixed; boundary="a b"'), _text(read_boundary),
           (BlobRejection,)),
    Parser("blob tags", (TAGS,), tags.read_document, (BlobRejection,)),
    Parser("tag condition", (BLOB_HEADERS["x-ms-if-tags"].encode(),),
           _text(lambda text: tags.read_condition(text, "x-ms-if-tags")), (BlobRejection,)),
    Parser("AMQP message", (amqp_client.BODY,), lambda data: decode_transfer(data, 0), (AmqpFault,)),
    Parser("AMQP batch", (described(0x75, binary(amqp_client.BODY)),), lambda data: decode_transfer(data, BATCH_FORMAT),
           (AmqpFault,)),
    Parser("AMQP value", (amqp_client.BODY, map_([symbol("a"), string("b"), symbol("c"), int_(-5)])), decode,
           (DecodeError,)),
)  # fmt: skip
