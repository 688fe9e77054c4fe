---------------------------- MODULE EngineScope -----------------------------
(* Engine scope: queues, states and markers share one log, so one record commits a message.                          *)
(* outbox/runtime/engine_scope.py and outbox/engine/ have the same steps: Claim, Load, Run, Commit, Renew, and the    *)
(* Gate behind which nothing leaves before it is synced.  Memory is ahead of the disk; a power loss keeps some of the *)
(* records that were not synced, and loses those behind them.  One state; every message emits one output, whose       *)
(* content names the attempt.                                                                                         *)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
    Outside,                \* messages that senders bring, again if they have no answer
    Inner,                  \* messages that the engine made itself, of which there is one copy and no marker
    Workers,
    Kinds, FaultsMax,       \* the faults that may happen: "power", "crash", "lost", "expire"; how many in all
    Off                     \* the rules that are switched off: each makes a mutant

VARIABLES
    disk,       \* what the synced part of the log comes to
    tail,       \* what it comes to with each record that is not synced
    locks,      \* who holds each copy
    worker,     \* what each worker is doing
    sends,      \* how often each message from outside was sent
    acked,      \* the messages whose sender was told that they are safe
    seen,       \* outputs that have left
    faults

vars == <<disk, tail, locks, worker, sends, acked, seen, faults>>

On(rule) == rule \notin Off
None == "none"
Idle == [at |-> "idle", c |-> <<None, 0>>, base |-> 0, follows |-> FALSE, tx |-> 0]
Messages == Outside \cup Inner
Copies == {<<m, n>> : m \in Outside, n \in 1..2} \cup {<<m, 1>> : m \in Inner}
Symmetric == Permutations(Workers)

Now == IF tail = <<>> THEN disk ELSE tail[Len(tail)]
Outputs(log) == {<<log.history[i].m, log.history[i].tx>> : i \in DOMAIN log.history}
Applied(log) == {log.history[i].m : i \in DOMAIN log.history}

Init ==
    /\ disk = [tasks |-> {<<m, 1>> : m \in Inner}, history |-> <<>>, markers |-> {}]
    /\ tail = <<>>
    /\ locks = [c \in Copies |-> None]
    /\ worker = [p \in Workers |-> Idle]
    /\ sends = [m \in Outside |-> 0]
    /\ acked = {} /\ seen = {} /\ faults = 0

Known == UNION {Outputs(log) : log \in {disk} \cup {tail[i] : i \in DOMAIN tail}} \cup seen
Numbers == {o[2] : o \in Known} \cup {worker[p].tx : p \in Workers}
Fresh == CHOOSE tx \in 1..Cardinality(Numbers) + 1 : tx \notin Numbers

Fault(kind) == kind \in Kinds /\ faults < FaultsMax /\ faults' = faults + 1
Goes(p, at) == worker' = [worker EXCEPT ![p].at = at]
Writes(log) == tail' = Append(tail, log) /\ UNCHANGED disk

---------------------------------------------------------------------------
(* The outside: senders repeat what they have no answer to; outputs are taken away.                                *)

