----------------------------- MODULE ItemScope ------------------------------
(* Item scope: a store that swaps one item at a time.  A state points to the transaction that changed it last until *)
(* everything that this one staged has left.  outbox/runtime/item_scope.py has the same ten steps: Read, Complete,   *)
(* Look, Run, Stage, LookAgain, Swap, Push, MarkProcessed and MarkDispatched, Clear.  One state; every message       *)
(* emits one output, whose content names the attempt.                                                                *)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
    Messages, Twice,        \* the messages, and those of which there are two copies
    Workers,                \* each of them sweeps as well
    Kinds, FaultsMax,       \* the faults that may happen: "crash", "lost", "late", "expire", "stale"; how many in all
    Off                     \* the rules that are switched off: each makes a mutant

VARIABLES
    history,    \* what was ever committed to the state; its version is the length
    state,      \* its ETag, the transaction that it points to (0: none), and a session token
    past,       \* the states before, for stale reads
    staged,     \* what transactions will do, or have done
    done,       \* by message: when its processed marker was made (0: there is none)
    moment,     \* how often the partition of staged records and markers was written
    queue, locks, worker,
    flight,     \* swaps that may still land
    pushed,     \* outputs that have left
    alarm,      \* whether a key was stopped
    faults

vars == <<history, state, past, staged, done, moment, queue, locks, worker, flight, pushed, alarm, faults>>
store == <<history, state, past>>
infrastructure == <<staged, done, moment>>
broker == <<queue, locks>>

On(rule) == rule \notin Off
None == "none"
NoState == [version |-> 0, etag |-> 0, tx |-> 0, token |-> 0]
Idle == [at |-> "idle", m |-> None, copy |-> 0, seen |-> NoState, tx |-> 0, token |-> 0]
Symmetric == Permutations(Workers)

Init ==
    /\ history = <<>> /\ state = NoState /\ past = {}
    /\ staged = {} /\ done = [m \in Messages |-> 0] /\ moment = 1
    /\ queue = {<<m, 1>> : m \in Messages} \cup {<<m, 2>> : m \in Twice}
    /\ locks = [c \in queue |-> None]
    /\ worker = [p \in Workers |-> Idle]
    /\ flight = {} /\ pushed = {} /\ alarm = FALSE /\ faults = 0

Known == {history[i].tx : i \in DOMAIN history} \cup {worker[p].tx : p \in Workers}
         \cup {b.tx : b \in flight} \cup {r.tx : r \in staged} \cup {o[2] : o \in pushed}
Fresh == CHOOSE tx \in 1..Cardinality(Known) + 1 : tx \notin Known  \* an id that nobody remembers is as good as new

Fault(kind) == kind \in Kinds /\ faults < FaultsMax /\ faults' = faults + 1
Goes(p, at) == worker' = [worker EXCEPT ![p].at = at]
Ends(p) == worker' = [worker EXCEPT ![p] = Idle]
Again(p) ==
    IF worker[p].m = None THEN Ends(p)
    ELSE worker' = [worker EXCEPT ![p] = [Idle EXCEPT !.at = "read", !.m = worker[p].m, !.copy = worker[p].copy]]

Later == IF "stale" \in Kinds THEN moment + 1 ELSE moment  \* nobody asks for moments where no read is stale
Staged(tx) == {r \in staged : r.tx = tx}
StagedAs(tx) == CHOOSE r \in staged : r.tx = tx

---------------------------------------------------------------------------
(* Steps 1 to 6: all that comes before the point of no return.                                                     *)

Receive(p) ==
    /\ worker[p].at = "idle"
    /\ \E c \in queue :
        /\ locks[c] = None
        /\ locks' = [locks EXCEPT ![c] = p]
        /\ worker' = [worker EXCEPT ![p] = [Idle EXCEPT !.at = "read", !.m = c[1], !.copy = c[2]]]
    /\ UNCHANGED <<store, infrastructure, queue, flight, pushed, alarm, faults>>

Seen(p, s) ==
    worker' = [worker EXCEPT ![p].seen = s, ![p].at = IF s.tx # 0 /\ On("finish-first") THEN "complete" ELSE "look"]

\* code: outbox/runtime/item_scope.py::ItemScope._load (1)
Read(p) ==  \* 1
    /\ worker[p].at = "read"
    /\ \/ Seen(p, state) /\ UNCHANGED faults
       \/ \E s \in past : Seen(p, s) /\ Fault("stale")
    /\ UNCHANGED <<store, infrastructure, broker, flight, pushed, alarm>>

