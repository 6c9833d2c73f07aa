"""Flask extension: a policy for the application, and limits at routes and blueprints.

    limiter = RateLimiter(app, policy="rules.toml")

    @app.post("/login")
    @limiter.limit("5/minute")
    def login(): ...

A refusal is raised as werkzeug's own exception, so ``@app.errorhandler(429)`` can answer it in the application's way.
"""

from __future__ import annotations

from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flask import Blueprint, Flask, Response, current_app, request
from werkzeug.exceptions import default_exceptions

from ratekeeper.adapters import policy_of
from ratekeeper.adapters.request_limits import DECIDED, RequestLimits
from ratekeeper.adapters.route_limit import RouteLimit
from ratekeeper.adapters.wsgi import request_of
from ratekeeper.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeVar

    from ratekeeper.adapters.route_limit import Limits
    from ratekeeper.http.verdict import HttpVerdict
    from ratekeeper.rules.policy import Policy

    Target = TypeVar("Target", bound=Callable[..., Any] | Blueprint)

NAME = "ratekeeper"  # among the extensions of an application
EXEMPT = "__ratekeeper_exempt__"


class RateLimiter:
    """Limit a Flask application; give it now, or to ``init_app`` later.

    ``policy`` is a Policy, a rules file beside the application or a dictionary of rules; without it,
    ``app.config["RATEKEEPER_POLICY"]`` is taken, and without that only limits at routes hold.  ``facts`` is called
    within each request, and tells what the application knows of it: ``{"user": current_user.id}``.
    """

    def __init__(
        self,
        app: Flask | None = None,
        policy: Policy | str | Path | Mapping[str, Any] | None = None,
        facts: Callable[[], Mapping[str, Any] | None] | None = None,
    ) -> None:
        self.given = policy
        self.facts = facts
        self.blueprints: dict[object, list[RouteLimit]] = {}
        self.exempted: set[object] = set()
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Stand before every request of ``app``."""
        found = self.given if self.given is not None else app.config.get("RATEKEEPER_POLICY", {"rules": []})
        if isinstance(found, (str, Path)):
            found = Path(app.root_path) / found
        app.extensions[NAME] = policy_of(found)
        app.before_request(self.before)
        app.after_request(self.after)
        app.teardown_request(self.teardown)

    def before(self) -> None:
        groups = [current_app.blueprints[name] for name in request.blueprints]
        view = current_app.view_functions.get(request.endpoint or "")
        if hasattr(view, EXEMPT) or not self.exempted.isdisjoint(groups):
            return
        self.check()
        for group in groups:
            for own in self.blueprints.get(group, []):
                self.check(own)

    def check(self, own: RouteLimit | None = None) -> None:
        """Ask the application's policy, or a limit of its own, about the current request; raises if it refuses."""
        policy: Policy | None = current_app.extensions.get(NAME)
        if policy is None:
            raise InvalidInput("RateLimiter: expected init_app to be called with this application first.")
        asked = request_of(request.environ)
        asked.route = request.url_rule.rule if request.url_rule is not None else None
        asked.facts = self.facts() if self.facts is not None else None
        if own is not None:
            asked.facts = own.facts(asked.facts)
            policy = own.policy(policy)
        decided: RequestLimits = request.environ.setdefault(DECIDED, RequestLimits(self))
        refusal = decided.check(policy, asked)
        if refusal is not None:
            raise refused(refusal)

    def after(self, response: Response) -> Response:
        decided: RequestLimits | None = request.environ.get(DECIDED)
        if decided is not None and decided.teller is self:
            for name, value in decided.added:
                response.headers.add(name, value)
        if decided is not None and decided.leases:
            response.call_on_close(decided.release)
        return response

    def teardown(self, error: BaseException | None) -> None:
        decided: RequestLimits | None = request.environ.get(DECIDED) if error is not None else None
        if decided is not None:  # there is no response whose end would do it
            decided.release()

    def limit(self, limit: Limits, **words: Any) -> Callable[[Target], Target]:
        """Limit a view, or each view of a blueprint: ``@limiter.limit("5/minute", by=lambda: g.user)``.

        ``words`` are ``by``, ``cost``, ``name`` and those of a rule; functions take no arguments.
        """
        own = RouteLimit(limit, **words)
        own.for_plain_view("limiter.limit")

        def decorate(target: Any) -> Any:
            if isinstance(target, Blueprint):
                self.blueprints.setdefault(target, []).append(own)
                return target

            @wraps(target)
            def limited(*args: Any, **kwargs: Any) -> Any:
                self.check(own)
                return current_app.ensure_sync(target)(*args, **kwargs)

            return limited

        return decorate

    def exempt(self, target: Target) -> Target:
        """Leave a view or a blueprint alone: neither the policy nor its blueprint limits it."""
        if isinstance(target, Blueprint):
            self.exempted.add(target)
        else:
            setattr(target, EXEMPT, True)
        return target


def refused(verdict: HttpVerdict) -> Exception:
    media = dict(verdict.headers).get(b"content-type", b"").decode("latin-1")
    response = Response(verdict.body, verdict.status, content_type=media or None)
    return default_exceptions[verdict.status](verdict.message, response)
