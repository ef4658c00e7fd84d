"""`python -m tools.docs [FOLDER]`: build the site; it fails on a broken link or a page that cannot be made."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import MkDocsException

from tools.docs.checking import problems
from tools.docs.navigation import navigation
from tools.docs.staging import ROOT, stage


def main(argv: list[str]) -> int:
    site = Path(argv[0]).resolve() if argv else ROOT / "site"
    staged = ROOT / "build/docs"
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    pages = stage(staged)
    config = load_config(str(ROOT / "mkdocs.yml"), docs_dir=str(staged), site_dir=str(site), strict=True)
    config["nav"] = navigation(pages)
    try:
        config["plugins"].run_event("startup", command="build", dirty=False)
        build(config)
    except MkDocsException as exc:
        print(f"the site was not built: {exc}", file=sys.stderr)
        return 1
    found = problems(site)
    for problem in found:
        print(problem, file=sys.stderr)
    print(f"{len(pages)} pages in {site}/index.html")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
