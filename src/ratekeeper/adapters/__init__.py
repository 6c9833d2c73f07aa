"""Adapters: a framework's request -> Request -> Policy -> the framework's response.

Each is thin: rules, identity, headers and failures are decided below, once for all frameworks.  An adapter

1. makes a ``Request`` of what the framework knows (``peer`` is the socket's address, never one from a header);
2. calls ``policy.check`` (or awaits ``policy.acheck``);
3. answers a refusal with ``verdict.status``, ``verdict.headers`` and ``verdict.body``;
4. else waits ``verdict.delay`` seconds, giving the place back if the client leaves, and adds ``verdict.headers``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ratekeeper.errors import InvalidInput, shown
from ratekeeper.limit import parse_limits
from ratekeeper.rules.policy import Policy

EXTRAS = {  # the package that an import did not find -> the extra that installs it
    "aiohttp": "aiohttp",
    "asgiref": "django",
    "django": "django",
    "fastapi": "fastapi",
    "flask": "flask",
    "grpc": "grpc",
    "rest_framework": "drf",
}


def policy_of(policy: Policy | str | Path | Mapping[str, Any], folder: str = "") -> Policy:
    """Return the policy itself, or that of a dictionary of rules or of a rules file in ``folder``."""
    if isinstance(policy, Policy):
        return policy
    if isinstance(policy, (str, Path)):
        return load(policy, folder)
    if isinstance(policy, Mapping):
        return Policy.parse(dict(policy))
    raise InvalidInput(f"policy: expected a Policy, the path of a rules file or a dictionary, got {shown(policy)}.")


def load(path: str | Path, folder: str) -> Policy:
    if isinstance(path, str) and path[:1].isdigit() and not Path(folder, path).exists():
        try:
            parse_limits(path)
        except InvalidInput:
            pass
        else:
            rules = {"rules": [{"name": "all", "limit": path}]}
            raise InvalidInput(
                f"policy: expected the path of a rules file, got the limit {path!r}. Write policy={rules}."
            )
    return Policy.load(Path(folder, path))


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
