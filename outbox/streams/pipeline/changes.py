"""The changes of a key's state as a checkpoint's part stores them, and how they are applied to earlier parts.

Everything is absolute: a field or a member as it is now, or that it is gone, so nothing is applied twice whatever
checkpoints are made over again.  Nothing here knows the types; whoever merges parts does not have them.  Changes are
kept as stored: those that nothing is combined with are never decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import msgspec

Members = dict[str, list[msgspec.Raw]]
"""Members of a map or a list by their keys or indexes: `[value]`, or `[]` where it is gone."""


class Changes(msgspec.Struct, frozen=True, omit_defaults=True):
    """The changes of a state: `fields` as a whole, of others `members`.

    `lengths` are those of lists, which may have been longer before: members behind the end do not count.
    """

    fields: dict[str, msgspec.Raw] = {}
    members: dict[str, Members] = {}
    lengths: dict[str, int] = {}


changes_of = msgspec.json.Decoder(Changes).decode
"""Changes, from how they are stored."""
_members_of = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_items_of = msgspec.json.Decoder(list[msgspec.Raw]).decode


def combined(changes: Sequence[msgspec.Raw]) -> msgspec.Raw:
    """Changes, the oldest first, as one: the newer's whole fields win, and of other fields each of its members."""
    return changes[0] if len(changes) == 1 else msgspec.Raw(msgspec.json.encode(_folded(changes)))


def applied(whole: msgspec.Raw, changes: Sequence[msgspec.Raw]) -> msgspec.Raw:
    """A state as stored, and what changed of it, the oldest first, as one."""
    fields, found = _members_of(whole), _folded(changes)
    for name in found.members.keys() - fields.keys():
        fields[name] = msgspec.Raw(b"[]" if name in found.lengths else b"{}")
    return msgspec.Raw(msgspec.json.encode(_combined(Changes(fields), found).fields))


def _folded(changes: Sequence[msgspec.Raw]) -> Changes:
    return reduce(_combined, map(changes_of, changes))


def _combined(older: Changes, newer: Changes) -> Changes:
    fields = {**older.fields, **newer.fields}
    members = {name: each for name, each in older.members.items() if name not in newer.fields}
    lengths = {**older.lengths, **newer.lengths}
    for name, each in newer.members.items():
        if name in older.fields:
            fields[name] = _changed_field(older.fields[name], each, lengths.pop(name, None))
        else:
            members[name] = {**members.get(name, {}), **each}
    return Changes(fields, members, lengths)


def _changed_field(raw: msgspec.Raw, members: Members, length: int | None) -> msgspec.Raw:
    if length is None:
        found = _members_of(raw)
        found.update({key: each[0] for key, each in members.items() if each})
        kept = {key: found[key] for key in sorted(found) if members.get(key, True)}
        return msgspec.Raw(msgspec.json.encode(kept))
    items = _items_of(raw)[:length]
    items += [msgspec.Raw(b"null")] * (length - len(items))
    for index, each in members.items():
        if int(index) < length:
            items[int(index)] = each[0]
    return msgspec.Raw(msgspec.json.encode(items))
