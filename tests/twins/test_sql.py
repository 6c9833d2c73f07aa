"""The SQL twins beside the Python rules, step by step, and the Postgres store beside the exact model."""

import asyncio
import itertools
import random

import psycopg
import pytest

from ratekeeper.algorithms import ALGORITHMS, BUCKETS
from ratekeeper.check import Check
from ratekeeper.limit import Limit, parse_limits
from ratekeeper.stores.memory import MemoryStore
from ratekeeper.stores.postgres.aio_store import AsyncPostgresStore
from ratekeeper.stores.postgres.layout import KINDS, bounded_cost, limit_numbers, read_state
from ratekeeper.stores.postgres.store import PostgresStore
from ratekeeper.testing import FakeClock
from ratekeeper.testing.contract import walk_limits
from tests import tier
from tests.algorithms.test_concurrency import walk as walk_leases
from tests.laws import settlements
from tests.laws.walk import next_instant
from tests.twins.store_walk import LIMITS, figures, walk
from tests.twins.test_concurrency import LIMITS as LEASE_LIMITS
from tests.twins.test_concurrency import walk_beside_the_rule
from tests.twins.test_lua import NOW, build, extreme_limit, random_steps
from tests.twins.test_stores import PLANS, Rules

secrets = itertools.count()

# All steps of a walk in one call: for each the operation, now, the cost, the instant of a refund and the limit.  A
# refusal leaves behind what `mended` says.  Returns for each whether it fit, the length of its state, and the state.
WALK = """
CREATE OR REPLACE FUNCTION pg_temp.walk(
  operations text, kind text, nows bigint[], costs bigint[], ats bigint[], limits bigint[]
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
  state bigint[] := '{}'; new bigint[]; lim bigint[]; answer bigint[] := '{}'; fits int;
BEGIN
  FOR step IN 1 .. length(operations) LOOP
    lim := limits[7 * step - 6 : 7 * step];
    fits := 1;
    IF substr(operations, step, 1) = 'c' THEN
      new := ratekeeper.decide_row(kind, state, nows[step], costs[step], lim);
      IF new IS NULL THEN
        fits := 0;
        new := ratekeeper.mended_row(kind, state, nows[step], lim);
      END IF;
    ELSIF substr(operations, step, 1) = 'd' THEN
      new := ratekeeper.debit_row(kind, state, nows[step], costs[step], lim);
    ELSE
      new := ratekeeper.refund_row(kind, state, nows[step], costs[step], ats[step], lim);
    END IF;
    state := new;
    answer := answer || fits::bigint || cardinality(state)::bigint || state;
  END LOOP;
  RETURN answer;
END $$
"""
CALL = "SELECT pg_temp.walk(%s::text, %s::text, %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])"


@pytest.fixture(scope="module")
def session(postgres_server):
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute(WALK)
        yield connection


def walk_together(session, limit, steps):
    """``steps`` of (limit or None, now, cost, at or None); the twin must give the state and answer of the rule."""
    operations, nows, costs, ats, numbers = "", [], [], [], []
    for other, now, cost, at in steps:
        present = limit if other is None else other
        operation = {None: "check", "debit": "debit"}.get(at, "refund")
        operations += operation[0]
        nows.append(now)
        costs.append(bounded_cost(operation, present, cost))
        ats.append(at if operation == "refund" else None)
        numbers += limit_numbers(present, now)
    kind = KINDS[limit.algorithm]
    (found,) = session.execute(CALL, (operations, kind, nows, costs, ats, numbers)).fetchone()
    rule, state, place = limit.rule, limit.rule.EMPTY, 0
    for number, (other, now, cost, at) in enumerate(steps):
        present = limit if other is None else other
        before, allowed = state, True
        if at is None:
            state, allowed = rule.decide(state, now, present, cost)
        elif at == "debit":
            state = rule.debit(state, now, present, cost)
        else:
            state = rule.refund(state, now, present, cost, at)
        fits, size = found[place : place + 2]
        twin = read_state(found[place + 2 : place + 2 + size], present), bool(fits)
        place += 2 + size
        assert twin == (state, allowed), (str(present), number, before, now, cost, at)


@pytest.mark.parametrize("seed", range(tier.steps(5, 1)))
@pytest.mark.parametrize("limit", [limit for limit in walk_limits() if isinstance(limit, Limit)], ids=str)
def test_twins_agree_on_awkward_limits(session, limit, seed):
    chance = random.Random(seed)
    walk_together(session, limit, random_steps(chance, limit, tier.steps(400, 200)))
    walk_together(session, limit, random_steps(chance, limit, tier.steps(100, 50), now=0))


@pytest.mark.parametrize("seed", range(tier.steps(60, 8)))
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_twins_agree_at_the_edge_of_what_a_bigint_holds(session, algorithm, seed):
    chance = random.Random(f"{algorithm} {seed}")
    limit = extreme_limit(chance, algorithm)
    walk_together(session, limit, random_steps(chance, limit, 100))


@pytest.mark.parametrize("algorithm", sorted(BUCKETS))
def test_twins_agree_when_the_count_changes(session, algorithm):
    """Limits of one period share states: what is left over of a microsecond is then that of another rate."""
    for seed in range(tier.steps(40, 10)):
        chance = random.Random(f"{algorithm} {seed}")
        micros = chance.choice([10**6, 7, 3_600 * 10**6, 1_000_003])
        limits = [build(chance.randint(1, 10**6), micros, None, algorithm, 1) for _ in range(3)]
        steps = random_steps(chance, limits[0], 60)
        steps = [(chance.choice(limits), now, cost, at) for _, now, cost, at in steps]
        walk_together(session, limits[0], steps)


