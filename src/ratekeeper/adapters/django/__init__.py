"""Django: a middleware for the whole site, and a decorator for views, plain and async.

    INSTALLED_APPS = [..., "ratekeeper.adapters.django"]  # for its system checks
    MIDDLEWARE = [..., "ratekeeper.adapters.django.RateLimitMiddleware"]  # after authentication, to count users
    RATEKEEPER = {"POLICY": BASE_DIR / "rules.toml"}

    @rate_limit("5/minute")
    def login(request): ...

``app:user`` is the primary key of ``request.user``.  ``FACTS`` in the setting is a function of the request, or the path
of one, that tells more.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from ratekeeper.adapters.django.translate import (
    SETTING,
    afacts,
    asked,
    facts,
    load_views,
    refused,
    resolved,
    site_policy,
    told,
)
from ratekeeper.adapters.request_limits import RequestLimits
from ratekeeper.adapters.route_limit import RouteLimit

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from ratekeeper.adapters.route_limit import Limits

    View = TypeVar("View", bound=Callable[..., Any])

EXEMPT = "ratekeeper_exempt"
exempted: list[Any] = []  # as long as there is none, no request is resolved just to look


class RateLimitMiddleware:
    """Ask the policy of the settings before each request, and tell in each response how it stands."""

    sync_capable = async_capable = True

    def __init__(self, get_response: Callable[..., Any]) -> None:
        if not hasattr(settings, SETTING):
            raise ImproperlyConfigured(
                f'{SETTING}: expected a setting such as {{"POLICY": BASE_DIR / "rules.toml"}} beside the middleware, '
                'got none. If views alone have limits, write {"POLICY": None}.'
            )
        site_policy()  # a mistake in the rules stops the start, not the first request
        self.get_response = get_response
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)

    def __call__(self, request: Any) -> Any:
        if self.is_async:
            return self.acall(request)
        decided = request.ratekeeper = RequestLimits(self)
        refusal, policy = None, site_policy()
        if not is_exempt(request):
            refusal = decided.check(policy, asked(request, policy, facts(request, policy)))
        return told(self.get_response(request) if refusal is None else refused(request, refusal), decided)

    async def acall(self, request: Any) -> Any:
        decided = request.ratekeeper = RequestLimits(self)
        refusal, policy = None, site_policy()
        if not is_exempt(request):
            refusal = await decided.acheck(policy, asked(request, policy, await afacts(request, policy)))
        return told(await self.get_response(request) if refusal is None else refused(request, refusal), decided)


def rate_limit(limit: Limits, *, by: Any = None, **words: Any) -> Callable[[View], View]:
    """Limit a view: ``@rate_limit("5/minute", by="user")``; on a class, within ``method_decorator``.

    ``by`` is a source, ``"user"`` for Django's own, or a function of the request, as may be ``cost``; other words are
    ``name`` and those of a rule.
    """
    own = RouteLimit(limit, by="app:user" if by == "user" else by, **words)

    def decorate(view: Any) -> Any:
        if iscoroutinefunction(view):

            @wraps(view)
            async def awaited(request: Any, *args: Any, **kwargs: Any) -> Any:
                decided, policy = decided_of(request, own), own.policy(site_policy())
                known = await own.afacts(await afacts(request, policy), request)
                refusal = await decided.acheck(policy, asked(request, policy, known))
                try:
                    response = await view(request, *args, **kwargs) if refusal is None else refused(request, refusal)
                except BaseException:
                    await decided.arelease()
                    raise
                return told(response, decided) if decided.teller is own else response

            return awaited
        own.for_plain_view(getattr(view, "__qualname__", "rate_limit"))

        @wraps(view)
        def called(request: Any, *args: Any, **kwargs: Any) -> Any:
            decided, policy = decided_of(request, own), own.policy(site_policy())
            refusal = decided.check(policy, asked(request, policy, own.facts(facts(request, policy), request)))
            try:
                response = view(request, *args, **kwargs) if refusal is None else refused(request, refusal)
            except BaseException:  # there is no response whose end would do it
                decided.release()
                raise
            return told(response, decided) if decided.teller is own else response

        return called

    return decorate


def exempt(view: View) -> View:
    """Leave a view alone: the middleware does not count it; limits of its own still hold."""
    setattr(view, EXEMPT, True)
    exempted.append(view)
    return view


def is_exempt(request: Any) -> bool:
    load_views(request)
    match = resolved(request) if exempted else None
    return match is not None and getattr(match.func, EXEMPT, False)


def decided_of(request: Any, teller: object) -> RequestLimits:
    """What was decided about ``request``; the first who asks tells it in the response."""
    if not hasattr(request, "ratekeeper"):
        request.ratekeeper = RequestLimits(teller)
    return request.ratekeeper
