"""Between Django and the policy: the policy of the settings, requests and users in, responses and headers out."""

from __future__ import annotations

import re
from functools import cache
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from ratekeeper.adapters import expect_facts, framework, policy_of
from ratekeeper.adapters.hooks import Hooks

with framework(__name__):
    from django.conf import settings
    from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
    from django.core.signals import setting_changed
    from django.http import Http404, HttpResponse
    from django.urls import Resolver404, get_resolver
    from django.urls.converters import IntConverter, SlugConverter, StringConverter, UUIDConverter
    from django.utils.cache import patch_vary_headers
    from django.utils.module_loading import import_string

from ratekeeper.adapters.asgi import request_of as asgi_request_of
from ratekeeper.adapters.route_table import warn_of_unreachable_rules
from ratekeeper.adapters.wsgi import request_of as wsgi_request_of
from ratekeeper.adapters.wsgi_server import warn_of_server
from ratekeeper.rules.unreachable import route

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ratekeeper.adapters.request_limits import RequestLimits
    from ratekeeper.http.verdict import HttpVerdict
    from ratekeeper.identity.request import Request
    from ratekeeper.rules.match import Pattern
    from ratekeeper.rules.policy import Policy

SETTING = "RATEKEEPER"
WITHOUT_RULES: dict[str, Any] = {"rules": []}
checked_rules: list[object] = [None]  # whose unreachable rules were logged
ONE_SEGMENT = (IntConverter, SlugConverter, StringConverter, UUIDConverter)


@cache
def site_policy() -> Policy:
    """The policy of the settings; without one, only views with limits of their own are limited."""
    setting = getattr(settings, SETTING, {})
    policy, limit, store = setting.get("POLICY"), setting.get("LIMIT"), setting.get("STORE")
    is_empty = policy is None and limit is None and store is None
    opened = policy_of(WITHOUT_RULES if is_empty else policy, limit=limit, store=store)
    opened.warm_up()
    return opened


@cache
def site_facts() -> Callable[[Any], Any] | None:
    return site_function("FACTS")


def site_function(key: str) -> Any:
    """The function of the settings under ``key``: itself, or its import path."""
    function = getattr(settings, SETTING, {}).get(key)
    return import_string(function) if isinstance(function, str) else function


@cache
def site_hooks() -> Hooks:
    """EXEMPT_WHEN and ON_BREACH of the settings."""
    return Hooks(SETTING, site_function("EXEMPT_WHEN"), site_function("ON_BREACH"), awaits=True)


def forget_settings(setting: str, **_: Any) -> None:
    if setting == SETTING:
        site_policy.cache_clear()
        site_facts.cache_clear()
        site_hooks.cache_clear()


setting_changed.connect(forget_settings)


def request_of(request: Any, policy: Policy, facts: Mapping[str, Any]) -> Request:
    """Translate Django's request; its route is resolved only if a rule of ``policy`` uses it."""
    scope = getattr(request, "scope", None)  # of ASGI; older Djangos join X_Name with X-Name in META
    translated = wsgi_request_of(request.META) if scope is None else asgi_request_of(scope)
    translated.peer = request.META.get("REMOTE_ADDR") or None  # a middleware of the site may have set it
    translated.path = request.path
    translated.root_path = request.path[: len(request.path) - len(request.path_info)]  # of the server, or forced
    if policy.asks("route"):
        match = view_match(request)
        translated.route = "/" + match.route if match is not None else None
    translated.facts = facts
    return translated


def load_views(request: Any) -> None:
    """Import the URLs now: Django does so at the first request, and before that no view is decorated."""
    resolver_of(request).url_patterns  # noqa: B018 - the resolver caches it


def site_routes(patterns: Iterable[Any] | None = None, prefix: str = "/") -> list[Pattern]:
    """The URLs of the site; what a regular expression matches is only known up to its first special character."""
    routes: list[Pattern] = []
    for entry in get_resolver().url_patterns if patterns is None else patterns:
        text = getattr(entry.pattern, "_route", None)
        converters = getattr(entry.pattern, "converters", {}).values()
        if text is None or not all(type(converter) in ONE_SEGMENT for converter in converters):
            literal = re.match(r"\^?([\w/-]*)", str(text or getattr(entry.pattern, "_regex", "")))
            known = literal[1] if literal is not None else ""
            routes.append(route(prefix + known.rpartition("/")[0] + "/**"))  # the last segment may go on
        elif hasattr(entry, "url_patterns"):
            routes += site_routes(entry.url_patterns, prefix + str(text))
        else:
            routes.append(route(prefix + str(text)))
    return routes


def look_for_unreachable_rules(request: Any) -> None:
    """Log the rules that no URL can match, and an unsuitable server: at the first request, and after each reload."""
    policy = site_policy()
    if checked_rules[0] is not policy.compiled:
        checked_rules[0] = policy.compiled
        warn_of_unreachable_rules(policy, site_routes())
        if not hasattr(request, "scope"):
            warn_of_server(policy.compiled.identity.addresses, request.META)


def resolver_of(request: Any) -> Any:
    return get_resolver(getattr(request, "urlconf", None))


def view_match(request: Any) -> Any:
    if request.resolver_match is not None:
        return request.resolver_match
    try:
        return resolver_of(request).resolve(request.path_info)
    except Resolver404:
        return None


def facts_of(request: Any, policy: Policy) -> dict[str, Any]:
    """The user, if a rule of ``policy`` counts users, and the facts that FACTS returns."""
    facts = user_facts(getattr(request, "user", None)) if policy.asks("app:user") else {}
    function = site_facts()
    return facts if function is None else {**facts, **(expect_facts(function(request)) or {})}


async def afacts_of(request: Any, policy: Policy) -> dict[str, Any]:
    """``facts_of`` for an event loop, where the user must be awaited."""
    facts: dict[str, Any] = {}
    if policy.asks("app:user"):
        facts = user_facts(await request.auser() if hasattr(request, "auser") else getattr(request, "user", None))
    function = site_facts()
    more = function(request) if function is not None else None
    return {**facts, **(expect_facts(await more if isawaitable(more) else more) or {})}


def user_facts(user: Any) -> dict[str, Any]:
    return {"user": str(user.pk)} if user is not None and user.is_authenticated else {}


def refusal(request: Any, verdict: HttpVerdict) -> HttpResponse:
    body = verdict.body
    media = dict(verdict.headers).get(b"content-type", b"").decode("latin-1")
    response = HttpResponse(b"" if request.method == "HEAD" else body, status=verdict.status, content_type=media)
    response.headers["Content-Length"] = str(len(body))
    if not media:
        del response.headers["Content-Type"]
    return response


def answer_to(error: Exception) -> tuple[int, HttpResponse]:
    """The status and the response with which Django answers an exception of a view."""
    kinds = ((Http404, 404), (PermissionDenied, 403), ((BadRequest, SuspiciousOperation), 400))
    status = next((status for kind, status in kinds if isinstance(error, kind)), 500)
    return status, HttpResponse(status=status)


def add_headers(response: Any, limits: RequestLimits) -> Any:
    """Add the headers of all verdicts to ``response``, whose close releases the leases of its request."""
    if limits.leases:
        response._resource_closers.append(limits.release)
    for name, value in limits.headers_beside(response.headers):
        if name == "vary":
            patch_vary_headers(response, [value])
        elif name == "access-control-expose-headers" and name in response.headers:
            response.headers[name] = f"{response.headers[name]}, {value}"
        else:
            response.headers[name] = value
    return response
