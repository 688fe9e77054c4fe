--------------------------- MODULE PartitionScope ---------------------------
(* Partition scope: one batch creates the record of a message and replaces the state that it changes.              *)
(* outbox/runtime/partition_scope.py has the same steps: Read, Run, Commit, Resolve, Follow, Push, Settle, Mark,   *)
(* Sweep.  One state; every message wants to change it and to emit one output, whose content names the attempt,    *)
(* because a handler need not be deterministic.  Cached states are stale reads here.                               *)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
    Messages, Twice,        \* the messages, and those of which there are two copies
    Workers,
    Kinds, FaultsMax,       \* the faults that may happen: "crash", "lost", "late", "expire", "stale"; how many in all
    Aging,                  \* the messages that may come to the age of retention
    Off                     \* the rules that are switched off: each makes a mutant

VARIABLES
    history,    \* the state: all that was ever committed to it; its version is the length
    records,    \* by message: what became of it
    queue,      \* the copies that are not settled
    locks,      \* who holds each copy
    worker,     \* what each worker is doing
    flight,     \* batches that may still land
    pushed,     \* outputs that have left
    sweeper,    \* the message whose record is being swept
    old,        \* messages at the age of retention
    faults

vars == <<history, records, queue, locks, worker, flight, pushed, sweeper, old, faults>>

On(rule) == rule \notin Off
None == "none"
Idle == [at |-> "idle", m |-> None, copy |-> 0, base |-> 0, young |-> TRUE, tx |-> 0]
NoRecord == [tx |-> 0, pending |-> FALSE, refused |-> FALSE]
Symmetric == Permutations(Workers)

Init ==
    /\ history = <<>>
    /\ records = [m \in Messages |-> NoRecord]
    /\ queue = {<<m, 1>> : m \in Messages} \cup {<<m, 2>> : m \in Twice}
    /\ locks = [c \in queue |-> None]
    /\ worker = [p \in Workers |-> Idle]
    /\ flight = {} /\ pushed = {} /\ sweeper = None /\ old = {} /\ faults = 0

Known == {history[i].tx : i \in DOMAIN history} \cup {worker[p].tx : p \in Workers}
         \cup {b.tx : b \in flight} \cup {o[2] : o \in pushed}
Fresh == CHOOSE tx \in 1..Cardinality(Known) + 1 : tx \notin Known  \* an id that nobody remembers is as good as new

Fault(kind) == kind \in Kinds /\ faults < FaultsMax /\ faults' = faults + 1
Goes(p, at) == worker' = [worker EXCEPT ![p].at = at]
Again(p) == worker' = [worker EXCEPT ![p] = [Idle EXCEPT !.at = "read", !.m = worker[p].m, !.copy = worker[p].copy]]
Exists(m) == records[m] # NoRecord

---------------------------------------------------------------------------
(* One batch: the record is created, the state replaced under the version that was seen.                           *)

Batch(p) == [m |-> worker[p].m, tx |-> worker[p].tx, base |-> worker[p].base, refused |-> ~worker[p].young]
First == IF On("push-first") THEN "push" ELSE "settle"
Answer(b) ==
    IF Exists(b.m) /\ On("create") THEN "record"
    ELSE IF b.base # Len(history) /\ On("if-match") THEN "state"
    ELSE "won"
Write(b) ==
    IF Answer(b) = "won"
    THEN /\ history' = Append(history, b)
         /\ records' = [records EXCEPT ![b.m] = [tx |-> b.tx, pending |-> ~b.refused, refused |-> b.refused]]
    ELSE UNCHANGED <<history, records>>

---------------------------------------------------------------------------
(* The steps of a worker.  Each is one call of a port, but for Run.                                                *)

\* code: outbox/runtime/store_scope.py::StoreScope.attempt
Receive(p) ==
    /\ worker[p].at = "idle"
    /\ \E c \in queue :
        /\ locks[c] = None
        /\ locks' = [locks EXCEPT ![c] = p]
        /\ worker' = [worker EXCEPT ![p] = [Idle EXCEPT !.at = "read", !.m = c[1], !.copy = c[2]]]
    /\ UNCHANGED <<history, records, queue, flight, pushed, sweeper, old, faults>>

