"""The job file and the layers round it, and errors that name the place of a value."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gridtf import config, toml
from gridtf.errors import GridtfError, NotFoundError
from gridtf.spec import JobSpec, TaskSpec
from tests.support.configuration import read, refused, user_file, write

# --- the job file


JOB = """\
# a job
name = "digits"
queue = "short"
nodes = 2
time = 02:00:00
command = ["python", "train.py"]
setup = [
    "module load a",  # a comment with a ] in it
    'b = "c"',
]
env.A = "1"

[env2]
"""


def test_a_job_file(rough_path: Path) -> None:
    write(
        rough_path / "sub" / "job.toml",
        JOB.replace("[env2]", '[tasks.ps]\ncount = 2\ncpus = 4\nenv = { B = "2" }\n[tasks.evaluator]\n'),
    )
    made = config.from_arguments(["sub/job.toml", "--nodes", "3"], os.environ, rough_path)
    assert made.spec == JobSpec(
        command=("python", "train.py"),
        name="digits",
        partition="short",
        nodes=3,
        time="02:00:00",
        setup=("module load a", 'b = "c"'),
        env={"A": "1"},
        tasks={"ps": TaskSpec(count=2, cpus=4, env={"B": "2"}), "evaluator": TaskSpec()},
        chdir=str(rough_path / "sub"),
    )
    assert made.sources == {
        "chdir": "the folder of sub/job.toml",
        "name": "sub/job.toml:2",
        "partition": "sub/job.toml:3",
        "nodes": "--nodes",
        "time": "sub/job.toml:5",
        "command": "sub/job.toml:6",
        "setup": "sub/job.toml:7",
        "env.A": "sub/job.toml:11",
        "tasks.ps.count": "sub/job.toml:14",
        "tasks.ps.cpus": "sub/job.toml:15",
        "tasks.ps.env.B": "sub/job.toml:16",
        "tasks.evaluator": "sub/job.toml:17",
    }


@pytest.mark.parametrize(
    ("line", "what", "hint"),
    [
        ("nods = 2", "job.toml:2: nods: unknown key", "did you mean nodes?"),
        ("[tsks.ps]\ncount = 1", "job.toml:2: tsks: unknown key", "did you mean tasks?"),
        ("[tasks.pss]\ncount = 1", "job.toml:3: tasks.pss: unknown task type", "did you mean ps?"),
        ("[tasks.ps]\ncuont = 1", "job.toml:3: tasks.ps.cuont: unknown key", "did you mean count?"),
        ("tasks = { ps = { count = -1 } }", "job.toml:2: tasks.ps.count: -1 is not a whole number of 0 or more", ""),
        ("tasks = 3", "job.toml:2: tasks: 3 is not a table", "write [tasks] on a line of its own"),
        ("[[tasks.ps]]\ncount = 1", "job.toml:2: tasks.ps: ({'count': 1},) is not a table", "write [tasks.ps]"),
        ("env = 'A=1'", "job.toml:2: env: 'A=1' is not a table", "write [env]"),
        ("env.PORT = 80", "job.toml:2: env.PORT: 80 is not a string", 'write PORT = "80"'),
        ("nodes = '4-2'", "job.toml:2: nodes: '4-2' is not a node count", "a range such as 2-4"),
        ("gpus_per_node = true", "job.toml:2: gpus_per_node: True is not a whole number of 0 or more", ""),
        ("setup = 'module load a'", "job.toml:2: setup: a list of strings is wanted, not one string", ""),
        ("time = 1.5", "job.toml:2: time: 1.5 is of the wrong type", "90m"),
        ("queue = 'a'\npartition = 'b'", "job.toml:3: queue and partition are two names of one key", "keep"),
        (
            "[tasks.chief]\n[tasks.master]",
            "job.toml:3: tasks.master: chief and master are two names of one task",
            "one",
        ),
        ("[tasks.ps]\ngpus = 1", "job.toml:3: tasks.ps.gpus: a ps takes no GPU", "leave it out"),
        ("nodes = ", "job.toml:2: Invalid value", "toml.io"),
        ("nodes = 1\nnodes = 2", "job.toml:3: Cannot overwrite a value", "toml.io"),
        ("setup = [", "job.toml:2: ", "toml.io"),
    ],
)
def test_a_wrong_line_is_named(line: str, what: str, hint: str, tmp_path: Path) -> None:
    write(tmp_path / "job.toml", f'command = ["x"]\n{line}\n')
    error = refused("job.toml", tmp_path)
    assert error.what.startswith(what)
    assert hint in error.hint


def test_no_such_job_file(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no such file: job\.toml"):
        read("job.toml", tmp_path)
    with pytest.raises(NotFoundError, match="no such file: train") as caught:
        read("train", tmp_path)
    assert "a command goes after --" in caught.value.hint


def test_a_job_file_that_is_no_text_or_no_file(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_bytes(b"\xff\xfe")
    assert refused("job.toml", tmp_path).what == "job.toml is not UTF-8 text"
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(GridtfError, match=r"cannot read folder\.toml: Is a directory"):
        read("folder.toml", tmp_path)


def test_the_job_file_here_is_read_when_nothing_else_says_what_to_run(tmp_path: Path) -> None:
    write(tmp_path / "gridtf.toml", 'command = ["from", "file"]\nnodes = 2\n')
    assert read("", tmp_path).spec.command == ("from", "file")
    assert read("--nodes 3", tmp_path).sources == {
        "chdir": "the folder of gridtf.toml",
        "command": "gridtf.toml:1",
        "nodes": "--nodes",
    }
    assert read("-- x", tmp_path).sources == {"command": "the command line"}
    assert read("--entry a:b", tmp_path).sources == {"entry": "--entry"}


def test_paths_are_meant_from_where_they_stand(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path / "home")}
    user_file('run_root = "~/runs"\ntemplate = "own.sh.j2"\n')
    write(tmp_path / "sub" / "job.toml", 'command = ["x"]\nchdir = "work"\nrun_dir = "/abs"\n')
    # HOME is read by expanduser from the process itself
    spec = read("sub/job.toml", tmp_path, home).spec
    assert spec.chdir == str(tmp_path / "sub" / "work")
    assert spec.run_dir == "/abs"
    assert spec.run_root == str(Path.home() / "runs")
    assert spec.template == str(Path(os.environ["XDG_CONFIG_HOME"]) / "gridtf" / "own.sh.j2")
    assert read("sub/job.toml --chdir .", tmp_path).spec.chdir == str(tmp_path)
    assert read("sub/job.toml", tmp_path, {"GRIDTF_SUBMIT_CHDIR": "env"}).spec.chdir == str(tmp_path / "env")


# --- layers


def test_every_layer_lies_over_the_one_before(tmp_path: Path) -> None:
    site = write(
        tmp_path / "site.toml", 'partition = "site"\naccount = "site"\npe = "site"\nname = "site"\nmem = "1G"\n'
    )
    user_file('partition = "user"\naccount = "user"\npe = "user"\nname = "user"\n')
    write(tmp_path / "job.toml", 'command = ["x"]\npartition = "job"\naccount = "job"\npe = "job"\n')
    environ = {"GRIDTF_SITE_CONFIG": str(site), "GRIDTF_SUBMIT_PARTITION": "env", "GRIDTF_SUBMIT_PROJECT": "env"}
    made = read("job.toml --partition flag", tmp_path, environ)
    spec = made.spec
    assert (spec.partition, spec.account, spec.pe, spec.name, spec.mem) == ("flag", "env", "job", "user", "1G")
    user = Path(os.environ["XDG_CONFIG_HOME"]) / "gridtf" / "config.toml"
    assert {key: made.sources[key] for key in ("partition", "account", "pe", "name", "mem")} == {
        "partition": "--partition",
        "account": "GRIDTF_SUBMIT_PROJECT",
        "pe": "job.toml:4",
        "name": f"{user}:4",
        "mem": f"{site}:5",
    }


def test_tables_merge_key_by_key_and_lists_are_replaced(tmp_path: Path) -> None:
    user_file('setup = ["user"]\nenv = { A = "user", B = "user" }\n[tasks.ps]\ncpus = 1\nenv = { P = "user" }\n')
    write(
        tmp_path / "job.toml",
        'command = ["x"]\nsetup = ["job"]\nenv = { B = "job" }\n[tasks.ps]\ncount = 2\nenv = { Q = "job" }\n',
    )
    spec = read("job.toml --env C=flag --ps 3", tmp_path).spec
    assert spec.setup == ("job",)
    assert spec.env == {"A": "user", "B": "job", "C": "flag"}
    assert spec.tasks == {"ps": TaskSpec(count=3, cpus=1, env={"P": "user", "Q": "job"})}


def test_a_general_table_adds_no_tasks_unless_it_counts_them(tmp_path: Path) -> None:
    user_file("[tasks.ps]\ncpus = 1\n[tasks.worker]\ncpus = 2\n[tasks.evaluator]\ncount = 1\n")
    spec = read("-- x", tmp_path).spec
    assert spec.tasks == {"worker": TaskSpec(cpus=2), "evaluator": TaskSpec(count=1)}
    assert read("--ps 2 --no-evaluator -- x", tmp_path).spec.tasks["ps"] == TaskSpec(count=2, cpus=1)


def test_a_command_sets_an_entry_of_a_lower_layer_aside_and_the_other_way_round(tmp_path: Path) -> None:
    write(tmp_path / "entry.toml", 'entry = "a:b"\n')
    write(tmp_path / "command.toml", 'command = ["x"]\n')
    write(tmp_path / "both.toml", 'command = ["x"]\nentry = "a:b"\n')
    over = read("entry.toml -- y", tmp_path).spec
    assert (over.command, over.entry) == (("y",), None)
    over = read("command.toml --entry c:d", tmp_path).spec
    assert (over.command, over.entry) == ((), "c:d")
    assert refused("both.toml", tmp_path).what == "both.toml:2: entry: a command and an entry function were given"


def test_the_chief_switch_means_the_master_where_the_file_calls_it_so(tmp_path: Path) -> None:
    write(tmp_path / "job.toml", 'command = ["x"]\n[tasks.master]\ncpus = 2\n')
    assert read("job.toml --no-chief", tmp_path).spec.tasks == {"master": TaskSpec(count=0, cpus=2)}
    assert read("job.toml --chief", tmp_path).spec.tasks == {"master": TaskSpec(count=1, cpus=2)}


def test_the_environment_layer(tmp_path: Path) -> None:
    environ = {
        "GRIDTF_SUBMIT_NODES": "2",
        "GRIDTF_SUBMIT_SETUP": "a\nb",
        "GRIDTF_SUBMIT_ENV": "A=1\nB=2",
        "GRIDTF_SUBMIT_CHIEF": "1",
        "GRIDTF_SUBMIT_TIME": "",  # as good as unset
    }
    spec = read("--env B=3 -- x", tmp_path, environ).spec
    assert (spec.nodes, spec.setup, spec.env, spec.time) == (2, ("a", "b"), {"A": "1", "B": "3"}, None)
    assert spec.count("chief") == 1
    assert (
        refused("-- x", tmp_path, {"GRIDTF_SUBMIT_NODES": "no"}).what == "GRIDTF_SUBMIT_NODES: 'no' is not a node count"
    )
    error = refused("-- x", tmp_path, {"GRIDTF_SUBMIT_NODSE": "2"})
    assert error.what == "GRIDTF_SUBMIT_NODSE: no option is called that"
    assert "GRIDTF_SUBMIT_NODES" in error.hint


def test_a_site_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such file: /nowhere/site"):
        read("-- x", tmp_path, {"GRIDTF_SITE_CONFIG": "/nowhere/site.toml"})


def test_a_type_with_nothing_to_run_is_named(tmp_path: Path) -> None:
    write(tmp_path / "job.toml", '[tasks.worker]\ncommand = ["x"]\n[tasks.ps]\ncount = 1\n')
    assert refused("job.toml", tmp_path).what == "nothing to run on ps"
    assert read("job.toml --serve ps", tmp_path).spec.serve == ("ps",)


# --- lines


def test_lines_of_all_that_toml_can_hold() -> None:
    text = (
        '"quoted key" = 1\n'
        "\n"
        "a.b . 'c d' = '''\n"
        "x = 1 # no key\n"
        "[no.table]'''\n"
        'e = """one \\""" two\n'
        'three"""  # comment = 1\n'
        "list = [ # [\n"
        "  { k = 1 }, '[',\n"
        "]\n"
        "  [t.u]  # header\n"
        "k = 'a # b'\n"
        "[[many]]\n"
        "k = 1\r\n"
        "[t]\n"
        "last = 1"
    )
    assert toml.locate(text) == {
        ("quoted key",): 1,
        ("a", "b", "c d"): 3,
        ("e",): 6,
        ("list",): 8,
        ("t", "u"): 11,
        ("t", "u", "k"): 12,
        ("many",): 13,
        ("many", "k"): 14,
        ("t",): 15,
        ("t", "last"): 16,
    }
