"""Adds to the site what the package keeps, and refuses to build it while a public name is not explained."""

import sys
from pathlib import Path

from mkdocs.exceptions import Abort
from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).parent))

import public_api

PAGE = Path(__file__).parents[1] / "src" / "ratekeeper" / "lab" / "page"


def on_pre_build(config):
    faults = public_api.faults()
    if faults:
        raise Abort("\n".join(faults))


def on_files(files, config):
    # The playground decides with the rules of the lab's report.
    files.append(File.generated(config, "playground/rules.js", abs_src_path=str(PAGE / "rules.js")))
    return files
