"""The Flask extension, through Flask and its test client."""

import pytest
from flask import Blueprint, Flask, g, request
from flask.views import MethodView

from ratekeeper import InvalidInput, InvalidLimit, InvalidRules, Policy, Request
from ratekeeper.adapters.flask import RateLimiter
from ratekeeper.adapters.wsgi import RateLimitMiddleware
from ratekeeper.testing import FakeClock
from tests.adapters.cases import CASES, HERE, THERE, Answer, rules, run

METHODS = ["GET", "HEAD", "POST", "OPTIONS"]


def get(app, path="/", peer=HERE, **more):
    return app.test_client().get(path, environ_overrides={"REMOTE_ADDR": peer}, **more)


def statuses(app, *paths, **more):
    return [get(app, path, **more).status_code for path in paths]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cases(case):
    def client(policy):
        app = Flask(__name__)

        @app.route("/", defaults={"rest": ""}, methods=METHODS)
        @app.route("/<path:rest>", methods=METHODS)
        def answer(rest):
            return (iter(["one", "two", "three"]) if rest == "stream" else "ok"), {"X-App": "yes"}

        RateLimiter(app, policy)

        def send(step):
            client = app.test_client()
            overrides = {"REMOTE_ADDR": step.peer}
            answer = client.open(step.path, method=step.method, headers=list(step.headers), environ_overrides=overrides)
            with answer:
                fields = [(name.lower(), value) for name, value in answer.headers]
                return Answer(answer.status_code, fields, answer.data)

        return send

    run(case, client)


@pytest.fixture
def app():
    return Flask(__name__)


def test_a_limit_at_a_route_counts_each_client_on_each_template(app):
    limiter = RateLimiter(app)

    @app.get("/a/<item>")
    @limiter.limit("1/minute")
    def a(item):
        return item

    @app.get("/b")
    @limiter.limit("1/minute")
    def b():
        return "b"

    assert statuses(app, "/a/1", "/a/2", "/b", "/b") == [200, 429, 200, 429]
    assert statuses(app, "/a/1", peer=THERE) == [200]


def test_limits_of_one_name_are_one(app):
    limiter = RateLimiter(app)
    both = limiter.limit("1/minute", name="both")
    app.get("/a")(both(lambda: "a"))
    app.add_url_rule("/b", "b", both(lambda: "b"))
    assert statuses(app, "/a", "/b") == [200, 429]


def test_several_hold_together_and_tell_of_all(app):
    policy = Policy.parse(rules({"limit": "9/minute"}), clock=FakeClock(1000.0))
    limiter = RateLimiter(app, policy)

    @app.get("/")
    @limiter.limit("5/minute")
    @limiter.limit("2/hour")
    def home():
        return "ok"

    answers = [get(app) for _ in range(6)]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429, 429, 429]
    assert answers[0].headers.getlist("ratelimit-policy") == [
        '"rule-0";q=9;w=60, "5/minute";q=5;w=60, "2/hour";q=2;w=3600'
    ]
    assert answers[1].headers.getlist("ratelimit") == ['"2/hour";r=0;t=1800']
    assert answers[2].headers.getlist("ratelimit-policy") == ['"2/hour";q=2;w=3600']
    assert answers[2].headers["retry-after"] == "1800"
    explanation = policy.explain(Request("GET", "/", HERE))
    assert "7 of 9 left" in explanation.steps[0].text  # the four refusals by the hour took nothing from the others


def test_blueprints_nested_too(app):
    limiter = RateLimiter()
    outer, inner = Blueprint("outer", __name__), Blueprint("inner", __name__, url_prefix="/in")
    outer.get("/x")(lambda: "x")
    inner.get("/y")(lambda: "y")
    outer.register_blueprint(inner)
    limiter.limit("1/minute")(outer)
    app.register_blueprint(outer, url_prefix="/out")
    app.get("/free")(lambda: "free")
    limiter.init_app(app)
    assert statuses(app, "/out/x", "/out/x", "/out/in/y", "/out/in/y", "/free", "/free") == [
        200,
        429,
        200,
        429,
        200,
        200,
    ]


