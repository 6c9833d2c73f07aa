"""A shared-memory segment: a folder with a file for each table, and the header of each file.

A table file begins with a line of format and version and a description in JSON; the table follows, page-aligned.
Files are written under another name and then renamed, so no process sees half of one.  A process that opens, creates or
replaces a file holds the folder's lock, which the system releases when its owner dies.
"""

from __future__ import annotations

import errno
import fcntl
import json
import mmap
import os
import stat
from hashlib import blake2b
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, NamedTuple

from ratekeeper.errors import InvalidStore, shown
from ratekeeper.native.core import BUILD, make_guards, shape, shared_size
from ratekeeper.stores.native import MOST_KEYS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ratekeeper.limit import Limit, LimitSet

ROOT = "/dev/shm"
PREFIX = "ratekeeper."
FORMAT = 2  # the layout of slots, records and guards: changed with every change to them
MAGIC = b"ratekeeper table %d\n"
HEAD = 16_384  # a multiple of any page size
LONGEST_TEXT = 2_000
PAGE = 4096
LEAST_KEYS = 64  # of a table whose size is not given
MOST_TABLE_BYTES = 64 * 2**20  # the same: a table of long logs holds fewer keys than others
LOCK_SECONDS = 10  # a process holds the lock of a folder for as long as it takes to make a table
TEXTS = ("space", "limits", "seed", "boot", "clock", "build")
HOW_TO_REMOVE = "To start afresh, stop the others and call ratekeeper.stores.shared.remove({name!r})"


class Segment(NamedTuple):
    """A segment as ``segments()`` lists it."""

    name: str
    path: str
    bytes: int
    in_use: bool
    stale: bool  # from before the last boot
    tables: tuple[tuple[str, str], ...]  # the space and the limits of each


def folder_of(name: str) -> str:
    """The folder of a segment: ``api`` is in shared memory, ``/var/lib/app/limits`` is a path."""
    if name.startswith("/"):
        return name.rstrip("/") or "/"
    fine = (
        name and len(name) <= 100 and all(letter.isascii() and (letter.isalnum() or letter in "._-") for letter in name)
    )
    if not fine:
        raise InvalidStore(
            f"store 'shm://': expected a name of letters, digits, dots and dashes, or an absolute path, "
            f"got {shown(name)}."
        )
    return f"{ROOT}/{PREFIX}{name}"


