"""From a plan to a script: quoting checked with a real bash, set-up lines, users' templates and their errors."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gridtf import files, resources
from gridtf.errors import GridtfError, NotFoundError, SpecError
from gridtf.jobspec.spec import JobSpec
from gridtf.jobspec.units import LONGEST_VARIABLE
from gridtf.login import filters, render
from gridtf.schedulers.api import Plan
from tests.support.configuration import strangers, write
from tests.support.rendering import NASTY, plan

SCHEDULERS = ("local", "slurm", "sge")
FAKE_BOOTSTRAP = "gridtf_exec() { exec /usr/bin/env -0; }\n"


def bash(script: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[bytes]:
    path = cwd / "job.sh"
    path.write_bytes(script.encode(errors="surrogateescape"))
    return subprocess.run(
        ["bash", str(path)],
        cwd=cwd,
        env={"PATH": os.environ["PATH"], **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=180,
    )


def environment(result: subprocess.CompletedProcess[bytes]) -> dict[bytes, bytes]:
    assert result.returncode == 0, result.stderr.decode()
    return dict(item.partition(b"=")[::2] for item in result.stdout.split(b"\0") if item)


def runnable(folder: Path, scheduler: str = "local", **values: object) -> Plan:
    """A plan whose bootstrap prints the environment instead of starting a job."""
    bootstrap = folder / "it's the $(boot)\nstrap.sh"
    bootstrap.write_text(FAKE_BOOTSTRAP)
    given: dict[str, Any] = {"chdir": str(folder), "run_dir": folder / NASTY["directives"], **values}
    made = plan(scheduler, **given)
    return Plan(made.spec, made.scheduler, made.request, made.run_dir, NASTY["quotes"], bootstrap, {})


# --- values reach the job unchanged, without side effects


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_values_reach_the_job_byte_for_byte(scheduler: str, tmp_path: Path) -> None:
    folder = tmp_path / NASTY["separators"] / NASTY["quotes"]
    folder.mkdir(parents=True)
    env = {name.upper(): value for name, value in NASTY.items()}
    made = runnable(
        folder, scheduler, env=env, command=["train", *NASTY.values()], tasks={"ps": {"env": env, "count": 1}}
    )
    result = bash(render.script(made), tmp_path)
    arrived = environment(result)
    for name, value in env.items():
        assert arrived[name.encode()] == value.encode(errors="surrogateescape")
    assert arrived[b"PWD"] == os.fsencode(folder)
    assert arrived[b"GRIDTF_RUN_DIR"] == os.fsencode(made.run_dir)
    assert arrived[b"GRIDTF_PYTHON"].decode() == NASTY["quotes"]
    spec = JobSpec.from_dict(json.loads(arrived[b"GRIDTF_SPEC"]))
    assert spec == JobSpec.from_dict({**made.spec.to_dict(), "scheduler": scheduler})
    assert result.stderr == b""
    assert not list(tmp_path.rglob("pwned"))


def test_quote_makes_one_bash_word_of_any_text(tmp_path: Path) -> None:
    random_ = random.Random(11)
    alphabet = [chr(code) for code in range(1, 256)] + list("'\"\\$`\n\u2028\udc80é数")
    texts = ["".join(random_.choices(alphabet, k=random_.randrange(12))) for _ in range(500)]
    words = " ".join(filters.quote(text) for text in texts)
    assert words.isprintable()
    result = bash(f"printf '%s\\0' {words}", tmp_path)
    assert result.stdout == b"".join(text.encode(errors="surrogateescape") + b"\0" for text in texts)


def test_values_cannot_become_sge_directives() -> None:
    env = {"A": "x\n#$ -l evil=1", "B": "\n#$ -pe mpi 99", "C": "\r\n#$ -V"}
    made = plan("sge", run_dir="/r\n#$ -V", command=["\n#$ -V"], name="x", chdir=None, env=env)
    head = [line for line in render.script(made).splitlines() if line.startswith("#$")]
    assert head == ["#$ -N x", "#$ -S /bin/bash", "#$ -j y", "#$ -r y", "#$ -notify"]


def test_quote_refuses_other_types() -> None:
    for value in (None, True, ["a"], object()):
        with pytest.raises(TypeError):
            filters.quote(value)
    assert (filters.quote(3), filters.quote(Path("/a b")), filters.quote("")) == ("3", "'/a b'", "''")


def test_directive_refuses_line_breaks_and_empty_values() -> None:
    for value in ("--a\n--b", "--a\x1b", "", "  "):
        with pytest.raises(GridtfError):
            filters.directive(value)


def test_expressions_of_shipped_templates_are_filtered() -> None:
    verbatim = []
    for template in resources.templates().glob("*.sh.j2"):
        for expression in re.findall(r"{{(.*?)}}", template.read_text(encoding="utf-8")):
            if not re.search(rf"\| (?:{'|'.join(filters.FILTERS)}) ?$", expression):
                verbatim.append((template.name, expression.strip()))
    # a block, and a set-up line
    assert verbatim == [("job.sh.j2", "self.gridtf()"), ("job.sh.j2", "line")]


# --- the environment


@pytest.mark.thorough
def test_bash_s_own_variables_are_refused_and_all_others_reach_the_job(tmp_path: Path) -> None:
    listed = subprocess.run(["bash", "-c", "compgen -v"], capture_output=True, text=True, timeout=180).stdout.split()
    assert "RANDOM" in listed
    value = "a b$(touch pwned)\n"
    taken = {}
    for name in sorted({*listed, "ENV", "BASH_ENV", "POSIXLY_CORRECT", "PS4", "CDPATH", "LC_ALL", "HOME"}):
        try:
            render.script(plan("local", env={name: value}))
        except SpecError as error:
            assert (error.key, error.problem) == (f"env.{name}", f"bash itself sets {name}")
        else:
            taken[name] = value
    assert {"IFS", "PATH", "HOME"} <= set(taken)
    assert not {"RANDOM", "UID", "SHELLOPTS", "HISTCMD"} & set(taken)
    arrived = environment(bash(render.script(runnable(tmp_path, env=taken)), tmp_path))
    assert {name: arrived[name.encode()].decode() for name in taken} == taken
    assert not (tmp_path / "pwned").exists()


def test_spec_in_the_script_omits_login_side_keys() -> None:
    values: dict[str, Any] = {"partition": "p", "account": "a", "native": ["--x"], "run_root": "r", "mem": "1G"}
    text = render.script(plan("slurm", **values))
    spec = json.loads(text.split("GRIDTF_SPEC='")[1].split("'\n")[0])
    assert spec == {"command": ["python", "train.py"], "scheduler": "slurm", "mem": "1G"}


@pytest.mark.parametrize(("text", "size"), [("x", 1), ("\x80", 6)])  # \u0080
def test_specification_longer_than_an_environment_variable_is_refused(text: str, size: int, tmp_path: Path) -> None:
    rest = len(json.dumps({"command": ["train", ""], "scheduler": "local"}, indent=2)) + len("GRIDTF_SPEC=")
    count = (LONGEST_VARIABLE - rest) // size
    environment(bash(render.script(runnable(tmp_path, chdir=None, command=["train", text * count])), tmp_path))
    with pytest.raises(SpecError) as caught:
        render.script(runnable(tmp_path, chdir=None, command=["train", text * (count + 1)]))
    assert caught.value.key == "command"
    assert re.search(r"has 1310[78]\d bytes, at most 131071 can be passed to a job", caught.value.problem)


# --- set-up lines


def with_setup(folder: Path, *lines: str) -> subprocess.CompletedProcess[bytes]:
    return bash(render.script(runnable(folder, setup=list(lines))), folder)


def test_set_up_lines_are_verbatim_and_affect_the_tasks(tmp_path: Path) -> None:
    (tmp_path / "activate").write_text('export VENV=on\nfalse\n[ -n "$UNSET" ] && echo unset\ntrue\n')
    arrived = environment(
        with_setup(
            tmp_path,
            "module() { false; export LOADED=$1; }",
            "module cuda",
            "source ./activate",
            "if [ -d /nowhere ]; then",
            "  exit 7",
            "fi",
            "export TEXT=$(cat <<EOF\nit's ${LOADED}\nEOF\n)",
            "false || true",
            "echo $UNSET >/dev/null",
            b"export BYTES='\xff\xfe'".decode(errors="surrogateescape"),
        )
    )
    assert (arrived[b"VENV"], arrived[b"LOADED"], arrived[b"TEXT"]) == (b"on", b"cuda", b"it's cuda")
    assert arrived[b"BYTES"] == b"\xff\xfe"


ENDED = "the job script ended during its set-up, by itself or by a signal"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["true", "module load cuda"], "set-up line 2 failed with exit code 127: line "),
        (["source ./missing"], "set-up line 1 failed with exit code 1: line "),
        (["source ./bad"], "set-up line 1 failed with exit code 3: line "),
        (["fails() { return 4; }", "fails"], "set-up line 2 failed with exit code 4: line "),
        (
            ["set -e", "fails() { (exit 5); true; }", "fails"],
            f"{ENDED} (exit code 5)",
        ),
        (["source ./exits"], f"{ENDED} (exit code 6)"),
        (["exit 0"], f"{ENDED} (exit code 0)"),
        (["if true"], f"{ENDED} (exit code 2)"),
    ],
)
def test_failing_set_up_ends_the_job_with_a_message(lines: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "bad").write_text("return 3\n")
    (tmp_path / "exits").write_text("exit 6\n")
    result = with_setup(tmp_path, *lines, "touch later")
    assert result.returncode not in (0, None)
    stderr = result.stderr.decode()
    assert message in stderr
    if number := re.search(r"set-up line (\d+) failed .*: line (\d+) of the job script", stderr):
        assert (tmp_path / "job.sh").read_text().splitlines()[int(number[2]) - 1] == lines[int(number[1]) - 1]
    assert result.stdout == b""
    assert not (tmp_path / "later").exists()


def test_message_for_a_failed_set_up_line_omits_its_text(tmp_path: Path) -> None:
    """Other users may read the log."""
    sources = {"setup.1": "it's.toml:7", "setup.2": "it's.toml:7"}
    made = runnable(tmp_path, setup=["true", "grep 'Bearer s3cret' /dev/null"]).replace(sources=sources)
    stderr = bash(render.script(made), tmp_path).stderr.decode()
    assert "set-up line 2 (it's.toml:7) failed with exit code 1: line " in stderr
    assert "s3cret" not in stderr


@pytest.mark.parametrize(
    ("failing", "place"),
    [(0, "1 (site.toml:3)"), (2, "3 (site.toml:3)"), (3, "1 (job.toml:7)"), (4, "1 (--setup)"), (5, "2 (--setup)")],
)
def test_failed_set_up_line_is_named_with_its_own_source(failing: int, place: str, tmp_path: Path) -> None:
    lines = ["true"] * 6
    lines[failing] = "false"
    given = ["site.toml:3", "site.toml:3", "site.toml:3", "job.toml:7", "--setup", "--setup"]
    sources = {f"setup.{number}": source for number, source in enumerate(given, 1)}
    made = runnable(tmp_path, setup=lines).replace(sources=sources)
    stderr = bash(render.script(made), tmp_path).stderr.decode()
    assert f": set-up line {place} failed with exit code 1: line " in stderr


def test_failed_line_of_a_template_s_set_up_is_named_with_the_template(tmp_path: Path) -> None:
    template = tmp_path / "own.j2"
    template.write_text(
        '{% extends "local.sh.j2" %}{% block setup %}true\n${ONE:-false}\n{{ super() -}}false\n{% endblock %}'
    )
    made = runnable(tmp_path, setup=["${TWO:-false}", "true"], template=str(template))
    script = render.script(made.replace(sources={"setup.1": "job.toml:7", "setup.2": "job.toml:7"}))
    assert f"set-up line 2 ({template}) failed" in bash(script, tmp_path).stderr.decode()
    assert "set-up line 1 (job.toml:7) failed" in bash(script, tmp_path, ONE="true").stderr.decode()


def test_failures_after_the_set_up_are_not_attributed_to_it(tmp_path: Path) -> None:
    made = runnable(tmp_path, setup=["true"])
    made.bootstrap.write_text("gridtf_exec() { false; exit 9; }\n")
    result = bash(render.script(made), tmp_path)
    assert (result.returncode, result.stderr) == (9, b"")


@pytest.mark.thorough
def test_missing_working_folder_or_gridtf_is_reported(tmp_path: Path) -> None:
    made = runnable(tmp_path, chdir=str(tmp_path / "gone"))
    result = bash(render.script(made), tmp_path)
    assert result.returncode == 1
    assert b"gone" in result.stderr
    assert b"cannot change to the working folder on this host" in result.stderr
    made = runnable(tmp_path)
    made.bootstrap.unlink()
    result = bash(render.script(made), tmp_path)
    assert result.returncode == 1
    assert b"gridtf is not installed on this host" in result.stderr


# --- the user's own templates


def with_template(path: Path, text: str, scheduler: str = "slurm") -> str:
    path.write_text(text, encoding="utf-8")
    return render.script(plan(scheduler, template=str(path)))


def test_template_can_extend_the_shipped_one_of_its_own_name(tmp_path: Path) -> None:
    text = with_template(
        tmp_path / "slurm.sh.j2",
        '{% extends "slurm.sh.j2" %}{% block banner %}# By: {{ spec.command[0] | comment }}\n{% endblock %}',
    )
    assert "#SBATCH --job-name=train\n" in text
    assert "\n# By: python\n" in text
    assert text.endswith("gridtf_exec\n")


def test_template_can_use_files_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "site.j2").write_text('{% extends "job.sh.j2" %}{% block chdir %}{% include "part.j2" %}{% endblock %}')
    (tmp_path / "part.j2").write_text("echo {{ name | quote }}\n")
    text = with_template(tmp_path / "own.j2", '{% extends "site.j2" %}', "local")
    assert "\necho train\n" in text


def test_byte_order_mark_of_a_template_is_removed(tmp_path: Path) -> None:
    text = with_template(tmp_path / "own.j2", '\ufeff{% extends "slurm.sh.j2" %}')
    assert text.startswith("#!/bin/bash\n")


def test_template_may_define_new_blocks_inside_others(tmp_path: Path) -> None:
    (tmp_path / "site.j2").write_text(
        '{% extends "slurm.sh.j2" %}{% block setup %}{% block modules %}{% endblock %}{{ super() }}{% endblock %}'
    )
    text = with_template(tmp_path / "own.j2", '{% extends "site.j2" %}{% block modules %}module load a\n{% endblock %}')
    assert "\nmodule load a\n" in text
    assert with_template(tmp_path / "whole.j2", "{% block anything %}echo a{% endblock %}") == "echo a"


@pytest.mark.parametrize("parent", ['"slurm.sh.j2"', '"site.j2"'])
def test_block_that_would_be_dropped_is_refused(parent: str, tmp_path: Path) -> None:
    (tmp_path / "site.j2").write_text('{% extends "slurm.sh.j2" %}')
    with pytest.raises(GridtfError) as caught:
        with_template(tmp_path / "own.j2", f"{{% extends {parent} %}}\n{{% block setpu %}}\n{{% endblock %}}\n")
    assert caught.value.what == f"{tmp_path}/own.j2:2: no template that this one extends has a block 'setpu'"
    assert caught.value.hint == "did you mean setup?"


@pytest.mark.parametrize(("scheduler", "other"), [("sge", "slurm"), ("slurm", "sge"), ("slurm", "local")])
def test_template_for_another_scheduler_is_refused(scheduler: str, other: str, tmp_path: Path) -> None:
    text = f'{{% extends "{other}.sh.j2" %}}'
    with pytest.raises(GridtfError) as caught:
        with_template(tmp_path / "own.j2", text, scheduler)
    place = f"{tmp_path}/own.j2:1: {other}.sh.j2"
    assert caught.value.what == f"{place} is another scheduler's template, but this job is for {scheduler}"
    assert with_template(tmp_path / "own.j2", text, "local").startswith("#!/bin/bash\n")
    with_template(tmp_path / "own.j2", '{% extends scheduler ~ ".sh.j2" %}', scheduler)
    both = f'{{% if scheduler == "{other}" %}}{text}{{% else %}}{{% extends "{scheduler}.sh.j2" %}}{{% endif %}}'
    with_template(tmp_path / "own.j2", both, scheduler)


def test_relative_template_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.sh.j2").write_text('{% extends "local.sh.j2" %}')
    assert render.script(plan("local", template="./job.sh.j2")).endswith("gridtf_exec\n")


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("ok\n{% if %}\n", 2, "Expected an expression"),
        ("ok\n\n{{ nodez }}\n", 3, "'nodez' is undefined"),
        ("{{ spec.nodez }}\n", 1, "no attribute 'nodez'"),
        ('{% extends "slrum.sh.j2" %}\n', 1, "no such template: 'slrum.sh.j2'"),
        ('ok\n{% include "gone.j2" %}\n', 2, "no such template: 'gone.j2'"),
        ("ok\n{{ 1 + name }}\n", 2, "TypeError"),
        ("ok\n{{ chdir | quote }}\n", 2, "TypeError: None is not a string"),
        ("ok\n{{ name | qoute }}\n", 2, "No filter named 'qoute'"),
        ('{% extends "slurm.sh.j2" %}\n{% block launch %}\n{{ nodez }}\n{% endblock %}\n', 3, "'nodez' is undefined"),
    ],
)
def test_template_errors_have_file_and_line(text: str, line: int, message: str, tmp_path: Path) -> None:
    path = tmp_path / "own dir" / "own.sh.j2"
    path.parent.mkdir()
    with pytest.raises(GridtfError) as caught:
        with_template(path, text)
    assert caught.value.what.startswith(f"{path}:{line}: ")
    assert message in caught.value.what
    assert caught.value.hint


def test_undefined_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(GridtfError) as caught:
        with_template(tmp_path / "own.sh.j2", "{{ nodez }}")
    for name in ("run_dir", "directives", "setup", "env", "spec", "quote"):
        assert name in caught.value.hint


def test_missing_or_unreadable_template_is_named(tmp_path: Path) -> None:
    gone = tmp_path / "gone.sh.j2"
    with pytest.raises(NotFoundError) as caught:
        render.script(plan(template=str(gone)))
    assert str(gone) in caught.value.what
    assert "slurm.sh.j2" in caught.value.hint
    with pytest.raises(GridtfError, match="cannot read the template"):
        render.script(plan(template=str(tmp_path)))
    gone.write_bytes(b"\xff\xfe")
    with pytest.raises(GridtfError, match="UTF-8"):
        render.script(plan(template=str(gone)))


# --- templates of other users


@pytest.mark.parametrize(
    ("text", "attribute"),
    [
        ("{{ cycler.__init__.__globals__.os.popen('touch CANARY').read() }}", "'__init__' of 'type'"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "'__class__' of 'str'"),
        ("{{ spec.to_dict.__globals__ }}", "'__globals__' of 'method'"),
        ("{{ '{0.__class__}'.format(spec) }}", "'__class__' of 'JobSpec'"),
        ("{{ '{0.__class__}'|attr('format')(spec) }}", "'__class__' of 'JobSpec'"),
        ("{{ env.update({'A': '1'}) }}", "'update' of 'dict'"),
    ],
)
def test_template_cannot_run_code(text: str, attribute: str, tmp_path: Path) -> None:
    """Otherwise `gridtf render` would run code from another user's job file."""
    path = tmp_path / "own.sh.j2"
    with pytest.raises(GridtfError) as caught:
        with_template(path, f"ok\n{text.replace('CANARY', str(tmp_path / 'ran'))}\n")
    assert caught.value.what.startswith(f"{path}:2: templates may not do this: access to attribute {attribute}")
    assert not (tmp_path / "ran").exists()


