"""Labels: bounded in number and length, and always text that a page can hold."""

from hypothesis import given
from hypothesis import strategies as st

from ratekeeper.sinks.labels import LONGEST_LABEL, OTHER, Labels, clean

ANY_TEXT = st.text(st.characters(exclude_categories=[]), max_size=300)


@given(ANY_TEXT)
def test_a_label_can_be_encoded_and_is_short(text):
    label = clean(text)
    label.encode()
    assert label.isprintable()
    assert len(label) <= LONGEST_LABEL
    assert clean(label) == label


@given(st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=LONGEST_LABEL))
def test_an_ordinary_name_is_its_own_label(text):
    assert clean(text) == text


def test_what_is_not_printable_is_escaped():
    assert clean("a\ud800b\nc") == "a\\ud800b\\nc"


def test_names_beyond_the_bound_share_one_label():
    labels = Labels(3)
    assert [labels.of(name) for name in ("a", "b", "c", "d", "a", "e")] == ["a", "b", "c", OTHER, "a", OTHER]
    assert len(labels.labels) == 3


def test_no_long_name_is_kept():
    labels = Labels(10)
    for number in range(20):
        assert len(labels.of("x" * 1000 + str(number))) == LONGEST_LABEL
    assert list(labels.labels) == ["x" * LONGEST_LABEL]
