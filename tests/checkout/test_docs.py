"""What the documents mention exists: links and files, commands and options, keys of the job file, modules."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from gridtf.cli import COMMANDS
from gridtf.jobspec.config import SITE_FILE, from_arguments
from gridtf.jobspec.tasktypes import TASK_TYPES
from gridtf.observe.views import HostView, JobView, TaskView
from gridtf.schedulers import job_options
from gridtf.values import fields

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("examples/*/README.md"),
        *ROOT.glob("scripts/**/README.md"),
    ],
    key=str,
)
README = (ROOT / "README.md").read_text(encoding="utf-8")
START, JOBS = ((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8") for page in ("start", "jobs"))
_LEFT = (
    (ROOT / ".gitignore").read_text(encoding="utf-8").replace("/", "").split()
)  # folders that runs leave, such as the quickstart's
TOP = sorted(path.name for path in ROOT.iterdir() if path.is_dir() and path.name not in _LEFT and path.name[0] != ".")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose(text: str) -> str:
    """The text without code blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    """The anchors of the headings, as code forges make them."""
    headings = re.findall(r"^#+ +(.+)$", prose(path.read_text(encoding="utf-8")), flags=re.MULTILINE)
    return {anchor(heading) for heading in headings}


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_links_have_targets(document: Path) -> None:
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(document.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = document.parent / file if file else document
        if not path.exists() or (anchor and anchor not in anchors(path)):
            wrong.append(target)
    assert not wrong


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_files_that_are_named_exist(document: Path) -> None:
    text = prose(document.read_text(encoding="utf-8"))
    named = re.findall(rf"`((?:{'|'.join(map(re.escape, TOP))})/[\w./-]*)`", text)
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("document", ["ARCHITECTURE.md", "docs/decisions.md", "docs/extending.md"])
def test_modules_classes_and_their_attributes_that_are_named_exist(document: str) -> None:
    text = prose((ROOT / document).read_text(encoding="utf-8"))
    files = (path for folder in ("gridtf", "scripts", "tests") for path in (ROOT / folder).rglob("*.py"))
    sources = {f"/{name(path)}": path.read_text(encoding="utf-8") for path in files}
    modules = re.findall(r"`([\w/]+\.py)`", text)
    wrong = [module for module in modules if not any(path.endswith(f"/{module}") for path in sources)]
    for kind, attribute in re.findall(r"`([A-Z]\w+)\.(\w+)[^`]*`", text):
        bodies = [body for body in sources.values() if re.search(rf"^class {kind}\b", body, flags=re.MULTILINE)]
        if not any(re.search(rf"^    (?:def )?{attribute}\b", body, flags=re.MULTILINE) for body in bodies):
            wrong.append(f"{kind}.{attribute}")
    assert not wrong


@cache
def flags(command: str) -> frozenset[str]:
    """All options that ``gridtf COMMAND --help`` shows."""
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from gridtf.cli import main; sys.exit(main())", *command.split(), "--help"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    return frozenset(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", done.stdout))


def gridtf_commands(text: str) -> list[list[str]]:
    """The words of every gridtf command line in code blocks and in backticks."""
    text = text.replace("\\\n", " ")
    lines = [line for block in re.findall(r"^```\w*\n(.*?)^```$", text, re.M | re.S) for line in block.splitlines()]
    lines += re.findall(r"`(gridtf [^`]+)`", prose(text)) + re.findall(r"^ {4}(gridtf .+)$", prose(text), re.M)
    found = []
    for line in lines:
        match = re.match(r"\s*(?:\$ |.*\"\$\()?gridtf (?=[a-z-])(.*?)(?:\)\")?$", line)
        if match:
            found.append(shlex.split(match[1].replace("…", ""), comments=True))
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_commands_and_options_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    wrong = []
    for command, *words in gridtf_commands(text):
        if command.startswith("-"):
            continue
        if command not in COMMANDS:
            wrong.append(command)
            continue
        own = words[: words.index("--")] if "--" in words else words
        used = {word.partition("=")[0] for word in own if re.match(r"--?[a-z]", word)}
        wrong += [f"{command} {flag}" for flag in sorted(used - flags(command) - {"--debug", "--color"})]
    assert not wrong


def test_options_in_the_text_of_readme_and_jobs_exist() -> None:
    known = frozenset().union(*(flags(command) for command in COMMANDS), flags(""))
    named = set(re.findall(r"`(--[a-z][a-z-]*)", prose(README + JOBS)))
    of_programs = {"--container-image", "--epochs", "--gpu", "--net", "--nv", "--pid", "--ps_hosts", "--rocm"}
    assert named - known - of_programs == set()


