"""Wrong arguments of a limiter are shown as they should be written."""

import ast
from pathlib import Path

import pytest

from ratekeeper import (
    AsyncLimiter,
    InvalidInput,
    Limit,
    Limiter,
    algorithms,
)
from ratekeeper.outbound import AsyncBudget, Budget

LIMITS = "expected a limit such as '100/minute' or a list of limits"


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((100, 60), {}, f"{LIMITS}, got a count and a period. Write NAME('100 per 60 seconds')."),
        ((100, 0.5), {}, f"{LIMITS}, got a count and a period. Write NAME('100 per 0.5 seconds')."),
        ((), {"rate": 100, "per": 60}, f"{LIMITS}, got a count and a period. Write NAME('100 per 60 seconds')."),
        ((), {"max_rate": 5, "time_period": "minute"}, f"{LIMITS}, got a count and a period. Write NAME('5/minute')."),
        ((100,), {"period": "minute"}, f"{LIMITS}, got a count and a period. Write NAME('100/minute')."),
        (
            ("5/minute",),
            {"burst": 20},
            "expected burst in the text of the limit, got burst=20 beside it. Write NAME('5/minute burst 20').",
        ),
        (
            (),
            {"limits": Limit(5, "minute", algorithm="sliding_window"), "slices": 6},
            "expected slices in the text of the limit, got slices=6 beside it. "
            "Write NAME('5/minute sliding_window slices 6').",
        ),
        ((), {"limit": "5/minute"}, f"{LIMITS}, got limit=. Write NAME('5/minute') or limits='5/minute'."),
        ((), {}, f"{LIMITS}, got nothing. Write for example NAME('100/minute')."),
        (
            ("5/minute",),
            {"limits": "5/minute"},
            f"{LIMITS}, got a positional argument and limits=. Give one of the two.",
        ),
        (("5/s", "9/m"), {}, f"{LIMITS}, got 2 positional arguments. Write NAME(['5/s', '9/m'])."),
        (
            ("5/s", "gcra", "redis://:secret@host", None),
            {},
            f"{LIMITS}, got 4 positional arguments. Write NAME('5/s', algorithm='gcra', store=..., NAME=None).",
        ),
        (
            ("5/minute",),
            {"max_key": 9},
            "expected an option (algorithm, store, name, clock, max_keys, on_store_error, deadline, local_share, "
            "prefetch), got 'max_key'. Did you mean 'max_keys'?",
        ),
    ],
)
def test_wrong_arguments_are_shown_as_they_should_be_written(kind, arguments, options, message):
    with pytest.raises(InvalidInput) as caught:
        kind(*arguments, **options)
    assert str(caught.value) == f"{kind.__name__}: {message}".replace("NAME(", f"{kind.__name__}(")


def test_a_subclass_may_have_a_constructor_of_its_own():
    class PerMinute(Limiter):
        def __init__(self, count, name):
            super().__init__(f"{count}/minute", name=name)

    assert repr(PerMinute(5, "login")) == "PerMinute('5/minute', name='login')"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Limiter(100), "limits: expected a limit such as '100/minute' or a list of limits, got 100. Write a "
                               "period too, such as '100/minute'."),
        (lambda: Limiter("5/minute").check("a", cost=0), "cost: expected a whole number from 1 to 999,999,999,999,999, "
                                                         "got 0. To look without taking anything, use peek."),
        (lambda: Limiter("5/minute", store="localhost:6379"), "store: expected a URL (memory://, shm://NAME, "
         "redis://HOST:PORT/0 or another of redis), got 'localhost:6379'. Did you mean 'redis://localhost:6379'?"),
        (lambda: Limiter("5/minute", store="redis:/localhost"), "store: expected a URL (memory://, shm://NAME, "
         "redis://HOST:PORT/0 or another of redis), got 'redis:/localhost'. Did you mean 'redis://localhost'?"),
        (lambda: Budget("60/minute"), "Budget: expected a limit for each unit by its name, got 1 positional argument. "
         "Write for example Budget(requests='60/minute', tokens='10000/minute')."),
        (lambda: AsyncBudget(100, 60), "AsyncBudget: expected a limit for each unit by its name, got 2 positional "
         "arguments. Write for example AsyncBudget(requests='60/minute', tokens='10000/minute')."),
    ],
)  # fmt: skip
def test_what_a_newcomer_types_is_answered_with_what_to_write(make, message):
    with pytest.raises(InvalidInput) as raised:
        make()
    assert str(raised.value) == message


@pytest.mark.parametrize(
    "text",
    ["100/minute;1000/hour", "100/minute; 1000/hour", "100/minute,1000/hour", "100/minute|1000/hour",
     "100/minute and 1000/hour"],
)  # fmt: skip
def test_the_notations_of_other_libraries_are_taught(text):
    with pytest.raises(InvalidInput) as raised:
        Limiter(text)
    list_of_both = "['100/minute', '1000/hour']"
    assert str(raised.value) == f"limit {text!r}: expected one limit, got 2 in one text. Write a list: {list_of_both}."


@pytest.mark.parametrize("text", ["5 per 1 minute", "10/5minutes", "100 / 15 minute", "1 per day", "5/1minute"])
def test_the_notations_of_other_libraries_for_one_limit_are_read(text):
    assert Limiter(text).check("a")


def test_the_names_of_algorithms_in_types_are_those_of_the_code():
    tree = ast.parse(Path(algorithms.__file__).read_text())
    (literal,) = [node for node in ast.walk(tree) if isinstance(node, ast.Subscript)
                  and getattr(node.value, "id", "") == "Literal"]  # fmt: skip
    assert ast.literal_eval(literal.slice) == algorithms.RULES
