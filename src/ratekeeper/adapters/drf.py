"""Django REST framework: a throttle that is exact, counts on any store, and charges no refused request.

    class Burst(RateLimitThrottle):
        limit = "60/minute"

    REST_FRAMEWORK = {"DEFAULT_THROTTLE_CLASSES": ["shop.throttles.Burst"]}

``AnonRateThrottle``, ``UserRateThrottle`` and ``ScopedRateThrottle`` replace those of REST framework: import them here.
A throttle counts each client in all views that use it, as REST framework's own throttles do.  Without a ``limit``, it
uses the rate of its ``scope``, or of the view's ``throttle_scope``, in DEFAULT_THROTTLE_RATES.  Its name in the
RateLimit headers is its scope, else its class.  The middleware of ``ratekeeper.adapters.django`` sends the headers.
"""

from __future__ import annotations

import re
from json import loads
from typing import TYPE_CHECKING, Any

from ratekeeper.adapters import expect_facts, framework

with framework(__name__):
    from django.core.exceptions import ImproperlyConfigured
    from rest_framework.exceptions import APIException
    from rest_framework.response import Response
    from rest_framework.settings import api_settings
    from rest_framework.throttling import BaseThrottle

from ratekeeper.adapters.django import limits_of
from ratekeeper.adapters.django.translate import request_of, site_facts, site_hooks, site_policy, user_facts
from ratekeeper.adapters.route_limit import COST, EXEMPT, LIMIT, RouteLimit
from ratekeeper.errors import InvalidInput, LimitExceeded, did_you_mean
from ratekeeper.identity.identity import SUBJECT
from ratekeeper.rules.exceeded import exceeded

if TYPE_CHECKING:
    from ratekeeper.adapters.route_limit import Limits, LimitWords
    from ratekeeper.http.verdict import HttpVerdict

route_limits: dict[tuple[type, str], RouteLimit] = {}  # by class and scope


__all__ = [
    "AnonRateThrottle",
    "RateLimitThrottle",
    "ScopedRateThrottle",
    "SimpleRateThrottle",
    "UserRateThrottle",
    "exception_handler",
]
ADDRESS = ""  # a cache key that names nobody, so that the client is counted by address
PERIODS = {"s": "second", "m": "minute", "h": "hour", "d": "day"}  # REST framework reads the first letter only
RATE = re.compile(r"(\d+)/([smhd])[a-z]*")