\* code: outbox/runtime/item_scope.py::ItemScope._complete (2)
Complete(p) ==  \* 2: read what the pointer names, at least as fresh as the token beside it
    /\ worker[p].at = "complete"
    /\ LET found == Staged(worker[p].seen.tx)
           at == IF \E r \in found : r.dispatched THEN "clear" ELSE "push" IN
        \/ Goes(p, IF found # {} THEN at ELSE IF On("confirm") THEN "confirm" ELSE "stop") /\ UNCHANGED faults
        \/ /\ \E r \in found : r.since > worker[p].seen.token
           /\ Fault("stale") /\ Goes(p, IF On("confirm") THEN "confirm" ELSE "stop")
    /\ UNCHANGED <<store, infrastructure, broker, flight, pushed, alarm>>

\* code: outbox/runtime/item_scope.py::ItemScope._confirm
Confirm(p) ==  \* a state whose staged record is missing is written as it was read: that shows whether it was stale
    /\ worker[p].at = "confirm"
    /\ IF worker[p].seen.etag = state.etag
       THEN /\ state' = [state EXCEPT !.etag = @ + 1]
            /\ past' = IF "stale" \in Kinds THEN past \cup {state} ELSE past
            /\ Goes(p, "stop")
       ELSE Again(p) /\ UNCHANGED <<state, past>>
    /\ UNCHANGED <<history, infrastructure, broker, flight, pushed, alarm, faults>>

Stop(p) ==
    /\ worker[p].at = "stop" /\ alarm' = TRUE /\ Ends(p)
    /\ UNCHANGED <<store, infrastructure, broker, flight, pushed, faults>>

Looks(p, at, token, next) ==
    /\ worker[p].at = at
    /\ \/ Goes(p, IF done[worker[p].m] # 0 THEN "settle" ELSE next) /\ UNCHANGED faults
       \/ done[worker[p].m] > token /\ Fault("stale") /\ Goes(p, next)
    /\ UNCHANGED <<store, infrastructure, broker, flight, pushed, alarm>>

\* code: outbox/runtime/item_scope.py::ItemScope._decide (3)
Look(p) == Looks(p, "look", worker[p].seen.token, "run")  \* 3

\* code: outbox/runtime/item_scope.py::ItemScope._run (4)
Run(p) ==  \* 4
    /\ worker[p].at = "run"
    /\ worker' = [worker EXCEPT ![p].at = "stage", ![p].tx = Fresh]
    /\ UNCHANGED <<store, infrastructure, broker, flight, pushed, alarm, faults>>

\* code: outbox/runtime/item_scope.py::ItemScope._stage (5)
Stage(p) ==  \* 5
    /\ worker[p].at = "stage"
    /\ moment' = Later
    /\ staged' = staged \cup {[tx |-> worker[p].tx, m |-> worker[p].m, base |-> worker[p].seen.version,
                               since |-> moment', dispatched |-> FALSE]}
    /\ worker' = [worker EXCEPT ![p].at = IF On("look-again") THEN "lookagain" ELSE "swap", ![p].token = moment']
    /\ UNCHANGED <<store, done, broker, flight, pushed, alarm, faults>>

\* code: the talk's second look; the code has none
LookAgain(p) == Looks(p, "lookagain", worker[p].token, "swap")  \* 6

---------------------------------------------------------------------------
(* Step 7: the point of no return.                                                                                 *)

Swapping(p) == [tx |-> worker[p].tx, m |-> worker[p].m, base |-> worker[p].seen.version, etag |-> worker[p].seen.etag,
                token |-> IF On("token") THEN worker[p].token ELSE 0]
Wins(b) == b.etag = state.etag \/ (b.etag = 0 /\ ~On("create"))
Write(b) ==
    IF Wins(b)
    THEN /\ history' = Append(history, [tx |-> b.tx, m |-> b.m, base |-> b.base])
         /\ state' = [version |-> b.base + 1, etag |-> state.etag + 1, tx |-> b.tx, token |-> b.token]
         /\ past' = IF "stale" \in Kinds THEN past \cup {state} ELSE past
    ELSE UNCHANGED store

\* code: outbox/runtime/item_scope.py::ItemScope._commit (6), with Resolve and ResolveMarker where the answer is lost
Swap(p) ==  \* 7
    /\ worker[p].at = "swap"
    /\ LET b == Swapping(p) IN
        \/ /\ Write(b)
           /\ IF Wins(b) THEN worker' = [worker EXCEPT ![p].at = "push", ![p].seen = state'] ELSE Again(p)
           /\ UNCHANGED <<flight, faults>>
        \/ Fault("lost") /\ Write(b) /\ Goes(p, IF On("keep") THEN "resolve" ELSE "drop") /\ UNCHANGED flight
        \/ /\ Fault("late") /\ flight' = flight \cup {b} /\ Goes(p, IF On("keep") THEN "resolve" ELSE "drop")
           /\ UNCHANGED store
    /\ UNCHANGED <<infrastructure, broker, pushed, alarm>>

