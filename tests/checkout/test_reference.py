"""docs/reference.md and the manual pages say what gridtf's options, keys and commands are. After a change of these,
``python scripts/reference.py`` writes them anew."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gridtf
from gridtf.cli import COMMANDS
from gridtf.findings import result
from gridtf.jobspec.spec import JobSpec, TaskSpec
from gridtf.schedulers import job_options
from gridtf.values import fields

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))
import reference
import statusschema

ROOT = Path(__file__).resolve().parents[2]
PAGES = reference.pages()


def test_reference_is_up_to_date() -> None:
    text = (ROOT / "docs/reference.md").read_text(encoding="utf-8")
    assert text == reference.page(text)


def test_result_of_a_pilot_becomes_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: dict[str, object] = {
        **result("Slurm", "slurm 25.05.1", {"train": True, "hosts": True, "exec": False}),
        "tensorflow": "2.20.0",
    }
    sent |= {
        "system": "Rocky | Linux, aarch64",
        "date": "2027-01-02",
        "python": "3.12.1",
        "gpus": "NVIDIA H200",
        "hosts": 2,
    }
    folder = tmp_path / "tests/recorded/tested"
    folder.mkdir(parents=True)
    (folder / "sent.json").write_text(json.dumps(sent), encoding="utf-8")
    monkeypatch.setattr(reference, "ROOT", tmp_path)
    about = "Slurm | slurm 25.05.1 | Rocky \\| Linux, aarch64 | 3.12.1 | 2.20.0 | NVIDIA H200"
    assert [*reference._tested()][-1] == f"| {about} | {gridtf.__version__} |  | 2027-01-02 | 2 | 1 |"


def test_schema_of_status_is_up_to_date() -> None:
    made = statusschema.text(reference.attributes)
    assert (ROOT / "docs/status.schema.json").read_text(encoding="utf-8") == made


@pytest.mark.parametrize(("folder", "made"), [("man", PAGES), ("completions", reference.completions())])
def test_manual_pages_and_completions_are_up_to_date(folder: str, made: dict[str, str]) -> None:
    files = [path for path in (ROOT / "docs" / folder).rglob("*") if path.is_file()]
    there = {str(path.relative_to(ROOT / "docs" / folder)): path.read_text(encoding="utf-8") for path in files}
    assert there == made


def test_every_key_option_and_command_is_in_the_reference() -> None:
    named = {row.name for row in reference.job_keys()}
    assert named == (
        {name for name in fields(JobSpec) if name not in ("tasks", "options")}
        | {f"tasks.TYPE.{name}" for name in fields(TaskSpec)}
        | {option.key for option in job_options() if not option.key.startswith("tasks.")}
    )
    text = reference.markdown()
    assert [flag for option in job_options() for flag in option.flags if flag not in text] == []
    assert [
        name for name in COMMANDS if f"### gridtf {name}\n" not in text or f"man1/gridtf-{name}.1" not in PAGES
    ] == []


@pytest.mark.parametrize("name", sorted(PAGES))
def test_manual_page_is_readable(name: str, tmp_path: Path) -> None:
    page = tmp_path / Path(name).name
    page.write_text(PAGES[name], encoding="utf-8")
    lines = page.read_text(encoding="utf-8").splitlines()
    assert lines[1].startswith(".TH ")
    requests = {line.split()[0] for line in lines if line.startswith((".", "'"))}
    assert requests <= {'.\\"', ".TH", ".SH", ".TP", ".nf", ".fi"}
    if man := shutil.which("man"):
        done = subprocess.run(
            [man, "--warnings", "--local-file", "--encoding=UTF-8", str(page)],
            env={"MANWIDTH": "100", "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
            capture_output=True,
            text=True,
            timeout=180,
            check=True,
        )
        assert done.stderr == ""
        assert page.stem in done.stdout
