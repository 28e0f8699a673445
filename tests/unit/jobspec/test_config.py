"""Job files and the other layers of configuration, and errors that name the source of a value."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from gridtf import files, schedulers
from gridtf.errors import NotFoundError, UnknownKeyError, UsageError
from gridtf.jobspec import config
from gridtf.jobspec.spec import JobSpec, TaskSpec
from tests.support.configuration import read, refused, strangers, user_file, write

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


def test_job_file_sets_spec_and_sources(rough_path: Path) -> None:
    write(
        rough_path / "sub" / "job.toml",
        JOB.replace("[env2]", '[tasks.ps]\ncount = 2\ncpus = 4\nenv = { B = "2" }\n[tasks.evaluator]\n'),
    )
    made = read("sub/job.toml --nodes 3", rough_path)
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
        "partition": "sub/job.toml:3 (queue)",
        "nodes": "--nodes",
        "time": "sub/job.toml:5",
        "command": "sub/job.toml:6",
        "setup.1": "sub/job.toml:7",
        "setup.2": "sub/job.toml:7",
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
        ("[[tasks.ps]]\ncount = 1", "job.toml:2: tasks.ps: [{count = 1}] is not a table", "write [tasks.ps]"),
        ("env = 'A=1'", "job.toml:2: env: 'A=1' is not a table", 'write env = { A = "1" }'),
        ("env.PORT = 80", "job.toml:2: env.PORT: 80 is not a string", 'write PORT = "80"'),
        ("env.DEBUG = true", "job.toml:2: env.DEBUG: true is not a string", 'write DEBUG = "true"'),
        ("nodes = '4-2'", "job.toml:2: nodes: '4-2' is not a node count", "a range such as 2-4"),
        ("gpus_per_node = true", "job.toml:2: gpus_per_node: true is not a whole number of 0 or more", ""),
        ("setup = 'module load a'", "job.toml:2: setup: expected a list of strings", 'write setup = ["module load a"]'),
        ("time = 1.5", "job.toml:2: time: 1.5 is of the wrong type", "90m"),
        ("queue = 'a'\npartition = 'b'", "job.toml:3: queue and partition are two names of one key", "keep"),
        (
            "[tasks.chief]\n[tasks.master]",
            "job.toml:3: tasks.master: chief and master are two names of one task",
            "one",
        ),
        ("[tasks.ps]\ngpus = 1", "job.toml:3: tasks.ps.gpus: a ps takes no GPU", "leave it out"),
        ("nodes = ", "job.toml:2: Invalid value", "toml.io"),
        ("nodes = 1\nnodes = 2", "job.toml:3: Cannot overwrite a value", "keep one of the lines"),
        ("nodes=1\nnodes=2", "job.toml:3: Cannot overwrite a value", "keep one of the lines"),
        ("[env]\n[env]", "job.toml:3: Cannot declare env twice", "toml.io"),
        ("[tasks.ps]\n[tasks.ps]", "job.toml:3: Cannot declare tasks.ps twice", "toml.io"),
        ("setup = [", "job.toml:2: ", "toml.io"),
        ("setup = [1, true]", "job.toml:2: setup: 1 is not a string", ""),
        ("name = ['a', true]", "job.toml:2: name: ['a', true] is not a job name", ""),
        ("nodes = '+3'", "job.toml:2: nodes: '+3' is not a node count", ""),
        ("time = 'UNLIMITED'", "job.toml:2: time: 'UNLIMITED' is not a walltime", "--native=--time=0"),
        ("mem = 0", "job.toml:2: mem: '0' is not a memory size", "--native=--mem=0"),
        ("time = '25000-0'", "job.toml:2: time: '25000-0' is longer than 24855 days", ""),
        ("mem = '" + "9" * 400 + "'", "job.toml:2: mem: '99", "16G"),
        (f"nodes = {'9' * 5000}", "job.toml: it is nested too deeply, or a number has", ""),
        (f"setup = {'[' * 9000}", "job.toml: it is nested too deeply, or a number has", ""),
        ("[tasks.worker]\ncommand = ['']", "job.toml:3: tasks.worker.command: the first item", ""),
        ("[tasks.worker]\ncommand = ['-x']", "job.toml:3: tasks.worker.command: the first item, the", "program first"),
        ("setup_replace = 'yes'", "job.toml:2: setup_replace: 'yes' is neither true nor false", ""),
        ("args = '--epochs 3'", "job.toml:2: args: expected a list of strings, not one string", ""),
        ("args = ['--epochs', 3]", "job.toml:2: args: 3 is not a string", ""),
    ],
)
def test_invalid_line_of_a_job_file_is_reported_with_its_number(
    line: str, what: str, hint: str, tmp_path: Path
) -> None:
    write(tmp_path / "job.toml", f'command = ["x"]\n{line}\n')
    error = refused("job.toml", tmp_path)
    assert error.what.startswith(what)
    assert hint in error.hint


@pytest.mark.parametrize("line", ['"A\\u001bB" = 1', 'env."A\\u001bB" = "1"'])
def test_control_characters_in_keys_are_escaped_in_errors(line: str, tmp_path: Path) -> None:
    write(tmp_path / "job.toml", f'{line}\ncommand = ["x"]\n')
    what = refused("job.toml", tmp_path).what
    assert (what.isprintable(), r"A\x1bB: " in what) == (True, True)


@pytest.mark.parametrize("command", ["[]", "['', 'x']"])
def test_empty_command_is_reported_with_its_line(command: str, tmp_path: Path) -> None:
    write(tmp_path / "job.toml", f"nodes = 1\ncommand = {command}\n")
    assert refused("job.toml", tmp_path).what.startswith("job.toml:2: command: ")


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("workers = 3", "in [tasks.worker] write count = 3"),
        ("ps = true", "in [tasks.ps] write count = …"),
        ("ps = '2'", "in [tasks.ps] write count = 2"),
        ("[ps]\ncount = 2", "write [tasks.ps]"),
        ("chief = true", "in [tasks.chief] write count = 1"),
        ("chief = false", "in [tasks.chief] write count = 0"),
        ("no_chief = true", "in [tasks.chief] write count = 0"),
        ("evaluator = 1", "in [tasks.evaluator] write count = 1"),
        ("ps_builtin = true", 'write serve = ["ps"]'),
        ("gpus-per-node = 2", "write gpus_per_node = 2"),
        ("no_setup = true", "write setup_replace = true"),
        ("dry_run = true", "it can only be set on the command line: --dry-run"),
    ],
)
def test_flag_name_used_as_key_is_refused_with_the_key_to_write(line: str, hint: str, tmp_path: Path) -> None:
    write(tmp_path / "job.toml", f'command = ["x"]\n{line}\n')
    error = refused("job.toml", tmp_path)
    assert (error.what.startswith("job.toml:2: "), error.hint) == (True, hint)


@pytest.mark.parametrize("empty", ["[tasks]", "tasks = {}"])
def test_empty_tasks_table_requests_no_tasks(empty: str, tmp_path: Path) -> None:
    user_file(f"{empty}\n")
    write(tmp_path / "job.toml", f'command = ["x"]\n{empty}\n')
    assert read("job.toml", tmp_path).spec.tasks == {}
    assert read("job.toml --ps 1", tmp_path).spec.tasks == {"ps": TaskSpec(count=1)}


def test_missing_job_file_is_reported_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no such file: job\.toml"):
        read("job.toml", tmp_path)
    with pytest.raises(NotFoundError, match="no such file: 1") as caught:
        read("--chief 1", tmp_path)
    assert caught.value.hint == (
        "for workers write --workers 1, for parameter servers --ps 1; --chief and --wait take no number"
    )
    with pytest.raises(NotFoundError, match="no such file: train") as caught:
        read("train", tmp_path)
    assert "a command goes after --" in caught.value.hint


def test_job_file_that_is_not_utf8_or_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_bytes(b'command = ["x"]\n\n# Universit\xe4t\n')
    assert refused("job.toml", tmp_path).what == "job.toml:3: it is not UTF-8 text"
    (tmp_path / "folder.toml").mkdir()
    assert refused("folder.toml", tmp_path).what == "folder.toml is a folder, not a job file"


def test_byte_order_mark_of_a_job_file_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('command = ["x"]\nnodes = 0\n', encoding="utf-8-sig")
    assert refused("job.toml", tmp_path).what.startswith("job.toml:2: nodes: ")


def test_gridtf_toml_is_read_without_command_or_entry(tmp_path: Path) -> None:
    write(tmp_path / "gridtf.toml", 'command = ["from", "file"]\nnodes = 2\n')
    assert read("", tmp_path).spec.command == ("from", "file")
    assert read("--nodes 3", tmp_path).sources == {
        "chdir": "the folder of gridtf.toml",
        "command": "gridtf.toml:1",
        "nodes": "--nodes",
    }
    assert read("-- x", tmp_path).sources == {"command": "the command line"}
    assert read("--entry a:b", tmp_path).sources == {"entry": "--entry"}


def test_relative_paths_are_resolved_against_their_files_folder(tmp_path: Path) -> None:
    user_file('run_root = "~/runs"\ntemplate = "own.sh.j2"\n')
    write(
        tmp_path / "sub" / "job.toml",
        'command = ["x"]\nchdir = "work"\nrun_dir = "/abs"\npython = "venv/bin/python"\n',
    )
    spec = read("sub/job.toml", tmp_path).spec
    assert spec.chdir == str(tmp_path / "sub" / "work")
    assert spec.run_dir == "/abs"
    assert spec.run_root == str(Path.home() / "runs")
    assert spec.template == str(Path(os.environ["XDG_CONFIG_HOME"]) / "gridtf" / "own.sh.j2")
    assert spec.python == str(tmp_path / "sub" / "venv" / "bin" / "python")
    assert read("sub/job.toml --chdir .", tmp_path).spec.chdir == str(tmp_path)
    assert read("sub/job.toml", tmp_path, {"GRIDTF_SUBMIT_CHDIR": "env"}).spec.chdir == str(tmp_path / "env")
    assert read("sub/job.toml --python python3.12", tmp_path).spec.python == "python3.12"
    assert read("sub/job.toml --python=~/bin/python", tmp_path).spec.python == str(Path.home() / "bin" / "python")
    assert read("sub/job.toml --chdir=~", tmp_path).spec.chdir == str(Path.home())


# --- layers


def test_each_layer_overrides_the_ones_below_it(tmp_path: Path) -> None:
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
    user_file('native = ["user"]\nenv = { A = "user", B = "user" }\n[tasks.ps]\ncpus = 1\nenv = { P = "user" }\n')
    write(
        tmp_path / "job.toml",
        'command = ["x"]\nnative = ["job"]\nenv = { B = "job" }\n[tasks.ps]\ncount = 2\nenv = { Q = "job" }\n',
    )
    spec = read("job.toml --env C=flag --ps 3", tmp_path).spec
    assert spec.native == ("job",)
    assert spec.env == {"A": "user", "B": "job", "C": "flag"}
    assert spec.tasks == {"ps": TaskSpec(count=3, cpus=1, env={"P": "user", "Q": "job"})}


def test_task_table_of_the_user_file_adds_tasks_only_with_a_count(tmp_path: Path) -> None:
    user_file("[tasks.ps]\ncpus = 1\n[tasks.worker]\ncpus = 2\n[tasks.evaluator]\ncount = 1\n")
    spec = read("-- x", tmp_path).spec
    assert spec.tasks == {"worker": TaskSpec(cpus=2), "evaluator": TaskSpec(count=1)}
    assert read("--ps 2 --no-evaluator -- x", tmp_path).spec.tasks["ps"] == TaskSpec(count=2, cpus=1)


def test_command_overrides_entry_of_a_lower_layer_and_vice_versa(tmp_path: Path) -> None:
    write(tmp_path / "entry.toml", 'entry = "a:b"\n')
    write(tmp_path / "command.toml", 'command = ["x"]\n')
    write(tmp_path / "both.toml", 'command = ["x"]\nentry = "a:b"\n')
    over = read("entry.toml -- y", tmp_path).spec
    assert (over.command, over.entry) == (("y",), None)
    over = read("command.toml --entry c:d", tmp_path).spec
    assert (over.command, over.entry) == ((), "c:d")
    assert refused("both.toml", tmp_path).what == "both.toml:2: entry: both a command and an entry function are given"


def test_address_overrides_interface_of_a_lower_layer_and_vice_versa(tmp_path: Path) -> None:
    user_file('interface = "ib0"\n')
    write(tmp_path / "job.toml", 'command = ["x"]\naddress = "{host}i"\n')
    spec = read("job.toml", tmp_path).spec
    assert (spec.address, spec.interface) == ("{host}i", None)
    spec = read("job.toml --interface eth1", tmp_path).spec
    assert (spec.address, spec.interface) == (None, "eth1")


def test_number_in_place_of_a_task_type_s_table_is_answered_with_the_line_to_write(tmp_path: Path) -> None:
    write(tmp_path / "job.toml", 'command = ["x"]\n[tasks]\ndata_worker = 2\n')
    with pytest.raises(UsageError) as caught:
        read("job.toml", tmp_path)
    assert caught.value.what.startswith("job.toml:3: tasks.data_worker")


def test_types_of_the_job_s_own_are_read_and_misspelt_types_refused(tmp_path: Path) -> None:
    own = 'command = ["x"]\n[tasks.board]\nkind = "service"\ncommand = ["tensorboard"]\n'
    write(tmp_path / "job.toml", own)
    assert read("job.toml", tmp_path).spec.tasks["board"] == TaskSpec(kind="service", command=("tensorboard",))
    write(tmp_path / "job.toml", own.replace("kind", "kid"))
    with pytest.raises(UsageError) as caught:
        read("job.toml", tmp_path)
    assert caught.value.what == "job.toml:3: tasks.board: unknown task type"
    assert 'a type of your own needs a kind: kind = "service", or "member" or "client"' in caught.value.hint
    write(tmp_path / "job.toml", own.replace('"service"', '"servise"'))
    with pytest.raises(UsageError) as caught:
        read("job.toml", tmp_path)
    assert caught.value.what == "job.toml:3: tasks.board.kind: 'servise' is not a kind of task"


@pytest.mark.parametrize(
    ("flags", "counts"),
    [
        ("", (1, 0)),
        ("--leader master", (0, 1)),
        ("--leader first-worker", (0, 0)),
        ("--no-chief", (0, 0)),
        ("--master", (0, 1)),
    ],
)
def test_leader_and_the_flags_of_leaders_override_each_other(
    flags: str, counts: tuple[int, int], tmp_path: Path
) -> None:
    for lines in ('leader = "chief"\n', "tasks.chief.count = 1\n"):
        write(tmp_path / "job.toml", f'command = ["x"]\n{lines}')
        if flags == "--master" and "count" in lines:
            continue  # two leaders, which is refused
        spec = read(f"job.toml {flags}", tmp_path).spec
        assert (spec.count("chief"), spec.count("master")) == counts


def test_hook_is_true_or_false_in_every_layer(tmp_path: Path) -> None:
    write(tmp_path / "job.toml", 'command = ["x"]\nhook = false\n')
    assert read("-- x", tmp_path).spec.hook is True
    assert read("job.toml", tmp_path).spec.hook is False
    assert read("job.toml --hook", tmp_path).spec.hook is True
    assert read("--no-hook -- x", tmp_path).spec.hook is False
    for text, hook in (("0", False), ("false", False), ("1", True), ("true", True)):
        assert read("job.toml", tmp_path, {"GRIDTF_SUBMIT_HOOK": text}).spec.hook is hook
    error = refused("-- x", tmp_path, {"GRIDTF_SUBMIT_HOOK": "maybe"})
    assert error.what == "GRIDTF_SUBMIT_HOOK: 'maybe' is neither true nor false"
    write(tmp_path / "job.toml", 'command = ["x"]\nno_hook = true\n')
    assert "write hook = false" in refused("job.toml", tmp_path).hint


def test_chief_flag_sets_the_master_if_the_job_file_has_a_master(tmp_path: Path) -> None:
    write(tmp_path / "job.toml", 'command = ["x"]\n[tasks.master]\ncpus = 2\n')
    assert read("job.toml --no-chief", tmp_path).spec.tasks == {"master": TaskSpec(count=0, cpus=2)}
    assert read("job.toml --chief", tmp_path).spec.tasks == {"master": TaskSpec(count=1, cpus=2)}


def test_gridtf_submit_variables_set_options(tmp_path: Path) -> None:
    environ = {
        "GRIDTF_SUBMIT_NODES": "2",
        "GRIDTF_SUBMIT_SETUP": "a\nb",
        "GRIDTF_SUBMIT_ENV": "A=1\nB=2",
        "GRIDTF_SUBMIT_CHIEF": "1",
        "GRIDTF_SUBMIT_TIME": "",  # counts as unset
    }
    spec = read("--env B=3 -- x", tmp_path, environ).spec
    assert (spec.nodes, spec.setup, spec.env, spec.time) == (2, ("a", "b"), {"A": "1", "B": "3"}, None)
    assert spec.count("chief") == 1
    assert read("-- x", tmp_path, {"GRIDTF_SUBMIT_CHIEF": "true"}).spec.count("chief") == 1
    assert read("-- x", tmp_path, {"GRIDTF_SUBMIT_CHIEF": "false"}).spec.count("chief") == 0
    assert (
        refused("-- x", tmp_path, {"GRIDTF_SUBMIT_NODES": "no"}).what == "GRIDTF_SUBMIT_NODES: 'no' is not a node count"
    )
    error = refused("-- x", tmp_path, {"GRIDTF_SUBMIT_NODSE": "2"})
    assert error.what == "GRIDTF_SUBMIT_NODSE: there is no such option"
    assert "GRIDTF_SUBMIT_NODES" in error.hint


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("GRIDTF_SUBMIT_NO_CHIEF", "write GRIDTF_SUBMIT_CHIEF=0"),
        ("GRIDTF_SUBMIT_NO_EVALUATOR", "write GRIDTF_SUBMIT_EVALUATOR=0"),
        ("GRIDTF_SUBMIT_PS_BUILTIN", "write GRIDTF_SUBMIT_SERVE=ps"),
        ("GRIDTF_SUBMIT_NO_HOOK", "write GRIDTF_SUBMIT_HOOK=0"),
        ("GRIDTF_SUBMIT_NO_SETUP", "write GRIDTF_SUBMIT_SETUP_REPLACE=1"),
    ],
)
def test_variable_named_after_a_flag_is_refused_with_the_variable_to_set(
    variable: str, hint: str, tmp_path: Path
) -> None:
    assert refused("-- x", tmp_path, {variable: "1"}).hint == hint
    name, _, value = hint.removeprefix("write ").partition("=")
    read("-- x", tmp_path, {name: value})


def test_missing_site_file_in_gridtf_site_config_is_reported(tmp_path: Path) -> None:
    for path in ("/nowhere/site", "/dev/null/site"):
        with pytest.raises(NotFoundError) as caught:
            read("-- x", tmp_path, {"GRIDTF_SITE_CONFIG": path})
        assert caught.value.what == f"GRIDTF_SITE_CONFIG: no such file: {path}"
        assert caught.value.hint == "unset it, or set it to an empty string to use no site file"


def test_missing_user_file_or_home_folder_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without = {name: value for name, value in os.environ.items() if name != "XDG_CONFIG_HOME"}
    assert config.from_arguments(["--", "x"], {**without, "HOME": "/dev/null"}, tmp_path).sources.keys() == {"command"}
    # a user whom the password file does not know
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 987654)
    del without["HOME"]
    assert config.from_arguments(["--", "x"], without, tmp_path).sources.keys() == {"command"}


def test_task_type_without_a_program_is_reported(tmp_path: Path) -> None:
    write(tmp_path / "job.toml", '[tasks.worker]\ncommand = ["x"]\n[tasks.ps]\ncount = 1\n')
    assert refused("job.toml", tmp_path).what == "nothing to run on ps"
    assert read("job.toml --serve ps", tmp_path).spec.serve == ("ps",)


# --- set-up lines


def here(words: str, cwd: Path) -> config.Configured:
    """Read as gridtf_run does."""
    return config.from_arguments(words.split(), os.environ, cwd, schedulers.job_options(), use=config.Use.HERE)


def test_setup_lines_of_all_layers_add_up_and_keep_their_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = write(tmp_path / "site.toml", 'name = "n"\nsetup = ["site", "site 2"]\n')
    monkeypatch.setenv("GRIDTF_SITE_CONFIG", str(site))
    user = user_file('setup = ["user"]\n')
    write(tmp_path / "job.toml", 'command = ["x"]\nsetup = ["job"]\n')
    environ = {"GRIDTF_SUBMIT_SETUP": "env"}
    made = read("job.toml --setup a --setup b", tmp_path, environ)
    assert made.spec.setup == ("site", "site 2", "user", "job", "env", "a", "b")
    assert config.setup_by_source(made.spec, made.sources) == [
        (f"{site}:2", ["site", "site 2"]),
        (f"{user}:1", ["user"]),
        ("job.toml:2", ["job"]),
        ("GRIDTF_SUBMIT_SETUP", ["env"]),
        ("--setup", ["a", "b"]),
    ]
    assert [key for key in made.sources if key.startswith("setup")] == [f"setup.{number}" for number in range(1, 8)]


def test_setup_replace_drops_the_lines_of_lower_layers(tmp_path: Path) -> None:
    user_file('setup = ["user"]\n')
    write(tmp_path / "job.toml", 'command = ["x"]\nsetup = ["job"]\nsetup_replace = true\n')
    made = read("job.toml --setup a", tmp_path)
    assert (made.spec.setup, made.sources["setup.2"]) == (("job", "a"), "--setup")
    assert read("job.toml --setup a --no-setup", tmp_path).spec.setup == ("a",)
    assert read("job.toml --no-setup", tmp_path).spec.setup == ()
    environ = {"GRIDTF_SUBMIT_SETUP_REPLACE": "1"}
    assert read("job.toml --setup a", tmp_path, environ).spec.setup == ("a",)
    environ = {"GRIDTF_SUBMIT_SETUP_REPLACE": "yes"}
    what = refused("job.toml", tmp_path, environ).what
    assert what == "GRIDTF_SUBMIT_SETUP_REPLACE: 'yes' is neither true nor false"


def test_job_that_runs_here_gets_no_setup_lines_of_the_user_file(tmp_path: Path) -> None:
    user_file('setup = ["user"]\nname = "n"\n')
    write(tmp_path / "job.toml", 'command = ["x"]\nsetup = ["job"]\n')
    made = here("-- x", tmp_path)
    assert (made.spec.setup, made.spec.name) == ((), "n")
    assert here("job.toml", tmp_path).sources["setup.1"] == "job.toml:2"


def test_invalid_setup_is_reported_with_its_own_layer(tmp_path: Path) -> None:
    user = user_file("setup = 'module load a'\n")
    assert refused("--setup b -- x", tmp_path).what == f"{user}:1: setup: expected a list of strings, not one string"


# --- arguments


def test_arguments_are_added_to_the_command_of_the_job_file(tmp_path: Path) -> None:
    write(
        tmp_path / "job.toml",
        'command = ["python", "train.py"]\nargs = ["--epochs", "1"]\n[tasks.ps]\ncount = 1\ncommand = ["serve"]\n',
    )
    made = read("job.toml", tmp_path)
    assert made.spec.command == ("python", "train.py", "--epochs", "1")
    assert made.spec.task("ps").command == ("serve",)
    assert made.sources["command"] == "job.toml:1 and job.toml:2"
    assert "args" not in made.sources
    added = ["python", "train.py", "--epochs", "1", "--lr", "it's"]
    environ = {"GRIDTF_SUBMIT_ARGS": '--lr "it\'s"'}
    assert [*read("job.toml", tmp_path, environ).spec.command] == added
    words = ["job.toml", "--args", "--lr 'it'\\''s'", "--", "--seed", "7"]
    made = config.from_arguments(words, os.environ, tmp_path)
    assert [*made.spec.command] == [*added, "--seed", "7"]
    assert made.sources["command"] == "job.toml:1 and job.toml:2 and the command line"
    assert read("job.toml -- other --x", tmp_path).spec.command == ("other", "--x")  # args are the job file's as well
    assert read("--args=-v -- python train.py", tmp_path).spec.command == ("python", "train.py", "-v")


def test_arguments_alone_are_added_to_the_default_job_file(tmp_path: Path) -> None:
    write(tmp_path / "gridtf.toml", 'command = ["python", "train.py"]\n')
    made = read("-- --epochs 3", tmp_path)
    assert made.spec.command == ("python", "train.py", "--epochs", "3")
    assert made.notes == ("the job is taken from gridtf.toml",)


@pytest.mark.parametrize(
    ("text", "words", "what", "hint"),
    [
        ("nodes = 2", "job.toml -- --epochs 3", "'--epochs' after -- begins with a dash", "write the program first"),
        ("nodes = 2", "-- --epochs 3", "'--epochs' after -- begins with a dash", "write the program first"),
        ("nodes = 2", "job.toml --args=-v", "--args: there is no command to add arguments to", "after --"),
        ("entry = 'a:b'", "job.toml -- -v", "args: an entry function takes no", "--env"),
        ("command = ['a']", "job.toml --entry a:b --args=-v", "--args: an entry function takes no", "--env"),
        ("command = 'a'", "job.toml --args=-v", "job.toml:1: command: expected a list of strings, not one", ""),
        ("command = ['a']", "job.toml --args=it's", "--args: a quote is not closed in it's", "as in a shell"),
        (
            "command = ['--epochs', '3']",
            "job.toml",
            "job.toml:1: command: the first item, the program",
            "program first",
        ),
        ("args = ['-v']", "job.toml", "job.toml:1: args: there is no command", 'command = ["python", "train.py"]'),
    ],
)
def test_arguments_without_a_command_are_refused(text: str, words: str, what: str, hint: str, tmp_path: Path) -> None:
    write(tmp_path / "job.toml", f"{text}\n")
    error = refused(words, tmp_path)
    assert error.what.startswith(what)
    assert hint in error.hint


# --- variables in paths


def test_variables_in_paths_are_expanded_in_every_layer(tmp_path: Path) -> None:
    user_file('run_root = "${SCRATCH}/runs"\npython = "$PROGRAM"\nname = "plain"\n')
    write(
        tmp_path / "sub" / "job.toml", 'command = ["$SCRATCH"]\nchdir = "$USER/a$$b$(x)$1"\ntemplate = "~/$USER.j2"\n'
    )
    environ = {"SCRATCH": "/scratch/me", "USER": "me", "PROGRAM": "python3", "GRIDTF_SUBMIT_RUN_DIR": "$SCRATCH/1"}
    spec = read("sub/job.toml", tmp_path, environ).spec
    assert (spec.run_root, spec.run_dir, spec.python) == ("/scratch/me/runs", "/scratch/me/1", "python3")
    assert spec.chdir == str(tmp_path / "sub" / "me" / "a$b$(x)$1")
    assert spec.template == str(Path.home() / "me.j2")
    assert spec.command == ("$SCRATCH",)
    environ["PROGRAM"] = "/opt/bin/python3"
    assert read("-- x", tmp_path, environ).spec.python == "/opt/bin/python3"
    assert read("--run-root $SCRATCH/flag -- x", tmp_path, environ).spec.run_root == "/scratch/me/flag"


def test_paths_of_a_container_are_expanded_and_its_addresses_are_not(tmp_path: Path) -> None:
    environ = {"SCRATCH": "/scratch/me"}
    write(
        tmp_path / "sub" / "job.toml",
        'command = ["x"]\ncontainer = "tf.sif"\ncontainer_binds = ["$SCRATCH", "~/d:/d:ro", "data:/data"]\n',
    )
    spec = read("sub/job.toml", tmp_path, environ).spec
    assert spec.container == str(tmp_path / "sub" / "tf.sif")
    home, data = Path.home() / "d", tmp_path / "sub" / "data"
    assert spec.container_binds == ("/scratch/me:/scratch/me", f"{home}:/d:ro", f"{data}:/data")
    assert read("--container docker://tf:2 -- x", tmp_path).spec.container == "docker://tf:2"
    assert read("--container $SCRATCH/tf.sif -- x", tmp_path, environ).spec.container == "/scratch/me/tf.sif"
    error = refused("--container $NOWHERE/tf.sif -- x", tmp_path)
    assert error.what == "--container: the variable NOWHERE is not set"


def test_container_s_values_in_the_user_s_file_are_for_jobs_with_a_container(tmp_path: Path) -> None:
    user_file('container_binds = ["/data"]\ncontainer_command = ["podman", "-v={bind}", "{image}"]\n')
    spec = read("-- x", tmp_path).spec
    assert (spec.contained, spec.container_binds, spec.container_command) == (False, (), ())
    spec = read("--container tf:2 -- x", tmp_path).spec
    assert (spec.container_binds, spec.container_command[0]) == (("/data:/data",), "podman")
    assert refused("--container-binds /d -- x", tmp_path).what == "--container-binds: there is no container"
    user_file('container_command = ["shifter"]\n')
    assert read("-- x", tmp_path).spec.contained


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("/a/$NOWHERE/b", "the variable NOWHERE is not set"),
        ("/a/${EMPTY}", "the variable EMPTY is empty"),
        ("${HOME:-/x}", "${HOME:-/x} is not a variable; those of a path are written $NAME or ${NAME}"),
    ],
)
def test_unset_variable_in_a_path_is_reported_with_its_place(path: str, problem: str, tmp_path: Path) -> None:
    user = user_file(f'run_root = "{path}"\n')
    error = refused("-- x", tmp_path, {"EMPTY": ""})
    assert (error.what, error.hint) == (
        f"{user}:1: run_root: {problem}",
        "set it, or write a dollar sign of the path itself as $$",
    )
    assert read("--run-root /b -- x", tmp_path, {"EMPTY": ""}).spec.run_root == "/b"  # what is not used may be wrong
    words = ["--run-root", "/b", "--chdir", path, "--", "x"]
    with pytest.raises(UsageError) as caught:
        config.from_arguments(words, {**os.environ, "EMPTY": ""}, tmp_path)
    assert caught.value.what == f"--chdir: {problem}"


# --- unknown keys of the site and the user file


def test_unknown_keys_of_the_user_file_are_left_out_with_a_note(tmp_path: Path) -> None:
    user = user_file(
        'nods = "many"\nname = "n"\nxyzzy = 1\nworkers = 2\n[tasks.pss]\ncount = 1\ncpus = 2\n[tasks.ps]\ncuont = 1\n'
    )
    made = read("-- x", tmp_path)
    assert made.spec == JobSpec(command=("x",), name="n")
    assert made.notes == (
        f"{user}:1: nods: unknown key, left out; did you mean nodes?",
        f"{user}:3: xyzzy: unknown key, left out; "
        "the keys are the options that `gridtf submit --help` lists, with _ for -",
        f"{user}:4: workers: unknown key, left out; in [tasks.worker] write count = 2",
        f"{user}:6: tasks.pss: unknown task type, left out; did you mean ps?",
        f"{user}:9: tasks.ps.cuont: unknown key, left out; did you mean count?",
    )
    with pytest.raises(UnknownKeyError):  # a plugin may know them
        config.from_arguments(["--", "x"], os.environ, tmp_path, complete=False)


@pytest.mark.parametrize(
    ("text", "what"), [("nodes = 0", "nodes: '0' is not a node count"), ("env = 1", "env: 1 is not a table")]
)
def test_bad_value_of_a_known_key_in_the_user_file_is_an_error(text: str, what: str, tmp_path: Path) -> None:
    user = user_file(f"{text}\n")
    assert refused("-- x", tmp_path).what == f"{user}:1: {what}"


# --- below a JobSpec made in Python


def test_files_complement_a_jobspec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = write(tmp_path / "site.toml", 'partition = "gpu"\nsetup = ["site"]\nnods = 1\n[tasks.ps]\ncpus = 4\n')
    monkeypatch.setenv("GRIDTF_SITE_CONFIG", str(site))
    user = user_file('entry = "a:b"\nnodes = 2\nenv = { A = "user", B = "user" }\n')
    spec = JobSpec(command=["x"], nodes=3, env={"B": "own"}, setup=["own"], options={"lane": "fast"})
    made = config.complement(spec, os.environ)
    assert made.spec == JobSpec(
        command=["x"],
        nodes=3,
        partition="gpu",
        env={"A": "user", "B": "own"},
        setup=["site", "own"],
        options={"lane": "fast"},
    )
    assert made.sources == {
        "partition": f"{site}:1",
        "env.A": f"{user}:3",
        "command": "JobSpec",
        "nodes": "JobSpec",
        "env.B": "JobSpec",
        "lane": "JobSpec",
        "setup.1": f"{site}:2",
        "setup.2": "JobSpec",
    }
    assert made.notes == (f"{site}:3: nods: unknown key, left out; did you mean nodes?",)
    with_ps = config.complement(JobSpec(command=["x"], tasks={"ps": TaskSpec()}), os.environ)
    assert with_ps.spec.tasks == {"ps": TaskSpec(cpus=4)}


# --- owners of files


def test_note_names_the_job_file_that_is_read_by_default(tmp_path: Path) -> None:
    write(tmp_path / "gridtf.toml", "command = ['a']")
    assert read("", tmp_path).notes == ("the job is taken from gridtf.toml",)
    assert read("gridtf.toml", tmp_path).notes == ()


def test_note_on_a_default_job_file_that_the_command_line_overrides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read("-- b", tmp_path).notes == ()
    write(tmp_path / "gridtf.toml", "command = ['a']")
    note = "gridtf.toml is not read, since the command line says what to run; to use it: gridtf submit gridtf.toml -- …"
    for words in ("-- b", "--entry a:b"):
        made = read(words, tmp_path)
        assert (made.notes, "chdir" in made.sources) == ((note,), False)
    assert read("gridtf.toml -- b", tmp_path).notes == ()
    assert here("-- b", tmp_path).notes == ()  # in a job's script
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert here("-- b", tmp_path).notes == (note,)


def test_default_job_file_of_another_user_is_refused_unless_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "gridtf.toml", "command = ['a']\ntemplate = 'own.j2'")
    owner = strangers(monkeypatch, path)
    error = refused("", tmp_path)
    assert error.what == f"gridtf.toml belongs to user {files.user_name(owner)}"
    assert error.hint == "if you trust it, name it on the command line: gridtf.toml"
    made = read("gridtf.toml", tmp_path)
    assert made.spec.command == ("a",)
    assert made.trusted == frozenset({owner})  # who trusts the job file also trusts its template
    assert read("gridtf.toml --template other.j2", tmp_path).trusted is None


def test_default_job_file_that_is_another_users_link_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner of the link would choose which of this user's job files runs."""
    write(tmp_path / "mine.toml", "command = ['a']")
    link = tmp_path / "gridtf.toml"
    link.symlink_to("mine.toml")
    assert read("", tmp_path).notes
    owner = strangers(monkeypatch, link)
    assert refused("", tmp_path).what == f"gridtf.toml belongs to user {files.user_name(owner)}"