def test_exempt_views_and_blueprints(app):
    limiter = RateLimiter(app, rules({"limit": "1/minute"}))
    health = Blueprint("health", __name__)
    health.get("/health")(lambda: "ok")
    limiter.exempt(health)
    app.register_blueprint(health)
    app.add_url_rule("/status", "status", limiter.exempt(lambda: "fine"))

    @app.get("/own")
    @limiter.exempt
    @limiter.limit("2/minute")
    def own():
        return "exempt from its own limit too"

    app.get("/")(lambda: "home")
    assert statuses(app, "/", "/", "/health", "/health", "/status", "/status") == [200, 429, 200, 200, 200, 200]
    assert statuses(app, "/own", "/own", "/own") == [200, 200, 200]


def test_by_and_cost_are_functions_without_arguments(app):
    limiter = RateLimiter(app)

    @app.before_request
    def load():
        g.user = request.headers.get("X-User")

    @app.get("/")
    @limiter.limit("4/minute", by=lambda: g.user, cost=lambda: int(request.args.get("n", 1)))
    def home():
        return "ok"

    answers = [get(app, "/?n=3", headers={"X-User": user}).status_code for user in "aab"]
    assert answers == [200, 429, 200]
    assert statuses(app, "/?n=3", "/?n=2", "/?n=-1") == [200, 429, 400]  # no name: counted by address


def test_facts_name_the_user(app):
    settings = rules({"by": "user", "limit": "1/minute"}, identity={"user": "app:user"})
    RateLimiter(app, settings, facts=lambda: {"user": request.args["u"]})
    app.get("/")(lambda: "ok")
    assert statuses(app, "/?u=1", "/?u=1", "/?u=2") == [200, 429, 200]


def test_error_handlers_answer_in_their_own_way(app):
    RateLimiter(app, rules({"limit": "1/minute"}))
    app.get("/")(lambda: "ok")

    @app.errorhandler(429)
    def slow_down(error):
        return f"slow down! {error.description}", 429, {"X-Mine": "yes"}

    get(app)
    answer = get(app)
    assert (answer.status_code, answer.headers["x-mine"], answer.headers["retry-after"]) == (429, "yes", "60")
    assert answer.text == "slow down! Too many requests. Try again in 60 seconds."


def test_class_based_and_async_views(app):
    limiter = RateLimiter(app, rules({"limit": "5/minute", "by": "all"}))

    class Items(MethodView):
        decorators = [limiter.limit("1/minute")]  # noqa: RUF012

        def get(self):
            return "items"

    class Later(MethodView):
        decorators = [limiter.limit("1/minute")]  # noqa: RUF012

        async def get(self):
            return "later"

    @app.get("/async")
    @limiter.limit("1/minute", by=lambda: "somebody")
    async def coroutine():
        return "ok"

    @app.get("/free")
    @limiter.exempt
    async def free():
        return "ok"

    app.add_url_rule("/items", view_func=Items.as_view("items"))
    app.add_url_rule("/later", view_func=Later.as_view("later"))
    assert statuses(app, "/items", "/items") == [200, 429]
    assert statuses(app, "/later", "/later") == [200, 429]
    assert statuses(app, "/async", "/async") == [200, 429]
    assert get(app, "/async").headers["retry-after"] == "60"
    assert "x-ratelimit-limit" not in get(app, "/free").headers


def test_what_no_view_answers_counts_too(app):
    RateLimiter(app, rules({"limit": "1/minute"}))
    assert statuses(app, "/nowhere", "/nowhere") == [404, 429]


def test_the_policy_of_the_config_lies_beside_the_application(tmp_path):
    (tmp_path / "rules.toml").write_text('[[rules]]\nname = "all"\nlimit = "1/minute"\n')
    app = Flask("shop", root_path=str(tmp_path))
    app.config["RATEKEEPER_POLICY"] = "rules.toml"
    app.get("/")(lambda: "ok")
    RateLimiter().init_app(app)
    assert statuses(app, "/", "/") == [200, 429]


