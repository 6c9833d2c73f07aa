"""Rows as a pandas or polars DataFrame, whichever is installed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidInput, shown

if TYPE_CHECKING:
    Frame = Any  # pandas.DataFrame or polars.DataFrame

LIBRARIES = ("pandas", "polars")


def frame(rows: list[dict[str, Any]], library: str | None = None) -> Frame:
    """Make a DataFrame with ``library``, or with the first library that is installed."""
    if library not in (None, *LIBRARIES):
        raise InvalidInput(f"frame: expected pandas or polars, got {shown(library)}.")
    for name in LIBRARIES if library is None else [library]:
        try:
            return import_module(name).DataFrame(rows)
        except ImportError:
            continue
    wanted = library or " or ".join(LIBRARIES)
    raise InvalidInput(f"frame: expected {wanted} to be installed. Run: pip install {library or LIBRARIES[0]}")
