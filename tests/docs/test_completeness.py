"""Everything public is documented, everything documented exists, and all links work."""

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

import ratekeeper
from ratekeeper import errors
from ratekeeper.algorithms import ALGORITHMS
from ratekeeper.units import SPELLINGS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.M)
CODE = re.compile(r"^ *```.*?^ *```", re.M | re.S)
FILE = re.compile(r"`([a-z_]+/[\w/.*-]+\.(?:py|lua|h|c|json|toml|md))`")
DIRECTIVE = re.compile(r"^::: ([\w.]+)$", re.M)  # of mkdocstrings: the documentation of a name
TERM = re.compile(r"^(\S.*)\n:   (.+)$", re.M)
INLINE = re.compile(r"`[^`]*`")
# Words that pages once used for a queue, a connection, a client, a batch and the like: see CONTRIBUTING.md.
METAPHORS = re.compile(
    r"\b(?:whoever|whom|errand|ledger|colleague|purse|standby|census|key_table|desk|office|guest|door)s?\b", re.I
)
# The words that a reader of any page or error may meet; each must be in the glossary.
TERMS = """algorithm allowed binding block budget burst capacity check clock cooldown cost count deadline decision delay
exempt fallback flow grace identity key layout lease limit listener override pacing peek penalty period plan policy
prefetch refund remaining reservation reset_after retry_after rule scope segment shadow sink source space state store
table tier turn unit verdict window"""


def prose(page: Path) -> str:
    return CODE.sub("", page.read_text("utf-8"))


def anchors(page: Path) -> set[str]:
    headings = HEADING.findall(prose(page))
    slugs = {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
    return slugs | set(DIRECTIVE.findall(page.read_text("utf-8")))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{page.name} links to {target}, which does not exist"
        if anchor and not anchor.startswith("only-"):  # a picture for one colour scheme
            assert anchor in anchors(linked), f"{page.name} links to {target}, which has no such heading"


@pytest.mark.parametrize(
    "folder", [DOCS, *(path for path in DOCS.rglob("*") if path.is_dir())], ids=lambda path: path.name
)
def test_the_navigation_lists_every_page(folder: Path) -> None:
    """A folder without a `.nav.yml` lists all its pages automatically."""
    nav = folder / ".nav.yml"
    if not nav.exists():
        return
    patterns = dict(nav_patterns(yaml.safe_load(nav.read_text("utf-8"))["nav"]))
    for page in sorted(folder.rglob("*.md")):
        names = [str(name) for name in (page.relative_to(folder), *page.relative_to(folder).parents)]
        listed = [name for name in names if name != "." and any(fnmatch(name, pattern) for pattern in patterns)]
        assert listed, f"{page} is not in {nav}"
    for pattern, is_optional in patterns.items():
        assert is_optional or list(folder.glob(pattern)), f"{nav} lists {pattern}, which does not exist"


def nav_patterns(entries: list[Any]) -> Iterator[tuple[str, bool]]:
    """The files, folders and patterns of a navigation, and whether each may be missing."""
    for entry in entries:
        if isinstance(entry, str):
            yield entry, False
        elif "glob" in entry:
            yield entry["glob"], entry.get("ignore_no_matches", False)
        else:
            for section in entry.values():
                yield from nav_patterns(section if isinstance(section, list) else [section])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_a_page_a_picture_a_row_and_a_test(name: str) -> None:
    assert (ROOT / "tests" / "algorithms" / f"test_{name}.py").is_file()
    page = (DOCS / "algorithms" / f"{name}.md").read_text("utf-8")
    assert f"](../pictures/{name}.svg)" in page
    assert (DOCS / "pictures" / f"{name}.svg").is_file()
    assert f'--8<-- "src/ratekeeper/algorithms/{name}.py"' in page
    for heading in ("What it does", "Worked numbers", "The guarantee", "When to use it", "When not"):
        assert f"\n## {heading}\n" in page
    which = (DOCS / "algorithms" / "which.md").read_text("utf-8")
    assert f"\n| [`{name}`]({name}.md) |" in which


def test_every_public_name_is_documented() -> None:
    page = (DOCS / "reference" / "api.md").read_text("utf-8")
    for name in ratekeeper.__all__:
        assert f"\n::: ratekeeper.{name}\n" in page or f"[`{name}`](errors.md#{name.lower()})" in page, name


def test_every_error_is_documented_with_its_parents() -> None:
    page = (DOCS / "reference" / "errors.md").read_text("utf-8")
    classes = [value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, Exception)]
    assert len(classes) >= 9
    for error in classes:
        assert f"\n## {error.__name__}\n" in page, f"docs/reference/errors.md: expected a heading '{error.__name__}'"
        row = re.search(rf"^\| \[`{error.__name__}`\]\(#{error.__name__.lower()}\) \| (.*?) \|", page, re.M)
        assert row, error
        for parent in row[1].replace("`", "").split(", "):
            assert parent in [base.__name__ for base in error.__mro__[1:]], f"{error.__name__} is no {parent}"


