"""Settings: a rules file after parsing.  Response: what responses tell clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ratekeeper.http.headers import DIALECTS, EXPOSED, renamed_fields
from ratekeeper.identity.address import Networks
from ratekeeper.identity.identity import Identity
from ratekeeper.rules.rule import Exempt, Rule

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratekeeper.http.headers import Dialect
    from ratekeeper.http.verdict import HttpVerdict
    from ratekeeper.identity.request import Request

    Render = Callable[["HttpVerdict"], tuple[str, bytes]]
    Functions = Mapping[str, Callable[[Request], Any]]


@dataclass(frozen=True)
class Response:
    """What responses tell clients."""

    headers: tuple[str, ...] = ("x-ratelimit", "draft-11")
    header_names: Mapping[str, str] = field(default_factory=dict)  # the application's own, instead of dialects
    body: str = "json"
    jitter: int = 0  # microseconds
    cors: tuple[str, ...] = ()
    count_preflights: bool = False
    message: str | None = None
    render: Render | None = None  # returns the media type and the body of a refusal, instead of ours

    @cached_property
    def is_usual(self) -> bool:
        """Whether the header fields are the default ones, which are written by one function without a loop."""
        return self.headers == Response.headers and not self.cors

    @cached_property
    def is_terse(self) -> bool:
        """Whether the body of a refusal is the same for each refusal with the same wait, and can be cached."""
        return self.body in ("json", "problem") and self.message is None and not self.jitter and self.render is None

    @cached_property
    def dialects(self) -> tuple[Dialect, ...]:
        if self.header_names:
            return (renamed_fields(self.header_names),)
        return tuple([DIALECTS[name] for name in self.headers])

    @cached_property
    def exposed(self) -> bytes:
        """The header fields that a browser's script may read."""
        return b", ".join([EXPOSED, *[name.encode("latin-1") for name in self.header_names.values()]])


@dataclass(frozen=True)
class Settings:
    """A rules file after parsing."""

    rules: tuple[Rule, ...]
    identity: Identity
    store: str = field(default="memory://", repr=False)  # may hold a password
    exempt: Exempt = field(default_factory=lambda: Exempt(Networks(())))
    response: Response = field(default_factory=Response)
    secret: str | None = field(default=None, repr=False)
    on_store_error: str = "local"  # of rules that do not say it themselves
    tier_default: str | None = None  # None: there are no tiers
    warnings: tuple[str, ...] = ()
