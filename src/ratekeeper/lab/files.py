"""Files that the lab writes: one that cannot be written is told of before the work, not after it."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ratekeeper.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import TextIO


@contextmanager
def writing(path: str | Path) -> Iterator[TextIO]:
    """Open a file for text."""
    try:
        with open(path, "w", newline="", encoding="utf-8") as file:
            yield file
    except OSError as error:
        raise unwritable(path, error) from error


def check_writable(path: str | Path, read: Iterable[str | Path] = ()) -> None:
    """Raise if nothing can be written there, or what is ``read`` would be lost; what is there stays as it is."""
    is_new = not Path(path).exists()
    if not is_new and any(Path(other).exists() and Path(other).samefile(path) for other in read):
        raise InvalidInput(f"{path}: expected another file than the logs to write to, got one of them.")
    try:
        with open(path, "ab"):
            pass
        if is_new:
            Path(path).unlink()
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(path: str | Path, error: OSError) -> InvalidInput:
    return InvalidInput(f"{path}: expected a file that can be written, but {error.strerror}.")
