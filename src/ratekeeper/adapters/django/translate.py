"""Between Django and the policy: the policy of the settings, requests and users in, responses and headers out."""

from __future__ import annotations

from functools import cache
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from ratekeeper.adapters import framework, policy_of

with framework(__name__):
    from django.conf import settings
    from django.core.signals import setting_changed
    from django.http import HttpResponse
    from django.urls import Resolver404, get_resolver
    from django.utils.cache import patch_vary_headers
    from django.utils.module_loading import import_string

from ratekeeper.adapters.wsgi import request_of as wsgi_request_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ratekeeper.adapters.request_limits import RequestLimits
    from ratekeeper.http.verdict import HttpVerdict
    from ratekeeper.identity.request import Request
    from ratekeeper.rules.policy import Policy

SETTING = "RATEKEEPER"
WITHOUT_RULES: dict[str, Any] = {"rules": []}


@cache
def site_policy() -> Policy:
    """The policy of the settings; without one, only views with limits of their own are limited."""
    policy = getattr(settings, SETTING, {}).get("POLICY")
    return policy_of(WITHOUT_RULES if policy is None else policy)


@cache
def site_facts() -> Callable[[Any], Any] | None:
    function = getattr(settings, SETTING, {}).get("FACTS")
    return import_string(function) if isinstance(function, str) else function


def forget_settings(setting: str, **_: Any) -> None:
    if setting == SETTING:
        site_policy.cache_clear()
        site_facts.cache_clear()


setting_changed.connect(forget_settings)


def request_of(request: Any, policy: Policy, facts: Mapping[str, Any]) -> Request:
    """Translate Django's request; its route is resolved only if a rule of ``policy`` uses it."""
    translated = wsgi_request_of(request.META)
    translated.path = request.path
    if policy.asks("route"):
        match = view_match(request)
        translated.route = "/" + match.route if match is not None else None
    translated.facts = facts
    return translated


def load_views(request: Any) -> None:
    """Import the URLs now: Django does so at the first request, and before that no view is decorated."""
    resolver_of(request).url_patterns  # noqa: B018 - the resolver caches it


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
    return facts if function is None else facts | (function(request) or {})


async def afacts_of(request: Any, policy: Policy) -> dict[str, Any]:
    """``facts_of`` for an event loop, where the user must be awaited."""
    facts: dict[str, Any] = {}
    if policy.asks("app:user"):
        facts = user_facts(await request.auser() if hasattr(request, "auser") else getattr(request, "user", None))
    function = site_facts()
    more = function(request) if function is not None else None
    return facts | ((await more if isawaitable(more) else more) or {})


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


def add_headers(response: Any, limits: RequestLimits) -> Any:
    """Add the headers of all verdicts to ``response``, whose close releases the leases of its request."""
    if limits.leases:
        response._resource_closers.append(limits.release)
    for name, value in limits.added_headers:
        if name == "vary":
            patch_vary_headers(response, [value])
        elif name == "access-control-expose-headers" and name in response.headers:
            response.headers[name] = f"{response.headers[name]}, {value}"
        else:
            response.headers[name] = value
    return response
