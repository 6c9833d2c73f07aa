"""The public face as a type checker sees it; never run, only checked."""

from typing import assert_type

from ratekeeper import AsyncLimiter, Decision, Limit, Limiter

limiter = Limiter(["10/second", Limit(1000, "hour")], algorithm="gcra", store="memory://", name="api")
assert_type(limiter.check("user:42"), Decision)
assert_type(limiter.check(("login", b"x", 1), cost=5), Decision)
assert_type(limiter.peek("user:42").remaining, int)
assert_type(limiter.acquire("user:42", timeout=2.0).retry_after, float | None)
with limiter.reserve("user:42", cost=12) as reservation:
    assert_type(reservation.settle(3), Decision)
assert_type(limiter.refund("user:42", cost=3), Decision)


async def use(limiter: AsyncLimiter) -> None:
    assert_type(await limiter.check("user:42"), Decision)
    assert_type((await limiter.acquire("user:42", timeout=1)).delay, float)
    async with limiter.reserve("user:42", cost=12) as reservation:
        assert_type(await reservation.settle(3), Decision)
    await limiter.reset("user:42")
    await limiter.close()


@limiter.limit(key=lambda user, **_: user, cost=2, timeout=1)
def work(user: str) -> int:
    return len(user)


@limiter.limit
async def waited(number: int) -> bytes:
    return bytes(number)


async def decorated(own: AsyncLimiter) -> None:
    @own.limit(key=str)
    async def inner(number: int) -> str:
        return str(number)

    assert_type(work("a"), int)
    assert_type(await waited(5), bytes)
    assert_type(await inner(5), str)