def test_a_weight_is_compared_exactly_where_products_pass_2_to_the_63(session):
    chance = random.Random(7)
    for _ in range(20):
        count = chance.randrange(10**11, 10**12)
        limit = build(count, 400 * 86_400 * 10**6, None, "sliding_window", 1)
        width = limit.micros
        oldest = chance.randrange(count // 2, count + 1)
        start = NOW // width * width + width
        steps = [(None, start - 1, oldest, None)]
        for _ in range(10):
            share = chance.randrange(width)
            room = oldest * (width - share) // width  # the largest cost is count - ceil(weight): try both sides of it
            for cost in (count - room - 1, count - room, count - room + 1):
                if cost >= 1:
                    steps += [(None, start + share, cost, None), (None, start + share, cost, start + share)]
        walk_together(session, limit, steps)


def make(url, clock, kind=PostgresStore, **options):
    return kind(url, clock=clock, deadline=20, secret=f"twin{next(secrets)}", **options)


@pytest.mark.parametrize("seed", range(tier.steps(10, 2)))
@pytest.mark.parametrize("limit", LEASE_LIMITS, ids=str)
def test_leases_agree_step_by_step(postgres_server, limit, seed):
    walk_beside_the_rule(lambda clock: make(postgres_server.url, clock), limit, seed, 100, notes=True).close()


def test_a_server_counts_leases_as_a_set_does(postgres_server):
    clock = FakeClock(start=1000.0)
    store = make(postgres_server.url, clock)
    walk_leases(lambda operation, *words: getattr(store, operation)(*words), clock, LEASE_LIMITS[1], 0, 100)
    store.close()


@pytest.fixture(params=[False, True], ids=["asked", "with cached refusals"])
def remote(request, postgres_server):
    clock = FakeClock(start=1_000_000.0)
    store = make(postgres_server.url, clock, deny_cache=request.param)
    yield clock, {"postgres": store}
    store.close()


@pytest.mark.parametrize("seed", range(tier.steps(4, 1)))
def test_a_server_answers_as_the_exact_model(remote, seed):
    for limit in LIMITS:
        walk(*remote, limit, seed, tier.steps(150, 15))


@pytest.mark.parametrize("seed", range(tier.steps(4, 1)))
def test_settlements_on_a_server_are_charged_in_full(remote, seed):
    clock, stores = remote
    for limit in settlements.LIMITS:
        settlements.walk(clock, *stores.values(), limit, seed, tier.steps(60, 15))


@pytest.mark.parametrize("seed", range(tier.steps(6, 1)))
def test_checks_that_travel_together_are_answered_as_if_alone(postgres_server, seed):
    """One statement answers many plans."""

    async def main():
        chance, clock = random.Random(seed), FakeClock(start=1_000_000.0)
        store, rules = make(postgres_server.url, clock, AsyncPostgresStore, deny_cache=False), Rules(clock)
        for texts in PLANS:
            limits = [Limit.parse(text) for text in texts]
            logs = [Limit.parse("5 per 2 seconds sliding_log"), Limit.parse("90 per 2 seconds sliding_log")]
            for step in range(tier.steps(60, 20)):
                clock.move_to(next_instant(chance, chance.choice(limits), clock.micros))
                plans = []
                for key in chance.sample("abcdefgh", 4):
                    chosen = chance.choice([limits, limits, limits[:1], logs[:1], logs[1:]])
                    plans.append(tuple([Check(f"{limit}", key, limit, chance.choice([1, 1, 2])) for limit in chosen]))
                replies = await asyncio.gather(*[store.check(plan) for plan in plans])
                for plan, answers in zip(plans, replies, strict=True):
                    assert [figures(answer) for answer in answers] == rules.check(plan), (texts, seed, step)
                    assert {answer.at for answer in answers} == {clock.micros}
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(tier.steps(6, 1)))
def test_operations_of_all_kinds_share_a_statement(postgres_server, seed):
    """Many plans and operations on few keys in one statement: as if they came one after the other."""
    limits = [
        parse_limits(texts)
        for texts in (
            "5/second",
            "7 per 3 seconds sliding_window slices 3",
            ["3/second", "9 per 2 seconds fixed_window"],
        )
    ]

    async def main():
        chance, clock = random.Random(seed), FakeClock(start=1_000_000.0)
        store, reference = (
            make(postgres_server.url, clock, AsyncPostgresStore, deny_cache=False),
            MemoryStore(clock=clock),
        )
        for step in range(tier.steps(100, 40)):
            clock.move_to(clock.micros + chance.choice([0, 1, 100_000, 1_000_000]))
            calls = []
            for _ in range(chance.randint(1, 8)):
                operation = chance.choice(["check", "check", "check", "peek", "take", "debit", "refund", "reset"])
                drawn = chance.choices(limits, k=chance.randint(1, 3) if operation == "check" else 1)
                plan = tuple(
                    [Check(f"{limit}", chance.choice("ab"), limit, chance.choice([1, 1, 2, 9])) for limit in drawn]
                )
                calls.append((operation, plan))
            replies = await asyncio.gather(*[getattr(store, operation)(plan) for operation, plan in calls])
            for (operation, plan), answers in zip(calls, replies, strict=True):
                expected = getattr(reference, operation)(plan)
                if operation != "reset":
                    told = (seed, step, operation, plan)
                    assert [figures(answer) for answer in answers] == [figures(answer) for answer in expected], told
        await store.close()

    asyncio.run(main())
