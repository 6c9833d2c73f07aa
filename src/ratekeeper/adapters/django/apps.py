"""System checks: what ``manage.py check`` says about the limits of a site.

ratekeeper.E001  the rules are invalid             ratekeeper.W001  the rules contain a probable mistake
ratekeeper.E002  an unknown key in the setting     ratekeeper.W002  there is a policy but no middleware
ratekeeper.E003  FACTS, EXEMPT_WHEN or ON_BREACH   ratekeeper.W003  the middleware runs before authentication
ratekeeper.E004  a throttle without a valid limit  ratekeeper.W004  the site is behind a proxy that is not trusted
                                                   ratekeeper.W005  each process counts by itself (with --deploy)
                                                   ratekeeper.W006  a rule matches no URL of the site
                                                   ratekeeper.W007  the store does not answer
"""

from __future__ import annotations

from typing import Any

from ratekeeper.adapters import framework

with framework(__name__):
    from django.apps import AppConfig
    from django.conf import settings
    from django.core import checks
    from django.core.exceptions import ImproperlyConfigured
    from django.urls import get_resolver

from ratekeeper.adapters.django.translate import SETTING, site_function, site_policy, site_routes
from ratekeeper.errors import RatekeeperError, did_you_mean
from ratekeeper.rules.lint import advise
from ratekeeper.rules.unreachable import unreachable
from ratekeeper.stores.inspect import try_store

MIDDLEWARE = "ratekeeper.adapters.django.RateLimitMiddleware"
AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"
KEYS = ("POLICY", "LIMIT", "STORE", "FACTS", "EXEMPT_WHEN", "ON_BREACH")
FUNCTIONS = ("FACTS", "EXEMPT_WHEN", "ON_BREACH")


class RatekeeperConfig(AppConfig):  # type: ignore[misc]
    """The application to be named in INSTALLED_APPS."""

    name = "ratekeeper.adapters.django"
    label = "ratekeeper"
    verbose_name = "ratekeeper"

    def ready(self) -> None:
        checks.register(check_settings, checks.Tags.security)
        checks.register(check_throttles, checks.Tags.security)
        checks.register(check_deployment, checks.Tags.security, deploy=True)


def check_settings(**_: Any) -> list[Any]:
    """Check the setting, the rules and the order of the middleware."""
    messages: list[Any] = []
    setting = getattr(settings, SETTING, {})
    for key in setting:
        if key not in KEYS:
            hint = did_you_mean(key, KEYS).strip() or None
            wanted = f"{', '.join(KEYS[:-1])} and {KEYS[-1]}"
            messages.append(checks.Error(f"{SETTING}: expected {wanted}, got {key!r}.", hint, id=check_id("E002")))
    for key in FUNCTIONS:
        expected = f"{SETTING}: expected {key} to be a function"
        try:
            function = site_function(key)
        except ImportError as error:
            messages.append(checks.Error(f"{expected}, but {error}.", id=check_id("E003")))
        else:
            if not (function is None or callable(function)):
                messages.append(checks.Error(f"{expected}.", id=check_id("E003")))
    try:
        policy = site_policy()
    except (RatekeeperError, OSError) as error:
        return [*messages, checks.Error(str(error), id=check_id("E001"))]
    messages += [checks.Warning(text, id=check_id("W001")) for text in policy.warnings]
    if any(rule.patterns for rule in policy.rules) and getattr(settings, "ROOT_URLCONF", None):
        sentences = unreachable(policy.rules, site_routes())
        messages += [checks.Warning(sentence, id=check_id("W006")) for sentence in sentences]
    messages += [checks.Warning(text, id=check_id("W001")) for text in advise(policy.rules, policy.compiled.identity)]
    if policy.store_url.startswith(("redis", "valkey")) and (trouble := try_store(policy.store_url)):
        hint = "Start it, or correct its URL."
        messages.append(checks.Warning(f"The store does not answer: {trouble}.", hint, id=check_id("W007")))
    order = list(settings.MIDDLEWARE)
    if setting.get("POLICY") is not None and MIDDLEWARE not in order:
        hint = f"Add {MIDDLEWARE!r} to MIDDLEWARE."
        messages.append(checks.Warning("There is a policy, but no middleware applies it.", hint, id=check_id("W002")))
    authenticated_at = order.index(AUTHENTICATION) if AUTHENTICATION in order else len(order)
    if MIDDLEWARE in order and order.index(MIDDLEWARE) < authenticated_at and policy.asks("app:user"):
        hint = f"Put {MIDDLEWARE!r} behind it; until then, users are counted by address."
        messages.append(checks.Warning("Rules count users before AuthenticationMiddleware.", hint, id=check_id("W003")))
    behind = getattr(settings, "SECURE_PROXY_SSL_HEADER", None) or getattr(settings, "USE_X_FORWARDED_HOST", False)
    if behind and not policy.compiled.identity.addresses.trusted:
        hint = "Add the proxy's address to trusted_proxies in the rules; until then, all clients share one counter."
        messages.append(
            checks.Warning("The site is behind a proxy that the rules do not trust.", hint, id=check_id("W004"))
        )
    return messages


def check_throttles(**_: Any) -> list[Any]:
    """Check the limit of each throttle of ours, on each view of REST framework that the URLs name."""
    messages: dict[str, Any] = {}
    for view in views_of(get_resolver().url_patterns):
        for throttle in getattr(getattr(view, "cls", None), "throttle_classes", ()):
            if not hasattr(throttle, "check_limit"):
                continue
            try:
                throttle.check_limit(view.cls)
            except (RatekeeperError, ImproperlyConfigured) as error:
                messages[str(error)] = checks.Error(str(error), obj=view.cls, id=check_id("E004"))
    return list(messages.values())


def views_of(patterns: Any) -> list[Any]:
    """Every view below ``patterns``."""
    views = []
    for pattern in patterns:
        inner = getattr(pattern, "url_patterns", None)
        views += views_of(inner) if inner is not None else [pattern.callback]
    return views


def check_deployment(**_: Any) -> list[Any]:
    """Check what is fine in development and wrong in production."""
    try:
        policy = site_policy()
    except (RatekeeperError, OSError):
        return []  # check_settings reports it
    if not policy.compiled.answers_at_once or policy.store_url != "memory://":
        return []
    hint = "With several processes or hosts, set store to a redis:// URL in the rules."
    return [checks.Warning("Each process counts by itself: the store is memory://.", hint, id=check_id("W005"))]


def check_id(number: str) -> str:
    return f"ratekeeper.{number}"
