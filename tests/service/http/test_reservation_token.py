"""Signed reservations: any worker with the secret opens them, for an hour, and nobody can write one."""

import pytest

from ratekeeper import AlreadySettled, InvalidInput
from ratekeeper.check import Check, LeaseCheck
from ratekeeper.limit import parse_limits
from ratekeeper.service.http import reservation_token
from ratekeeper.service.http.reservation_token import OPEN_FOR, Seal, difference

LIMITS = parse_limits(["5/minute", "9/hour sliding_log"])


@pytest.mark.parametrize("key", ["ann", b"\xff\x00"])
def test_another_worker_reads_what_was_reserved(key):
    check, at, once = Seal(b"secret").open(Seal(b"secret").close(Check("login", key, LIMITS, 3), 1_234))
    assert (check.space, check.key, check.limit, check.cost, at) == ("login", key, LIMITS, 3, 1_234)
    assert once.cost == once.limit.count == 1


@pytest.mark.parametrize("damage", [lambda text: "A" + text[1:], lambda text: text[:-4], lambda _: "", lambda _: None])
def test_what_was_not_signed_here_is_refused(damage):
    token = Seal(b"secret").close(Check("login", "ann", LIMITS, 3), 0)
    for seal, text in ((Seal(b"secret"), damage("B" + token[1:])), (Seal(b"another"), token)):
        with pytest.raises(InvalidInput, match=r"^reservation: expected one that this service gave out"):
            seal.open(text)


def test_a_reservation_stays_open_for_an_hour(monkeypatch):
    token = Seal(b"secret").close(Check("login", "ann", LIMITS, 3), 0)
    now = reservation_token.time()
    monkeypatch.setattr(reservation_token, "time", lambda: now + OPEN_FOR + 2)
    with pytest.raises(AlreadySettled, match=f"expected to be settled within {OPEN_FOR} s"):
        Seal(b"secret").open(token)


def test_a_renewed_reservation_is_open_for_another_hour_and_settled_with_the_first(monkeypatch):
    seal = Seal(b"secret")
    lease = LeaseCheck("jobs", "ann", parse_limits("5 concurrent"), 2, None, 2**64 - 1, 15_000_000)
    first = seal.close(lease, 77)
    now = reservation_token.time()
    monkeypatch.setattr(reservation_token, "time", lambda: now + OPEN_FOR - 1)
    check, at, once = seal.open(first)
    renewed = seal.close(check, at, once.key)
    monkeypatch.setattr(reservation_token, "time", lambda: now + 2 * OPEN_FOR - 3)
    again, at, once_again = seal.open(renewed)
    assert (again.lease, again.lasts, again.cost, at) == (lease.lease, lease.lasts, 2, 77)
    assert once_again.key == once.key
    with pytest.raises(AlreadySettled):
        seal.open(first)


@pytest.mark.parametrize(("actual", "expected"), [(1, ("refund", 2)), (3, None), (7, ("debit", 4))])
def test_the_difference_is_given_back_or_taken(actual, expected):
    found = difference(Check("login", "ann", LIMITS, 3), actual)
    assert (found and (found[0], found[1].cost)) == expected
