"""Job files and the other layers of configuration, and errors that name the source of a value."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gridtf import files
from gridtf.errors import GridtfError, NotFoundError
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
        ("[[tasks.ps]]\ncount = 1", "job.toml:2: tasks.ps: [{count = 1}] is not a table", "write [tasks.ps]"),
        ("env = 'A=1'", "job.toml:2: env: 'A=1' is not a table", "write [env]"),
        ("env.PORT = 80", "job.toml:2: env.PORT: 80 is not a string", 'write PORT = "80"'),
        ("env.DEBUG = true", "job.toml:2: env.DEBUG: true is not a string", 'write DEBUG = "true"'),
        ("nodes = '4-2'", "job.toml:2: nodes: '4-2' is not a node count", "a range such as 2-4"),
        ("gpus_per_node = true", "job.toml:2: gpus_per_node: true is not a whole number of 0 or more", ""),
        ("setup = 'module load a'", "job.toml:2: setup: expected a list of strings, not one string", ""),
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
        ("ps = '2'", "in [tasks.ps] write count = …"),
        ("[ps]\ncount = 2", "in [tasks.ps] write count = …"),
        ("chief = true", "in [tasks.chief] write count = 1"),
        ("chief = false", "in [tasks.chief] write count = 0"),
        ("no_chief = true", "in [tasks.chief] write count = 0"),
        ("evaluator = 1", "in [tasks.evaluator] write count = 1"),
        ("ps_builtin = true", 'write serve = ["ps"]'),
        ("gpus-per-node = 2", "write gpus_per_node = …"),
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
    assert caught.value.hint == "--chief and --evaluator take no number; --workers and --ps do"
    with pytest.raises(NotFoundError, match="no such file: train") as caught:
        read("train", tmp_path)
    assert "a command goes after --" in caught.value.hint


def test_job_file_that_is_not_utf8_or_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_bytes(b'command = ["x"]\n\n# Universit\xe4t\n')
    assert refused("job.toml", tmp_path).what == "job.toml:3: it is not UTF-8 text"
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(GridtfError, match=r"cannot read folder\.toml: Is a directory"):
        read("folder.toml", tmp_path)


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
    user_file('setup = ["user"]\nenv = { A = "user", B = "user" }\n[tasks.ps]\ncpus = 1\nenv = { P = "user" }\n')
    write(
        tmp_path / "job.toml",
        'command = ["x"]\nsetup = ["job"]\nenv = { B = "job" }\n[tasks.ps]\ncount = 2\nenv = { Q = "job" }\n',
    )
    spec = read("job.toml --env C=flag --ps 3", tmp_path).spec
    assert spec.setup == ("job",)
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


# --- lines


def test_locate_finds_the_lines_of_all_toml_syntax() -> None:
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
    assert config.locate(text) == {
        ("quoted key",): 1,
        ("a",): 3,  # a table without a header
        ("a", "b"): 3,
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


# --- owners of files


def test_note_names_the_job_file_that_is_read_by_default(tmp_path: Path) -> None:
    write(tmp_path / "gridtf.toml", "command = ['a']")
    assert read("", tmp_path).notes == ("the job is taken from gridtf.toml",)
    assert read("gridtf.toml", tmp_path).notes == ()
    assert read("-- b", tmp_path).notes == ()


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


def test_lines_of_20000_keys_are_located_quickly(tmp_path: Path) -> None:
    """A look-up that searched all lines took minutes."""
    text = "command = ['a']\n[env]\n" + "".join(f"A{number} = '1'\n" for number in range(20_000))
    write(tmp_path / "job.toml", text)
    assert read("job.toml", tmp_path).sources["env.A19999"] == "job.toml:20002"
