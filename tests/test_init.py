"""At most twenty names, all of them real."""

import ratekeeper


def test_the_front_door_is_small_and_true():
    assert len(ratekeeper.__all__) <= 20
    assert sorted(ratekeeper.__all__) == list(ratekeeper.__all__)
    for name in ratekeeper.__all__:
        assert getattr(ratekeeper, name).__doc__, name
    assert set(ratekeeper.__all__) <= set(dir(ratekeeper))  # those that are loaded later too


def test_methods_of_the_two_limiters_are_the_same():
    def public(kind):
        return {name for name in dir(kind) if not name.startswith("_")}

    assert public(ratekeeper.AsyncLimiter) - public(ratekeeper.Limiter) == set()
    assert public(ratekeeper.Limiter) - public(ratekeeper.AsyncLimiter) == set()