class RateLimitThrottle(BaseThrottle):  # type: ignore[misc]
    """Limit views of REST framework.  Attributes: ``limit`` or ``scope``, ``by``, ``cost`` and ``words`` of a rule.

    ``by`` is ``"user"``, which counts anonymous clients by address, or a source such as ``"ip"`` or
    ``"header:X-Api-Key"``.  Override ``subject`` to name the client, ``cost_of`` to set the cost of a request, or
    ``limit_of`` to compute its limit.  ``words`` may have ``exempt_when``, ``count_when`` and ``on_breach`` too; what
    the last returns, a Response or its data, answers a refusal.
    """

    limit: Limits | None = None
    scope: str | None = None
    by: str = "user"
    cost: Any = 1
    words: LimitWords = {}  # noqa: RUF012 - read only

    def __init__(self) -> None:
        self._refusal: HttpVerdict | None = None

    def subject(self, request: Any, view: Any) -> Any:
        """Return the name of the client to count; None counts it as ``by`` says."""
        return None

    def cost_of(self, request: Any, view: Any) -> Any:
        """Return the cost of the request."""
        return self.cost

    def limit_of(self, request: Any, view: Any) -> Any:
        """Return the limit of the request; override it to compute one."""
        return self.limit

    def allow_request(self, request: Any, view: Any) -> bool:
        """Decide, as REST framework asks; if an earlier throttle has refused the request, charge nothing."""
        route_limit = self._route_limit(view)
        if route_limit is None:
            return True
        limits = limits_of(request._request, None)
        if route_limit.is_leased and limits.header_writer is None:
            raise ImproperlyConfigured(
                f"{type(self).__qualname__}: expected the middleware of ratekeeper.adapters.django, as nothing else "
                "knows when a response is done and its place is free. Add it to MIDDLEWARE."
            )
        if route_limit.counts_responses and limits.header_writer is None:
            raise ImproperlyConfigured(
                f"{type(self).__qualname__}: expected the middleware of ratekeeper.adapters.django, as nothing else "
                "sees the response that count_when asks about. Add it to MIDDLEWARE."
            )
        if limits.header_writer is None:  # no middleware has asked yet
            limits.is_exempt = site_hooks().exempts(request._request)
        if limits.refusal is not None or limits.is_exempt:
            return True
        policy, function = route_limit.policy(site_policy()), site_facts()
        more = expect_facts(function(request._request)) if function is not None else None
        facts = {**user_facts(request.user), **(more or {})}
        facts[COST] = self.cost_of(request, view)
        facts[LIMIT] = self.limit_of(request, view)
        if route_limit.exempt_when is not None:
            facts[EXEMPT] = route_limit.exempt_when(request)
        subject = self.subject(request, view)
        facts[SUBJECT] = facts.get("user") if subject is None and self.by == "user" else subject
        verdict = limits.check(policy, request_of(request._request, policy, facts))
        request._request.limited = limits.limited
        if verdict.allowed:
            return True
        self._refusal = verdict
        answer = site_hooks().answer(verdict, route_limit)
        if answer is not None or verdict.status != 429:
            raise Refused(verdict, answer)
        return False

    def wait(self) -> int | None:
        """Return whole seconds, never too few; None if the request can never pass."""
        return self._refusal.wait or None if self._refusal is not None else None

    @classmethod
    def check_limit(cls, view: Any) -> None:
        """Raise if the limit of this throttle on ``view`` is missing or wrong, as ``manage.py check`` wants to know."""
        throttle = cls()
        if throttle._applies_to(view):
            throttle._route_limit(view)

    def _applies_to(self, view: Any) -> bool:
        return True

    def _route_limit(self, view: Any) -> RouteLimit | None:
        kind = type(self)
        scope = self.scope or getattr(view, "throttle_scope", None)
        is_computed = kind.limit_of is not RateLimitThrottle.limit_of
        if self.limit is None and scope is None and not is_computed:
            if kind is RateLimitThrottle:  # in DEFAULT_THROTTLE_CLASSES, for the views that have a throttle_scope
                return None
            raise ImproperlyConfigured(
                f"{kind.__qualname__}: expected a limit or a scope, got neither, so it would limit nothing. "
                "Set limit = '100/minute' or scope = 'NAME' on it, or use ScopedRateThrottle for views with a "
                "throttle_scope."
            )
        route_limit = route_limits.get((kind, scope or ""))
        if route_limit is None:
            limit = from_facts if is_computed else self.limit or rate_of(kind, str(scope))
            by = from_facts if self.by == "user" or kind.subject is not RateLimitThrottle.subject else self.by
            name = scope or kind.__name__
            space = scope or f"{kind.__module__}.{kind.__qualname__}"
            words: Any = self.words
            route_limit = RouteLimit(limit, by=by, cost=from_facts, name=name, space=space, **words)
            route_limits[kind, scope or ""] = route_limit
        return route_limit


class SimpleRateThrottle(RateLimitThrottle):
    """A throttle of REST framework: ``rate`` or ``scope``, and ``get_cache_key``, whose None throttles nobody.

    It counts as REST framework's own does, with the instants of the last calls, but exactly and on any store.
    """

    rate: str | None = None
    words: LimitWords = {"algorithm": "sliding_log"}  # noqa: RUF012 - read only
    _key: Any = None

    def __init__(self) -> None:
        super().__init__()
        if self.rate is not None:
            self.limit = rate_text(self.rate)

    def get_cache_key(self, request: Any, view: Any) -> Any:
        """Return what to count, or None to throttle nobody."""
        raise NotImplementedError("get_cache_key: expected to be overridden.")

    def allow_request(self, request: Any, view: Any) -> bool:
        """Decide, as REST framework asks."""
        if not self._applies_to(view):
            return True
        self._key = self.get_cache_key(request, view)
        return True if self._key is None else super().allow_request(request, view)

    def subject(self, request: Any, view: Any) -> Any:
        """Return what ``get_cache_key`` returned."""
        return self._key


