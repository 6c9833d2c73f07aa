"""Wrong arguments of a limiter are shown as they should be written."""

import pytest

from ratekeeper import (
    AsyncLimiter,
    InvalidInput,
    Limit,
    Limiter,
)

LIMITS = "expected a limit such as '100/minute' or a list of limits"


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((100, 60), {}, f"{LIMITS}, got a count and a period. Write NAME('100 per 60 seconds')."),
        ((100, 0.5), {}, f"{LIMITS}, got a count and a period. Write NAME('100 per 0.5 seconds')."),
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