def test_template_values_are_strings_and_not_paths(tmp_path: Path) -> None:
    """The sandbox would let a template write to a Path."""
    template = tmp_path / "own.sh.j2"
    text = with_template(template, "{% for name in [run_dir, bootstrap] %}{{ name is string }} {% endfor %}")
    assert text == "True True "


@pytest.mark.parametrize("name", ["../secret", "FOLDER/secret"])
def test_template_cannot_include_files_outside_its_folder(name: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "site").mkdir()
    path = tmp_path / "site" / "own.j2"
    name = name.replace("FOLDER", str(tmp_path))
    with pytest.raises(GridtfError) as caught:
        with_template(path, f"{{% include '{name}' %}}")
    assert caught.value.what == f"{path}:1: no such template: {name!r}"


def test_template_that_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "own.j2")
    with pytest.raises(GridtfError, match=r"the template .*own\.j2 is not a regular file"):
        render.script(plan(template=str(tmp_path / "own.j2")))


def test_template_of_another_user_needs_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It must be named by the user, or have the same owner as the job file that names it."""
    template, beside = write(tmp_path / "own.j2", "{% extends 'site.j2' %}"), write(tmp_path / "site.j2", "echo a")
    owner = strangers(monkeypatch, beside)
    made = plan("local", template=str(template))
    assert render.script(made) == "echo a"
    assert render.script(made.replace(trusted=frozenset({owner}))) == "echo a"
    with pytest.raises(GridtfError) as caught:
        render.script(made.replace(trusted=frozenset()))
    assert caught.value.what == f"the template {beside} belongs to user {files.user_name(owner)}"
    beside.unlink()
    write(beside, "echo b").chmod(0o666)
    with pytest.raises(GridtfError, match="any user may write the template"):
        render.script(made.replace(trusted=frozenset({owner})))
