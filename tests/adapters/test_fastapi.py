"""The FastAPI dependency, through FastAPI and its test client."""

from typing import Annotated

import httpx
import pytest
import trio
from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Request, Response, WebSocket
from fastapi.responses import PlainTextResponse, StreamingResponse
from fastapi.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from ratekeeper import InvalidInput, MemoryStore
from ratekeeper.adapters.asgi import RateLimitMiddleware
from ratekeeper.adapters.fastapi import RateLimit, document
from ratekeeper.testing import FakeClock


def client_of(app, peer="203.0.113.9"):
    return TestClient(app, client=(peer, 40_000))


def app_with(*limits, path="/"):
    app = FastAPI()

    @app.get(path, dependencies=[Depends(limit) for limit in limits])
    async def home():
        return {"ok": True}

    return app


def test_each_client_has_its_own_by_default():
    app = app_with(RateLimit("2/minute", clock=FakeClock(100.0)))
    here, there = client_of(app), client_of(app, "198.51.100.7")
    answers = [here.get("/") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert there.get("/").status_code == 200
    assert answers[0].headers["x-ratelimit-remaining"] == "1"
    assert answers[0].headers["ratelimit"] == '"2/minute";r=1;t=30'
    assert answers[2].headers["retry-after"] == "30"
    assert answers[2].headers["cache-control"] == "no-store"
    detail = answers[2].json()["detail"]
    assert (detail["error"], detail["limit"], detail["retry_after"]) == ("rate_limited", 2, 30)


def test_routes_are_templates_and_apart_unless_named():
    plain, named = RateLimit("1/minute"), RateLimit("1/minute", name="both")
    app = FastAPI()

    @app.get("/a/{item}", dependencies=[Depends(plain)])
    async def a(item: int): ...

    @app.get("/b", dependencies=[Depends(plain)])
    async def b(): ...

    @app.get("/c", dependencies=[Depends(named)])
    async def c(): ...

    @app.get("/d", dependencies=[Depends(named)])
    async def d(): ...

    paths = ["/a/1", "/a/2", "/b", "/c", "/d"]
    assert [client_of(app).get(path).status_code for path in paths] == [200, 429, 200, 200, 429]


def by_plain(request: Request):
    return request.headers.get("x-user")


async def by_async(request: Request):
    return request.headers.get("x-user")


def by_injected(x_user: Annotated[str | None, Header()] = None):
    return x_user


async def current_user(x_user: Annotated[str | None, Header()] = None):
    return x_user


async def by_chained(user: Annotated[str | None, Depends(current_user)]):
    return user


@pytest.mark.parametrize(
    "by", [by_plain, by_async, by_injected, by_chained, "header:X-User", lambda request: by_plain(request)]
)
def test_by_is_any_function_or_source(by):
    client = client_of(app_with(RateLimit("1/minute", by=by)))
    users = ["a", "a", "b", None, None]
    headers = [{"X-User": user} if user else {} for user in users]
    assert [client.get("/", headers=each).status_code for each in headers] == [200, 429, 200, 200, 429]


def cost_plain(request: Request):
    return int(request.headers["x-cost"])


async def cost_injected(x_cost: Annotated[int, Header()]):
    return x_cost


@pytest.mark.parametrize("cost", [cost_plain, cost_injected])
def test_cost_is_any_function(cost):
    client = client_of(app_with(RateLimit("10/minute", cost=cost)))
    answers = [client.get("/", headers={"X-Cost": str(each)}) for each in (7, 4, 3, -1)]
    assert [answer.status_code for answer in answers] == [200, 429, 200, 400]


def test_several_hold_together_and_tell_of_all():
    store = MemoryStore()
    minute = RateLimit("5/minute", name="minute", store=store)
    client = client_of(app_with(minute, RateLimit("2/hour", name="hour")))
    answers = [client.get("/") for _ in range(6)]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429, 429, 429]
    assert answers[0].headers["ratelimit-policy"] == '"minute";q=5;w=60, "hour";q=2;w=3600'
    assert answers[1].headers.get_list("ratelimit") == ['"hour";r=0;t=1800']
    again = client_of(app_with(minute)).get("/")
    assert again.headers["x-ratelimit-remaining"] == "2"  # the refusals by the hour took nothing from the minute


def test_what_the_last_of_three_refuses_the_others_get_back_once():
    store = MemoryStore(clock=FakeClock(1000.0))
    second = RateLimit("9/hour", name="second", store=store)
    client = client_of(
        app_with(RateLimit("9/minute", name="first", store=store), second, RateLimit("1/hour", store=store))
    )
    assert [client.get("/").status_code for _ in range(5)] == [200, 429, 429, 429, 429]
    assert client_of(app_with(second)).get("/").headers["x-ratelimit-remaining"] == "7"


