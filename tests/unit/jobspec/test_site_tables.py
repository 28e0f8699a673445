"""Profiles, defaults for partitions, and the limits of a site: tables of the site's, the user's and the job file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gridtf import schedulers
from gridtf.errors import GridtfError, UsageError
from gridtf.jobspec import config
from gridtf.jobspec.spec import JobSpec
from tests.support.configuration import read, refused, user_file, write

SITE = """\
time = "1h"
setup = ["module load cuda"]

[partitions.gpu]
gpus_per_node = 4
time = "8h"

[profiles.big]
nodes = 8
partition = "gpu"

[limits]
max_nodes = 16
max_workers = 64
max_gpus_per_node = 8
max_time = "24:00:00"
require = ["account"]
max_restarts = 3
max_spare_nodes = 1
message = "see the page on limits"
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = write(tmp_path / "site.toml", SITE)
    monkeypatch.setenv("GRIDTF_SITE_CONFIG", str(path))
    return path


def test_partition_has_defaults_of_its_own(site: Path, tmp_path: Path) -> None:
    made = read("-A a -p gpu -- x", tmp_path)
    assert (made.spec.gpus_per_node, made.spec.time) == (4, "8h")
    assert made.sources["gpus_per_node"] == f"{site}:5"
    assert read("-A a -p cpu -- x", tmp_path).spec.time == "1h"
    assert read("-A a -p gpu --time 2h -- x", tmp_path).spec.time == "2h"


def test_user_file_overrides_the_sites_partition(site: Path, tmp_path: Path) -> None:
    user_file('time = "3h"\npartition = "gpu"\n')
    assert read("-A a -- x", tmp_path).spec.time == "3h"
    user_file('time = "3h"\npartition = "gpu"\n[queue.gpu]\ntime = "4h"\n'.replace("queue", "partitions"))
    assert read("-A a -- x", tmp_path).spec.time == "4h"


@pytest.mark.parametrize("kind", ["partitions", "partition", "queues", "queue"])
def test_partition_tables_have_four_names(kind: str, tmp_path: Path) -> None:
    user_file(f"[{kind}.gpu]\nmem = 1\n")
    assert read("-q gpu -- x", tmp_path).spec.mem == 1


def test_profile_is_above_the_job_file_and_below_the_command_line(site: Path, tmp_path: Path) -> None:
    write(tmp_path / "job.toml", 'command = ["x"]\nnodes = 2\naccount = "a"\n')
    made = read("job.toml --profile big", tmp_path)
    assert (made.spec.nodes, made.spec.partition, made.spec.gpus_per_node) == (8, "gpu", 4)
    assert made.sources["nodes"] == f"{site}:9"
    assert "profile" not in made.sources
    assert read("job.toml --profile big --nodes 3", tmp_path).spec.nodes == 3


