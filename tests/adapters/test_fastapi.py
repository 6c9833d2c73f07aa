"""The FastAPI dependency, through FastAPI and its test client."""

from typing import Annotated

import pytest
from fastapi import APIRouter, Depends, FastAPI, Header, Request, WebSocket
from fastapi.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from ratekeeper import MemoryStore
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
    answers = [client.get("/", headers={"X-Cost": str(each)}) for each in (7, 4, 3, 0)]
    assert [answer.status_code for answer in answers] == [200, 429, 200, 400]


def test_several_hold_together_and_tell_of_all():
    store = MemoryStore()
    minute = RateLimit("5/minute", name="minute", store=store)
    client = client_of(app_with(minute, RateLimit("2/hour", name="hour")))
    answers = [client.get("/") for _ in range(6)]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429, 429, 429]
    assert answers[0].headers["ratelimit-policy"] == '"minute";q=5;w=60, "hour";q=2;w=3600'
    assert answers[1].headers.get_list("ratelimit") == ['"hour";r=0;t=1']
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