def test_every_spelling_of_a_unit_is_documented() -> None:
    page = (DOCS / "reference" / "limits.md").read_text("utf-8")
    for word in SPELLINGS:
        assert f"`{word}`" in page


@pytest.mark.full  # it reads the whole package, and draws all pictures
@pytest.mark.parametrize("script", ["write-reference", "draw-pictures"])
def test_what_is_generated_is_up_to_date(script: str) -> None:
    command = [sys.executable, str(ROOT / "scripts" / script), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_sentence_a_line_is_kept_short_enough_to_read() -> None:
    for page in sorted(DOCS.rglob("*.md")):
        for line in prose(page).splitlines():
            if not line.startswith(("|", "#", "!", "<")):
                assert len(line) <= 400, f"{page.name}: {line[:80]}…"


def test_the_glossary_defines_every_term_once_and_briefly() -> None:
    entries = TERM.findall((DOCS / "glossary.md").read_text("utf-8"))
    terms = [term for term, _ in entries]
    assert len(terms) == len(set(terms))
    assert not set(TERMS.split()) - set(terms)
    for term, meaning in entries:
        sentences = re.findall(r"[.?](?= |$)", LINK.sub("", meaning).replace("See .", ""))
        assert 1 <= len(sentences) <= 2, f"{term}: expected one or two sentences, got {len(sentences)}"


def test_the_changelog_has_the_marker_and_every_fragment_a_kind() -> None:
    """Both are needed to fold fragments in, which happens at a release only."""
    assert "\n<!-- towncrier release notes start -->\n" in (ROOT / "CHANGELOG.md").read_text("utf-8")
    for fragment in (ROOT / "changelog.d").glob("[!R]*"):
        assert re.fullmatch(r"[\w+-]+\.(added|changed|fixed|removed|security)\.md", fragment.name), fragment.name


def test_pages_use_the_words_of_the_field() -> None:
    for page in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        word = METAPHORS.search(INLINE.sub("", prose(page)))
        assert word is None, f"{page.relative_to(ROOT)}: expected a word of the field or a noun, got '{word[0]}'"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_of_the_project_that_a_page_names_exists(page: Path) -> None:
    """In prose, a name with a folder is a path in the project or in its package, such as `stores/memory.py`."""
    for path in FILE.findall(prose(page)):
        if path.startswith("build/"):  # what a command makes
            continue
        places = [folder / path for folder in (ROOT, ROOT / "src", ROOT / "src" / "ratekeeper")]
        assert any(list(place.parent.glob(place.name)) for place in places), f"{page.name} names {path}"


def test_every_metric_is_documented() -> None:
    from prometheus_client import CollectorRegistry

    from ratekeeper.sinks.prometheus import PrometheusSink

    page = (DOCS / "reference" / "events.md").read_text("utf-8")
    registry = CollectorRegistry()
    PrometheusSink(registry)
    for metric in registry.collect():
        name = metric.name + ("_total" if metric.type == "counter" else "")
        labels = ", ".join(f"`{label}`" for label in getattr(metric, "_labelnames", ()))
        assert f"| `{name}` | {labels}" in page, name
    source = (ROOT / "src" / "ratekeeper" / "sinks" / "opentelemetry.py").read_text("utf-8")
    for name in re.findall(r'"(ratelimit\.[a-z_.]+)"', source):
        assert f"`{name}`" in page, name


def test_every_key_of_a_rules_file_is_documented() -> None:
    from ratekeeper.rules.schema import RULE, RULES

    page = (DOCS / "reference" / "rules.md").read_text("utf-8")
    for name in [*RULES["properties"], *RULE["properties"]]:
        assert f"| `{name}`" in page, name
