"""Adds to the site what the package keeps, and ranks its pages for the search.

The site is not built while a public name is not explained.
"""

import sys
import tomllib
from pathlib import Path

from mkdocs.exceptions import Abort
from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).parent))

import public_api

# Most ask about FastAPI, and few why something was decided or about a corner of the API.
RANKS = {"howto/fastapi.md": 2, "decisions/": 0.1, "changelog.md": 0.3, "explain/": 0.5, "reference/api": 0.3}
ROOT = Path(__file__).parents[1]
PAGE = ROOT / "src" / "ratekeeper" / "lab" / "page"


def on_config(config):
    config.extra["release"] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    return config


def on_pre_build(config):
    faults = public_api.faults()
    if faults:
        raise Abort("\n".join(faults))


def on_files(files, config):
    # The playground decides with the rules of the lab's report.
    files.append(File.generated(config, "playground/rules.js", abs_src_path=str(PAGE / "rules.js")))
    return files


def on_page_markdown(markdown, page, config, files):
    for start, boost in RANKS.items():
        if page.file.src_uri.startswith(start):
            page.meta.setdefault("search", {"boost": boost})
    return markdown


def on_post_page(output, page, config):
    """Name the theme's dialog: without a name, a screen reader does not say what it is."""
    dialog = 'data-md-component="search" role="dialog"'
    return output.replace(dialog, f'{dialog} aria-label="Search"')
