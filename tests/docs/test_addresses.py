"""The README works on PyPI: every link is absolute, and leads to something that the tree has."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
URLS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]
REPOSITORY, SITE = URLS["Homepage"], URLS["Documentation"]
RAW = REPOSITORY.replace("https://github.com/", "https://raw.githubusercontent.com/") + "/main/"
ELSEWHERE = ("https://img.shields.io/", "https://pypi.org/project/ratekeeper/")
# In Markdown, of links and of the pictures inside them; and in HTML.
TARGET = re.compile(r"\]\(([^)\s]+)\)|\b(?:href|src|srcset)=\"([^\"]+)\"")
TARGETS = sorted({one or other for one, other in TARGET.findall(re.sub(r"^```.*?^```", "", README, flags=re.M | re.S))})


def file_of(address):
    """The file or folder of the tree behind an address of ours; None if it is not ours."""
    path = address.partition("#")[0]
    if path.startswith(RAW):
        return ROOT / path.removeprefix(RAW)
    if path.startswith(SITE):
        page = path.removeprefix(SITE) or "index.html"
        return ROOT / "docs" / re.sub(r"\.html$", ".md", page)
    if path.startswith(f"{REPOSITORY}/actions/workflows/"):
        return ROOT / ".github" / "workflows" / path.removeprefix(f"{REPOSITORY}/actions/workflows/").split("/")[0]
    found = re.fullmatch(rf"{re.escape(REPOSITORY)}/(blob|tree)/main/(.+)", path)
    if found is None:
        return None
    place = ROOT / found[2]
    assert place.is_dir() == (found[1] == "tree"), f"{address}: expected 'tree' for a folder and 'blob' for a file"
    return place


@pytest.mark.parametrize("address", TARGETS)
def test_every_link_of_the_readme_works_on_pypi(address):
    assert address.startswith("https://"), f"README.md: expected an absolute address, got {address}"
    if not address.startswith(ELSEWHERE):
        place = file_of(address)
        assert place is not None, f"README.md: expected an address of pyproject.toml's [project.urls], got {address}"
        if (ROOT / place.relative_to(ROOT).parts[0]).exists():  # a source archive has no .github and no bench
            assert place.exists(), f"README.md links to {address}, which is not in the tree"


def test_there_are_links_of_each_kind():
    assert len(TARGETS) > 40
    assert sum(address.startswith(RAW) for address in TARGETS) >= 6  # three pictures, light and dark


def test_the_addresses_are_the_same_everywhere():
    site = yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"), yaml.BaseLoader)
    assert (site["site_url"], site["repo_url"]) == (SITE, REPOSITORY)
    for name, address in URLS.items():
        assert address.startswith((REPOSITORY, SITE)), name


def test_the_classifiers_name_every_supported_python():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for minor in range(11, 15):
        assert f"Programming Language :: Python :: 3.{minor}" in project["classifiers"]
    assert project["requires-python"] == ">=3.11"
    assert project["classifiers"] == sorted(project["classifiers"])
