"""Adapters: a framework's request -> Request -> Policy -> the framework's response.

Each is thin: rules, identity, headers and failures are decided below, once for all frameworks.  An adapter

1. makes a ``Request`` of what the framework knows (``peer`` is the socket's address, never one from a header);
2. calls ``policy.check`` (or awaits ``policy.acheck``);
3. answers a refusal with ``verdict.status``, ``verdict.headers`` and ``verdict.body``;
4. else waits ``verdict.delay`` seconds, giving the place back if the client leaves, and adds ``verdict.headers``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import isawaitable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidInput, did_you_mean, shown
from ratekeeper.limit import Limit, parse_limits
from ratekeeper.rules.policy import Policy
from ratekeeper.units import several_limits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ratekeeper.identity.request import Request

    Rules = Policy | str | Path | Mapping[str, Any]
    PlainLimits = str | Limit | Sequence[str | Limit] | Callable[[Request], Any]

log = logging.getLogger("ratekeeper")
POLICY = "policy: expected a Policy, the path of a rules file or a dictionary"
EXTRAS = {  # the package that an import did not find -> the extra that installs it
    "aiohttp": "aiohttp",
    "asgiref": "django",
    "django": "django",
    "fastapi": "fastapi",
    "flask": "flask",
    "grpc": "grpc",
    "rest_framework": "drf",
}


def policy_of(policy: Rules | None, folder: str = "", *, limit: Any = None, store: Any = None) -> Policy:
    """Return the policy itself, that of a dictionary of rules or of a rules file in ``folder``, or one of ``limit``.

    A ``limit`` counts each client on all routes together, on ``store`` or in this process.  It may be a function of a
    Request.
    """
    if limit is not None:
        if policy is not None:
            raise InvalidInput(
                "limit: expected a limit or a policy, got both. Write the limit as a rule of the policy."
            )
        texts = str(limit) if isinstance(limit, Limit) else limit
        if isinstance(limit, (list, tuple)):
            texts = [str(each) for each in limit]
        opened = Policy.parse({"rules": [{"name": "all", "limit": texts}]}, store=store)
        opened.is_default = True
        return opened
    if store is not None:
        raise InvalidInput("store: expected a limit beside it, got none. The store of a policy is named in its rules.")
    if policy is None:
        raise InvalidInput(f"{POLICY}, got None. For one limit, write for example limit='100/minute'.")
    if isinstance(policy, Policy):
        return policy
    if isinstance(policy, (str, Path)):
        return with_warnings_logged(load(policy, folder))
    if isinstance(policy, Mapping):
        return with_warnings_logged(Policy.parse(dict(policy)))
    raise InvalidInput(f"{POLICY}, got {shown(policy)}.")


OTHER_WORDS = {  # of other libraries' middlewares and extensions -> what to write
    "default_limits": "limit=, such as limit=['200/day', '50/hour'], or rules with default = true",
    "application_limits": "limit=, or a rule by 'all' for one counter of all clients",
    "default": "limit=",
    "limits": "limit=",
    "rate": "limit=",
    "rules": "policy=",
    "config": "policy=",
    "key_func": "by= beside a limit on a route, or by in a rule",
    "key_function": "by= beside a limit on a route, or by in a rule",
    "identifier": "by= beside a limit on a route, or by in a rule",
    "by": "a policy whose rules have by",
    "algorithm": "the algorithm behind the limit, such as limit='100/minute sliding_window'",
    "strategy": "the algorithm behind the limit, such as limit='100/minute sliding_window'",
    "storage_uri": "store=",
    "storage_url": "store=",
    "redis_url": "store=",
    "storage": "store=",
    "headers_enabled": "nothing: headers are on, and [response] headers of the rules chooses them",
    "request_filter": "exempt_when=",
}


def expect_words(kind: type, words: Mapping[str, Any]) -> None:
    """Raise if a constructor does not take one of the words, and say what to write instead."""
    known = [word for word in kind.__init__.__annotations__ if word not in ("return", "app")]  # type: ignore[misc]
    for word in words:
        if word not in known and word != "app":
            advice = f" Write {OTHER_WORDS[word]}." if word in OTHER_WORDS else did_you_mean(word, known)
            raise InvalidInput(f"{kind.__name__}: expected one of {', '.join(known)}, got {word!r}.{advice}")


class TeachingConstructor:
    """Refuses words that a constructor does not take, as ``expect_words`` does; type checkers do so by themselves."""

    if not TYPE_CHECKING:

        def __new__(cls, *arguments, **words):
            """Refuse words that ``__init__`` does not take."""
            expect_words(cls, words)
            if arguments and "app" in words:
                raise InvalidInput(
                    f"{cls.__name__}: expected the application first, got {shown(arguments[0])} before app=. "
                    f"Write {cls.__name__}(app). "
                    "Clients are counted by address; by= beside a limit counts them otherwise."
                )
            return object.__new__(cls)


def with_warnings_logged(policy: Policy) -> Policy:
    """The policy, after its probable mistakes were logged: an application has no other place where it is told them."""
    for warning in policy.warnings:
        log.warning("%s", warning)
    return policy


def load(path: str | Path, folder: str) -> Policy:
    if isinstance(path, str) and path[:1].isdigit() and not Path(folder, path).exists():
        try:
            parse_limits(several_limits(path) or path)
        except InvalidInput:
            pass
        else:
            raise InvalidInput(
                f"policy: expected the path of a rules file, got the limit {path!r}. "
                f"Write limit={several_limits(path) or path!r}."
            )
    return Policy.load(Path(folder, path))


def expect_facts(facts: Any) -> Mapping[str, Any] | None:
    """Return what the application has verified; raises unless it is a dictionary or None."""
    if facts is None or isinstance(facts, Mapping):
        return facts
    raise InvalidInput(
        "facts: expected the function to return a dictionary such as {'user': '42'}, or None, "
        f"got {type(facts).__name__}.{' Nothing awaits it here.' if isawaitable(facts) else ''}"
    )


@contextmanager
def framework(adapter: str) -> Iterator[None]:
    """Import a framework inside this block: if it is missing, the error says which extra of ratekeeper installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise ModuleNotFoundError(
            f"{adapter}: expected {package} to be installed. Run: pip install 'ratekeeper[{EXTRAS[package]}]'",
            name=error.name,
        ) from error