def test_profiles_of_all_files_add_up(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user_file("[profiles.big]\nnodes = 9\nmem = 5\n")
    write(tmp_path / "job.toml", 'command = ["x"]\naccount = "a"\nprofile = "big"\n[profiles.big]\nmem = 6\n')
    made = read("job.toml", tmp_path)
    assert (made.spec.nodes, made.spec.partition, made.spec.mem) == (9, "gpu", 6)
    monkeypatch.setenv("GRIDTF_SUBMIT_PROFILE", "bog")
    error = refused("job.toml", tmp_path)
    assert error.what == "GRIDTF_SUBMIT_PROFILE: there is no profile 'bog'"
    assert error.hint == "known: big"


@pytest.mark.parametrize(
    ("words", "what", "line"),
    [
        ("--nodes 2-17", "--nodes: 17 requested, the site allows 16", "13: max_nodes = 16"),
        ("--nodes 16 --restarts 1 --spare-nodes 1", "--nodes: 17 requested, the site allows 16", "13: max_nodes = 16"),
        ("--workers 65", "--workers: 65 requested, the site allows 64", "14: max_workers = 64"),
        ("--gpus-per-node 9", "--gpus-per-node: 9 requested, the site allows 8", "15: max_gpus_per_node = 8"),
        ("--restarts 4", "--restarts: 4 requested, the site allows 3", "18: max_restarts = 3"),
        (
            "--nodes 2 --restarts 1 --spare-nodes 2",
            "--spare-nodes: 2 requested, the site allows 1",
            "19: max_spare_nodes = 1",
        ),
        ("-t 25h", "-t: 1-01:00:00 requested, the site allows 1-00:00:00", "16: max_time = 1-00:00:00"),
    ],
)
def test_limit(words: str, what: str, line: str, site: Path, tmp_path: Path) -> None:
    error = refused(f"-A a {words} -- x", tmp_path)
    assert (error.what, error.why, error.hint) == (what, f"{site}:{line}", "see the page on limits")


def test_jobs_at_the_limit_are_accepted(site: Path, tmp_path: Path) -> None:
    read("-A a --nodes 16 --workers 64 --gpus-per-node 8 -t 24h --restarts 3 -- x", tmp_path)
    read("-A a --nodes 15 --restarts 1 --spare-nodes 1 -- x", tmp_path)


def test_site_may_allow_no_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRIDTF_SITE_CONFIG", str(write(tmp_path / "site.toml", "[limits]\nmax_restarts = 0\n")))
    read("-- x", tmp_path)
    assert refused("--restarts 1 -- x", tmp_path).what == "--restarts: 1 requested, the site allows 0"


def test_required_key(site: Path, tmp_path: Path) -> None:
    error = refused("-- x", tmp_path)
    assert (error.what, error.why) == ("--account: the site requires a value", f"{site}:17: require")
    with pytest.raises(UsageError, match="account: the site requires a value"):
        config.complement(JobSpec(command=["x"]), os.environ)
    config.complement(JobSpec(command=["x"], account="a"), os.environ)


def test_limits_do_not_apply_to_a_job_that_runs_here(site: Path, tmp_path: Path) -> None:
    """It has its hosts already, and none of its options requests any."""
    made = config.from_arguments(["--nodes", "99", "--", "x"], os.environ, tmp_path, use=config.Use.HERE)
    assert made.spec.nodes == 99


def test_limits_are_the_sites_alone(tmp_path: Path) -> None:
    user_file("[limits]\nmax_nodes = 1\n")
    assert "limits: unknown key, left out" in read("--nodes 2 -- x", tmp_path).notes[0]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("[limits]\nmax_nodes = 3\nexec = false", "3: exec = false"),
        ("nods = 3\n[limits]\nexec = true", ""),
        ("time = '1h'", ""),
    ],
)
def test_site_says_where_it_forbids_something(text: str, where: str, site: Path, tmp_path: Path) -> None:
    site.write_text(f"{text}\n")
    user_file("[limits]\nexec = false\n")  # which is no site's
    assert config.forbidden_by_site("exec", os.environ) == (f"{site}:{where}" if where else "")
    assert read("--nodes 1 -- x", tmp_path).spec.nodes == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("profiles = 3", "1: profiles: expected tables"),
        ("[profiles]\na = 3", "2: profiles: expected tables"),
        ('[limits]\nmax_nodes = "x"', "2: limits.max_nodes: 'x' is not a whole number above 0"),
        ("[limits]\nmax_restarts = -1", "2: limits.max_restarts: -1 is not a whole number"),
        ("[limits]\nhooks = '1m'", "2: limits.hooks: '1m' is not a whole number above 0"),
        ("[limits]\nmax_at_once = 0", "2: limits.max_at_once: 0 is not a whole number above 0"),
        ("[limits]\nmax_nodes = true", "2: limits.max_nodes: True is not"),
        ('[limits]\nmax_time = "soon"', "2: limits.max_time: 'soon' is not a walltime"),
        ('[limits]\nrequire = "account"', "2: limits.require: expected a list of keys"),
        ('[limits]\nbad_hosts = "bad-hosts"', "2: limits.bad_hosts: expected the absolute path of a file"),
        ("[limits]\nmessage = 3", "2: limits.message: expected a text"),
        ("[limits]\nexec = 0", "2: limits.exec: expected true or false"),
        ("[profiles.a]\nenv = 3", "2: env: 3 is not a table"),
    ],
)
def test_wrong_table(text: str, words: str, site: Path, tmp_path: Path) -> None:
    site.write_text(f"{text}\n")
    with pytest.raises(GridtfError) as caught:
        read("-- x", tmp_path)
    assert f"{site}:{words}" in str(caught.value)


def test_unknown_limits_and_keys_in_tables_are_left_out_with_a_note(site: Path, tmp_path: Path) -> None:
    site.write_text("[limits]\nmax_node = 3\n[profiles.a]\nnods = 3\n[partitions.b]\nnods = 3\n")
    assert [note.split(": ", 1)[0].rpartition(":")[2] for note in read("-- x", tmp_path).notes] == ["4", "6", "2"]


def test_set_up_lines_of_profiles_are_left_out_of_a_job_that_runs_here(site: Path, tmp_path: Path) -> None:
    site.write_text('[profiles.a]\nsetup = ["module load x"]\n[partitions.b]\nsetup = ["module load y"]\n')
    assert read("--profile a -p b -- x", tmp_path).spec.setup == ("module load y", "module load x")
    words = ["--profile", "a", "-p", "b", "--", "x"]
    assert (
        config.from_arguments(words, os.environ, tmp_path, schedulers.job_options(), use=config.Use.HERE).spec.setup
        == ()
    )
