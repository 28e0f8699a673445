"""The documentation site is built with strict links, and needs no network."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, str(ROOT / "scripts/site/build.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_document_is_a_page(site: Path) -> None:
    documents = [path.relative_to(ROOT) for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"))]
    pages = [site / path.with_suffix(".html") for path in documents if path.name != "README.md"]
    assert [str(page) for page in (*pages, site / "index.html") if not page.is_file()] == []


def test_api_shows_public_names_with_their_arguments(site: Path) -> None:
    text = re.sub(r"<[^>]+>", "", (site / "docs/api.html").read_text(encoding="utf-8"))
    for words in ("submit", "JobSpec", "gpus_per_task", "SpecError", "output_dir", "ClusterResolver"):
        assert words in text


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    loaded = re.compile(
        r'<(?:script|img|iframe)[^>]+src="(https?:[^"]+)|<link[^>]+rel="stylesheet"[^>]+href="(https?:[^"]+)'
    )
    found = {page.name: loaded.findall(page.read_text(encoding="utf-8")) for page in site.rglob("*.html")}
    assert found
    assert {name: urls for name, urls in found.items() if urls} == {}