class AnonRateThrottle(SimpleRateThrottle):
    """Limit anonymous clients, by address; users are not throttled.  Its scope is ``anon``."""

    scope = "anon"

    def get_cache_key(self, request: Any, view: Any) -> Any:
        """Return None for a user."""
        return None if request.user and request.user.is_authenticated else ADDRESS


class UserRateThrottle(SimpleRateThrottle):
    """Limit users by their primary key, and anonymous clients by address.  Its scope is ``user``."""

    scope = "user"

    def get_cache_key(self, request: Any, view: Any) -> Any:
        """Return the key of the user."""
        return str(request.user.pk) if request.user and request.user.is_authenticated else ADDRESS


class ScopedRateThrottle(UserRateThrottle):
    """Limit the views that have a ``throttle_scope``, by the rate of that scope."""

    scope = None  # type: ignore[assignment]

    def _applies_to(self, view: Any) -> bool:
        return bool(getattr(view, "throttle_scope", None))


def rate_text(rate: Any) -> Any:
    """A rate as REST framework reads it, ``100/min`` or ``5/d``; other spellings are limits of ours."""
    match = RATE.fullmatch(rate) if isinstance(rate, str) else None
    return f"{match[1]}/{PERIODS[match[2]]}" if match else rate


def from_facts() -> None:
    """Stand for a function that is never called: allow_request puts the subject and the cost into the facts."""


def rate_of(kind: type, scope: str) -> Any:
    rates = api_settings.DEFAULT_THROTTLE_RATES
    if scope not in rates:
        raise InvalidInput(
            f"{kind.__qualname__}: expected DEFAULT_THROTTLE_RATES to name the scope {scope!r}, "
            f"got {', '.join(rates) or 'nothing'}.{did_you_mean(scope, rates)}"
        )
    return rate_text(rates[scope]) if rates[scope] is not None else "unlimited"


def exception_handler(error: Exception, context: Any) -> Any:
    """Answer 429 where ``@limiter.limit`` of a plain Limiter refused, else as REST framework does: EXCEPTION_HANDLER.

    Behind the middleware of ``ratekeeper.adapters.django`` it is not needed.
    """
    if not isinstance(error, LimitExceeded):
        from rest_framework.views import exception_handler  # which imports the throttles of the settings

        return exception_handler(error, context)
    policy, request = site_policy(), context["request"]._request
    verdict = exceeded(error, request_of(request, policy, {}), policy)
    limits = limits_of(request, None)
    limits.refuse(verdict)
    answer = site_hooks().answer(verdict)
    if answer is None:
        answer = loads(verdict.body) if verdict.body[:1] == b"{" else {"detail": verdict.message}
    response = answer if isinstance(answer, Response) else Response(answer, verdict.status)
    for name, value in limits.headers_beside(()) if limits.header_writer is None else ():
        response[name] = value
    return response


class Refused(APIException):  # type: ignore[misc]
    """A refusal that ``on_breach`` answered, or with a status other than 429, as when an address is forbidden.

    ``answer`` is a Response of REST framework, or the data of one.
    """

    def __init__(self, verdict: HttpVerdict, answer: Any = None) -> None:
        is_response = isinstance(answer, Response)
        self.status_code = answer.status_code if is_response else verdict.status
        self.wait = verdict.wait or None
        super().__init__(verdict.message)
        if answer is not None:
            self.detail = answer.data if is_response else answer
