"""The file that `gridtf init` writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridtf.doctor import settings
from gridtf.findings import Setting
from gridtf.jobspec.config import complement
from gridtf.jobspec.spec import JobSpec
from gridtf.schedulers import job_options

NEEDED = (
    Setting("partition", "gpu", "no partition is the default"),
    Setting("time", "01:00:00", "the site requires a walltime"),
    Setting("time", "02:00:00", "a second reason"),
    Setting("native", ["-l h_vmem=4G"], "every job must request h_vmem"),
    Setting("setup", ['source "a b"/bin/activate'], "an environment", example=True),
    Setting("gpus_per_node", 4, "four GPUs", "partitions.gpu", example=True),
)


def read(text: str, folder: Path, *, site: bool = False) -> JobSpec:
    (folder / "gridtf").mkdir()
    path = folder / "gridtf" / "config.toml"
    path.write_text(text, encoding="utf-8")
    environ = {"GRIDTF_SITE_CONFIG": str(path)} if site else {"GRIDTF_SITE_CONFIG": "", "XDG_CONFIG_HOME": str(folder)}
    made = complement(JobSpec(command=("x",)), {"HOME": str(folder), **environ}, job_options())
    assert made.notes == ()
    return made.spec


def uncommented(text: str) -> str:
    """The text with all of its examples, but one of those for a key at the top."""
    lines = (line.removeprefix("# ") for line in text.splitlines())
    return "\n".join(line for line in lines if " = " in line or line.startswith("["))


def test_needed_settings_count_and_examples_are_comments(tmp_path: Path) -> None:
    text = settings.text(NEEDED, "Defaults")
    spec = read(text, tmp_path)
    assert (spec.partition, spec.time, spec.native) == ("gpu", "01:00:00", ("-l h_vmem=4G",))
    assert (spec.setup, spec.gpus_per_node) == ((), None)


def test_reason_stands_above_each_line() -> None:
    lines = settings.text(NEEDED, "Defaults").splitlines()
    assert lines[0] == "# Defaults"
    for setting in (NEEDED[0], NEEDED[1], NEEDED[3]):
        assert lines[lines.index(setting.line) - 1] == f"# {setting.comment}"
    assert lines[lines.index("# [partitions.gpu]") - 1 :][:3] == [
        "# four GPUs",
        "# [partitions.gpu]",
        "# gpus_per_node = 4",
    ]


@pytest.mark.parametrize("site", [False, True])
def test_examples_are_valid_once_uncommented(tmp_path: Path, site: bool) -> None:
    text = uncommented(settings.text(NEEDED, "Defaults", limits=site))
    assert ("[limits]" in text) == site
    spec = read(text, tmp_path, site=site)
    assert (spec.setup, spec.gpus_per_node) == (('source "a b"/bin/activate',), 4)


def test_file_without_needs_says_so(tmp_path: Path) -> None:
    text = settings.text((), "Defaults")
    assert "# Jobs need no setting here" in text
    assert read(text, tmp_path) == JobSpec(command=("x",))


def test_text_of_others_stays_a_comment(tmp_path: Path) -> None:
    odd = Setting("account", 'a"b', "two\nlines \x1b[31m " + "long " * 40)
    assert read(settings.text([odd], "x\npartition = 'y'"), tmp_path).account == 'a"b'


def test_what_is_one_user_s_own_is_an_example_for_all_and_users_are_kept_apart(tmp_path: Path) -> None:
    mine = (Setting("account", "ml", ""), Setting("setup", ["source ~/v"], ""), Setting("pe", "mpi", ""))
    for_all = settings.for_all(mine)
    assert [(one.key, one.example) for one in for_all] == [
        ("account", True),
        ("setup", True),
        ("pe", False),
        ("fence", False),
    ]
    assert read(settings.text(for_all, "Defaults", limits=True), tmp_path, site=True).fence == "auto"
