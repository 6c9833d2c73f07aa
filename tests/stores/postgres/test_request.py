"""Plans as parameters of one statement, and its numbers as answers."""

import pytest

from ratekeeper.check import Check
from ratekeeper.limit import Limit, parse_limits
from ratekeeper.stores.postgres.layout import RowLayout
from ratekeeper.stores.postgres.request import RowsRequest, answers_of, parameters

LIMIT, BOTH = Limit.parse("5/hour"), parse_limits(["5/hour", "9/day fixed_window"])


def request(operation, *checks, at=None):
    plan = tuple([Check("s", key, limit, 1) for key, limit in checks])
    return RowsRequest(operation, plan, [RowLayout("s", limit) for _, limit in checks], at)


def test_marks_tell_plans_checks_and_limits_apart():
    requests = [request("check", ("a", BOTH), ("b", LIMIT)), request("take", ("a", LIMIT), ("b", LIMIT))]
    requests.append(request("refund", ("a", BOTH), at=77))
    marks, _, kinds, _, _, _, taken_at, *_ = parameters(requests, None, 50)
    assert marks == b"c.,ttr."
    assert kinds == b"gfggggf"
    assert taken_at == b"{NULL,NULL,NULL,NULL,NULL,77,77}"


def test_keys_are_sent_once_and_in_order():
    requests = [request("check", (key, LIMIT)) for key in "cabca"]
    _, places, _, costs, limits, _, _, keys, given, patience = parameters(requests, 123, 50)
    names = [name.removeprefix("\\\\x") for name in keys.decode()[2:-2].split('","')]
    assert names == sorted(set(names))
    assert len(names) == 3
    by_place = [names[int(place) - 1] for place in places.decode()[1:-1].split(",")]
    assert by_place == [RowLayout("s", LIMIT).row_names(key)[0] for key in "cabca"]
    assert (costs, given, patience) == (b"{1,1,1,1,1}", b"123", b"50")
    assert limits.count(b",") == 5 * 7 - 1


def test_a_reply_is_cut_into_the_rows_of_each_request():
    requests = [request("check", ("a", BOTH)), request("check", ("b", LIMIT))]
    now, answers = answers_of(b"{1000,1,2,7,0,0,0,1,2,9,3}", requests)
    assert now == 1000
    assert answers == [[(1, [7, 0]), (0, [])], [(1, [9, 3])]]


@pytest.mark.parametrize("reply", [b"{}", b"{1000}", b"{1000,1,2,7}", b"{1000,1,2,7,0,1,0,5}", b"{x}"])
def test_another_reply_is_an_error(reply):
    with pytest.raises((ValueError, IndexError)):
        answers_of(reply, [request("check", ("b", LIMIT))])


def test_a_debit_of_leases_takes_what_is_there():
    assert request("debit", ("k", Limit.parse("5 concurrent"))).operation == "take"
