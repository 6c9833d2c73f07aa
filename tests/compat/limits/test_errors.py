"""Errors under the names of ``limits``."""

import limits.errors as original

from ratekeeper.compat.limits import errors


def test_an_error_says_what_went_wrong():
    error = errors.StorageError(OSError("away"))
    assert isinstance(error.storage_error, OSError)
    assert str(error) == "away"
    assert {errors.StorageError.__name__, errors.ConfigurationError.__name__} <= set(vars(original))
