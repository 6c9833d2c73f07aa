"""The errors of ``limits``, under its names."""

from __future__ import annotations

__all__ = ["ConfigurationError", "StorageError"]


class ConfigurationError(Exception):
    """A storage that is unknown, or an option that it does not have."""


class StorageError(Exception):
    """The storage gave no answer; ``storage_error`` says why."""

    def __init__(self, storage_error: Exception) -> None:
        super().__init__(str(storage_error))
        self.storage_error = storage_error