\* code: outbox/runtime/partition_scope.py::PartitionScope._load
Read(p) ==  \* the age fence is judged when an attempt begins
    /\ worker[p].at = "read"
    /\ \E base \in 0..Len(history) :
        /\ IF base = Len(history) THEN UNCHANGED faults ELSE Fault("stale")
        /\ worker' = [worker EXCEPT ![p].at = "run", ![p].base = base,
                                    ![p].young = worker[p].m \notin old \/ ~On("fence")]
    /\ UNCHANGED <<history, records, queue, locks, flight, pushed, sweeper, old>>

\* code: outbox/runtime/partition_scope.py::PartitionScope._run
Run(p) ==  \* a message that is too old is refused, and a refusal is a commit
    /\ worker[p].at = "run"
    /\ worker' = [worker EXCEPT ![p].at = "commit", ![p].tx = Fresh]
    /\ UNCHANGED <<history, records, queue, locks, flight, pushed, sweeper, old, faults>>

\* code: outbox/runtime/partition_scope.py::PartitionScope._commit
Commit(p) ==
    /\ worker[p].at = "commit"
    /\ LET b == Batch(p) IN
        \/ /\ Write(b)
           /\ CASE Answer(b) = "record" -> Goes(p, "follow")
                [] Answer(b) = "state" -> Again(p)
                [] Answer(b) = "won" -> Goes(p, IF b.refused THEN "settle" ELSE First)
           /\ UNCHANGED <<flight, faults>>
        \/ Fault("lost") /\ Write(b) /\ Goes(p, "resolve") /\ UNCHANGED flight
        \/ Fault("late") /\ flight' = flight \cup {b} /\ Goes(p, "resolve") /\ UNCHANGED <<history, records>>
    /\ UNCHANGED <<queue, locks, pushed, sweeper, old>>

\* code: outbox/runtime/partition_scope.py::PartitionScope._resolved
Resolve(p) ==  \* whose record is it?  No record proves nothing: run again
    /\ worker[p].at = "resolve"
    /\ LET r == records[worker[p].m] IN
        \/ /\ CASE ~On("resolve") -> Goes(p, First)
                [] On("resolve") /\ r = NoRecord -> Again(p)
                [] On("resolve") /\ r # NoRecord ->
                    Goes(p, IF r.tx = worker[p].tx /\ ~r.refused THEN First ELSE "follow")
           /\ UNCHANGED faults
        \/ r # NoRecord /\ Fault("stale") /\ Again(p)
    /\ UNCHANGED <<history, records, queue, locks, flight, pushed, sweeper, old>>

\* code: outbox/runtime/partition_scope.py::PartitionScope._follow
Follow(p) ==  \* read at least as fresh as the loss
    /\ worker[p].at = "follow"
    /\ LET r == records[worker[p].m] IN
        IF r = NoRecord THEN Again(p)
        ELSE worker' = [worker EXCEPT ![p].at = IF r.pending THEN First ELSE "settle",
                                      ![p].tx = IF On("stored") THEN r.tx ELSE @]
    /\ UNCHANGED <<history, records, queue, locks, flight, pushed, sweeper, old, faults>>

\* code: outbox/runtime/partition_scope.py::PartitionScope._push
Push(p) ==
    /\ worker[p].at = "push"
    /\ pushed' = pushed \cup {<<worker[p].m, worker[p].tx>>}
    /\ Goes(p, IF On("push-first") THEN "settle" ELSE "mark")
    /\ UNCHANGED <<history, records, queue, locks, flight, sweeper, old, faults>>

Copy(p) == <<worker[p].m, worker[p].copy>>

\* code: outbox/runtime/delivery/settlement.py::Settlement.settle
Settle(p) ==
    /\ worker[p].at = "settle"
    /\ queue' = IF locks[Copy(p)] = p THEN queue \ {Copy(p)} ELSE queue
    /\ locks' = [locks EXCEPT ![Copy(p)] = IF @ = p THEN None ELSE @]
    /\ IF records[worker[p].m].pending THEN Goes(p, IF On("push-first") THEN "mark" ELSE "push")
       ELSE worker' = [worker EXCEPT ![p] = Idle]
    /\ UNCHANGED <<history, records, flight, pushed, sweeper, old, faults>>

\* code: outbox/runtime/commit/marks.py::Marks.write
Mark(p) ==
    /\ worker[p].at = "mark"
    /\ records' = [records EXCEPT ![worker[p].m].pending = @ /\ records[worker[p].m].tx # worker[p].tx]
    /\ worker' = [worker EXCEPT ![p] = Idle]
    /\ UNCHANGED <<history, queue, locks, flight, pushed, sweeper, old, faults>>

