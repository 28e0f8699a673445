"""Builds the documentation site: python scripts/site/build.py FOLDER. A broken link or anchor is an error.

MkDocs takes a copy of what the pages are and link to, laid out as in the checkout, so that their links work in both.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("docs", "examples", "templates", "scripts")


def build(folder: Path) -> int:
    """Build the site.

    Args:
        folder: Where to; emptied first.

    Returns:
        The exit code of MkDocs, which prints what is wrong.
    """
    with tempfile.TemporaryDirectory() as staged:
        source = Path(staged, "docs")
        for name in FOLDERS:
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "gridtf-runs"))
        for page in (*ROOT.glob("*.md"), ROOT / "LICENSE"):
            shutil.copy(page, source)
        (source / "scripts/site/api.md").rename(source / "docs/api.md")
        config = (ROOT / "scripts/site/mkdocs.yml").read_text(encoding="utf-8")
        Path(staged, "mkdocs.yml").write_text(f"docs_dir: docs\n{config}", encoding="utf-8")
        command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder.absolute())]
        # its authors advertise their next project by a warning
        environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
        return subprocess.run(command, cwd=staged, env=environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1])))
