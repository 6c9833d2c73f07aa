"""A rule as a value."""

import dataclasses

import pytest

from ratekeeper import Limit, Policy
from ratekeeper.rules.rule import Cost, Exempt, Penalty
from tests.rules.samples import EVERYTHING


@pytest.fixture(scope="module")
def rules(tmp_path_factory):
    path = tmp_path_factory.mktemp("rules") / "rules.toml"
    path.write_text(EVERYTHING)
    return {rule.name: rule for rule in Policy.load(path).rules}


def test_words_of_a_file_become_values(rules):
    assert rules["login"].penalty == Penalty(after=5, within=600_000_000, block=3_600_000_000)
    assert (rules["search"].warn_at, rules["search"].grace, rules["search"].tier_default) == (0.8, 1, "free")
    assert rules["search"].limits["free"] == Limit.parse("100/minute sliding_window")
    assert (rules["whole-site"].mode, rules["whole-site"].by) == ("shadow", ("all",))
    assert (rules["admin"].limits, rules["admin"].allow_from is None) == ({}, False)


def test_a_rule_by_tier_has_no_limit_for_all(rules):
    assert [name for name, rule in rules.items() if rule.by_tier] == ["search"]


def test_what_is_not_said_has_a_default(rules):
    rule = rules["per-ip"]
    assert (rule.cost, rule.mode, rule.scope, rule.counts) == (Cost(1), "enforce", "fleet", "requests")
    assert (rule.penalty, rule.grace, rule.headers, rule.max_delay) == (None, 0, True, 30_000_000)


def test_a_rule_is_frozen_and_an_empty_exemption_is_false(rules):
    with pytest.raises(dataclasses.FrozenInstanceError):
        rules["login"].mode = "off"
    networks = rules["admin"].allow_from
    assert Exempt(networks)
    assert not Exempt(type(networks)(()))
    assert Exempt(type(networks)(()), users=frozenset({"ann"}))