\* code: outbox/runtime/partition_scope.py::PartitionScope.redo
Sweep ==
    /\ On("sweep") /\ sweeper = None
    /\ \E m \in Messages :
        /\ records[m].pending
        /\ pushed' = pushed \cup {<<m, records[m].tx>>}
        /\ sweeper' = m
    /\ UNCHANGED <<history, records, queue, locks, worker, flight, old, faults>>

SweepMark ==
    /\ sweeper # None
    /\ records' = [records EXCEPT ![sweeper].pending = FALSE]
    /\ sweeper' = None
    /\ UNCHANGED <<history, queue, locks, worker, flight, pushed, old, faults>>

---------------------------------------------------------------------------
(* What happens to them.                                                                                           *)

Crash(p) ==
    /\ worker[p].at # "idle" /\ Fault("crash")
    /\ locks' = [c \in DOMAIN locks |-> IF locks[c] = p THEN None ELSE locks[c]]
    /\ worker' = [worker EXCEPT ![p] = Idle]
    /\ UNCHANGED <<history, records, queue, flight, pushed, sweeper, old>>

Expire(p) ==
    /\ worker[p].at # "idle" /\ locks[Copy(p)] = p /\ Fault("expire")
    /\ locks' = [locks EXCEPT ![Copy(p)] = None]
    /\ UNCHANGED <<history, records, queue, worker, flight, pushed, sweeper, old>>

Land(b) ==
    /\ b \in flight /\ flight' = flight \ {b}
    /\ Write(b) \/ UNCHANGED <<history, records>>
    /\ UNCHANGED <<queue, locks, worker, pushed, sweeper, old, faults>>

Age(m) ==
    /\ m \in Aging \ old /\ old' = old \cup {m}
    /\ UNCHANGED <<history, records, queue, locks, worker, flight, pushed, sweeper, faults>>

Forget(m) ==  \* a record expires at retention + margin: what was begun before retention has ended by then
    /\ m \in old /\ Exists(m)
    /\ ~records[m].pending \/ ~On("keep-pending")
    /\ \/ ~On("margin")
       \/ /\ \A p \in Workers : ~(worker[p].m = m /\ worker[p].young /\ worker[p].at \in {"run", "commit"})
          /\ \A b \in flight : b.m # m
    /\ records' = [records EXCEPT ![m] = NoRecord]
    /\ UNCHANGED <<history, queue, locks, worker, flight, pushed, sweeper, old, faults>>

AtRest ==
    /\ \A p \in Workers : worker[p].at = "idle"
    /\ queue = {} /\ flight = {} /\ sweeper = None
    /\ On("sweep") => \A m \in Messages : ~records[m].pending

Step ==
    \/ \E p \in Workers : \/ Receive(p) \/ Read(p) \/ Run(p) \/ Commit(p) \/ Resolve(p) \/ Follow(p)
                          \/ Push(p) \/ Settle(p) \/ Mark(p)
    \/ Sweep \/ SweepMark
    \/ \E b \in flight : Land(b)

Next ==
    \/ Step
    \/ \E p \in Workers : Crash(p) \/ Expire(p)
    \/ \E m \in Messages : Age(m) \/ Forget(m)
    \/ AtRest /\ UNCHANGED vars  \* anything else that stands still is a deadlock, and is found as one

Spec == Init /\ [][Next]_vars /\ WF_vars(Step)

---------------------------------------------------------------------------
(* The promises.                                                                                                   *)

Effects == {i \in DOMAIN history : ~history[i].refused}

NoGhost == \A o \in pushed : \E i \in Effects : history[i].m = o[1] /\ history[i].tx = o[2]
NoDuplicate == \A i, j \in Effects : history[i].m = history[j].m => i = j
ConsistentOutput == \A o, q \in pushed : o[1] = q[1] => o = q
OneChangePerVersion == \A i, j \in DOMAIN history : history[i].base = history[j].base => i = j
NoLost == AtRest => \A i \in Effects : <<history[i].m, history[i].tx>> \in pushed
EveryMessageEnds == AtRest => \A m \in Messages : \E i \in DOMAIN history : history[i].m = m
Rests == <>AtRest
=============================================================================