def test_proxies_of_the_policy_are_believed_at_routes_too(app):
    limiter = RateLimiter(app, {"trusted_proxies": ["203.0.113.0/24"], "proxies_drop_underscores": True, "rules": []})
    app.get("/")(limiter.limit("1/minute")(lambda: "ok"))
    clients = ["192.0.2.1", "192.0.2.1", "192.0.2.2"]
    assert [get(app, headers={"X-Forwarded-For": each}).status_code for each in clients] == [200, 429, 200]


def test_within_the_wsgi_middleware_all_is_told_once(app):
    limiter = RateLimiter(app)
    app.get("/")(limiter.limit("5/minute")(lambda: "ok"))
    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, rules({"limit": "9/minute"}))
    assert get(app).headers.getlist("ratelimit-policy") == ['"rule-0";q=9;w=60, "5/minute";q=5;w=60']


def test_mistakes_surface_when_they_are_made(app):
    limiter = RateLimiter(app)
    with pytest.raises(InvalidLimit):
        limiter.limit("5/fortnight")
    with pytest.raises(InvalidRules, match="Did you mean 'penalty'"):
        limiter.limit("5/minute", penality={})

    async def who():
        return "a"

    message = "limiter.limit: expected a plain function as by, got an async one. Nothing awaits it."
    with pytest.raises(InvalidInput, match=message):
        limiter.limit("5/minute", by=who)
    with pytest.raises(InvalidRules):
        RateLimiter(Flask("x"), {"rules": [{"name": "x", "limit": "0 concurrent"}]})


def test_a_limiter_without_an_application_says_so(app):
    app.get("/")(RateLimiter().limit("1/minute")(lambda: "ok"))
    app.testing = True
    with pytest.raises(InvalidInput, match="expected init_app to be called with this application first"):
        get(app)


def test_an_endpoint_with_a_dot_needs_no_blueprint(app):
    limiter = RateLimiter(app, policy={"rules": []})
    app.add_url_rule("/dotted", "v1.home", limiter.limit("1/minute")(lambda: "ok"))
    assert [app.test_client().get("/dotted").status_code for _ in range(2)] == [200, 429]


def test_an_exempt_view_has_no_limits_not_even_its_own(app):
    limiter = RateLimiter(app, policy={"rules": [{"name": "all", "limit": "1/minute"}]})
    for number, order in enumerate((lambda view: limiter.exempt(limiter.limit("1/minute")(view)),
                                    lambda view: limiter.limit("1/minute")(limiter.exempt(view)))):  # fmt: skip
        app.add_url_rule(f"/free{number}", f"free{number}", order(lambda: "ok"))
    assert statuses(app, *["/free0", "/free1"] * 3) == [200] * 6


def test_headers_of_a_handler_stay_alone(app):
    limiter = RateLimiter(app, policy={"rules": [{"name": "all", "limit": "2/minute"}]})

    @app.errorhandler(429)
    def refused(error):
        return "slow down", 429, {"Retry-After": "99", "X-RateLimit-Limit": "7"}

    @app.get("/late")
    def late():
        return "ok", 200, {"X-RateLimit-Limit": "7"}

    assert limiter
    answers = [app.test_client().get("/late") for _ in range(3)]
    assert [answer.headers.getlist("X-RateLimit-Limit") for answer in answers] == [["7"]] * 3
    assert answers[2].headers.getlist("Retry-After") == ["99"]
    assert answers[0].headers.getlist("X-RateLimit-Remaining") == ["1"]


@pytest.mark.parametrize("by", [lambda: "ann", lambda request: "ann", lambda anything: anything.headers["Who"]])
def test_a_function_takes_the_request_or_nothing(app, by):
    limiter = RateLimiter(app, policy={"rules": []})
    app.add_url_rule("/who", "who", limiter.limit("1/minute", by=by, cost=lambda r: 1)(lambda: "ok"))
    answers = [app.test_client().get("/who", headers={"Who": "ann"}).status_code for _ in range(2)]
    assert answers == [200, 429]
