"""Django: a middleware for the whole site, and a decorator for views, plain and async.

    INSTALLED_APPS = [..., "ratekeeper.adapters.django"]  # for its system checks
    MIDDLEWARE = [..., "ratekeeper.adapters.django.RateLimitMiddleware"]  # after authentication, to count users
    RATEKEEPER = {"POLICY": BASE_DIR / "rules.toml"}

    @rate_limit("5/minute")
    def login(request): ...

``app:user`` is the primary key of ``request.user``.  ``FACTS`` in the setting adds more facts: a function of the
request, or the import path of one.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from ratekeeper.adapters import framework

with framework(__name__):
    from asgiref.sync import iscoroutinefunction, markcoroutinefunction
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured

from ratekeeper.adapters.django.translate import (
    SETTING,
    add_headers,
    afacts_of,
    facts_of,
    load_views,
    look_for_unreachable_rules,
    refusal,
    request_of,
    site_policy,
    view_match,
)
from ratekeeper.adapters.request_limits import RequestLimits
from ratekeeper.adapters.route_limit import RouteLimit

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from ratekeeper.adapters.route_limit import Limits

    View = TypeVar("View", bound=Callable[..., Any])

__all__ = ["RateLimitMiddleware", "exempt", "rate_limit"]
EXEMPT = "ratekeeper_exempt"
exempt_views: list[Any] = []  # while it is empty, no request is resolved just to see whether its view is exempt


class RateLimitMiddleware:
    """Check each request with the policy of the settings, and add the headers to each response."""

    sync_capable = async_capable = True

    def __init__(self, get_response: Callable[..., Any]) -> None:
        if not hasattr(settings, SETTING):
            raise ImproperlyConfigured(
                f'{SETTING}: expected a setting such as {{"POLICY": BASE_DIR / "rules.toml"}} beside the middleware, '
                'got none. If views alone have limits, write {"POLICY": None}.'
            )
        site_policy()  # so that a mistake in the rules stops the start, not the first request
        self._get_response = get_response
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: Any) -> Any:
        if self._is_async:
            return self._acall(request)
        limits, policy = limits_of(request, self), site_policy()
        if not is_exempt(request):
            verdict = limits.check(policy, request_of(request, policy, facts_of(request, policy)))
            if not verdict.allowed:
                return add_headers(refusal(request, verdict), limits)
        return add_headers(self._get_response(request), limits)

    async def _acall(self, request: Any) -> Any:
        limits, policy = limits_of(request, self), site_policy()
        if not is_exempt(request):
            verdict = await limits.acheck(policy, request_of(request, policy, await afacts_of(request, policy)))
            if not verdict.allowed:
                return add_headers(refusal(request, verdict), limits)
        return add_headers(await self._get_response(request), limits)


def rate_limit(limit: Limits, *, by: Any = None, **words: Any) -> Callable[[View], View]:
    """Limit a view: ``@rate_limit("5/minute", by="user")``; on a class, within ``method_decorator``.

    ``by`` is a source, ``"user"`` for Django's own users, or a function of the request, as may be ``cost``; other words
    are ``name`` and those of a rule.
    """
    route_limit = RouteLimit(limit, by="app:user" if by == "user" else by, **words)

    def decorate(view: Any) -> Any:
        if iscoroutinefunction(view):

            @wraps(view)
            async def awaited(request: Any, *args: Any, **kwargs: Any) -> Any:
                if is_exempt(request):
                    return await view(request, *args, **kwargs)
                limits = limits_of(request, route_limit)
                policy = limits.policy_of(route_limit, site_policy())
                facts = await route_limit.afacts(await afacts_of(request, policy), request)
                verdict = await limits.acheck(policy, request_of(request, policy, facts))
                try:
                    response = await view(request, *args, **kwargs) if verdict.allowed else refusal(request, verdict)
                except BaseException:
                    await limits.arelease()
                    raise
                return add_headers(response, limits) if limits.header_writer is route_limit else response

            return awaited
        route_limit.expect_plain_functions(getattr(view, "__qualname__", "rate_limit"))

        @wraps(view)
        def called(request: Any, *args: Any, **kwargs: Any) -> Any:
            if is_exempt(request):
                return view(request, *args, **kwargs)
            limits = limits_of(request, route_limit)
            policy = limits.policy_of(route_limit, site_policy())
            facts = route_limit.facts(facts_of(request, policy), request)
            verdict = limits.check(policy, request_of(request, policy, facts))
            try:
                response = view(request, *args, **kwargs) if verdict.allowed else refusal(request, verdict)
            except BaseException:  # no response whose close would release them
                limits.release()
                raise
            return add_headers(response, limits) if limits.header_writer is route_limit else response

        return called

    return decorate


def exempt(view: View) -> View:
    """Exempt a view from every limit: those of the middleware's policy and its own."""
    setattr(view, EXEMPT, True)
    exempt_views.append(view)
    return view


def is_exempt(request: Any) -> bool:
    if request.resolver_match is None:
        load_views(request)
        look_for_unreachable_rules(request)
    match = view_match(request) if exempt_views else None
    return match is not None and getattr(match.func, EXEMPT, False)


def limits_of(request: Any, header_writer: object) -> RequestLimits:
    """The limits of ``request``; the first adapter that asks for them adds the headers to the response."""
    if not hasattr(request, "ratekeeper"):
        request.ratekeeper = RequestLimits(header_writer)
    return request.ratekeeper
