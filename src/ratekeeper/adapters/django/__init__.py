"""Django: a middleware for the whole site, and a decorator for views, plain and async.

    INSTALLED_APPS = [..., "ratekeeper.adapters.django"]  # for its system checks
    MIDDLEWARE = [..., "ratekeeper.adapters.django.RateLimitMiddleware"]  # after authentication, to count users
    RATEKEEPER = {"POLICY": BASE_DIR / "rules.toml"}

    @rate_limit("5/minute")
    def login(request): ...

``app:user`` is the primary key of ``request.user``.  ``FACTS`` in the setting adds more facts: a function of the
request, or the import path of one.  ``EXEMPT_WHEN`` is one that says whether a request is exempt from every limit.
``ON_BREACH`` is a function of the verdict of a refusal, unless a limit on the view has its own; what it returns answers
the request, unless it is None.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from ratekeeper.adapters import framework

with framework(__name__):
    from asgiref.sync import async_to_sync, iscoroutinefunction, markcoroutinefunction
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured

from ratekeeper.adapters.django.translate import (
    SETTING,
    add_headers,
    afacts_of,
    answer_to,
    facts_of,
    load_views,
    look_for_unreachable_rules,
    refusal,
    request_of,
    site_hooks,
    site_policy,
    view_match,
)
from ratekeeper.adapters.request_limits import RequestLimits
from ratekeeper.adapters.route_limit import REPLACES_DEFAULT, RouteLimit
from ratekeeper.errors import LimitExceeded
from ratekeeper.rules.exceeded import exceeded

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar, Unpack

    from ratekeeper.adapters.route_limit import Limits, LimitWords
    from ratekeeper.rules.policy import Policy

    View = TypeVar("View", bound=Callable[..., Any])

__all__ = ["RateLimitMiddleware", "exempt", "rate_limit"]
EXEMPT = "ratekeeper_exempt"
exempt_views: list[Any] = []  # while it is empty, no request is resolved just to see whether its view is exempt
replacing_views: list[Any] = []  # the same for views whose limit replaces the default ones


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
        if not self._is_async:
            site_hooks().expect_plain()
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: Any) -> Any:
        if self._is_async:
            return self._acall(request)
        limits = limits_of(request, self)
        limits.is_exempt = site_hooks().exempts(request)
        if not is_exempt(request):
            policy = policy_for(request)
            verdict = limits.check(policy, request_of(request, policy, facts_of(request, policy)))
            request.limited = limits.limited
            if not verdict.allowed:
                answer = site_hooks().answer(verdict)
                return add_headers(refusal(request, verdict) if answer is None else answer, limits)
        response = self._get_response(request)
        limits.settle(response.status_code, response)
        return add_headers(response, limits)

    async def _acall(self, request: Any) -> Any:
        limits = limits_of(request, self)
        limits.is_exempt = await site_hooks().aexempts(request)
        if not is_exempt(request):
            policy = policy_for(request)
            verdict = await limits.acheck(policy, request_of(request, policy, await afacts_of(request, policy)))
            request.limited = limits.limited
            if not verdict.allowed:
                answer = await site_hooks().aanswer(verdict)
                return add_headers(refusal(request, verdict) if answer is None else answer, limits)
        response = await self._get_response(request)
        await limits.asettle(response.status_code, response)
        return add_headers(response, limits)

    def process_exception(self, request: Any, error: Exception) -> Any:
        """Answer 429 where ``@limiter.limit`` of a plain Limiter refused, as Django asks about each error of a view."""
        if not isinstance(error, LimitExceeded):
            return None
        policy = site_policy()
        verdict = exceeded(error, request_of(request, policy, {}), policy)
        limits_of(request, self).refuse(verdict)
        answer = async_to_sync(site_hooks().aanswer)(verdict) if self._is_async else site_hooks().answer(verdict)
        return refusal(request, verdict) if answer is None else answer


def rate_limit(limit: Limits, **words: Unpack[LimitWords]) -> Callable[[View], View]:
    """Limit a view: ``@rate_limit("5/minute", by="user")``; on a class, within ``method_decorator``.

    ``by`` is a source, ``"user"`` for Django's own users, or a function of the request, as may be ``limit``, ``cost``
    and ``exempt_when``.  ``count_when`` may be a function of the response.  What ``on_breach`` returns answers a
    refusal, unless it is None.  Other words are ``name``, ``replaces_default`` and those of a rule.

    ``request.limited`` says whether a limit refused the request, or would have in shadow.
    """
    if words.get("by") == "user":
        words["by"] = "app:user"
    route_limit = RouteLimit(limit, **words)

    def decorate(view: Any) -> Any:
        if route_limit.replaces_default:
            replacing_views.append(view)
        if iscoroutinefunction(view):

            @wraps(view)
            async def awaited(request: Any, *args: Any, **kwargs: Any) -> Any:
                limits = limits_of(request, route_limit)
                if limits.header_writer is route_limit:  # no middleware has asked
                    limits.is_exempt = await site_hooks().aexempts(request)
                if is_exempt(request):
                    return await view(request, *args, **kwargs)
                policy = limits.policy_of(route_limit, site_policy())
                facts = await route_limit.afacts(await afacts_of(request, policy), request)
                verdict = await limits.acheck(policy, request_of(request, policy, facts))
                request.limited = limits.limited
                try:
                    if verdict.allowed:
                        response = await view(request, *args, **kwargs)
                    else:
                        answer = await site_hooks().aanswer(verdict, route_limit)
                        response = refusal(request, verdict) if answer is None else answer
                except BaseException as error:
                    if limits.header_writer is route_limit and isinstance(error, Exception):
                        await limits.asettle(*answer_to(error))
                    await limits.arelease()
                    raise
                if limits.header_writer is not route_limit:  # the middleware does the rest
                    return response
                await limits.asettle(response.status_code, response)
                return add_headers(response, limits)

            return marked(awaited, route_limit)
        route_limit.expect_plain_functions(getattr(view, "__qualname__", "rate_limit"))

        @wraps(view)
        def called(request: Any, *args: Any, **kwargs: Any) -> Any:
            limits = limits_of(request, route_limit)
            if limits.header_writer is route_limit:  # no middleware has asked
                limits.is_exempt = site_hooks().exempts(request)
            if is_exempt(request):
                return view(request, *args, **kwargs)
            policy = limits.policy_of(route_limit, site_policy())
            facts = route_limit.facts(facts_of(request, policy), request)
            verdict = limits.check(policy, request_of(request, policy, facts))
            request.limited = limits.limited
            try:
                if verdict.allowed:
                    response = view(request, *args, **kwargs)
                else:
                    answer = site_hooks().answer(verdict, route_limit)
                    response = refusal(request, verdict) if answer is None else answer
            except BaseException as error:  # no response whose close would release them
                if limits.header_writer is route_limit and isinstance(error, Exception):
                    limits.settle(*answer_to(error))
                limits.release()
                raise
            if limits.header_writer is not route_limit:  # the middleware does the rest
                return response
            limits.settle(response.status_code, response)
            return add_headers(response, limits)

        return marked(called, route_limit)

    return decorate


def marked(view: Any, route_limit: RouteLimit) -> Any:
    """The view, on which the middleware sees that its limit replaces the default ones."""
    if route_limit.replaces_default:
        setattr(view, REPLACES_DEFAULT, True)
    return view


def policy_for(request: Any) -> Policy:
    """The rules of the site that hold for the view of ``request``."""
    match = view_match(request) if replacing_views else None
    is_replaced = match is not None and getattr(match.func, REPLACES_DEFAULT, False)
    return site_policy().without_defaults() if is_replaced else site_policy()


def exempt(view: View) -> View:
    """Exempt a view from every limit: those of the middleware's policy and its own."""
    setattr(view, EXEMPT, True)
    exempt_views.append(view)
    return view


def is_exempt(request: Any) -> bool:
    if request.resolver_match is None:
        load_views(request)
        look_for_unreachable_rules(request)
    if request.ratekeeper.is_exempt:
        return True
    match = view_match(request) if exempt_views else None
    return match is not None and getattr(match.func, EXEMPT, False)


def limits_of(request: Any, header_writer: object) -> RequestLimits:
    """The limits of ``request``; the first adapter that asks for them adds the headers to the response."""
    if not hasattr(request, "ratekeeper"):
        request.ratekeeper = RequestLimits(header_writer)
    return request.ratekeeper
