"""System checks: what ``manage.py check`` says about the limits of a site.

ratekeeper.E001  the rules cannot be taken         ratekeeper.W001  the rules say something that is probably not meant
ratekeeper.E002  an unknown key in the setting     ratekeeper.W002  there is a policy and no middleware
ratekeeper.E003  FACTS cannot be called            ratekeeper.W003  users are counted before they are known
                                                   ratekeeper.W004  behind a proxy that is not trusted
                                                   ratekeeper.W005  counters of each process (with --deploy)
"""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core import checks

from ratekeeper.adapters.django.translate import SETTING, site_facts, site_policy
from ratekeeper.errors import RatekeeperError, did_you_mean

OURS = "ratekeeper.adapters.django.RateLimitMiddleware"
AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"
KEYS = ("POLICY", "FACTS")


class RatekeeperConfig(AppConfig):  # type: ignore[misc]
    """The application to be named in INSTALLED_APPS."""

    name = "ratekeeper.adapters.django"
    label = "ratekeeper"
    verbose_name = "ratekeeper"

    def ready(self) -> None:
        checks.register(check_settings, checks.Tags.security)
        checks.register(check_deployment, checks.Tags.security, deploy=True)


def check_settings(**_: Any) -> list[Any]:
    """What is wrong with the setting, the rules and the order of middleware."""
    found: list[Any] = []
    given = getattr(settings, SETTING, {})
    for key in given:
        if key not in KEYS:
            hint = did_you_mean(key, KEYS).strip() or None
            found.append(
                checks.Error(f"{SETTING}: expected {' and '.join(KEYS)}, got {key!r}.", hint, id=number("E002"))
            )
    try:
        if not (site_facts() is None or callable(site_facts())):
            found.append(checks.Error(f"{SETTING}: expected FACTS to be a function.", id=number("E003")))
    except ImportError as error:
        found.append(checks.Error(f"{SETTING}: expected FACTS to be a function, but {error}.", id=number("E003")))
    try:
        policy = site_policy()
    except (RatekeeperError, OSError) as error:
        return [*found, checks.Error(str(error), id=number("E001"))]
    found += [checks.Warning(text, id=number("W001")) for text in policy.warnings]
    order = list(settings.MIDDLEWARE)
    if given.get("POLICY") is not None and OURS not in order:
        hint = f"Add {OURS!r} to MIDDLEWARE."
        found.append(checks.Warning("There is a policy, and no middleware that asks it.", hint, id=number("W002")))
    known_after = order.index(AUTHENTICATION) if AUTHENTICATION in order else len(order)
    if OURS in order and order.index(OURS) < known_after and policy.asks("app:user"):
        hint = f"Put {OURS!r} behind it; until then, users are counted by address."
        found.append(checks.Warning("Rules count users before AuthenticationMiddleware.", hint, id=number("W003")))
    behind = getattr(settings, "SECURE_PROXY_SSL_HEADER", None) or getattr(settings, "USE_X_FORWARDED_HOST", False)
    if behind and not policy.program.identity.addresses.trusted:
        hint = "Write the proxy's address into trusted_proxies of the rules; until then all clients count as one."
        found.append(checks.Warning("The site is behind a proxy that the rules do not trust.", hint, id=number("W004")))
    return found


def check_deployment(**_: Any) -> list[Any]:
    """What is right on a desk and not in production."""
    try:
        policy = site_policy()
    except (RatekeeperError, OSError):
        return []  # told already
    if policy.store.blocking or policy.store_url != "memory://":
        return []
    hint = "With several processes or hosts, set store to a redis:// URL in the rules."
    return [checks.Warning("Each process counts for itself: the store is memory://.", hint, id=number("W005"))]


def number(own: str) -> str:
    return f"ratekeeper.{own}"
