"""Leftovers that no version names: of killed merges, of expired versions, of writers that died.

`vacuum` of delta-rs takes data files; it leaves all folders that begin with an underscore, so key files and
half-written ones are taken here.  It goes by age and by this machine's clock, files are dated by the store's: where
that one is behind, the difference is added.  It commits a version before it deletes, so a merge that began before it is
lost to it and begins anew.
"""

from __future__ import annotations

import math
import time

from outbox.errors import OutcomeUnknown
from spark_jobs.common.places import Place
from spark_jobs.draining.durable import Durable
from spark_jobs.draining.keys import KEYS, SUFFIX, data_file
from spark_jobs.draining.merging import CONFLICTS, CONFLICTS_NAME, LEDGER_NAME
from spark_jobs.draining.tables import FAILED, Table, in_one_line

ORPHAN_AGE_S = 7 * 24 * 3_600.0
"""The age that Delta's readers expect, longer than `merging.MERGE_S_MAX`: a merge that took longer does not commit."""
HOUR_S = 3_600


def sweep(place: Place, *, age_s: float = ORPHAN_AGE_S) -> int:
    """Remove what no version names, once it is so old; gives the count.

    Younger than `merging.MERGE_S_MAX` may be somebody's unfinished merge, so give less only where nobody merges.
    """
    count = sweep_table(Table(place, LEDGER_NAME), age_s)
    count += sweep_table(Table(place / CONFLICTS, CONFLICTS_NAME), age_s)
    return count + place.sweep_parts(age_s)


def sweep_table(table: Table, age_s: float) -> int:
    """Vacuum one table, delete keys without a file, and drop expired entries that a checkpoint on disk covers.

    Raises:
        OutcomeUnknown: delta-rs stopped; what it had not deleted stays for the next time.
    """
    base = table.read()
    if base is None:
        return 0
    durable = Durable(table.place)
    durable.sync()
    behind_s = max(0.0, time.time() - table.place.now_s())
    hours = math.ceil((age_s + behind_s) / HOUR_S)
    try:
        base.handle.cleanup_metadata()
        orphans = base.handle.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True)
    except FAILED as error:
        raise OutcomeUnknown(f"{table.place}: vacuum stopped half-way: {in_one_line(error)}; do it again") from error
    durable.sync()
    horizon_s = table.place.now_s() - age_s
    keys = [item for item in table.place.list(f"{KEYS}/", SUFFIX) if data_file(item.name) not in base.files]
    old = [item.name for item in keys if item.changed_s <= horizon_s]
    for name in old:
        table.place.delete(name)
    return len(orphans) + len(old)
