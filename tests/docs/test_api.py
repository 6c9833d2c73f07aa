"""Every public name is explained, with its parameters and members, as the site shows them."""

import sys
from pathlib import Path

import griffe
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import public_api


def test_every_public_name_and_parameter_is_explained() -> None:
    assert public_api.faults() == []


@pytest.mark.full  # it reads the package once more
def test_every_word_is_used() -> None:
    """A word of the common list that explains nothing is dead."""
    package = public_api.load()
    asked: set[tuple[str, str]] = set()

    class Watched(dict[str, str]):
        def __init__(self, owner: str, words: dict[str, str]) -> None:
            super().__init__(words)
            self.owner = owner

        def get(self, name: str, fallback: object = None) -> str | None:  # type: ignore[override]
            if name in self:
                asked.add((self.owner, name))
            return super().get(name)

    watched = {owner: Watched(owner, words) for owner, words in public_api.WORDS.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(public_api, "WORDS", watched)
        public_api.complete(read_again())
    assert package is public_api.load()
    dead = {(owner, name) for owner, words in public_api.WORDS.items() for name in words} - asked
    assert sorted(dead) == []


def read_again() -> griffe.Object:
    loader = griffe.GriffeLoader(search_paths=[public_api.ROOT / "src"], docstring_parser="google")
    package = loader.load("ratekeeper")
    loader.resolve_aliases(external=False)
    return package  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ('def f(a, b):\n    """Do it."""', ["a", "b"]),
        ('def f(a, b):\n    """Do it with ``a``."""', ["b"]),
        ('def f(a, b):\n    """Do it.\n\n    ``b`` is last.\n\n    Args:\n        a: First.\n    """', []),
    ],
)
def test_what_is_missing_is_found(text: str, missing: list[str]) -> None:
    module = griffe.visit("example", Path("example.py"), text, docstring_parser=griffe.Parser.google)
    function = module["f"]
    public_api.add_section("f", function, "Args", ["a", "b"], [public_api.text_of(function)])
    expected = [f"f: expected an explanation of {name!r}, got none" for name in missing]
    assert public_api.unexplained("f", function) == expected
