"""The Lua twins beside the Python rules, step by step: pure functions, run by a real server on test times."""

import random

import pytest

from ratekeeper.algorithms import ALGORITHMS, BUCKETS
from ratekeeper.errors import InvalidLimit
from ratekeeper.limit import Limit
from ratekeeper.stores.redis.layout import REFUND_KINDS, packed_debit, packed_limit, unpack_state
from ratekeeper.stores.redis.packed_log import plain
from ratekeeper.stores.redis.script import IMPORTS, KINDS, rules
from ratekeeper.testing.contract import walk_limits
from tests import tier
from tests.laws.walk import next_instant

NOW = 1_794_786_070_000_000  # microseconds, as a server would say

# All steps of a walk in one call: for each the limit with its kind and cost, now and, for a refund, at.  Returns every
# state, and whether it fit.
WALK = (
    IMPORTS
    + "local function rule(kind)\n"
    + rules()
    + """
end
local state, found = '', {}
for at = 1, #ARGV, 3 do
  local kind, cost, a, b, c, d, e = cmsgpack.unpack(ARGV[at])
  local decide, refund, debit = rule(kind)
  local now, taken_at = ARGV[at + 1] + 0, ARGV[at + 2]
  local allowed = true
  if taken_at == '' then
    state, allowed = decide(state, 1, now, cost, a, b, c, d, e)
  elseif taken_at == 'debit' then
    state = debit(state, 1, now, cost, a, b, c, d, e)
  else
    state = refund(state, 1, now, cost, taken_at + 0, a, b, c, d, e)
  end
  found[#found + 1] = state
  found[#found + 1] = allowed and '1' or '0'
end
return found
"""
)


def walk_together(server, limit, steps):
    """``steps`` of (limit or None, now, cost, at or None); the twin must give the state and answer of the rule."""
    words = []
    for other, now, cost, at in steps:
        kind = KINDS[limit.algorithm] if at is None else KINDS[limit.algorithm].translate(REFUND_KINDS)
        packed = packed_debit if at == "debit" else packed_limit
        words += [packed(limit if other is None else other, kind, cost, now=now), now, "" if at is None else at]
    found = server.client().eval(WALK, 0, *words)
    rule, state = limit.rule, limit.rule.EMPTY
    for number, (other, now, cost, at) in enumerate(steps):
        present = limit if other is None else other
        before, allowed = state, True
        if at is None:
            state, allowed = rule.decide(state, now, present, cost)
        elif at == "debit":
            state = rule.debit(state, now, present, cost)
        else:
            state = rule.refund(state, now, present, cost, at)
        twin = plain(unpack_state(found[2 * number], present)), found[2 * number + 1] == b"1"
        assert twin == (state, allowed), (str(present), number, before, now, cost, at)


def build(count, micros, burst, algorithm, slices):
    made = Limit.__new__(Limit)
    made._build("a limit of a walk", count, micros, burst, algorithm, slices)
    return made


def changed(chance, limit):
    """The same limit with more or less in it, as far as states keep their meaning."""
    try:
        if limit.algorithm in BUCKETS:
            other = build(limit.count, limit.micros, chance.randint(1, 2 * limit.burst), limit.algorithm, 1)
        else:
            other = build(chance.randint(1, 2 * limit.count), limit.micros, None, limit.algorithm, limit.slices)
    except InvalidLimit:
        return limit
    return other if other.layout == limit.layout else limit


