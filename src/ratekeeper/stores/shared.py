"""State in shared memory: exact limits for all processes of one host, with no server.

``shm://NAME`` is a folder in the host's shared memory, ``shm:///path`` one of your own; each limiter has a table in
it, the same as in process, decided by the same C core.  A process that is killed at any instruction neither blocks
the others nor damages a state (``native/guard.h`` says why).  The state outlives the last process: ``segments()`` lists
what is there, ``remove(name)`` removes it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ratekeeper.clock import MONOTONIC
from ratekeeper.errors import InvalidStore, shown
from ratekeeper.native import REASON, core
from ratekeeper.stores.options import whole_max_keys

if core is None:
    raise InvalidStore(
        f"store 'shm://': expected the native core, but {REASON}. Install ratekeeper where a C compiler is, "
        "or from a wheel; or use memory:// or redis://."
    )

from ratekeeper.native.core import KeyTable, Table
from ratekeeper.stores.native import MOST_KEYS, TableStore
from ratekeeper.stores.shared_files import (
    HOW_TO_REMOVE,
    MOST_TABLE_BYTES,
    PREFIX,
    ROOT,
    Folder,
    Segment,
    folder_of,
    is_in_use,
    is_stale,
    keys_within,
    table_bytes,
    table_files,
)

if TYPE_CHECKING:
    from ratekeeper.clock import Clock
    from ratekeeper.errors import StoreUnavailable
    from ratekeeper.limit import Limit, LimitSet

__all__ = ["Segment", "SharedStore", "bytes_needed", "remove", "segments"]

MAX_KEYS = 100_000
LONGEST_RING = 1_024


class SharedStore(TableStore):
    """State in shared memory, for all processes of one host: ``SharedStore("api")``, ``SharedStore("/var/lib/app")``.

    ``max_keys`` is how many keys a table holds without forgetting a live one; its memory is reserved when it is made.
    Only this user's processes may use it, unless ``mode`` says otherwise; ``owner`` is another user who may own the
    folder, and who is trusted.  ``max_bytes`` bounds what all tables of the segment take; a table that does not
    fit raises InvalidStore before its memory is reserved.  Without ``max_keys`` tables are smaller as the bound comes
    near, and tables of long logs hold fewer keys; with ``table_bytes`` each takes about so much, or less.
    """

    has_room = False  # for a second limit on the same states
    renewer: Any = None  # renews the leases of this process

    def __init__(
        self,
        name: str,
        *,
        clock: Clock | None = None,
        max_keys: int | None = None,
        mode: int = 0o600,
        owner: int | None = None,
        max_bytes: int | None = None,
        table_bytes: int | None = None,
    ) -> None:
        self.any_size = max_keys is None
        self.max_keys = min(MOST_KEYS, whole_max_keys(MAX_KEYS if max_keys is None else max_keys, f"shm://{name}"))
        super().__init__(MONOTONIC if clock is None else clock)
        for option, value in (("max_bytes", max_bytes), ("table_bytes", table_bytes)):
            if value is not None and not (value.__class__ is int and value >= 1):
                raise InvalidStore(f"shm://{name}: expected {option} of at least 1, got {shown(value)}.")
        self.folder = Folder(name, mode, owner, max_bytes)
        self.table_bytes = table_bytes

    def table(
        self,
        space: str,
        limit: Limit | LimitSet,
        on_store_error: str | None = None,
        *,
        prefetch: str | int | None = None,
        strict: bool = False,
        max_keys: int | None = None,
    ) -> Table:
        """The table of ``limit``.  ``strict``: InvalidStore if other processes have another limit of that name.

        A limiter is strict; the rule of a plan may have a limit for each tier.
        """
        table = self.tables.get((space, limit))
        if table is None:
            with self.lock:
                table = self.put_table(space, limit, self.map_states(space, limit, strict, max_keys))
        return table

    def map_states(self, space: str, limit: Limit | LimitSet, strict: bool, max_keys: int | None) -> KeyTable:
        parts: Any = limit.parts
        if parts[0].is_unlimited:
            return KeyTable(limit, 1, os.urandom(16))
        for part in parts:
            if part.algorithm in ("sliding_log", "concurrency") and part.count > LONGEST_RING:
                raise InvalidStore(
                    f"shm://{self.folder.name}: expected a {part.algorithm} of at most {LONGEST_RING:,}, "
                    f"as every key has room for all its instants, got {str(part)!r}. "
                    "Use sliding_window, or another store."
                )
        clock = "monotonic" if self.nanos is None else "given"
        most_bytes = self.table_bytes if max_keys is None else MOST_TABLE_BYTES
        keys = max_keys or self.max_keys
        mapped = self.folder.map_table(space, limit, keys, self.any_size, clock, strict, most_bytes)
        if mapped.identity not in self.states_by_layout:
            name = self.folder.name.encode("utf-8", "replace").decode()  # C has no use for surrogates
            try:
                states = KeyTable(limit, mapped.max_keys, mapped.seed, mapped.memory, mapped.identity, name)
            except ValueError as error:
                raise InvalidStore(
                    f"shm://{name}: expected a table with sound guards, got a damaged file, {mapped.path}. "
                    f"{HOW_TO_REMOVE.format(name=name)}."
                ) from error
            self.states_by_layout[mapped.identity] = states
        return self.states_by_layout[mapped.identity]

    def release(self, space: str, limit: Limit | LimitSet) -> bool:
        """Close the states that ``limit`` reads; whether they are gone, as no other process has them open."""
        with self.lock:
            self.drop_tables(space, limit)
            self.states_by_layout.pop(self.folder.identity_of(space, limit), None)
            return self.folder.remove_table(space, limit)

    def fall_back(self, operation: str, error: StoreUnavailable, *arguments: object) -> Any:
        """Raise ``error``: a segment with a damaged guard has no fallback, as it does not recover by itself."""
        raise error

    @property
    def needs_heartbeats(self) -> bool:
        """Whether a lease is renewed while it is held; nothing beats by a clock of a test."""
        return self.nanos is None

    def close(self) -> None:
        """Close the segment; its state stays for other processes and for later."""
        if self.renewer is not None:
            self.renewer.close()
        super().close()
        self.folder.close()

    def __repr__(self) -> str:
        name = self.folder.name
        return f"<SharedStore shm://{name}; to remove its state: ratekeeper.stores.shared.remove({name!r})>"


def bytes_needed(limit: Limit | LimitSet, max_keys: int | None = None) -> int:
    """The bytes of shared memory that a table of ``limit`` reserves, to be known before it is made."""
    if limit.parts[0].is_unlimited:
        return 0
    return table_bytes(limit, keys_within(limit, MOST_TABLE_BYTES, MAX_KEYS) if max_keys is None else max_keys)


def segments(root: str = ROOT) -> list[Segment]:
    """The segments in shared memory, without those of other users that cannot be read."""
    listed = []
    for entry in sorted(os.listdir(root)):
        path = f"{root}/{entry}"
        if entry.startswith(PREFIX) and os.path.isdir(path):
            try:
                listed.append(segment_at(entry.removeprefix(PREFIX), path))
            except (
                FileNotFoundError,
                PermissionError,
            ):  # another process is removing it, or it belongs to another user
                continue
    return listed


def segment_at(name: str, path: str) -> Segment:
    size, stale, tables = 0, [], []
    folder = Folder.__new__(Folder)  # only for reading: it does not open the segment
    folder.name, folder.path, folder.users = name, path, -1
    for file in table_files(path):
        size += os.stat(file).st_blocks * 512
        try:
            head = folder.read_head(file)
        except InvalidStore:
            tables.append(("?", "of another version, or damaged"))
            continue
        if head is not None:
            stale.append(is_stale(head))
            tables.append((head["space"], head["limits"]))
    return Segment(name, path, size, is_in_use(path), bool(stale) and all(stale), tuple(tables))


def remove(name: str, *, force: bool = False) -> None:
    """Remove a segment and all state in it, by the name or path of its URL.

    One in use is not removed unless ``force`` says so: the processes that have it open would go on by themselves.
    """
    path = folder_of(name)
    if not os.path.isdir(path) or os.path.islink(path):
        names = ", ".join(segment.name for segment in segments()) or "none"
        raise InvalidStore(f"remove: expected the name of a segment ({names}), got {shown(name)}.")
    if not force and is_in_use(path):
        raise InvalidStore(
            f"remove: expected a segment that no process has open, but one has {shown(name)} open. "
            "Stop it first, or say force=True: it then goes on with a copy of its own."
        )
    try:
        for file in os.listdir(path):
            if file.endswith(".table") or file in (".lock", ".users", ".draft"):
                os.unlink(f"{path}/{file}")
        if not os.listdir(path):  # the folder of a path may contain other files
            os.rmdir(path)
    except OSError as error:
        raise InvalidStore(f"remove: expected to remove {path}, got {error.strerror or error}.") from error
