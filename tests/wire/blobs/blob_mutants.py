"""Faults planted in the emulator of Blob Storage, each alone: in conditions, leases, blocks, ranges, lists, what lasts.

Data only; nothing of the package is imported here.  The tests reach the emulator over HTTP.
"""

from __future__ import annotations

from tests.simulation.planting import Mutant, Table

FOLDER = "outbox/emulator/blobs"
WIRE, LASTING, FAULTS = "test_blobs_wire", "test_blobs_lasting", "test_blobs_faults"
EDGES, UNDERSTOOD, BATCH = "test_blobs_edges", "test_blobs_understood", "test_blobs_batch"


def mutant(name: str, file: str, found_by: str, *edits: tuple[str, str], of: str = WIRE) -> Mutant:
    """A planted fault in a file of the emulator; `found_by` names a test of the module `of`."""
    return Mutant(name, "emulator", (f"{of}.py::{found_by}",), f"{FOLDER}/{file}.py", edits)


BLOB_MUTANTS = (
    # who asks
    mutant(
        "auth: the path is not signed", "auth", "test_a_signature_is_good_for_what_it_signed",
        ('f"/{account}{path}", *_query_lines', 'f"/{account}", *_query_lines'),
    ),
    mutant(
        "auth: the query is not signed", "auth", "test_a_signature_is_good_for_what_it_signed",
        ('query.split("&") if query else ()', '()'),
    ),
    # conditions
    mutant(
        "conditions: a time that is the same is later", "conditions", "test_times_are_conditions_in_whole_seconds",
        ("blob.modified_ms // 1_000 > wanted.modified_since_s", "blob.modified_ms // 1_000 >= wanted.modified_since_s"),
    ),
    mutant(
        "conditions: both of a pair must be news", "conditions", "test_a_read_holds_to_all_of_its_conditions",
        ("return any(held) or not held", "return all(held)"),
    ),
    mutant(
        "conditions: a write takes several", "conditions", "test_a_write_takes_one_condition",
        ("if is_write and len(found) > 1 and found not in _PAIRS:", "if False:"),
    ),
    mutant(
        "conditions: what is not there has every ETag", "conditions", "test_what_a_blob_cannot_have_is_refused",
        ("        if wanted.match or wanted.tags is not None:\n            raise Rejection(\"ConditionNotMet\")\n", ""),
    ),
    mutant(
        "conditions: tags of alternatives must all hold", "tags", "test_tags_are_conditions",
        ("return any(all(one.holds(tags) for one in all_of)", "return all(all(one.holds(tags) for one in all_of)"),
    ),
    # leases
    mutant(
        "leases: another id makes a lease longer", "leases",
        "test_a_lease_under_another_id_ends_when_it_would_have_ended",
        ("return Lease(proposed, lease.duration_s, lease.ends_ms)",
         "return _begun(proposed, lease.duration_s, now_ms)"),
    ),
    mutant(
        "leases: a lease holds a second longer", "leases",
        "test_a_lease_ends_by_itself_and_may_be_renewed_until_another_writes",
        ("if 0 < lease.ends_ms <= now_ms else", "if 0 < lease.ends_ms <= now_ms - 1_000 else"),
    ),
    mutant(
        "leases: one that is over outlives a write", "leases",
        "test_a_lease_ends_by_itself_and_may_be_renewed_until_another_writes",
        ('return lease if state in ("leased", "breaking") else None', "return lease"),
    ),
    mutant(
        "leases: a later break adds time", "leases", "test_a_broken_lease_says_when_another_may_be_had",
        ("ahead_ms = min((ms for", "ahead_ms = max((ms for"),
    ),
    mutant(
        "leases: a lease that breaks does not hold", "leases", "test_a_broken_lease_says_when_another_may_be_had",
        ('    elif state in ("leased", "breaking"):', '    elif state == "leased":'),
    ),
    mutant(
        "leases: a container goes in spite of one", "container_operations", "test_a_lease_of_a_container_keeps_it",
        ("        leases.check_write(held.definition.lease, self._store.now_ms, lease_id(call), \"Container\")\n", ""),
    ),
    mutant(
        "leases: its holder's list of blocks ends it", "block_operations",
        "test_a_lease_outlasts_what_its_holder_writes_in_blocks", ("lease=lease, created_ms", "created_ms"),
    ),
    mutant(
        "leases: one that holds for less than a second is over", "leases",
        "test_a_broken_lease_says_when_another_may_be_had",
        ("-(-ahead_ms // 1_000)", "ahead_ms // 1_000"),
    ),
    # blocks
    mutant(
        "blocks: what is committed goes before what is not", "block_operations",
        "test_a_list_says_where_each_block_is_looked_for",
        ('block = uncommitted.get(id) if kind != "Committed" else None',
         'block = uncommitted.get(id) if kind == "Uncommitted" else committed.get(id)'),
    ),
    mutant(
        "blocks: a block that is not there is left out", "block_operations",
        "test_a_list_that_names_what_is_not_there_changes_nothing",
        ('                raise Rejection("InvalidBlockList")\n', "                continue\n"),
    ),
    mutant(
        "blocks: a put keeps what was not committed", "blob_operations",
        "test_a_put_forgets_the_blocks_that_were_not_committed",
        ("self._store.put(held, call.route.blob, blob, commits=True)", "self._store.put(held, call.route.blob, blob)"),
    ),
    mutant(
        "blocks: ids may have any length", "block_operations", "test_the_ids_of_a_blobs_blocks_have_one_length",
        ('            raise Rejection("InvalidBlobOrBlock")\n', "            pass\n"),
    ),
    mutant(
        "lists: a folder comes again for its last names", "list_operations",
        "test_a_folder_is_listed_once_whatever_its_names_begin_with",
        ("name <= after or (listed and name.startswith(listed))", "name <= after"),
    ),
    mutant(
        "blocks: a week after the first of them all go", "store",
        "test_the_week_of_a_blobs_blocks_begins_with_the_last_of_them",
        ("max(block.put_ms for block", "min(block.put_ms for block"),
    ),
    # ranges
    mutant(
        "ranges: the last byte is left out", "ranges", "test_a_range_gives_its_bytes",
        ("return first, min(last + 1, size_bytes)", "return first, min(last, size_bytes)"),
    ),
    mutant(
        "ranges: one behind the end is empty", "ranges", "test_a_range_behind_the_end_is_refused_with_the_size",
        ("    if first >= size_bytes:\n", "    if first > size_bytes:\n"),
    ),
    mutant(
        "ranges: a range ends with its block", "ranges", "test_a_range_runs_over_blocks",
        ("        at += len(piece)\n        if at >= end:\n", "        at += len(piece)\n        if found:\n"),
    ),
    # lists
    mutant(
        "lists: a folder comes again on the next page", "list_operations",
        "test_pages_go_on_where_the_last_one_ended_whatever_is_written_meanwhile",
        ('(f"{page[-1].name}{_LAST}" if page[-1].is_folder else page[-1].name)', "page[-1].name"),
    ),
    mutant(
        "lists: a page that is full has another behind it", "list_operations",
        "test_a_page_that_is_exactly_full_is_the_last",
        ("page[-1].name) if len(found) > count else", "page[-1].name) if len(found) >= count else"),
    ),
    mutant(
        "lists: a search goes on in the order of its texts", "list_operations",
        "test_a_search_over_containers_goes_on_in_order",
        ("if (name, blob) > after and", 'if f"{name}/{blob}" > "/".join(after) and'),
    ),
    mutant(
        "lists: a list begins at the beginning", "list_operations", "test_a_list_begins_where_it_is_to",
        ("max(prefix, after, start)", "max(prefix, after)"), of=UNDERSTOOD,
    ),
    # batches
    mutant(
        "batches: a part needs no signature of its own", "batch_operations", "test_each_part_is_answered_for_itself",
        ("            self._signatures.check(call.method, call.raw_path, call.headers)\n", ""), of=BATCH,
    ),
    mutant(
        "batches: a part may be about another container", "batch_operations",
        "test_a_batch_of_the_account_is_about_any_container",
        ('if batch.route.container not in ("", call.route.container):', "if False:"), of=BATCH,
    ),
    mutant(
        "batches: parts are done as they are read", "batch_operations",
        "test_a_batch_that_cannot_be_read_whole_does_nothing",
        ("asked = [(part.id, self._routed(call, part)) for part in read_parts(call.body, boundary)]",
         "asked = [(await self._answered(self._routed(call, part))) for part in read_parts(call.body, boundary)]"),
        of=BATCH,
    ),
    mutant(
        "batches: a batch has any number of parts", "batch_operations", "test_a_batch_has_256_parts_and_no_more",
        ("BATCH_COUNT_MAX = 256", "BATCH_COUNT_MAX = 257"), of=BATCH,
    ),
    mutant(
        "batches: a part goes without its conditions", "batch_operations",
        "test_a_part_keeps_its_conditions_and_parameters",
        ("return Part(id, asked[1], asked[2], headers)",
         'return Part(id, asked[1], asked[2], {n: v for n, v in headers.items() if n != "if-match"})'), of=BATCH,
    ),
    # what is understood
    mutant(
        "understood: a condition that an operation does not know is ignored", "understood",
        "test_a_condition_that_does_not_hold_is_never_ignored",
        ("conditions_among(call.headers) - known.conditions", "()"), of=UNDERSTOOD,
    ),
    mutant(
        "understood: a parameter that an operation does not know is ignored", "understood",
        "test_a_parameter_that_an_operation_does_not_know_is_refused_by_name",
        ("call.query.keys() - known.parameters - _ALWAYS", "call.query.keys() & _NO_PARAMETER.keys()"), of=UNDERSTOOD,
    ),
    # what lasts
    mutant(
        "lasting: an answer does not wait for the disk", "gateway", "test_nothing_is_answered_before_it_is_on_disk",
        ("await self._engine.core.gate()  # a refusal, too, shows what is in memory", "pass"), of=LASTING,
    ),
    mutant(
        "lasting: what a crash left stays", "store", "test_what_a_crash_left_of_a_write_is_removed",
        ("for id in pieces if id not in named)", "for id in pieces if id in ())"), of=LASTING,
    ),
    mutant(
        "lasting: blocks that are not committed lose their bytes at a start", "store",
        "test_a_restarted_emulator_has_everything",
        ("                named |= {piece.id for block in blocks for piece in block.pieces}\n", ""), of=LASTING,
    ),
    mutant(
        "lasting: bytes that are replaced stay", "store", "test_a_restarted_emulator_has_everything",
        ("for piece in unnamed.values() if piece.id not in named]", "for piece in () if piece.id not in named]"),
        of=LASTING,
    ),
    mutant(
        "lasting: a container leaves its blocks", "store", "test_a_container_that_is_deleted_leaves_nothing",
        ("            gone += [records.DocRef(_blocks_of(rid, name), id, 1) for id in blocks]\n        self._drop_all",
         "            pass\n        self._drop_all"), of=LASTING,
    ),
    mutant(
        "lasting: a write that lost on its way leaves its bytes", "blob_operations",
        "test_of_two_large_blobs_under_one_name_one_is_made_and_the_other_leaves_nothing",
        ("            self._store.drop_pieces(pieces)\n", ""), of="test_blobs_large",
    ),
    mutant(
        "lasting: a block that lost on its way leaves its bytes", "block_operations",
        "test_a_block_that_lost_on_its_way_leaves_nothing",
        ("            self._store.drop_pieces(pieces)\n", ""), of="test_blobs_large",
    ),
    # edges
    mutant(
        "lists: containers have one page", "list_operations", "test_containers_are_listed_page_by_page",
        ("names[:count]\n        each = \"\".join(self._container", "names\n        each = \"\".join(self._container"),
        of=EDGES,
    ),
    mutant(
        "lists: a search from the past mixes containers", "store",
        "test_a_search_from_a_change_ago_knows_the_second_of_two_containers",
        ("            if change.rid == held.definition.rid:\n", "            if True:\n"), of=EDGES,
    ),
    mutant(
        "conditions: a container has none", "container_operations",
        "test_a_container_keeps_metadata_under_its_conditions_and_lease",
        ("        check_container(call.headers, now.modified_ms)\n        leases", "        leases"),
        of=EDGES,
    ),
    mutant(
        "lasting: a blob that is written again is made anew", "blob_operations",
        "test_a_blob_shows_what_was_set_until_all_is_set_anew",
        ("created_ms = fresh.created_ms if old is None else old.created_ms", "created_ms = fresh.created_ms"), of=EDGES,
    ),
    mutant(
        "lasting: a large container stays from its second step on", "store",
        "test_a_full_account_takes_no_container_and_a_large_one_goes_in_steps",
        ("for at in range(0, len(gone), DROP_COUNT):", "for at in range(0, min(len(gone), 1), DROP_COUNT):"), of=EDGES,
    ),
    mutant(
        "leases: a lease that breaks is acquired", "leases",
        "test_an_operation_on_a_lease_does_what_is_documented_in_every_state",
        ('    if state == "breaking":\n        raise Rejection("LeaseIsBreakingAndCannotBeAcquired"',
         '    if False:\n        raise Rejection("LeaseIsBreakingAndCannotBeAcquired"'), of=EDGES,
    ),
    # faults
    mutant(
        "faults: a lost reply did nothing", "gateway", "test_a_lost_reply_has_taken_effect",
        ('_BEFORE = frozenset(("refused", "throttled", "status", "reset"))',
         '_BEFORE = frozenset(("refused", "throttled", "status", "reset", "lost-reply"))'),
        ('    if rule.kind == "reset":\n', '    if rule.kind in ("reset", "lost-reply"):\n'),
        ('_BEHIND = frozenset(("lost-reply", "pause"))', '_BEHIND = frozenset(("pause",))'), of=FAULTS,
    ),
    mutant(
        "faults: a search knows nothing of the past", "list_operations",
        "test_a_search_from_the_past_has_tags_that_blobs_have_lost",
        ("            if call.rule is not None:\n", "            if False:\n"), of=FAULTS,
    ),
)  # fmt: skip

TABLE = Table(BLOB_MUTANTS, "tests/wire/blobs/")