def test_behind_the_middleware_its_fields_and_these_are_one():
    app = app_with(RateLimit("2/minute", name="mine"))
    app.add_middleware(RateLimitMiddleware, policy={"rules": [{"name": "all", "limit": "9/minute"}]})
    answer = client_of(app).get("/")
    assert answer.headers.get_list("ratelimit-policy") == ['"all";q=9;w=60, "mine";q=2;w=60']
    assert answer.headers.get_list("x-ratelimit-remaining") == ["1"]


def test_a_router_and_a_shared_store():
    store = MemoryStore()
    app = FastAPI()
    router = APIRouter(prefix="/api", dependencies=[Depends(RateLimit("1/minute", store=store))])

    @router.get("/a")
    async def a(): ...

    app.include_router(router)
    assert [client_of(app).get("/api/a").status_code for _ in range(2)] == [200, 429]
    again = app_with(RateLimit("1/minute", store=store), path="/api/a")  # as another process would
    assert client_of(again).get("/api/a").status_code == 429


def test_the_verdict_can_be_used():
    app = FastAPI()
    limit = RateLimit("9/minute")

    @app.get("/")
    async def home(verdict: Annotated[object, Depends(limit)]):
        return verdict.remaining

    assert client_of(app).get("/").json() == 8


def test_forwarded_addresses_need_a_trusted_proxy():
    spoofed = client_of(app_with(RateLimit("1/minute")))
    assert [spoofed.get("/", headers={"X-Forwarded-For": f"192.0.2.{n}"}).status_code for n in (1, 2)] == [200, 429]
    settings = {"trusted_proxies": ["203.0.113.0/24"]}
    behind = client_of(app_with(RateLimit("1/minute", settings=settings)))
    assert [behind.get("/", headers={"X-Forwarded-For": f"192.0.2.{n}"}).status_code for n in (1, 2, 1)] == [
        200,
        200,
        429,
    ]


def test_websockets():
    app = FastAPI()

    @app.websocket("/chat", dependencies=[Depends(RateLimit("1/minute"))])
    async def chat(socket: WebSocket):
        await socket.accept()
        await socket.send_text("hello")
        await socket.close()

    client = client_of(app)
    with client.websocket_connect("/chat") as socket:
        assert socket.receive_text() == "hello"
    with pytest.raises(WebSocketDisconnect) as closed, client.websocket_connect("/chat"):
        pass
    assert closed.value.code == 1013


def test_refusals_are_in_the_openapi_document():
    app = app_with(RateLimit("1/minute"))

    @app.get("/free")
    async def free(): ...

    document(app)
    paths = app.openapi()["paths"]
    assert paths["/"]["get"]["responses"]["429"]["headers"]["Retry-After"] == {"schema": {"type": "integer"}}
    assert "429" not in paths["/free"]["get"]["responses"]


def test_a_leaky_bucket_delays():
    clock = FakeClock(100.0)
    client = client_of(app_with(RateLimit("2/second burst 3", algorithm="leaky_bucket", clock=clock)))
    assert [client.get("/").status_code for _ in range(3)] == [200] * 3
    assert clock.now == 100.0 + 0.5 + 0.5


@pytest.mark.parametrize(
    "by",
    [
        lambda request: "ann",
        lambda r: r.headers["who"],
        lambda connection: "ann",
        lambda: "ann",
    ],
)
def test_a_lambda_takes_the_request_under_any_name(by):
    app = FastAPI()
    app.get("/", dependencies=[Depends(RateLimit("1/minute", by=by, cost=lambda r: 1))])(lambda: "ok")
    assert [TestClient(app).get("/", headers={"who": "ann"}).status_code for _ in range(2)] == [200, 429]


def test_a_function_with_annotations_or_defaults_is_a_dependency():
    def tenant(x_tenant: str = Header()):
        return x_tenant

    def region(region="eu"):
        return region

    app = FastAPI()
    app.get("/a", dependencies=[Depends(RateLimit("1/minute", by=tenant))])(lambda: "ok")
    app.get("/b", dependencies=[Depends(RateLimit("1/minute", by=region))])(lambda: "ok")
    client = TestClient(app)
    assert [client.get("/a", headers={"X-Tenant": each}).status_code for each in "aba"] == [200, 200, 429]
    assert client.get("/a").status_code == 422
    assert [client.get("/b").status_code, client.get("/b?region=us").status_code] == [200, 200]