def test_default_job_file_writable_by_all_is_refused_unless_named(tmp_path: Path) -> None:
    path = write(tmp_path / "gridtf.toml", "command = ['a']")
    path.chmod(0o664)  # as under umask 002, where the group may write every file
    assert read("", tmp_path).spec.command == ("a",)
    path.chmod(0o666)
    assert refused("", tmp_path).what == "any user may write gridtf.toml"
    assert read("gridtf.toml", tmp_path).spec.command == ("a",)


@pytest.mark.parametrize("name", ["a\0b.toml", "\ud800.toml", "a\udc80.toml"])
def test_job_file_name_with_invalid_characters_is_reported_as_missing(name: str, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such file"):
        config.from_arguments([name], os.environ, tmp_path)


def test_job_file_may_be_a_pipe_and_has_a_maximum_size(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b"command = ['a']")
    os.close(write_end)
    assert read(f"/dev/fd/{read_end}", tmp_path).spec.command == ("a",)
    os.close(read_end)
    assert refused("/dev/zero", tmp_path).what == "/dev/zero has more than 4 MiB"


@pytest.mark.thorough
def test_lines_of_many_keys_are_located_quickly(tmp_path: Path) -> None:
    """A look-up that searched all lines for each would take a minute."""
    text = "command = ['a']\n[env]\n" + "".join(f"A{number} = '1'\n" for number in range(5_000))
    write(tmp_path / "job.toml", text)
    assert read("job.toml", tmp_path).sources["env.A4999"] == "job.toml:5002"
