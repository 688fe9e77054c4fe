"""The rules of the protocol pages, and the faults that take each of them out: data only.

A page names a rule in bold with a full stop, `**Commit, then push.**`; here it stands under that page, in its order.
Its faults are those of all tables, by name.  `python -m tests.docs.rules` writes docs/verification-rules.md from this.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

SCOPES = ("engine", "partition", "item")
STORES = ("partition", "item")


@dataclass(frozen=True)
class Rule:
    """A rule: its name as on `page` of docs/protocol, and the names of the faults that were planted for it.

    Explorations have no threads, no disk, no settings and no bytes of a wire; where only such show a fault, the rule is
    not `is_explored`, and tests find its faults.
    """

    name: str
    page: str
    faults: tuple[str, ...] = ()
    is_explored: bool = True

    def broken_by(self, *faults: str) -> Rule:
        """This rule with its faults."""
        return replace(self, faults=faults)


def explored(page: str, name: str) -> Rule:
    """A rule of which at least one fault is found by exploring."""
    return Rule(name, page)


def tested(page: str, name: str) -> Rule:
    """A rule of what is not explored."""
    return Rule(name, page, is_explored=False)


def rows(fault: str, scopes: tuple[str, ...] = SCOPES) -> tuple[str, ...]:
    """The faults in one row of the table of verdicts, in these scopes."""
    return tuple(f"verdict: {fault} ({scope})" for scope in scopes)


RULES = (
    # What all scopes share
    explored("README", "Settle last").broken_by(
        "completes before the commit",
        "completes before the push",
        "settling: a message goes before its delayed copy is sent",
        "settling: a message goes when its delayed copy could not be sent",
        "trigger: a message goes when its delayed copy could not be sent",
        "trigger: an abandoned message counts as done",
        "trigger: a released message counts as done",
    ),
    tested("README", "An identity of its own").broken_by(
        "rule: the broker's id counts before the message's own",
        "a message leaves without its identity",
        "a resubmission has another identity",
    ),
    tested("README", "No identity, no handling").broken_by("rule: what has no identity is numbered"),
    tested("README", "Fields with lengths and types").broken_by("rule: fields have neither length nor type"),
    tested("README", "Identity within its key").broken_by("rule: keys do not count for identity"),
    explored("README", "Outputs named by their cause").broken_by(
        "new ids when pushed again", "rule: an output has a new id on each attempt"
    ),
    tested("README", "Time with the identity").broken_by(
        "rule: what has no time is as old as can be",
        "rule: a scheduled message is as old as its commit",
        "a delayed copy is as old as itself",
        "a scheduled message ages before it is due",
    ),
    tested("README", "No time from the future").broken_by(
        "rule: a time that lies ahead is taken", "admission: what has arrived by its broker's clock is ahead of time"
    ),
    explored("README", "Age fence").broken_by("no age fence", *rows("nothing (None/None/True) is fresh")),
    explored("README", "Records outlive the fence").broken_by(
        "fence and expiry at one age", "store: nothing ever expires"
    ),
    explored("README", "Deadline before write").broken_by(
        "settling: an attempt past its deadline writes",
        "settling: an attempt may last as long as records live",
        "deadline: an attempt past it commits",
        "deadline: an attempt past it stages",
        "deadline: what blobs take does not count for a commit",
        "deadline: what blobs take does not count for what is staged",
        "deadline: an attempt past it swaps",
        "deadline: what blobs take does not count for a swap",
        "deadline: it is twice as far",
    ),
    tested("README", "A limit for each handler").broken_by(
        "deadline: a handler may take as long as it likes",
        "what a handler did past its limit is applied",
        "an attempt past its limit is committed when its thread ends",
        "the context is not sealed at the limit",
        "a context past its limit takes more",
        "a batch that took too long is committed",
        "a batch has the longest limit of its handlers",
    ),
    explored("README", "A raised retention is not for earlier messages").broken_by(
        "retention: the age at which records of before are gone is forgotten",
        "retention: records of before are taken to live as long as those of now",
        "an era ends without an overlap",
        "the overlap is the later margin",
        "an era's last moment is not of it",
        "trigger: a start does not look how long others remember",
    ),
    tested("README", "A lowered retention waits").broken_by(
        "records of new workers live short at once",
        "records of new workers live long for ever",
        "an overlap ends a millisecond late",
    ),
    explored("README", "Follow the record").broken_by(
        *rows("nothing (None/None/False) is too_old", STORES),
        *rows("applied (True/None/None) is resubmission"),
        *rows("refused (True/True/None) is refused"),
        *rows("waiting (True/None/None) is refused", ("engine", "partition")),
        "rule: a young message that was refused for its age stays refused",
    ),
    explored("README", "One payload for an identity").broken_by(
        *rows("applied (False/None/None) is resubmission"),
        *rows("refused (False/None/None) is resubmission"),
        *rows("refused for age (False/None/None) is resubmission", STORES),
        "letters: any payload takes the place of a refused one, partition",
        "letters: any payload takes the place of a refused one, item",
        "rule: another payload takes the place of one that waits",
        "what has the id of an applied message passes for its copy",
        "blocked: any payload under the id of a dead letter is that dead letter",
    ),
    explored("README", "A refusal is a commit").broken_by(
        "a refusal is dead-lettered before its record commits",
        "engine: a refusal leaves no record",
        "log: a refusal is a dead letter before it is settled",
    ),
    explored("README", "A refusal rests on its state").broken_by(
        "engine: a refusal is not conditional", "a state that is unchanged is not written"
    ),
    explored("README", "Only a later attempt replaces a refusal").broken_by(
        "resubmission: a refusal is replaced by a copy of what it refused",
        "resubmission: a refusal is no marker",
        *rows("refused (True/False/None) is resubmission"),
        "journal: a resubmission of the same attempt replaces",
        "a resubmission is the attempt before",
        "a resubmission from the bus knows no copy in the store",
    ),
    tested("README", "A resubmission keeps its time").broken_by(
        "letters: one of the bus takes a new time",
        "letters: one without a time is as old as its resubmission",
        "letters: one takes the time of its delivery",
        "letters: one of the store has no time",
        "letters: what is noted as resubmitted has no time",
    ),
    explored("README", "Too old is for good").broken_by(
        *rows("refused for age (True/True/True) is resubmission"),
        *rows("refused for age (True/False/None) is resubmission"),
        "a client resubmits what is too old by now",
        "an engine resubmits what is too old by now",
        "a Retry beyond retention comes again",
    ),
    tested("README", "Send again, then delete").broken_by(
        "letters: one of the bus is completed before it is sent again",
        "letters: one of the store is deleted before it is sent again",
    ),
    tested("README", "Keep, then complete").broken_by("trigger: a refused message is done before it is kept"),
    explored("README", "Discard as it was listed").broken_by(
        "discard: it is deleted before it is kept",
        "discard: what was written since the list is deleted",
        "discard: what was kept before is not kept anew",
        "restore: what was kept is deleted before it is a dead letter",
        "restore: what is there is left as it is",
        "restore: what was discarded since the look is deleted",
        "discard: it is kept under another number",
    ),
    tested("README", "Only what can be read back").broken_by(
        "rule: a state that cannot be read back is stored",
        "rule: a number that JSON cannot hold is sent as null",
        "rule: a model sends a number that JSON cannot hold as null",
        "rule: a text that is no UTF-8 is a failure like any other",
        "rule: a model takes a number that JSON cannot hold",
    ),
    explored("README", "Over the refusal that it names").broken_by(
        "edit: it takes the place of any refusal (engine)",
        "edit: it takes the place of any refusal (partition)",
        "edit: an attempt before that on record is one (partition)",
        "edit: an attempt before that on record is one (item)",
        "edit: the marker that it replaces may have changed",
        "edit: a record that may be old turns it down",
        *rows("refused (EDIT/None/None) is payload_differs"),
    ),
    explored("README", "Never without a record").broken_by(
        *(f"edit: one of nothing is run ({scope})" for scope in SCOPES),
        "edit: one of nothing leaves no record",
        "edit: one of nothing is put on record while it waits",
        "edit: one of nothing is resubmitted",
        *rows("nothing (EDIT/None/None) is fresh"),
        *rows("edit without record (True/None/None) is resubmission"),
    ),
    explored("README", "Remember what was replaced").broken_by(
        *(f"edit: what it replaced is forgotten ({scope})" for scope in SCOPES),
        *(f"edit: what it replaced is forgotten when it is resubmitted ({scope})" for scope in SCOPES),
        *rows("applied (REPLACED/None/None) is payload_differs"),
        *rows("applied (REPLACED/None/None) is resubmission", STORES),
        *rows("refused (REPLACED/None/None) is payload_differs"),
    ),
    explored("README", "Only the edit replaces").broken_by(
        "edit: what it replaced takes the place of its refusal",
        *rows("refused (REPLACED/None/None) is resubmission", STORES),
    ),
    explored("README", "A retry is an edit too").broken_by(
        "edit: tried again it is none (partition)", "edit: tried again it is none (item)"
    ),
    tested("README", "Another name for the broker").broken_by(
        "edit: a broker takes it for what was sent before a crash"
    ),
    tested("README", "Tell the block").broken_by("edit: a block does not know it"),
    tested("README", "Check before sending").broken_by(
        "edit: a client gives it another key",
        "edit: a client edits what has no record of its own",
        "edit: it names what is in its place",
    ),
    tested("README", "A record for the message, not for the cancellation").broken_by(
        "cancellation: its record is that of another payload",
        "cancellation: it runs its message",
        "cancellation: it comes to another shard",
    ),
    tested("README", "It lives until the message was due").broken_by(
        "cancellation: its marker is gone before the message is due",
        "cancellation: its record is gone before the message is due",
        "cancellation: its record is stored for the life of any other",
        "cancellation: an engine keeps no marker of a scheduled message",
    ),
    tested("README", "A type of its own").broken_by("cancellation: it has the type of its message"),
    tested("README", "Behind a refusal nothing is left to cancel").broken_by(
        "cancellation: it follows the refusal of its message",
        "cancellation: it is dead-lettered by the record of its message",
    ),
    explored("README", "A record for each handler").broken_by("keys without the handler's name"),
    tested("README", "Settle when all handlers have ended").broken_by(
        "several: a refusal by one handler ends what another is to try again",
        "several: a refusal by one handler ends what another is to try again, in the engine",
    ),
    explored("README", "A conflict is not a failure").broken_by(
        "a conflict is taken for a failure", "a release counts as an attempt", "throttling within a batch is not known"
    ),
    explored("README", "Read an unknown outcome").broken_by(
        "an unknown outcome is taken as won",
        "an unknown outcome is taken as lost on the record",
        "an unknown swap is taken as won",
        "an unknown outcome is taken as refused",
        "an unknown outcome is taken as lost",
        "a send without an answer is taken as refused",
    ),
    explored("README", "A poison count of our own").broken_by(
        "settling: a delayed copy forgets that it failed",
        "journal: a failure is not counted",
        "trigger: a first delivery counts as one that has failed",
        "failures: they count as deliveries too",
        "a message that finds no thread has failed",
    ),
    tested("README", "Know the broker's limits").broken_by("rule: a low delivery limit of the broker is not logged"),
    explored("README", "Nothing overtakes the head").broken_by(
        "a head that is rescheduled is overtaken",
        "in place: what fails there is tried again at once",
        "what was read ahead of a session overtakes what is given back",
        "a message that is held no more is overtaken",
    ),
    tested("README", "A lane in turn").broken_by(
        "rule: a message is handled beside another of its lane",
        "the key is free at the limit",
        "two receivers that wait for one session both have it",
    ),
    explored("README", "A dead letter blocks its key").broken_by(
        "a stopped session goes on",
        "blocked: a block that somebody else wrote blocks nothing",
        "blocked: a store that is away blocks nothing",
        "a snapshot forgets blocked keys",
    ),
    explored("README", "Put on record what waits").broken_by(
        *(f"blocked: exempt from the age fence without a record ({scope})" for scope in SCOPES),
        "nothing is put on record of what waits",
        "a copy of what was applied waits for its turn",
        "what comes behind a block is not shown",
    ),
    explored("README", "Never over a record").broken_by(
        *(f"blocked: put on record over what is there ({scope})" for scope in STORES)
    ),
    tested("README", "No age while waiting").broken_by(
        "the record of what waits has a time to live",
        "the marker of what waits has an age",
        "a marker without an age is forgotten at once",
    ),
    explored("README", "Too old before the block").broken_by(
        *(f"blocked: put on record when it is too old ({scope})" for scope in ("engine", "partition"))
    ),
    tested("README", "Lift on reading").broken_by("rule: an older state is lifted by one version only"),
    tested("README", "Leave a newer schema alone").broken_by(
        "rule: a newer message is decoded", "rule: a newer state is decoded"
    ),
    tested("README", "No handler disappears").broken_by(
        "rule: a missing handler is not missed",
        "trigger: a start does not register its handlers",
        "notes: an application forgets the handlers of its other workers",
    ),
    tested("README", "No key changes").broken_by("rule: any key is the key of before"),
    tested("README", "Time and chance are fixed").broken_by(
        "rule: chance is drawn anew on each attempt", "rule: a context has the time of the wall"
    ),
    tested("README", "One key for each call").broken_by("rule: a call has another key on each attempt"),
    tested("README", "No call after the commit").broken_by("rule: what was applied before calls again"),
    tested("README", "Only declared destinations").broken_by("rule: a destination that was never declared is sent to"),
    tested("README", "Only claims of its own").broken_by("admission: a claim opens the body of any message"),
    tested("README", "Types from the registry").broken_by("rule: any message goes to the only type there is"),
    tested("README", "Chains end").broken_by(
        "rule: a cycle goes on for ever",
        "any delay begins a chain anew",
        "Retry begins a chain anew",
        "a delayed output keeps counting",
        "a resubmission keeps counting",
    ),
    tested("README", "Bounded properties").broken_by("rule: ids of any length are taken"),
    tested("README", "Reasons without secrets").broken_by(
        "log: a password whose end is cut off is shown", "the words of a dead letter are not cut"
    ),
    explored("README", "No time to live while pending").broken_by("a pending record has a time to live"),
    tested("README", "Look before running again").broken_by(
        "rule: a redelivered message runs before its record is looked for"
    ),
    tested("README", "Judged over one state").broken_by("rule: a judgement over one state stands over another"),
    explored("README", "Failures travel along").broken_by(
        "settling: a delayed copy forgets that it failed",
        "settling: every delayed copy of a message has one id",
        "in place: what fails in a subscription is rescheduled as a copy",
    ),
    tested("README", "Fullness is metered").broken_by("rule: what a key's records take is not metered"),
    explored("README", "A stateless record has a partition of its own").broken_by(
        "a stateless record in the partition of its attempt"
    ),
    explored("README", "Announce the blob, then write it").broken_by(
        "overflow: nothing announces a blob", "overflow: what announces a blob goes before it"
    ),
    explored("README", "Blob before commit").broken_by(
        "overflow: the blob is not there when the commit names it", "overflow: the blob is not there when it is staged"
    ),
    explored("README", "Mark, then delete the blob").broken_by(
        "overflow: the blob goes before the mark",
        "overflow: the blob goes before what is staged says so",
        "overflow: a blob goes before its record is marked",
    ),
    explored("README", "Collect what can not land").broken_by(
        "overflow: a blob is collected that may yet be written",
        "overflow: the record that landed is not looked at",
        "overflow: the record is read in the past",
        "overflow: a blob goes when one attempt could have ended",
    ),
    explored("README", "Look for what is staged last").broken_by(
        "overflow: what is staged is looked for first",
        "overflow: what is staged is looked for in the past",
        "overflow: a read that may be old proves that nothing is staged",
    ),
    explored("README", "Confirm before an alarm").broken_by(
        "overflow: a blob that seems to be missing is told of at once", "commit: what has changed counts as confirmed"
    ),
    explored("README", "Block, then dead-letter").broken_by("settling: a key is blocked behind the dead letter"),
    explored("README", "A resubmission does not unblock").broken_by("resubmission: the key goes on at once"),
    tested("README", "Unblock, then complete").broken_by(
        "blocked: a key is unblocked behind the completion",
        "blocked: a message is completed although its key could not be unblocked",
        "blocked: a key is unblocked behind the discarding of its dead letter",
    ),
    tested("README", "Resubmitted first").broken_by("blocked: a key learns of a resubmission behind it"),
    tested("README", "Wait in place").broken_by("rule: a successor in a trigger is abandoned at once"),
    explored("README", "Finish what is pending").broken_by(
        "what is found pending is marked and not pushed", "what is found pending is neither marked nor pushed"
    ),
    tested("README", "Sweep past what fails").broken_by(
        "sweep: each begins at the front", "sweep: the next one skips what was finished"
    ),
    tested("README", "A record knows its life").broken_by(
        "rule: a record lives as long as who marks it says", "sweep: records live as short as the shortest"
    ),
    # Engine scope
    explored("engine", "All in one record").broken_by(
        "journal: what is consumed stays", "commit: what was applied is on record as refused too"
    ),
    explored("engine", "Every lock is held").broken_by("journal: a lost lock commits", "bus: a lost lock settles"),
    explored("engine", "Every state at its version").broken_by(
        "engine: states are not conditional", "journal: a state that has moved commits"
    ),
    tested("engine", "Gate before answer").broken_by(
        "rule: a commit is answered before it is synced",
        "read: a GET does not wait for the gate",
        "read: a GET passes the gate before it looks",
        "requests: a reply on record does not wait for the gate",
        "read: a client's read of a state does not wait for the gate",
        "read: a list of dead letters does not wait for the gate",
        "a write that lost does not wait for the gate",
        "a scan that finds nothing does not wait for the gate",
        "the gate of an engine that has stopped is open",
    ),
    tested("engine", "Gate before call").broken_by("rule: a call is made before its message is durable"),
    tested("engine", "Log a claim, then run").broken_by("rule: a claim is not logged"),
    tested("engine", "An epoch in each lock").broken_by("rule: a writer has the epoch of the one before"),
    explored("engine", "A marker for what comes from outside").broken_by(
        "engine: no marker", "journal: a marker that is there is written over", "a snapshot forgets what was applied"
    ),
    explored("engine", "A batch in turn").broken_by("engine: every message of a batch sees the loaded state"),
    explored("engine", "What raises adds nothing").broken_by("engine: the state of a handler that fails is kept"),
    explored("engine", "Run again what saw the uncommitted").broken_by("engine: what saw an uncommitted state goes on"),
    tested("engine", "Refuse what could not be remembered").broken_by(
        "rule: a request is taken in whatever room there is"
    ),
    # Partition scope
    explored("partition", "Commit, then push").broken_by("pushes before the commit"),
    explored("partition", "Create the record").broken_by(
        "no dedupe: a record is written over",
        "store: a create writes over",
        "a create in a batch writes over",
        "a single create writes over",
        "store: the operation that lost is always the first",
    ),
    explored("partition", "One batch").broken_by("record and state are two writes", "a batch goes in two"),
    explored("partition", "ETag on every write").broken_by(
        "ETag is not checked",
        "a state at version 0 is written over",
        "a state that is unchanged is not written",
        "store: a condition is not checked",
        "a replace in a batch has no condition",
        "blobs: a replace has no condition",
    ),
    tested("partition", "Read before it matters").broken_by(
        "new: a call is made on a state that was not read",
        "new: a handler fails for want of a state that is there",
        "new: a state that was there changes nothing",
        "new: a handler that has to know changes nothing",
        "new: a handler behind a guard runs twice",
        "new: a handler in a thread runs twice",
        "new: what has failed fails twice at each try",
    ),
    explored("partition", "Only stored bytes leave").broken_by("the loser pushes its own"),
    explored("partition", "The same ids on every push").broken_by("new ids when pushed again"),
    explored("partition", "Push, then mark").broken_by("marked before the push", "a push that failed is taken as done"),
    explored("partition", "Mark, and keep the record").broken_by("a mark deletes the record"),
    explored("partition", "Bytes in the cache").broken_by(
        "a handler gets the object of the message before", "cache: an older state takes the place of a newer one"
    ),
    explored("partition", "Forget what has lost").broken_by("the warm cache keeps what has lost"),
    explored("partition", "Let marks ride").broken_by(
        "a mark is due before its push",
        "marks: the handler runs again where a mark has lost",
        "marks: what rides in a batch that fails is forgotten",
    ),
    # With a dispatch ledger
    explored("partition", "Store the ledger first").broken_by("ledger: it is not stored before the first commit"),
    explored("partition", "Close what has left").broken_by(
        "ledger: an entry is closed when it is committed", "ledger: a failed push counts as sent"
    ),
    explored("partition", "Keep open what may land").broken_by(
        "ledger: an entry is closed whose batch may land later",
        "ledger: an entry is closed of a resubmission that met its refusal",
    ),
    explored("partition", "A number once").broken_by("ledger: a number is used again that may land later"),
    explored("partition", "Name what is open").broken_by("ledger: all numbers up to the last count as closed"),
    explored("partition", "A ledger for each start").broken_by("ledger: one worker takes up the ledger of another"),
    explored("partition", "Close only what you pushed").broken_by(
        "ledger: a sweeper closes what it could not push", "ledger: a sweeper closes all up to what it has seen"
    ),
    explored("partition", "Ask for the open, and beyond").broken_by(
        "ledger: a sweeper asks for no number that is open", "ledger: a sweeper asks for no number beyond the last"
    ),
    explored("partition", "Push a followed record").broken_by("ledger: who follows a record takes it for sent"),
    tested("partition", "Outlive the records").broken_by(
        "ledger: it lives no longer than its records", "ledger: it is not renewed while nothing of it is closed"
    ),
    tested("partition", "What it gives up").broken_by("ledger: what cannot be sent expires"),
    # Item scope
    explored("item", "Finish the pointer first").broken_by(
        "a state is swapped over a pointer",
        "inline: a pointer is replaced before its outputs have left",
        "inline: a pointer without a marker counts as finished",
        "inline: a state is at hand before its outputs have left",
        "inline: a sweeper leaves a pointer alone",
    ),
    explored("item", "Marker before run").broken_by(
        "no marker is read", "inline: a state at hand saves the look at the marker"
    ),
    explored("item", "Markers in their session").broken_by(
        "markers are read without their session", "a read does not ask for its session"
    ),
    explored("item", "The newest token").broken_by("inline: a finished state keeps the token of before"),
    explored("item", "Swap under the version").broken_by(
        "a blind swap at version 0", "a single write has no condition"
    ),
    explored("item", "Swap, then push").broken_by("pushed before the swap"),
    explored("item", "Push, then mark").broken_by("inline: the marker comes before the outputs leave"),
    explored("item", "Mark, then clear").broken_by(
        "cleared without a marker", "inline: a pointer is replaced before there is a marker"
    ),
    explored("item", "Its own marker").broken_by(
        "inline: any marker of a message counts as that of its pointer",
        "inline: the marker of a refusal stays after its resubmission",
    ),
    explored("item", "Stage, then swap").broken_by("a state is swapped before its result is staged"),
    explored("item", "Push, then clear").broken_by("the pointer is cleared before what is staged leaves"),
    explored("item", "Clear, then delete").broken_by("the staged record goes before the pointer"),
    explored("item", "Publish from pointers").broken_by("the sweeper starts from staged records"),
    explored("item", "Keep what is staged").broken_by(
        "the staged record goes after an ambiguous failure",
        "the staged record goes when the swap loses and a client re-sends",
        "a staged record has a time to live",
    ),
    explored("item", "Reclaim by versions").broken_by(
        "a staged record goes by an opaque version",
        "settling: a staged record is swept that may yet be pointed to",
        "settling: a staged record is swept that is pointed to",
        "two attempts of one process: what is staged for the next version is reclaimed",
        "two attempts of one process: all that is staged is reclaimed",
        "staged: a worker reclaims what it is about to swap",
    ),
    explored("item", "Confirm what is missing").broken_by("a missing staged record is confirmed by a read"),
    explored("item", "Keep the pointer of a missing record").broken_by("a redo clears the pointer of a missing record"),
    explored("item", "A tombstone keeps the version").broken_by("a deleted state is deleted for good"),
    # Requests over HTTP
    explored("http", "Identity without the state").broken_by("requests: there are no claims"),
    tested("http", "The caller in the identity").broken_by(
        "rule: a request is that of any caller", "requests: who has no name may spell the key of somebody who has"
    ),
    explored("http", "One document for a key").broken_by(
        "requests: another payload joins the first", "rule: a body in another order is another"
    ),
    explored("http", "One claim for a key").broken_by(
        "requests: another's claim is not heeded", "requests: a claim that may be another's is taken for ours"
    ),
    explored("http", "A claim as long as its record").broken_by(
        "a claim lives half as long as messages are young", "requests: a claim goes before its record"
    ),
    tested("http", "The time of the claim").broken_by("requests: a repetition is as old as itself"),
    explored("http", "Answer after the commit").broken_by(
        "requests: answered before the commit",
        "requests: a conflict is taken for a commit",
        "requests: an attempt answers before its commit",
        "requests: an attempt answers before its swap",
        "requests: a reply on record does not wait for the gate",
    ),
    explored("http", "The reply is on record").broken_by(
        "requests: the marker holds no reply",
        "requests: the record holds no reply",
        "a record loses its reply when it is marked",
    ),
    explored("http", "An unknown end is no answer").broken_by("requests: an unknown end is an answer"),
    tested("http", "Failures are not kept").broken_by("rule: a failed request is kept"),
    tested("http", "Reads change nothing").broken_by("rule: a read may change what it reads"),
)
"""Every rule, in the order of the pages."""