def boot_now() -> str:
    """The identity of the machine's monotonic clock, which starts anew at each boot."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    try:
        return f"{boot} {os.readlink('/proc/self/ns/time')}"  # a container may have a clock of its own
    except OSError:
        return boot


def is_stale(head: dict[str, Any]) -> bool:
    """Whether the table is from before the last boot."""
    return bool(head["boot"].partition(" ")[0] != boot_now().partition(" ")[0])


class Folder:
    """A segment's folder, open for as long as its store is."""

    def __init__(self, name: str, mode: int, owner: int | None = None, max_bytes: int | None = None) -> None:
        self.users = -1
        self.max_bytes = max_bytes
        self.counted: tuple[int, int] | None = None  # when the folder last changed, and the bytes of its tables then
        self.name = name
        self.path = folder_of(name)
        self.mode = mode
        try:
            folder_mode = mode | (mode & 0o444) >> 2
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            try:
                os.mkdir(self.path, 0o700)
                os.chmod(self.path, folder_mode)  # whatever the umask is: ``mode`` decides which users share it
            except FileExistsError:
                pass
            facts = os.lstat(self.path)
            if not stat.S_ISDIR(facts.st_mode):
                raise InvalidStore(f"shm://{name}: expected a folder at {self.path}, got something else.")
            if not mode & 0o077 and (facts.st_uid != os.geteuid() or facts.st_mode & 0o022):
                raise InvalidStore(
                    f"shm://{name}: expected the folder {self.path} to be this user's alone, "
                    f"got owner {facts.st_uid} and mode {facts.st_mode & 0o777:o}. "
                    "Use another name, or say ?mode=660 to share it with a group."
                )
            if facts.st_uid not in (os.geteuid(), 0, owner):
                raise InvalidStore(
                    f"shm://{name}: expected the folder {self.path} to be this user's or root's, got owner "
                    f"{facts.st_uid}, who could damage it at any time. Use another name, or say "
                    f"?owner={facts.st_uid} if you trust that user."
                )
            if facts.st_mode & 0o002 and not mode & 0o002:
                raise InvalidStore(
                    f"shm://{name}: expected a folder {self.path} that not everybody may write to, "
                    f"got mode {facts.st_mode & 0o777:o}. Use another name, or chmod it."
                )
            self.users = self.lock_file(".users", fcntl.LOCK_SH)
        except OSError as error:
            raise self.refused(error) from error

    def open_file(self, name: str) -> int:
        return open_regular(f"{self.path}/{name}", os.O_RDWR)

    def make_file(self, name: str) -> int:
        file = os.open(f"{self.path}/{name}", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.fchmod(file, self.mode)
        return file

    def lock_file(self, name: str, how: int) -> int:
        try:
            file = self.make_file(name)
        except FileExistsError:
            file = self.open_file(name)
        until = monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(file, how | fcntl.LOCK_NB)
                return file
            except BlockingIOError:
                if monotonic() > until:
                    os.close(file)
                    raise InvalidStore(
                        f"shm://{self.name}: expected a lock on {self.path}/{name} within {LOCK_SECONDS} s, but "
                        "another process holds it: one that is stopped? End that process, and try again."
                    ) from None
                sleep(0.005)

    def refused(self, error: OSError) -> InvalidStore:
        return InvalidStore(
            f"shm://{self.name}: expected to read and write in {self.path}, got {error.strerror or error}."
        )

    def map_table(
        self,
        space: str,
        limit: Limit | LimitSet,
        max_keys: int,
        any_size: bool,
        clock: str,
        strict: bool,
        most_bytes: int | None = None,
    ) -> Mapped:
        """Open the table of ``limit`` in ``space``, or create it; ``strict`` raises if the space has other limits."""
        try:
            lock = self.lock_file(".lock", fcntl.LOCK_EX)
        except OSError as error:
            raise self.refused(error) from error
        try:
            if strict:
                self.refuse_others(space, limit)
            name = file_of(space, limit)
            head = self.read_head(f"{self.path}/{name}")
            if head is None or is_stale(head):
                head = self.make_table(name, space, limit, self.granted(limit, max_keys, any_size, most_bytes), clock)
            self.compare(head, space, max_keys, any_size, clock)
            return Mapped(self, name, head, limit)
        except OSError as error:
            raise self.refused(error) from error
        finally:
            os.close(lock)

    def granted(self, limit: Limit | LimitSet, max_keys: int, any_size: bool, most_bytes: int | None) -> int:
        """How many keys a new table may hold, before its memory is reserved.  The folder's lock is held."""
        most = least(MOST_TABLE_BYTES, most_bytes)
        used = 0 if self.max_bytes is None else self.bytes_used()
        if self.max_bytes is not None:
            # A fifth of the bound is shared out generously, to the first tables; the rest is for many small ones.
            most = min(most, (self.max_bytes // 5 - used) // 16 if most_bytes is None else self.max_bytes - used)
        if any_size:
            max_keys = keys_within(limit, most, max_keys)
        size = table_bytes(limit, max_keys)
        if self.max_bytes is not None and used + size > self.max_bytes:
            raise InvalidStore(
                f"shm://{self.name}: expected at most {self.max_bytes:,} bytes of tables (max_bytes), got {used:,} in "
                f"use and {size:,} for {max_keys:,} keys of {cut(str(limit))!r}. Raise max_bytes, or use fewer limits."
            )
        return max_keys

    def bytes_used(self) -> int:
        """The bytes of all tables, counted again only if another process has made or removed one since."""
        changed_at = os.stat(self.path).st_mtime_ns
        if self.counted is None or self.counted[0] != changed_at:
            self.counted = changed_at, sum(os.stat(path).st_blocks * 512 for path in table_files(self.path))
        return self.counted[1]

    def identity_of(self, space: str, limit: Limit | LimitSet) -> int | None:
        head = self.read_head(f"{self.path}/{file_of(space, limit)}")
        return None if head is None else int(head["identity"])

    def remove_table(self, space: str, limit: Limit | LimitSet) -> bool:
        """Remove the table of ``limit`` unless a process has it in memory; whether it is gone."""
        try:
            lock = self.lock_file(".lock", fcntl.LOCK_EX)  # no process opens a table meanwhile
        except OSError as error:
            raise self.refused(error) from error
        try:
            file = self.open_file(file_of(space, limit))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(f"{self.path}/{file_of(space, limit)}")
            finally:
                os.close(file)
        except FileNotFoundError:
            return True
        except BlockingIOError:
            return False
        except OSError as error:
            raise self.refused(error) from error
        finally:
            os.close(lock)
        return True

    def refuse_others(self, space: str, limit: Limit | LimitSet) -> None:
        for path in table_files(self.path):
            head = self.read_head(path)
            if head is None or is_stale(head):
                continue
            if head["space"] == cut(space) and head["limits"] != cut(str(limit)):
                raise InvalidStore(
                    f"shm://{self.name}: expected the limit that other processes have for {shown(space)}, "
                    f"{head['limits']!r}, got {cut(str(limit))!r}. Give one of them another name. "
                    f"{HOW_TO_REMOVE.format(name=self.name)}."
                )

    def read_head(self, path: str) -> dict[str, Any] | None:
        """The header of a table file; None if there is no file; InvalidStore if another version wrote it."""
        try:
            file = open_regular(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            raw = os.read(file, HEAD)
        finally:
            os.close(file)
        magic, _, rest = raw.partition(b"\n")
        if magic + b"\n" != MAGIC % FORMAT:
            raise InvalidStore(
                f"shm://{self.name}: expected a table of format {FORMAT}, got {shown(magic.decode('latin-1'))} "
                f"in {path}: another version of ratekeeper wrote it. {HOW_TO_REMOVE.format(name=self.name)}."
            )
        try:
            head: dict[str, Any] = json.loads(rest.rstrip(b"\0"))
            damaged = not (
                all(isinstance(head[fact], str) for fact in TEXTS)
                and 0 < head["max_keys"] <= MOST_KEYS
                and 0 <= head["identity"] < 2**56
                and len(bytes.fromhex(head["seed"])) == 16
            )
        except (ValueError, TypeError, KeyError):
            damaged = True
        if damaged:
            raise InvalidStore(
                f"shm://{self.name}: expected a table that describes itself, got a damaged file, {path}. "
                f"{HOW_TO_REMOVE.format(name=self.name)}."
            )
        return head

    def make_table(self, name: str, space: str, limit: Limit | LimitSet, max_keys: int, clock: str) -> dict[str, Any]:
        head = {
            "space": cut(space),
            "limits": cut(str(limit)),
            "layout": cut(limit.layout),
            "shape": shape(limit, True),
            "max_keys": max_keys,
            "seed": os.urandom(16).hex(),
            "identity": int.from_bytes(os.urandom(7), "little"),
            "boot": boot_now(),
            "clock": clock,
            "build": BUILD,  # containers that share a folder may have another C library
        }
        size = HEAD + shared_size(limit, max_keys)
        draft = f"{self.path}/.draft"
        if os.path.lexists(draft):  # left by a process that was killed while it created a table
            os.unlink(draft)
        file = self.make_file(".draft")
        try:
            # Allocate the memory now: a write to a page that cannot be allocated would kill the process.
            os.posix_fallocate(file, HEAD, size - HEAD)
            os.pwrite(file, MAGIC % FORMAT + json.dumps(head).encode(), 0)
            with mmap.mmap(file, size - HEAD, offset=HEAD) as memory:
                make_guards(limit, max_keys, memory)
            counted = self.counted
            os.rename(draft, f"{self.path}/{name}")
            if counted is not None:
                self.counted = os.stat(self.path).st_mtime_ns, counted[1] + os.fstat(file).st_blocks * 512
        except OSError as error:
            os.unlink(draft)
            if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.ENOMEM):
                raise
            raise InvalidStore(
                f"shm://{self.name}: expected {size:,} bytes of free space in {self.path} for {max_keys:,} keys of "
                f"{str(limit)!r}, got {error.strerror}. Lower max_keys, or give the container more shared memory."
            ) from error
        finally:
            os.close(file)
        return head

    def compare(self, head: dict[str, Any], space: str, max_keys: int, any_size: bool, clock: str) -> None:
        own_size = head["max_keys"] if any_size else max_keys
        expected = {"max_keys": own_size, "clock": clock, "boot": boot_now(), "build": BUILD}
        for fact, value in expected.items():
            if head[fact] != value:
                raise InvalidStore(
                    f"shm://{self.name}: expected the {fact} that other processes have for {shown(space)}, "
                    f"{shown(head[fact])}, got {shown(value)}. {HOW_TO_REMOVE.format(name=self.name)}."
                )

    def close(self) -> None:
        if self.users >= 0:
            os.close(self.users)
            self.users = -1

    __del__ = close


class Mapped:
    """A table file in memory."""

    def __init__(self, folder: Folder, name: str, head: dict[str, Any], limit: Limit | LimitSet) -> None:
        self.max_keys: int = head["max_keys"]
        self.seed = bytes.fromhex(head["seed"])
        self.identity: int = head["identity"]
        self.path = f"{folder.path}/{name}"
        size = shared_size(limit, self.max_keys)
        file = folder.open_file(name)
        try:
            actual = os.fstat(file).st_size
            if actual != HEAD + size:  # a process that touches memory beyond the end of a file is killed
                raise InvalidStore(
                    f"shm://{folder.name}: expected {HEAD + size:,} bytes in {folder.path}/{name}, got {actual:,}: "
                    f"the file is damaged. {HOW_TO_REMOVE.format(name=folder.name)}."
                )
            fcntl.flock(file, fcntl.LOCK_SH)  # for as long as it is in memory: see remove_table
            self.memory = mmap.mmap(file, size, offset=HEAD)  # keeps the file open, and so the lock
        finally:
            os.close(file)


def table_bytes(limit: Limit | LimitSet, max_keys: int) -> int:
    """The bytes that a table of ``limit`` for so many keys reserves."""
    return PAGE + in_pages(shared_size(limit, max_keys))  # of the header, only the page with its text is allocated


def in_pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


def keys_within(limit: Limit | LimitSet, bound: int, most: int) -> int:
    """The keys, at most ``most`` and at least ``LEAST_KEYS``, of a table of about ``bound`` bytes."""
    keys = most
    while keys > LEAST_KEYS and table_bytes(limit, keys) > bound:
        keys = max(LEAST_KEYS, min(keys - 1, keys * max(0, bound - PAGE) // (table_bytes(limit, keys) - PAGE)))
    return min(keys, most)


def least(bound: int, other: int | None) -> int:
    return bound if other is None else min(bound, other)


def open_regular(path: str, flags: int) -> int:
    """Open a regular file: neither a link, nor a pipe, on which a process would wait for ever."""
    file = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "something else than a file")
    return file


def cut(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + "…"


def file_of(space: str, limit: Limit | LimitSet) -> str:
    """The name of a table's file: one for all limits that read the same states."""
    whole = "\0".join([space, limit.layout, shape(limit, True)])
    return blake2b(whole.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest() + ".table"


def table_files(path: str) -> Iterator[str]:
    with os.scandir(path) as entries:
        yield from sorted(entry.path for entry in entries if entry.name.endswith(".table"))


def is_in_use(path: str) -> bool:
    """Whether a process has the segment open."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(
            folder, fcntl.LOCK_EX
        )  # this test takes the lock of the users for a moment, so one process tests at a time
        file = os.open(".users", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(file)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(folder)
    return False
