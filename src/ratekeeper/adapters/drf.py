"""Django REST framework: a throttle that is exact, counts on any store, and takes nothing when another refuses.

    class Burst(RateLimitThrottle):
        limit = "60/minute"

    REST_FRAMEWORK = {"DEFAULT_THROTTLE_CLASSES": ["shop.throttles.Burst"]}

A throttle counts each client in all views that have it, as REST framework's own do.  Without a ``limit`` it is that of
its ``scope``, or of the view's ``throttle_scope``, in DEFAULT_THROTTLE_RATES.  Clients see its name, that of the scope
or the class, in the RateLimit fields, which the middleware of ``ratekeeper.adapters.django`` sends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from rest_framework.exceptions import APIException
from rest_framework.settings import api_settings
from rest_framework.throttling import BaseThrottle

from ratekeeper.adapters.django import decided_of
from ratekeeper.adapters.django.translate import asked, known, site_facts, site_policy
from ratekeeper.adapters.route_limit import RouteLimit
from ratekeeper.errors import InvalidInput, did_you_mean

if TYPE_CHECKING:
    from ratekeeper.adapters.route_limit import Limits
    from ratekeeper.http.verdict import HttpVerdict

limits: dict[tuple[type, str], RouteLimit] = {}  # by class and scope


class RateLimitThrottle(BaseThrottle):  # type: ignore[misc]
    """Limit views of REST framework.  Attributes: ``limit`` or ``scope``, ``by``, ``cost`` and ``words`` of a rule.

    ``by`` is ``"user"``, by address for those without one, or a source such as ``"ip"`` or ``"header:X-Api-Key"``.
    Override ``subject`` to name who is counted, or ``cost_of`` to say what a request costs.
    """

    limit: Limits | None = None
    scope: str | None = None
    by: str = "user"
    cost: Any = 1
    words: dict[str, Any] = {}  # noqa: RUF012 - read only

    def __init__(self) -> None:
        self.refusal: HttpVerdict | None = None

    def subject(self, request: Any, view: Any) -> Any:
        """Who is counted, None for whom ``by`` names."""
        return None

    def cost_of(self, request: Any, view: Any) -> Any:
        """What the request costs."""
        return self.cost

    def allow_request(self, request: Any, view: Any) -> bool:
        """Decide, as REST framework asks; where an earlier throttle has refused, take nothing."""
        own = self.own_limit(view)
        if own is None:
            return True
        decided = decided_of(request._request, None)
        if own.is_held and decided.teller is None:
            raise ImproperlyConfigured(
                f"{type(self).__qualname__}: expected the middleware of ratekeeper.adapters.django, as nothing else "
                "knows when a response is done and its place is free. Add it to MIDDLEWARE."
            )
        if decided.refusal is not None:
            return True
        policy, more = own.policy(site_policy()), site_facts()
        told = more(request._request) or {} if more is not None else {}
        found = {**known(request.user), **told, "cost": self.cost_of(request, view)}
        found["subject"] = self.subject(request, view) or (found.get("user") if self.by == "user" else None)
        self.refusal = decided.check(policy, asked(request._request, policy, found))
        if self.refusal is not None and self.refusal.status != 429:
            raise Refused(self.refusal)
        return self.refusal is None

    def wait(self) -> int | None:
        """Whole seconds, never early; None if the request can never pass."""
        return self.refusal.wait or None if self.refusal is not None else None

    def own_limit(self, view: Any) -> RouteLimit | None:
        kind = type(self)
        scope = self.scope or getattr(view, "throttle_scope", None)
        if self.limit is None and scope is None:
            return None
        found = limits.get((kind, scope or ""))
        if found is None:
            limit = self.limit or rate_of(kind, str(scope))
            by = (lambda: None) if self.by == "user" or kind.subject is not RateLimitThrottle.subject else self.by
            name = scope or kind.__name__
            cost = lambda: None  # noqa: E731 - told by cost_of
            found = limits[kind, scope or ""] = RouteLimit(limit, by=by, cost=cost, name=name, **self.words)
        return found


def rate_of(kind: type, scope: str) -> Any:
    rates = api_settings.DEFAULT_THROTTLE_RATES
    if scope not in rates:
        raise InvalidInput(
            f"{kind.__qualname__}: expected DEFAULT_THROTTLE_RATES to name the scope {scope!r}, "
            f"got {', '.join(rates) or 'nothing'}.{did_you_mean(scope, rates)}"
        )
    return rates[scope] or "unlimited"


class Refused(APIException):  # type: ignore[misc]
    """A refusal that is no 429: the store cannot decide, or the address may not call this."""

    def __init__(self, verdict: HttpVerdict) -> None:
        self.status_code = verdict.status
        self.wait = verdict.wait or None
        super().__init__(verdict.message)
