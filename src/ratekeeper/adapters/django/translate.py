"""What Django knows, in our words, and our verdicts in Django's: the policy of the settings, requests, responses."""

from __future__ import annotations

from functools import cache
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.signals import setting_changed
from django.http import HttpResponse
from django.urls import Resolver404, get_resolver
from django.utils.cache import patch_vary_headers
from django.utils.module_loading import import_string

from ratekeeper.adapters import policy_of
from ratekeeper.adapters.wsgi import request_of

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
    """The policy of the settings; without one, nothing is limited but views with limits of their own."""
    found = getattr(settings, SETTING, {}).get("POLICY")
    return policy_of(WITHOUT_RULES if found is None else found)


@cache
def site_facts() -> Callable[[Any], Any] | None:
    found = getattr(settings, SETTING, {}).get("FACTS")
    return import_string(found) if isinstance(found, str) else found


def forget(setting: str, **_: Any) -> None:
    if setting == SETTING:
        site_policy.cache_clear()
        site_facts.cache_clear()


setting_changed.connect(forget)


def asked(request: Any, policy: Policy, facts: Mapping[str, Any]) -> Request:
    """The request of the policy; Django's route is looked up only if a rule asks for it."""
    made = request_of(request.META)
    made.path = request.path
    if policy.asks("route"):
        match = resolved(request)
        made.route = "/" + match.route if match is not None else None
    made.facts = facts
    return made


def load_views(request: Any) -> None:
    """Import the URLs, which Django does at the first request that gets to them: until then no view is decorated."""
    resolver_of(request).url_patterns  # noqa: B018 - kept by the resolver


def resolver_of(request: Any) -> Any:
    return get_resolver(getattr(request, "urlconf", None))


def resolved(request: Any) -> Any:
    if request.resolver_match is not None:
        return request.resolver_match
    try:
        return resolver_of(request).resolve(request.path_info)
    except Resolver404:
        return None


def facts(request: Any, policy: Policy) -> dict[str, Any]:
    """The user, if a rule asks for it, and what FACTS tells."""
    found = known(getattr(request, "user", None)) if policy.asks("app:user") else {}
    more = site_facts()
    return found if more is None else found | (more(request) or {})


async def afacts(request: Any, policy: Policy) -> dict[str, Any]:
    """``facts`` for an event loop, where the user must be awaited."""
    found: dict[str, Any] = {}
    if policy.asks("app:user"):
        found = known(await request.auser() if hasattr(request, "auser") else getattr(request, "user", None))
    more = site_facts()
    told = more(request) if more is not None else None
    return found | ((await told if isawaitable(told) else told) or {})


def known(user: Any) -> dict[str, Any]:
    return {"user": str(user.pk)} if user is not None and user.is_authenticated else {}


def refused(request: Any, verdict: HttpVerdict) -> HttpResponse:
    body = verdict.body
    media = dict(verdict.headers).get(b"content-type", b"").decode("latin-1")
    response = HttpResponse(b"" if request.method == "HEAD" else body, status=verdict.status, content_type=media)
    response.headers["Content-Length"] = str(len(body))
    if not media:
        del response.headers["Content-Type"]
    return response


def told(response: Any, decided: RequestLimits) -> Any:
    """``response`` with the fields of all that was decided; its end gives back what was held for it."""
    if decided.leases:
        response._resource_closers.append(decided.release)
    for name, value in decided.added:
        if name == "vary":
            patch_vary_headers(response, [value])
        elif name == "access-control-expose-headers" and name in response.headers:
            response.headers[name] = f"{response.headers[name]}, {value}"
        else:
            response.headers[name] = value
    return response
