"""Flask extension: a policy for the application, and limits on views and blueprints.

    limiter = RateLimiter(app, limit="100/minute")
    limiter = RateLimiter(app, policy="rules.toml")

    @app.post("/login")
    @limiter.limit("5/minute")
    def login(): ...

A refusal is raised as werkzeug's own exception, so that ``@app.errorhandler(429)`` can answer it.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from ratekeeper.adapters import TeachingConstructor, expect_facts, framework, policy_of
from ratekeeper.adapters.hooks import Hooks

with framework(__name__):
    from flask import Blueprint, Flask, Response, current_app, request
    from werkzeug.exceptions import default_exceptions

from ratekeeper.adapters.request_limits import LIMITS, RequestLimits
from ratekeeper.adapters.route_limit import REPLACES_DEFAULT, RouteLimit
from ratekeeper.adapters.route_table import warn_of_unreachable_rules, werkzeug_routes
from ratekeeper.adapters.wsgi import request_of
from ratekeeper.adapters.wsgi_server import warn_of_server
from ratekeeper.errors import InvalidInput, LimitExceeded, shown
from ratekeeper.rules.exceeded import exceeded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from typing import TypeVar, Unpack

    from ratekeeper.adapters import PlainLimits
    from ratekeeper.adapters.hooks import ExemptWhen, OnBreach
    from ratekeeper.adapters.route_limit import Limits, LimitWords
    from ratekeeper.http.verdict import HttpVerdict
    from ratekeeper.rules.policy import Policy
    from ratekeeper.stores.protocol import Store

    Target = TypeVar("Target", bound=Callable[..., Any] | Blueprint)
    Filter = TypeVar("Filter", bound=Callable[[], Any])

__all__ = ["RateLimiter"]
NAME = "ratekeeper"  # among the extensions of an application
EXEMPT = "__ratekeeper_exempt__"
IS_EXEMPT = "ratekeeper.exempt"  # the key in the environ of whether a filter exempts the request


class RateLimiter(TeachingConstructor):
    """Limit a Flask application; pass it here, or to ``init_app`` later.

    ``limit`` is one limit for each client, on ``store`` or in this process: ``RateLimiter(app, limit="100/minute")``.

    ``policy`` is a Policy, a rules file beside the application or a dictionary of rules.  It defaults to
    ``app.config["RATEKEEPER_POLICY"]``.  Without either, only the limits on views apply; they then inherit the policy
    of a WSGI ``RateLimitMiddleware`` in front of the application.  ``facts`` is called in each request and returns what
    the application has verified: ``{"user": current_user.id}``.  ``exempt_when`` is called in each request, with
    it or without arguments, and says whether the request is exempt from every limit.  ``on_breach`` is called with the
    verdict of each refusal, unless a limit on the view has its own; what it returns answers the request, unless it is
    None.
    """

    def __init__(
        self,
        app: Flask | None = None,
        policy: Policy | str | Path | Mapping[str, Any] | None = None,
        facts: Callable[[], Mapping[str, Any] | None] | None = None,
        *,
        limit: PlainLimits | None = None,
        store: str | Store | None = None,
        exempt_when: ExemptWhen | None = None,
        on_breach: OnBreach | None = None,
    ) -> None:
        if app is not None and not isinstance(app, Flask):
            raise InvalidInput(
                f"RateLimiter: expected a Flask application first, got {shown(app)}. Write RateLimiter(app). "
                "Clients are counted by address; by= beside a limit counts them otherwise."
            )
        self._policy = policy if limit is None and store is None else policy_of(policy, limit=limit, store=store)
        self._facts = facts
        self._hooks = Hooks("RateLimiter", exempt_when, on_breach)
        self._filters: list[Hooks] = [self._hooks]
        self._default_policies: list[Policy] = []  # of applications without a policy
        self._blueprints: dict[object, list[RouteLimit]] = {}
        self._exempt: set[object] = set()
        self._checked_rules: object = None  # whose unreachable rules were logged
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Check every request of ``app`` from now on."""
        policy = self._policy if self._policy is not None else app.config.get("RATEKEEPER_POLICY")
        app.extensions[NAME] = policy_of({"rules": []} if policy is None else policy, app.root_path)
        app.extensions[NAME].warm_up()
        if policy is None:
            self._default_policies.append(app.extensions[NAME])
        if LimitExceeded not in app.error_handler_spec[None][None]:  # a handler of the application's own stays
            app.register_error_handler(LimitExceeded, self._answer_exceeded)
        app.before_request(self._before)
        app.after_request(self._after)
        app.teardown_request(self._teardown)

    def limit(self, limit: Limits, **words: Unpack[LimitWords]) -> Callable[[Target], Target]:
        """Limit a view, or each view of a blueprint: ``@limiter.limit("5/minute", by=lambda: g.user)``.

        ``words`` are ``by``, ``cost``, ``name``, ``exempt_when``, ``count_when``, ``on_breach``, ``replaces_default``
        and those of a rule; functions take the request, or nothing.  ``count_when`` may be a function of Flask's
        response.  What ``on_breach`` returns answers a refusal, unless it is None.
        """
        route_limit = RouteLimit(limit, **words)
        route_limit.expect_plain_functions("limiter.limit")

        def decorate(target: Any) -> Any:
            if isinstance(target, Blueprint):
                self._blueprints.setdefault(target, []).append(route_limit)
                return target

            @wraps(target)
            def limited(*args: Any, **kwargs: Any) -> Any:
                if not self._is_exempt():
                    self._check(route_limit)
                return current_app.ensure_sync(target)(*args, **kwargs)

            if route_limit.replaces_default:
                setattr(limited, REPLACES_DEFAULT, True)
            return limited

        return decorate

    def request_filter(self, function: Filter) -> Filter:
        """Exempt the requests for which ``function()`` is true from every limit; a decorator for ``exempt_when``."""
        self._filters.append(Hooks("request_filter", function, None))
        return function

    @property
    def verdict(self) -> HttpVerdict | None:
        """The verdict on the current request so far; ``limited`` says whether a limit refused it, or would have."""
        limits: RequestLimits | None = request.environ.get(LIMITS)
        return limits.verdict if limits is not None else None

    def exempt(self, target: Target) -> Target:
        """Exempt a view or a blueprint from every limit: those of the policy, of its blueprint and its own."""
        if isinstance(target, Blueprint):
            self._exempt.add(target)
        else:
            setattr(target, EXEMPT, True)
        return target

    def _before(self) -> None:
        if self._is_exempt():
            return
        around = [limit for blueprint in blueprints() for limit in self._blueprints.get(blueprint, [])]
        view = current_app.view_functions.get(request.endpoint or "")
        self._check(without_defaults=hasattr(view, REPLACES_DEFAULT) or any(limit.replaces_default for limit in around))
        for route_limit in around:
            self._check(route_limit)

    def _is_exempt(self) -> bool:
        limits: RequestLimits | None = request.environ.get(LIMITS)
        if limits is None:
            limits = request.environ[LIMITS] = RequestLimits(self)
        if IS_EXEMPT not in request.environ:  # the filters are asked once
            request.environ[IS_EXEMPT] = limits.is_exempt or any(each.exempts(request) for each in self._filters)
        if request.environ[IS_EXEMPT]:
            return True
        view = current_app.view_functions.get(request.endpoint or "")
        return hasattr(view, EXEMPT) or not self._exempt.isdisjoint(blueprints())

    def _check(self, route_limit: RouteLimit | None = None, without_defaults: bool = False) -> None:
        """Check the current request against the application's policy or a route limit; raise if it is refused."""
        policy: Policy | None = current_app.extensions.get(NAME)
        if policy is None:
            raise InvalidInput("RateLimiter: expected init_app to be called with this application first.")
        limits: RequestLimits | None = request.environ.get(LIMITS)
        if limits is None:
            limits = request.environ[LIMITS] = RequestLimits(self)
        facts = expect_facts(self._facts()) if self._facts is not None else limits.facts
        if route_limit is not None:
            facts = route_limit.facts(facts, request)
            is_default = policy in self._default_policies
            main = limits.policy if is_default and limits.policy is not None else policy
            policy = limits.policy_of(route_limit, main)
        checked = request_of(request.environ)
        if route_limit is None and policy.compiled is not self._checked_rules:  # Flask knows its routes by now
            self._checked_rules = policy.compiled
            warn_of_unreachable_rules(policy, werkzeug_routes(current_app.url_map))
            warn_of_server(policy.compiled.identity.addresses, request.environ)
        checked.route = request.url_rule.rule if request.url_rule is not None else None
        checked.facts = facts
        verdict = limits.check(policy.without_defaults() if without_defaults else policy, checked)
        if not verdict.allowed:
            raise refusal(verdict, self._hooks.answer(verdict, route_limit))

    def _answer_exceeded(self, error: LimitExceeded) -> Response:
        """Answer 429 where ``@limiter.limit`` of a plain Limiter refused."""
        limits: RequestLimits = request.environ.setdefault(LIMITS, RequestLimits(self))
        verdict = exceeded(error, request_of(request.environ), current_app.extensions[NAME])
        limits.refuse(verdict)
        answer = self._hooks.answer(verdict)
        return response_of(verdict) if answer is None else current_app.make_response(answer)

    def _after(self, response: Response) -> Response:
        limits: RequestLimits | None = request.environ.get(LIMITS)
        if limits is not None:
            limits.settle(response.status_code, response)
        if limits is not None and limits.header_writer is self:
            for name, value in limits.headers_beside({name.lower() for name, _ in response.headers}):
                response.headers.add(name, value)
        if limits is not None and limits.leases:
            response.call_on_close(limits.release)
        return response

    def _teardown(self, error: BaseException | None) -> None:
        limits: RequestLimits | None = request.environ.get(LIMITS) if error is not None else None
        if limits is not None:  # no response whose close would release them
            limits.settle(500, Response(status=500))
            limits.release()


def blueprints() -> list[Any]:
    """The blueprints around the current view; an endpoint may have a dot without being in one."""
    known = current_app.blueprints
    return [known[name] for name in request.blueprints if name in known]


def refusal(verdict: HttpVerdict, answer: Any = None) -> Exception:
    """The exception that refuses; ``answer`` is what a view of the application may return, instead of ours."""
    response = response_of(verdict) if answer is None else current_app.make_response(answer)
    return default_exceptions[verdict.status](verdict.message, response)


def response_of(verdict: HttpVerdict) -> Response:
    media = dict(verdict.headers).get(b"content-type", b"").decode("latin-1")
    return Response(verdict.body, verdict.status, content_type=media or None)