def random_steps(chance, limit, count, now=NOW):
    steps = []
    other = changed(chance, limit)
    for _ in range(count):
        now = next_instant(chance, limit, now)
        most = limit.capacity
        cost = chance.choice([1, 1, 1, 2, chance.randint(1, most), most, most + 1])
        at = max(0, now - chance.choice([0, 0, 1, limit.micros // 3, -limit.micros])) if chance.random() < 0.1 else None
        if chance.random() < 0.1:
            at, cost = "debit", chance.choice([1, cost, 3 * most, chance.randint(1, 100 * most)])
        steps.append((other if chance.random() < 0.1 else None, now, cost, at))
    return steps


@pytest.mark.parametrize("seed", range(tier.steps(3, 1)))
@pytest.mark.parametrize("limit", [limit for limit in walk_limits() if isinstance(limit, Limit)], ids=str)
def test_twins_agree_on_awkward_limits(any_server, limit, seed):
    chance = random.Random(seed)
    walk_together(any_server, limit, random_steps(chance, limit, 400))
    walk_together(any_server, limit, random_steps(chance, limit, 100, now=0))


def extreme_limit(chance, algorithm):
    """A limit at the edge of what is allowed: where a double would round."""
    while True:
        count = chance.choice([1, 2, 3, chance.randint(1, 10**6), chance.randint(1, 10**12), 10**12, 2**26 - 5])
        micros = chance.choice([1, 7, 10**6, 86_400 * 10**6, 400 * 86_400 * 10**6, chance.randint(1, 10**13)])
        burst = None
        if algorithm in BUCKETS:
            burst = chance.choice([None, 1, 2, count, chance.randint(1, 10**12), chance.randint(1, 10**4)])
        elif algorithm == "sliding_log":
            count = chance.randint(1, 100)
        slices = chance.choice([1, 2, 7, 100]) if algorithm == "sliding_window" else 1
        try:
            return build(count, micros, burst, algorithm, slices)
        except InvalidLimit:
            continue


@pytest.mark.parametrize("seed", range(tier.steps(40, 8)))
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_twins_agree_at_the_edge_of_what_a_double_holds(redis_server, algorithm, seed):
    chance = random.Random(f"{algorithm} {seed}")
    limit = extreme_limit(chance, algorithm)
    walk_together(redis_server, limit, random_steps(chance, limit, 100))


def test_a_weight_is_compared_exactly_where_products_pass_2_to_the_53(redis_server):
    """oldest * left against room * width, equal and one off: a double cannot tell these apart."""
    chance = random.Random(7)
    for _ in range(60):
        width = chance.choice([2**44 - 1, 34_560_000_000_000, chance.randrange(2**43, 2**44)])
        count = chance.randrange(10**11, 10**12)
        made = build(count, min(width, 400 * 86_400 * 10**6), None, "sliding_window", 1)
        width = made.micros
        oldest = chance.randrange(count // 2, count + 1)
        start = NOW // width * width + width
        steps = [(None, start - 1, oldest, None)]
        for _ in range(10):
            share = chance.randrange(width)
            room = oldest * (width - share) // width  # the largest cost is count - ceil(weight): try both sides of it
            for cost in (count - room - 1, count - room, count - room + 1):
                if cost >= 1:
                    steps += [(None, start + share, cost, None), (None, start + share, cost, start + share)]
        walk_together(redis_server, made, steps)


def test_remainders_are_exact_below_2_to_the_53(redis_server):
    """What the twins lean on: a % b and (a - a % b) / b for whole numbers below 2^53."""
    chance = random.Random(3)
    pairs = []
    for _ in range(tier.steps(5_000)):
        divisor = chance.choice([1, 2, 3, chance.randrange(1, 2**26), chance.randrange(1, 2**45)])
        number = chance.choice([chance.randrange(2**53), chance.randrange(2**53) // divisor * divisor, 2**53 - 1])
        number = max(0, number - chance.choice([0, 0, 1]))
        pairs.append((number, divisor))
    script = """
local found = {}
for at = 1, #ARGV, 2 do
  local a, b = ARGV[at] + 0, ARGV[at + 1] + 0
  found[#found + 1] = string.format('%.0f', a % b)
  found[#found + 1] = string.format('%.0f', (a - a % b) / b)
end
return found
"""
    client = redis_server.client()
    for at in range(0, len(pairs), 1000):
        part = pairs[at : at + 1000]
        found = client.eval(script, 0, *[number for pair in part for number in pair])
        expected = [str(value).encode() for number, divisor in part for value in (number % divisor, number // divisor)]
        assert found == expected
