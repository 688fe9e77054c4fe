-------------------------------- MODULE Talk --------------------------------
(* The algorithm of the Exactly-Once talk, corrected.  The steps have the names of the specification that was        *)
(* published with it (exactly-once/model-checking, exactly_once_none_atomic.tla), which does not model lost answers, *)
(* late writes or stale reads, and whose Safety is not checked.  A state points to the transaction that changed it,  *)
(* an outbox apart from it holds what that one staged and what each message has sent.                                *)
(* Switching a rule off gives the algorithm as it was published in that place.                                       *)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
    Messages, Twice,        \* the messages, and those of which there are two copies
    Processes,
    Kinds, FaultsMax,       \* the faults that may happen: "crash", "lost", "late", "expire", "stale"; how many in all
    Off                     \* the rules that are switched off

VARIABLES
    history,    \* the changes that the state holds
    changes,    \* every change that was ever made to it, by the version that it was made to
    store,      \* the state: how many changes it holds, its ETag, the transaction it points to, a session token
    past,       \* the states before, for stale reads
    staged,     \* the outbox: what transactions will send
    outbox,     \* the outbox: by message, the transaction whose output it sends (0: none), and since when
    moment,     \* how often the outbox was written
    inputQueue, locks, process,
    flight,     \* commits that may still land
    output,     \* what was sent
    faults

vars == <<history, changes, store, past, staged, outbox, moment, inputQueue, locks, process, flight, output, faults>>
state == <<history, changes, store, past>>
boxes == <<staged, outbox, moment>>
broker == <<inputQueue, locks>>

On(rule) == rule \notin Off
None == "none"
NoState == [version |-> 0, etag |-> 0, tx |-> 0, token |-> 0]
NoResult == [tx |-> 0, since |-> 0]
Idle == [at |-> "LockInMsg", m |-> None, copy |-> 0, seen |-> NoState, tx |-> 0, token |-> 0, found |-> {}, out |-> 0]
Symmetric == Permutations(Processes)

Init ==
    /\ history = <<>> /\ changes = {} /\ store = NoState /\ past = {}
    /\ staged = {} /\ outbox = [m \in Messages |-> NoResult] /\ moment = 1
    /\ inputQueue = {<<m, 1>> : m \in Messages} \cup {<<m, 2>> : m \in Twice}
    /\ locks = [c \in inputQueue |-> None]
    /\ process = [p \in Processes |-> Idle]
    /\ flight = {} /\ output = {} /\ faults = 0

Known == {history[i].tx : i \in DOMAIN history} \cup {process[p].tx : p \in Processes}
         \cup {b.tx : b \in flight} \cup {r.tx : r \in staged} \cup {o[2] : o \in output}
Fresh == CHOOSE tx \in 1..Cardinality(Known) + 1 : tx \notin Known  \* an id that nobody remembers is as good as new

Fault(kind) == kind \in Kinds /\ faults < FaultsMax /\ faults' = faults + 1
Goes(p, at) == process' = [process EXCEPT ![p].at = at]
Again(p) == process' = [process EXCEPT ![p] =
    [Idle EXCEPT !.at = "LoadState", !.m = process[p].m, !.copy = process[p].copy]]
Copy(p) == <<process[p].m, process[p].copy>>
GivesBack(p) ==
    /\ process' = [process EXCEPT ![p] = Idle]
    /\ locks' = [c \in DOMAIN locks |-> IF locks[c] = p THEN None ELSE locks[c]]
Past == IF "stale" \in Kinds THEN past \cup {store} ELSE past
Later == IF "stale" \in Kinds THEN moment + 1 ELSE moment

---------------------------------------------------------------------------

LockInMsg(p) ==
    /\ process[p].at = "LockInMsg"
    /\ \E c \in inputQueue :
        /\ locks[c] = None
        /\ locks' = [locks EXCEPT ![c] = p]
        /\ process' = [process EXCEPT ![p] = [Idle EXCEPT !.at = "LoadState", !.m = c[1], !.copy = c[2]]]
    /\ UNCHANGED <<state, boxes, inputQueue, flight, output, faults>>

LoadState(p) ==
    /\ process[p].at = "LoadState"
    /\ \E s \in past \cup {store} :
        /\ IF s = store THEN UNCHANGED faults ELSE Fault("stale")
        /\ process' = [process EXCEPT ![p].seen = s, ![p].at = IF s.tx # 0 THEN "FinishTx_LoadOutbox" ELSE "LoadOutbox"]
    /\ UNCHANGED <<state, boxes, broker, flight, output>>

