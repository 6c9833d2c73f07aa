"""The cases are what the model gives, and fit their schema."""

import json
from fractions import Fraction

import pytest

from conformance import make_cases
from conformance.limits import ALGORITHMS, BUCKETS, SECOND, Answer, Limit
from conformance.model import MODELS, Limits


def read(algorithm):
    return json.loads((make_cases.FOLDER / f"{algorithm}.json").read_text("utf-8"))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_step_is_what_the_model_gives(algorithm):
    for case in read(algorithm):
        model = Limits([Limit.from_json(limit) for limit in case["limits"]])
        for step in case["steps"]:
            answer = model.check(step["key"], case["start"] + step["at"], step["cost"])
            told = Answer(step["allowed"], step["remaining"], step["retry_after"], step["reset_after"])
            assert answer == told, case["name"]


@pytest.mark.full
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_script_writes_the_same_file_again(algorithm):
    text = (make_cases.FOLDER / f"{algorithm}.json").read_text("utf-8")
    assert make_cases.file_text(make_cases.cases_of(algorithm)) == text


@pytest.mark.full
def test_the_cases_fit_their_schema():
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((make_cases.FOLDER / "schema.json").read_text("utf-8"))
    for algorithm in ALGORITHMS:
        jsonschema.validate(read(algorithm), schema)


def test_names_are_unique_and_each_algorithm_has_each_kind():
    names = [case["name"] for algorithm in ALGORITHMS for case in read(algorithm)]
    assert len(names) == len(set(names)) >= 7 * 20
    for algorithm in ALGORITHMS:
        kinds = {name.removeprefix(f"{algorithm}-").rpartition("-")[0] for name in names if name.startswith(algorithm)}
        assert {"first", "edge", "drift", "cost", "walk", "several", "plain", "real", "real-first"} <= kinds


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_model_keeps_its_own_bound_and_its_retry_is_least(algorithm):
    limit = Limit(algorithm, 3, 7 * SECOND, 2 if algorithm in BUCKETS else 0)
    model, now, admitted = Limits([limit]), 0, []
    for number in range(120):
        answer = model.check("a", now, 1)
        if answer.allowed:
            admitted.append(now)
        else:
            one = model.of("a")[0]
            assert not one.fits(now + answer.retry_after - 1, 1)
            assert one.fits(now + answer.retry_after, 1)
            now += answer.retry_after if number % 3 else 1
    assert len(admitted) > 20
    for first in range(len(admitted)):
        for last in range(first, len(admitted)):
            assert last - first + 1 <= limit.most_in(admitted[last] - admitted[first])


def test_the_models_share_nothing_with_the_rules():
    assert set(MODELS) == set(ALGORITHMS)
    bucket = MODELS["gcra"](Limit("gcra", 3, 7 * SECOND))
    bucket.record(0, 1)
    assert bucket.used(SECOND) == Fraction(4, 7)