Drop(p) ==  \* what the rule "keep" forbids: to delete what was staged when the swap's answer is an error
    /\ worker[p].at = "drop"
    /\ staged' = staged \ Staged(worker[p].tx) /\ moment' = Later
    /\ Again(p)
    /\ UNCHANGED <<store, done, broker, flight, pushed, alarm, faults>>

Resolve(p) ==  \* whom does the state point to?
    /\ worker[p].at = "resolve"
    /\ worker' = [worker EXCEPT ![p].seen = state, ![p].at = IF state.tx = worker[p].tx THEN "push" ELSE "resolvemarker"]
    /\ UNCHANGED <<store, infrastructure, broker, flight, pushed, alarm, faults>>

ResolveMarker(p) ==
    /\ worker[p].at = "resolvemarker"
    /\ IF done[worker[p].m] # 0 THEN Goes(p, "settle") ELSE Again(p)
    /\ UNCHANGED <<store, infrastructure, broker, flight, pushed, alarm, faults>>

---------------------------------------------------------------------------
(* Steps 8 to 10, of the worker that swapped or of whoever finds the pointer.                                      *)

\* code: outbox/runtime/item_scope.py::ItemScope._push_staged (7)
Push(p) ==  \* 8
    /\ worker[p].at = "push"
    /\ LET tx == worker[p].seen.tx IN
        IF Staged(tx) = {} THEN Again(p) /\ UNCHANGED pushed
        ELSE pushed' = pushed \cup {<<StagedAs(tx).m, tx>>} /\ Goes(p, "processed")
    /\ UNCHANGED <<store, infrastructure, broker, flight, alarm, faults>>

\* code: outbox/runtime/item_scope.py::ItemScope._mark (8)
MarkProcessed(p) ==  \* 9
    /\ worker[p].at = "processed"
    /\ LET found == Staged(worker[p].seen.tx) IN
        IF found = {} THEN Again(p) /\ UNCHANGED infrastructure
        ELSE /\ moment' = Later
             /\ done' = [done EXCEPT ![StagedAs(worker[p].seen.tx).m] = IF @ = 0 THEN moment' ELSE @]
             /\ UNCHANGED staged
             /\ Goes(p, "dispatched")
    /\ UNCHANGED <<store, broker, flight, pushed, alarm, faults>>

\* code: outbox/runtime/item_scope.py::ItemScope._mark_dispatched (8)
MarkDispatched(p) ==  \* 9
    /\ worker[p].at = "dispatched"
    /\ LET found == {r \in Staged(worker[p].seen.tx) : ~r.dispatched}
           marked == {[r EXCEPT !.dispatched = TRUE] : r \in found} IN
        IF found = {} THEN Again(p) /\ UNCHANGED infrastructure
        ELSE /\ moment' = Later
             /\ staged' = (staged \ found) \cup (IF On("dispatched") THEN marked ELSE {})
             /\ UNCHANGED done
             /\ Goes(p, "clear")
    /\ UNCHANGED <<store, broker, flight, pushed, alarm, faults>>

\* code: outbox/runtime/item_scope.py::ItemScope._clear (9)
Clear(p) ==  \* 10
    /\ worker[p].at = "clear"
    /\ IF worker[p].seen.etag = state.etag
       THEN /\ state' = [state EXCEPT !.etag = @ + 1, !.tx = 0, !.token = IF On("token") THEN moment ELSE 0]
            /\ past' = IF "stale" \in Kinds THEN past \cup {state} ELSE past
            /\ Goes(p, "unstage")
       ELSE Again(p) /\ UNCHANGED <<state, past>>
    /\ UNCHANGED <<history, infrastructure, broker, flight, pushed, alarm, faults>>

\* code: outbox/runtime/commit/recovery.py::OrphanedStaged.delete
Unstage(p) ==  \* only now may the staged record go; a message that waited for this goes on
    /\ worker[p].at = "unstage"
    /\ staged' = staged \ Staged(worker[p].seen.tx) /\ moment' = Later
    /\ IF worker[p].m = None THEN Ends(p)
       ELSE IF worker[p].tx = worker[p].seen.tx THEN Goes(p, "settle")
       ELSE worker' = [worker EXCEPT ![p].at = "look", ![p].seen.tx = 0, ![p].seen.etag = @ + 1,
                                     ![p].seen.token = IF On("token") THEN moment ELSE 0]
    /\ UNCHANGED <<store, done, broker, flight, pushed, alarm, faults>>