def returning_app():
    app, router = FastAPI(), APIRouter()
    limits = [RateLimit("9/minute", name="near"), RateLimit("5/minute", name="far")]
    limited = {"dependencies": [*map(Depends, limits)]}

    @app.get("/async", **limited)
    async def asynchronous():
        return PlainTextResponse("ok", headers={"X-RateLimit-Limit": "7"})

    @app.get("/sync", **limited)
    def synchronous():
        return PlainTextResponse("ok")

    @app.get("/stream", **limited)
    async def stream():
        return StreamingResponse(iter([b"one", b"two"]))

    @router.get("/included", **limited)
    async def included():
        return PlainTextResponse("ok")

    @app.get("/missing", **limited)
    async def missing():
        raise HTTPException(404, "no", {"X-App": "yes"})

    @app.get("/plain", **limited)
    async def plain(response: Response):
        return {"ok": True}

    class Callable:
        async def __call__(self):
            return {"ok": True}

    app.get("/object", **limited)(Callable())
    app.include_router(router)
    return app


@pytest.mark.parametrize("path", ["async", "sync", "stream", "included", "missing", "plain", "object"])
def test_a_response_of_the_endpoint_has_the_headers_without_the_middleware(path):
    client = TestClient(returning_app())
    for left in ("4", "3", "2"):
        answer = client.get(f"/{path}")
        assert answer.status_code == (404 if path == "missing" else 200)
        assert answer.headers.get_list("x-ratelimit-remaining") == [left]
        assert answer.headers.get_list("x-ratelimit-limit") == ["7" if path == "async" else "5"]
        assert len(answer.headers.get_list("ratelimit-policy")) == 1


@pytest.mark.parametrize("limit", ["2/minute", "2 concurrent"])
def test_a_default_dependency_gives_way_only_to_limits_that_say_so(limit):
    app = FastAPI(dependencies=[Depends(RateLimit("1/minute", name="default", default=True))])
    router = APIRouter(dependencies=[Depends(RateLimit("9/minute", name="router"))])
    replacing = Depends(RateLimit(limit, name="own", replaces_default=True))
    app.get("/plain")(lambda: 1)
    app.get("/own", dependencies=[replacing])(lambda: 1)
    app.get("/both", dependencies=[Depends(RateLimit("2/minute", name="both"))])(lambda: 1)
    router.get("/inner", dependencies=[replacing])(lambda: 1)
    app.include_router(router, prefix="/v1")

    def names(path):
        return client_of(app, f"203.0.113.{len(path)}").get(path).headers["ratelimit-policy"]

    assert names("/plain").startswith('"default";')
    assert '"default"' not in names("/own")
    assert '"own"' in names("/own")
    assert '"default"' in names("/both")
    assert '"default"' not in names("/v1/inner")
    assert '"router"' in names("/v1/inner")


def test_a_default_concurrency_limit_gives_way_too():
    app = FastAPI(dependencies=[Depends(RateLimit("1 concurrent", name="default", default=True))])
    app.get("/own", dependencies=[Depends(RateLimit("5/minute", name="own", replaces_default=True))])(lambda: 1)
    assert client_of(app).get("/own").headers["ratelimit-policy"].startswith('"own"')


def test_a_default_replaces_nothing():
    with pytest.raises(InvalidInput) as raised:
        RateLimit("5/minute", default=True, replaces_default=True)
    assert str(raised.value) == (
        "RateLimit: expected default or replaces_default, got both. A default replaces nothing."
    )


def test_the_dependency_on_trio(redis_server):
    """With async and plain functions, and with one limit for all of them."""
    store = f"{redis_server.url}?deadline=10s"

    async def current_user(request: Request):
        await trio.lowlevel.checkpoint()
        return request.headers["X-User"]

    app = FastAPI()
    paths = {"/awaited": RateLimit("2/hour", by=current_user, name="trio-1", store=store)}
    paths["/plain"] = RateLimit("2/hour", by=lambda request: request.headers["X-User"], name="trio-2", store=store)

    async def awaited():
        await trio.lowlevel.checkpoint()

    def plain():
        return None

    for path, handler in (("/awaited", awaited), ("/plain", plain)):
        app.get(path, dependencies=[Depends(paths[path])])(handler)

    async def main():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            for path in paths:
                answers = []

                async def get(path=path, answers=answers):
                    answers.append((await client.get(path, headers={"X-User": "anna"})).status_code)

                async with trio.open_nursery() as nursery:
                    for _ in range(6):
                        nursery.start_soon(get)
                assert sorted(answers) == [200, 200, 429, 429, 429, 429]
                assert (await client.get(path, headers={"X-User": "ben"})).status_code == 200

    trio.run(main)
