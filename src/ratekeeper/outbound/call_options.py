"""Options for the calls of one block, also where another library makes the request.

>>> with call_options(priority=10, tenant="acme"):
...     current_options()
{'priority': 10, 'tenant': 'acme'}
>>> current_options()
{}

A client library has its own way to pass options with a request; an SDK on top of it usually has none.  The options
belong to the thread or task that entered the block, and to the tasks that it starts there.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidInput, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

OPTIONS = ("priority", "max_wait", "key", "tenant")
options_of_block: ContextVar[Mapping[str, Any]] = ContextVar("ratekeeper.call_options")
NO_OPTIONS: Mapping[str, Any] = {}


@contextmanager
def call_options(**options: Any) -> Iterator[None]:
    """Apply options to every paced call in the block: ``priority``, ``max_wait``, ``key``, ``tenant``.

    ``tenant`` is the key of the budget.  A block inside another one adds its options to those of the outer one.
    """
    for option in options:
        if option not in OPTIONS:
            raise InvalidInput(
                f"call_options: expected {', '.join(OPTIONS)}, got {option!r}.{did_you_mean(option, OPTIONS)}"
            )
    token = options_of_block.set({**current_options(), **options})
    try:
        yield
    finally:
        options_of_block.reset(token)


def current_options() -> Mapping[str, Any]:
    """The options of the innermost block."""
    return options_of_block.get(NO_OPTIONS)