FinishTx_LoadOutbox(p) ==  \* what is not there counts as sent: it must be read as fresh as the pointer
    /\ process[p].at = "FinishTx_LoadOutbox"
    /\ LET found == {r \in staged : r.tx = process[p].seen.tx} IN
        \/ /\ process' = [process EXCEPT ![p].found = found,
                           ![p].at = IF found = {} THEN "FinishTx_UpdateState" ELSE "FinishTx_UpdateOutbox"]
           /\ UNCHANGED faults
        \/ /\ \E r \in found : r.since > process[p].seen.token
           /\ process[p].tx # process[p].seen.tx /\ Fault("stale")  \* its own is in its own session
           /\ process' = [process EXCEPT ![p].found = {}, ![p].at = "FinishTx_UpdateState"]
    /\ UNCHANGED <<state, boxes, broker, flight, output>>

FinishTx_UpdateOutbox(p) ==  \* one batch: what is staged goes, the message's result comes
    /\ process[p].at = "FinishTx_UpdateOutbox"
    /\ moment' = Later
    /\ \E r \in process[p].found :
        /\ staged' = {s \in staged : s.tx # r.tx}
        /\ outbox' = [outbox EXCEPT ![r.m] = [tx |-> r.tx, since |-> IF @.tx = 0 THEN moment' ELSE @.since]]
    /\ Goes(p, "FinishTx_UpdateState")
    /\ UNCHANGED <<state, broker, flight, output, faults>>

FinishTx_UpdateState(p) ==
    /\ process[p].at = "FinishTx_UpdateState"
    /\ IF process[p].seen.etag = store.etag
       THEN /\ store' = [store EXCEPT !.etag = @ + 1, !.tx = 0]
            /\ past' = Past
            /\ process' = [process EXCEPT ![p].seen = store', ![p].found = {},
                           ![p].at = IF process[p].tx # 0 THEN "SendOutMsg" ELSE "LoadOutbox"]
       ELSE Again(p) /\ UNCHANGED <<store, past>>
    /\ UNCHANGED <<history, changes, boxes, broker, flight, output, faults>>

Looks(p, at, token, next) ==
    /\ process[p].at = at
    /\ LET known == outbox[process[p].m] IN
        \/ /\ IF known.tx = 0 THEN Goes(p, next)
              ELSE IF next = "Process" THEN process' = [process EXCEPT ![p].out = known.tx, ![p].at = "SendOutMsg"]
              ELSE Goes(p, "Rollback")  \* it was here before: what is staged was staged in vain
           /\ UNCHANGED faults
        \/ known.since > token /\ Fault("stale") /\ Goes(p, next)
    /\ UNCHANGED <<state, boxes, broker, flight, output>>

LoadOutbox(p) == Looks(p, "LoadOutbox", 0, "Process")

Process(p) ==
    /\ process[p].at = "Process"
    /\ LET tx == Fresh IN process' = [process EXCEPT ![p].at = "UpdateOutbox", ![p].tx = tx, ![p].out = tx]
    /\ UNCHANGED <<state, boxes, broker, flight, output, faults>>

UpdateOutbox(p) ==  \* stage
    /\ process[p].at = "UpdateOutbox"
    /\ moment' = Later
    /\ staged' = staged \cup {[tx |-> process[p].tx, m |-> process[p].m, base |-> process[p].seen.version,
                               since |-> moment']}
    /\ process' = [process EXCEPT ![p].token = moment',
                                  ![p].at = IF On("look-again") THEN "LoadOutboxAgain" ELSE "CommitTx"]
    /\ UNCHANGED <<state, outbox, broker, flight, output, faults>>

LoadOutboxAgain(p) == Looks(p, "LoadOutboxAgain", process[p].token, "CommitTx")

Committing(p) == [tx |-> process[p].tx, m |-> process[p].m, base |-> process[p].seen.version,
                  etag |-> process[p].seen.etag, token |-> IF On("token") THEN process[p].token ELSE 0]
Wins(b) == b.etag = store.etag \/ (b.etag = 0 /\ ~On("create"))
Write(b) ==
    IF Wins(b)
    THEN /\ history' = Append(SubSeq(history, 1, b.base), [tx |-> b.tx, m |-> b.m])
         /\ changes' = changes \cup {<<b.base, b.tx>>}
         /\ store' = [version |-> b.base + 1, etag |-> store.etag + 1, tx |-> b.tx, token |-> b.token]
         /\ past' = Past
    ELSE UNCHANGED state

Fails(p) == IF On("keep") THEN GivesBack(p) ELSE Goes(p, "Rollback") /\ UNCHANGED locks

