"""Adds to the site what the package keeps: the playground decides with the rules of the lab's report."""

from pathlib import Path

from mkdocs.structure.files import File

PAGE = Path(__file__).parents[1] / "src" / "ratekeeper" / "lab" / "page"


def on_files(files, config):
    files.append(File.generated(config, "playground/rules.js", abs_src_path=str(PAGE / "rules.js")))
    return files