\* code: outbox/client.py::Client.send
Send(m) ==
    /\ sends[m] < 2 /\ m \notin acked
    /\ sends' = [sends EXCEPT ![m] = @ + 1]
    /\ Writes([Now EXCEPT !.tasks = @ \cup {<<m, sends'[m]>>}])
    /\ UNCHANGED <<locks, worker, acked, seen, faults>>

IsSafe(m, log) == m \in Applied(log) \/ \E c \in log.tasks : c[1] = m
Acknowledges(m) == m \notin acked /\ IsSafe(m, IF On("acknowledge") THEN disk ELSE Now)

Acknowledge(m) ==
    /\ Acknowledges(m)
    /\ acked' = acked \cup {m}
    /\ UNCHANGED <<disk, tail, locks, worker, sends, seen, faults>>

Leaving == Outputs(IF On("gate") THEN disk ELSE Now) \ seen

\* code: outbox/engine/broker.py hands an output to whoever is outside
Deliver ==
    /\ \E o \in Leaving : seen' = seen \cup {o}
    /\ UNCHANGED <<disk, tail, locks, worker, sends, acked, faults>>

\* code: outbox/engine/core.py::Core.gate
Gate ==
    /\ tail # <<>>
    /\ disk' = Now /\ tail' = <<>>
    /\ UNCHANGED <<locks, worker, sends, acked, seen, faults>>

---------------------------------------------------------------------------
(* The steps of a worker.                                                                                          *)

\* code: outbox/engine/backend/journal.py::EngineJournal.claim
Claim(p) ==
    /\ worker[p].at = "idle"
    /\ \E c \in Now.tasks :
        /\ locks[c] = None
        /\ locks' = [locks EXCEPT ![c] = p]
        /\ worker' = [worker EXCEPT ![p] = [Idle EXCEPT !.at = "load", !.c = c]]
    /\ UNCHANGED <<disk, tail, sends, acked, seen, faults>>

\* code: outbox/runtime/engine_scope.py::EngineScope._load, and the look at the markers in EngineTransaction.follow
Load(p) ==  \* a message whose marker is there has been handled: what is left is to complete it
    /\ worker[p].at = "load"
    /\ LET follows == worker[p].c[1] \in Now.markers IN
        worker' = [worker EXCEPT ![p].base = Len(Now.history), ![p].follows = follows,
                                 ![p].at = IF follows THEN "commit" ELSE "run"]
    /\ UNCHANGED <<disk, tail, locks, sends, acked, seen, faults>>

\* code: outbox/runtime/commit/run_handler.py::start
Run(p) ==
    /\ worker[p].at = "run"
    /\ worker' = [worker EXCEPT ![p].tx = Fresh, ![p].at = "commit"]
    /\ UNCHANGED <<disk, tail, locks, sends, acked, seen, faults>>

IsHeld(p) == locks[worker[p].c] = p
Conflicts(p) ==
    \/ On("lock") /\ ~IsHeld(p)
    \/ ~worker[p].follows /\ On("version") /\ worker[p].base # Len(Now.history)
    \/ ~worker[p].follows /\ worker[p].c[1] \in Now.markers

Changed(p) ==
    LET m == worker[p].c[1] IN
    [tasks |-> IF On("one-record") THEN Now.tasks \ {worker[p].c} ELSE Now.tasks,
     history |-> IF worker[p].follows THEN Now.history
                 ELSE Append(Now.history, [m |-> m, tx |-> worker[p].tx, base |-> worker[p].base]),
     markers |-> IF m \in Outside /\ On("marker") THEN Now.markers \cup {m} ELSE Now.markers]

Released(p) == [c \in Copies |-> IF locks[c] = p THEN None ELSE locks[c]]
Ends(p) == worker' = [worker EXCEPT ![p] = Idle] /\ locks' = Released(p)

\* code: outbox/engine/backend/journal.py::EngineJournal.commit
Commit(p) ==  \* all of it or nothing
    /\ worker[p].at = "commit"
    /\ \/ /\ Conflicts(p)
          /\ Goes(p, "renew") /\ UNCHANGED <<disk, tail, locks, faults>>
       \/ /\ ~Conflicts(p) /\ Writes(Changed(p))
          /\ IF On("one-record") THEN Ends(p) ELSE Goes(p, "complete") /\ UNCHANGED locks
          /\ UNCHANGED faults
       \/ /\ ~Conflicts(p) /\ Writes(Changed(p)) /\ Fault("lost")
          /\ Goes(p, "renew") /\ locks' = Released(p)
    /\ UNCHANGED <<sends, acked, seen>>

Complete(p) ==  \* what the rule "one-record" forbids: the input's completion in a record of its own
    /\ worker[p].at = "complete"
    /\ Writes([Now EXCEPT !.tasks = @ \ {worker[p].c}])
    /\ Ends(p)
    /\ UNCHANGED <<sends, acked, seen, faults>>

\* code: outbox/runtime/engine_scope.py::EngineScope._renew_lock
Renew(p) ==  \* a conflict, or nobody can tell: is the lock still ours?  A message that was committed has none
    /\ worker[p].at = "renew"
    /\ IF IsHeld(p) THEN worker' = [worker EXCEPT ![p] = [Idle EXCEPT !.at = "load", !.c = worker[p].c]] /\ UNCHANGED locks
       ELSE Ends(p)
    /\ UNCHANGED <<disk, tail, sends, acked, seen, faults>>

---------------------------------------------------------------------------
(* What happens to them.                                                                                           *)

Reopens ==  \* nobody who worked before holds a lock after
    /\ worker' = [p \in Workers |-> Idle]
    /\ locks' = [c \in Copies |-> None]

\* code: outbox/engine/log/wal.py opens what is left, under a new epoch
PowerLoss ==
    /\ Fault("power")
    /\ \E n \in 0..Len(tail) : disk' = IF n = 0 THEN disk ELSE tail[n]
    /\ tail' = <<>>
    /\ Reopens
    /\ UNCHANGED <<sends, acked, seen>>

Crash ==  \* of the process: what was written stays, synced or not
    /\ Fault("crash") /\ Reopens
    /\ UNCHANGED <<disk, tail, sends, acked, seen>>

Expire(p) ==
    /\ Fault("expire")
    /\ \E c \in Now.tasks : locks[c] = p /\ locks' = [locks EXCEPT ![c] = None]
    /\ UNCHANGED <<disk, tail, worker, sends, acked, seen>>

AtRest ==
    /\ \A p \in Workers : worker[p].at = "idle"
    /\ tail = <<>> /\ disk.tasks = {} /\ Leaving = {}
    /\ \A m \in Outside : ~Acknowledges(m)

Step ==
    \/ \E p \in Workers : Claim(p) \/ Load(p) \/ Run(p) \/ Commit(p) \/ Complete(p) \/ Renew(p)
    \/ Gate \/ Deliver \/ \E m \in Outside : Acknowledge(m)

Next ==
    \/ Step
    \/ \E m \in Outside : Send(m)
    \/ PowerLoss \/ Crash \/ \E p \in Workers : Expire(p)
    \/ AtRest /\ UNCHANGED vars  \* anything else that stands still is a deadlock, and is found as one

Spec == Init /\ [][Next]_vars /\ WF_vars(Step)

---------------------------------------------------------------------------
(* The promises.                                                                                                   *)

Handled == DOMAIN Now.history

NoGhost == seen \subseteq Outputs(Now)
NoDuplicate == \A i, j \in Handled : Now.history[i].m = Now.history[j].m => i = j
ConsistentOutput == \A o, q \in seen : o[1] = q[1] => o = q
OneChangePerVersion == \A i, j \in Handled : Now.history[i].base = Now.history[j].base => i = j
NoLost == AtRest => Outputs(Now) \subseteq seen
EveryMessageEnds == AtRest => acked \cup Inner \subseteq Applied(Now)
Rests == <>AtRest
=============================================================================
