"""Files that the lab writes.  A path that cannot be written is reported before the work starts."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ratekeeper.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import TextIO


@contextmanager
def open_for_writing(path: str | Path) -> Iterator[TextIO]:
    """Open a text file for writing."""
    try:
        with open(path, "w", newline="", encoding="utf-8") as file:
            yield file
    except OSError as error:
        raise cannot_write(path, error) from error


def check_writable(path: str | Path, inputs: Iterable[str | Path] = ()) -> None:
    """Raise if ``path`` cannot be written, or if it is one of the ``inputs``.  An existing file is not changed."""
    is_new = not Path(path).exists()
    if not is_new and any(Path(other).exists() and Path(other).samefile(path) for other in inputs):
        raise InvalidInput(f"{path}: expected a file to write to, got one of the logs. Choose another name.")
    try:
        with open(path, "ab"):
            pass
        if is_new:
            Path(path).unlink()
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: str | Path, error: OSError) -> InvalidInput:
    return InvalidInput(f"cannot write {path}: {(error.strerror or str(error)).lower()}.")