def test_start_and_jobs_show_every_command() -> None:
    shown = {words[0] for words in gridtf_commands(START) + gridtf_commands(JOBS)}
    assert set(COMMANDS) <= shown


def all_blocks(language: str) -> dict[str, str]:
    """Document and number -> the text of each code block."""
    found = ((path, enumerate(blocks(path.read_text(encoding="utf-8"), language), start=1)) for path in DOCUMENTS)
    return {f"{name(path)}-{number}": text for path, texts in found for number, text in texts}


@pytest.mark.parametrize(("where", "text"), all_blocks("toml").items())
def test_job_files_in_documents_are_valid(where: str, text: str, tmp_path: Path) -> None:
    """A part of a job file, without anything to run, has a command here; docs/site.md shows a site's file."""
    of_a_site = where.startswith("docs/site.md")
    path = tmp_path / ("site.toml" if of_a_site else "gridtf.toml")
    complete = of_a_site or re.search("^(command|entry) ", text, flags=re.MULTILINE)
    path.write_text(text if complete else f'command = ["true"]\n{text}', encoding="utf-8")
    variables = {"GRIDTF_SITE_CONFIG": str(path) if of_a_site else "", "HOME": str(tmp_path), "USER": "ann"}
    words = ["--account", "a", "--time", "1h", "--", "true"] if of_a_site else ["gridtf.toml"]
    made = from_arguments(words, variables, tmp_path, job_options())
    assert made.notes == ()
    assert of_a_site or any(str(source).startswith("gridtf.toml") for source in made.sources.values())


@pytest.mark.parametrize("text", [pytest.param(text, id=where) for where, text in all_blocks("bash").items()])
def test_bash_in_documents_is_valid(text: str) -> None:
    checked = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, timeout=60, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    if shutil.which("shellcheck"):
        # a part of a script has no first line, and files and variables that are not here
        left_out = "--exclude=SC1090,SC1091,SC2016,SC2094,SC2148,SC2154"
        command = ["shellcheck", "--shell=bash", left_out, "-"]
        found = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
        assert found.returncode == 0, found.stdout


def test_readme_is_short() -> None:
    assert len(README.splitlines()) <= 200
    assert len(README.encode()) <= 12 * 1024


def test_no_package_index_is_suggested_for_gridtf() -> None:
    """It is not published: there the name may be anybody's."""
    pattern = re.compile(r"(?:pip|pipx|uv|uvx|conda) (?:[\w-]+ )*['\"]?gridtf\b.*")
    texts = {path: path.read_text(encoding="utf-8") for path in (*DOCUMENTS, *ROOT.glob("gridtf/**/*.py"))}
    assert {name(path): found for path, text in texts.items() if (found := pattern.findall(text))} == {}


def test_jobs_names_every_task_type_and_the_site_file() -> None:
    assert [kind for kind in TASK_TYPES if f"`{kind}`" not in JOBS] == []
    assert SITE_FILE in JOBS


def test_every_field_of_a_status_is_documented() -> None:
    text = (ROOT / "docs" / "seeing.md").read_text(encoding="utf-8")
    section = text.partition("### What status() returns")[2].partition("### ")[0]
    named = set(re.findall(r"`(\w+)`", section))
    assert {*fields(JobView), *fields(TaskView), *fields(HostView)} - named == set()


@pytest.mark.parametrize("page", sorted(path.stem for path in ROOT.glob("docs/*.md") if path.stem != "decisions"))
def test_pages_of_the_documentation_have_a_list_of_contents(page: str) -> None:
    path = ROOT / "docs" / f"{page}.md"
    text = prose(path.read_text(encoding="utf-8"))
    sections = [anchor(title) for title in re.findall(r"^## (.+)$", text, flags=re.MULTILINE)]
    contents = re.findall(r"^- \[.+?\]\(#(.+?)\)", text, flags=re.MULTILINE)
    assert contents[: len(sections)] == sections


def test_readme_of_the_test_beds_has_every_module() -> None:
    folder = ROOT / "scripts" / "testbeds"
    named = re.findall(r"^\| `(\w+\.py)` \| ", (folder / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(named) == sorted(path.name for path in folder.glob("*.py") if path.stem != "__init__")


def test_architecture_is_two_pages() -> None:
    lines = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 130


def test_changelog_names_this_version() -> None:
    from gridtf import __version__

    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert __version__ in headings