CommitTx(p) ==  \* an error that is not a definite loss leaves what is staged, and gives the message back
    /\ process[p].at = "CommitTx"
    /\ LET b == Committing(p) IN
        \/ /\ Write(b)
           /\ IF Wins(b) THEN process' = [process EXCEPT ![p].at = "FinishTx_LoadOutbox", ![p].seen = store']
              ELSE Goes(p, "Rollback")
           /\ UNCHANGED <<locks, flight, faults>>
        \/ Fault("lost") /\ Write(b) /\ Fails(p) /\ UNCHANGED flight
        \/ Fault("late") /\ flight' = flight \cup {b} /\ Fails(p) /\ UNCHANGED state
    /\ UNCHANGED <<boxes, inputQueue, output>>

Rollback(p) ==
    /\ process[p].at = "Rollback"
    /\ staged' = {r \in staged : r.tx # process[p].tx} /\ moment' = Later
    /\ Again(p)
    /\ UNCHANGED <<state, outbox, broker, flight, output, faults>>

SendOutMsg(p) ==
    /\ process[p].at = "SendOutMsg"
    /\ output' = output \cup {<<process[p].m, process[p].out>>}
    /\ Goes(p, "AckInMsg")
    /\ UNCHANGED <<state, boxes, broker, flight, faults>>

AckInMsg(p) ==
    /\ process[p].at = "AckInMsg"
    /\ inputQueue' = IF locks[Copy(p)] = p THEN inputQueue \ {Copy(p)} ELSE inputQueue
    /\ GivesBack(p)
    /\ UNCHANGED <<state, boxes, flight, output, faults>>

Reclaimable(r) == store.version > r.base /\ store.tx # r.tx

Sweep ==  \* what was staged in vain goes when the state is past it
    /\ On("sweep")
    /\ \E r \in staged : Reclaimable(r) /\ staged' = staged \ {r}
    /\ moment' = Later
    /\ UNCHANGED <<state, outbox, broker, process, flight, output, faults>>

---------------------------------------------------------------------------

Crash(p) ==
    /\ process[p].at # "LockInMsg" /\ Fault("crash")
    /\ GivesBack(p)
    /\ UNCHANGED <<state, boxes, inputQueue, flight, output>>

Expire(p) ==
    /\ process[p].at # "LockInMsg" /\ locks[Copy(p)] = p /\ Fault("expire")
    /\ locks' = [locks EXCEPT ![Copy(p)] = None]
    /\ UNCHANGED <<state, boxes, inputQueue, process, flight, output>>

Land(b) ==
    /\ flight' = flight \ {b}
    /\ Write(b) \/ UNCHANGED state
    /\ UNCHANGED <<boxes, broker, process, output, faults>>

AtRest ==
    /\ \A p \in Processes : process[p].at = "LockInMsg"
    /\ inputQueue = {} /\ flight = {}
    /\ On("sweep") => \A r \in staged : ~Reclaimable(r)

HandlerThread(p) ==
    \/ LockInMsg(p) \/ LoadState(p) \/ LoadOutbox(p) \/ Process(p) \/ UpdateOutbox(p) \/ LoadOutboxAgain(p)
    \/ CommitTx(p) \/ Rollback(p) \/ SendOutMsg(p) \/ AckInMsg(p)
    \/ FinishTx_LoadOutbox(p) \/ FinishTx_UpdateOutbox(p) \/ FinishTx_UpdateState(p)

Step == (\E p \in Processes : HandlerThread(p)) \/ Sweep \/ (\E b \in flight : Land(b))

Next == Step \/ (\E p \in Processes : Crash(p) \/ Expire(p)) \/ (AtRest /\ UNCHANGED vars)

Spec == Init /\ [][Next]_vars /\ WF_vars(Step)

---------------------------------------------------------------------------
(* The promises.  The first three are the published Safety.                                                        *)

NoDuplicate == \A i, j \in DOMAIN history : history[i].m = history[j].m => i = j
ConsistentOutput == \A o, q \in output : o[1] = q[1] => o = q
NoGhost == \A o \in output : \E i \in DOMAIN history : history[i].m = o[1] /\ history[i].tx = o[2]
OneChangePerVersion == \A c, d \in changes : c[1] = d[1] => c = d
NoLost == AtRest => \A i \in DOMAIN history : <<history[i].m, history[i].tx>> \in output
EveryMessageEnds == AtRest => \A m \in Messages : \E i \in DOMAIN history : history[i].m = m
StagedVanish == AtRest => staged = {}
Rests == <>AtRest
=============================================================================
