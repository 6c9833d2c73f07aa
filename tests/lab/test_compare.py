"""Two rules files on one log."""

from ratekeeper import lab
from tests.lab.samples import RULES, SAMPLE, rules


def test_a_comparison_of_two_rules_files():
    result = lab.replay(
        SAMPLE, rules({"by": "ip", "limit": "5/minute"}), against=rules({"by": "all", "limit": "10/minute"})
    )
    stricter = lab.replay(SAMPLE, rules({"by": "ip", "limit": "5/minute"}))
    before = lab.replay(SAMPLE, rules({"by": "all", "limit": "10/minute"}))
    comparison = result.comparison
    assert comparison.refused_by_both + comparison.newly_refused == stricter.refused
    assert comparison.refused_by_both + comparison.newly_allowed == before.refused
    refused = comparison.refused_by_both + comparison.newly_refused + comparison.newly_allowed
    assert comparison.allowed_by_both == 400 - refused
    assert min(comparison.newly_refused, comparison.newly_allowed) > 0
    same = lab.replay(SAMPLE, RULES, against=RULES).comparison
    assert (same.newly_refused, same.newly_allowed) == (0, 0)
