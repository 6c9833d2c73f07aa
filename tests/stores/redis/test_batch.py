"""What is done about each error reply: the same for threads and event loops, without either."""

import pytest

from ratekeeper.stores.redis.batch import LAST, MOST_TRIES, NOT_EXECUTED, PAUSE, Batch, react
from ratekeeper.stores.redis.resp import ErrorReply
from ratekeeper.stores.redis.topology import SlotMap

HERE, THERE = ("here", 7000), ("there", 7001)


def reaction_to(text, tries=1, time_left=1.0, is_busy=False):
    batch, slots = Batch([], 0.0), SlotMap([HERE])
    batch.tries = tries
    reaction = react(batch, ErrorReply(text), "redis://here", HERE, slots, time_left, is_busy)
    error = reaction.error
    failed = None if error is None else (error.why, error.charged)
    return batch, slots, (reaction.address, reaction.pause, reaction.renew, failed, reaction.down)


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("NOSCRIPT No matching script.", {}, (None, 0.0, False, None, "")),
        ("MOVED 7 there:7001", {}, (THERE, 0.0, False, None, "")),
        ("MOVED 7 :7001", {}, (("here", 7001), 0.0, False, None, "")),
        ("ASK 7 there:7001", {}, (THERE, 0.0, False, None, "")),
        ("TRYAGAIN Multiple keys", {}, (None, PAUSE, False, None, "")),
        ("TRYAGAIN later", {"tries": MOST_TRIES}, (None, PAUSE, False, None, "")),
        ("TRYAGAIN later", {"time_left": LAST}, (None, 0.0, False, ("answered TRYAGAIN later", False), "")),
        ("READONLY You", {}, (None, 0.0, True, None, "")),
        (
            "READONLY You",
            {"is_busy": True},
            (None, 0.0, False, ("answered READONLY You", False), "answered READONLY You"),
        ),
        (
            "MASTERDOWN x",
            {"tries": MOST_TRIES},
            (None, 0.0, False, ("answered MASTERDOWN x", False), "answered MASTERDOWN x"),
        ),
        ("NOSCRIPT x", {"tries": MOST_TRIES}, (None, 0.0, False, ("answered NOSCRIPT x", False), "")),
        ("MOVED 7 there:7001", {"tries": MOST_TRIES}, (None, 0.0, False, ("answered MOVED 7 there:7001", False), "")),
        (
            "MOVED 7 there:99999",
            {},
            (None, 0.0, False, ("answered MOVED 7 there:99999", False), "answered MOVED 7 there:99999"),
        ),
        ("ASK", {}, (None, 0.0, False, ("answered ASK", False), "answered ASK")),
        ("LOADING x", {}, (None, 0.0, False, ("answered LOADING x", False), "answered LOADING x")),
        ("OOM x", {}, (None, 0.0, False, ("answered OOM x", False), "")),
        ("ERR whatever", {}, (None, 0.0, False, ("answered ERR whatever", None), "")),
    ],
)
def test_an_error_reply_has_one_reaction(text, options, expected):
    batch, slots, reaction = reaction_to(text, **options)
    assert reaction == expected
    is_sent_again = reaction[3] is None
    assert batch.asking == text.startswith("ASK ")
    assert batch.evaluate == (is_sent_again and text.startswith("NOSCRIPT"))
    assert slots.masters == ({7: reaction[0]} if is_sent_again and text.startswith("MOVED") else {})


def test_only_an_error_that_is_not_known_may_have_been_charged():
    for word in NOT_EXECUTED:
        text = f"{word} 7 there:7001"
        _, _, (*_, failed, _) = reaction_to(text, tries=MOST_TRIES, time_left=0.0, is_busy=True)
        assert failed == (f"answered {text}", False)