\* code: outbox/runtime/delivery/settlement.py::Settlement.settle
Settle(p) ==
    /\ worker[p].at = "settle"
    /\ LET c == <<worker[p].m, worker[p].copy>> IN
        /\ queue' = IF locks[c] = p THEN queue \ {c} ELSE queue
        /\ locks' = [locks EXCEPT ![c] = IF @ = p THEN None ELSE @]
    /\ Ends(p)
    /\ UNCHANGED <<store, infrastructure, flight, pushed, alarm, faults>>

\* code: outbox/runtime/item_scope.py::ItemScope.redo
Sweep(p) ==  \* it starts from a state that points somewhere, never from what is staged
    /\ On("sweep") /\ worker[p].at = "idle" /\ ~alarm
    /\ IF On("from-pointers")
       THEN state.tx # 0 /\ worker' = [worker EXCEPT ![p].at = "complete", ![p].seen = state]
       ELSE \E r \in staged : worker' = [worker EXCEPT ![p].at = "push", ![p].seen = [state EXCEPT !.tx = r.tx]]
    /\ UNCHANGED <<store, infrastructure, broker, flight, pushed, alarm, faults>>

Reclaimable(r, s) == s.tx # r.tx /\ (s.version > r.base \/ ~On("past"))

\* code: outbox/runtime/commit/recovery.py::OrphanedStaged.redo
Reclaim(p) ==  \* a staged record goes when the state is past what its attempt had loaded
    /\ On("sweep") /\ worker[p].at = "idle"
    /\ \E r \in staged :
        /\ \/ Reclaimable(r, state) /\ UNCHANGED faults
           \/ \E s \in past : Reclaimable(r, s) /\ ~Reclaimable(r, state) /\ Fault("stale")
        /\ staged' = staged \ {r} /\ moment' = Later
    /\ UNCHANGED <<store, done, broker, worker, flight, pushed, alarm>>

---------------------------------------------------------------------------
(* What happens to them.                                                                                           *)

Crash(p) ==
    /\ worker[p].at # "idle" /\ Fault("crash")
    /\ locks' = [c \in DOMAIN locks |-> IF locks[c] = p THEN None ELSE locks[c]]
    /\ Ends(p)
    /\ UNCHANGED <<store, infrastructure, queue, flight, pushed, alarm>>

Expire(p) ==
    /\ \E c \in queue : locks[c] = p /\ locks' = [locks EXCEPT ![c] = None]
    /\ Fault("expire")
    /\ UNCHANGED <<store, infrastructure, queue, worker, flight, pushed, alarm>>

Land(b) ==
    /\ flight' = flight \ {b}
    /\ Write(b) \/ UNCHANGED store
    /\ UNCHANGED <<infrastructure, broker, worker, pushed, alarm, faults>>

AtRest ==
    /\ \A p \in Workers : worker[p].at = "idle"
    /\ queue = {} /\ flight = {}
    /\ On("sweep") => (state.tx = 0 \/ alarm) /\ \A r \in staged : ~Reclaimable(r, state)

Step ==
    \/ \E p \in Workers :
        \/ Receive(p) \/ Read(p) \/ Complete(p) \/ Confirm(p) \/ Stop(p) \/ Look(p) \/ Run(p) \/ Stage(p) \/ LookAgain(p)
        \/ Swap(p) \/ Drop(p) \/ Resolve(p) \/ ResolveMarker(p) \/ Push(p) \/ MarkProcessed(p) \/ MarkDispatched(p)
        \/ Clear(p) \/ Unstage(p) \/ Settle(p) \/ Sweep(p) \/ Reclaim(p)
    \/ \E b \in flight : Land(b)

Next == Step \/ (\E p \in Workers : Crash(p) \/ Expire(p)) \/ (AtRest /\ UNCHANGED vars)

Spec == Init /\ [][Next]_vars /\ WF_vars(Step)

---------------------------------------------------------------------------
(* The promises.                                                                                                   *)

Commits == DOMAIN history

NoGhost == \A o \in pushed : \E i \in Commits : history[i].m = o[1] /\ history[i].tx = o[2]
NoDuplicate == \A i, j \in Commits : history[i].m = history[j].m => i = j
ConsistentOutput == \A o, q \in pushed : o[1] = q[1] => o = q
OneChangePerVersion == \A i, j \in Commits : history[i].base = history[j].base => i = j
NoAlarm == ~alarm  \* no key is stopped that nobody has damaged
NoLost == AtRest => \A i \in Commits : <<history[i].m, history[i].tx>> \in pushed
EveryMessageEnds == AtRest => \A m \in Messages : \E i \in Commits : history[i].m = m
StagedVanish == AtRest => staged = {}
Rests == <>AtRest
=============================================================================
