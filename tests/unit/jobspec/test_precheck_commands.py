"""Checks before submission that a command's program and its script exist, and that the script is Python."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from gridtf.errors import SpecError
from gridtf.jobspec import precheck
from gridtf.jobspec.spec import JobSpec, TaskSpec
from tests.support.closed import close

OWN = Path(sys.executable).name  # gridtf's own Python


@pytest.fixture(autouse=True)
def _any_program() -> None:
    """In this module programs have to exist."""


@pytest.fixture(autouse=True)
def folder(rough_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of the job, with a few files; gridtf's own Python is on the PATH, and another one."""
    (rough_path / "train.py").write_text("print('trains')\n")
    (rough_path / "run.sh").write_text("python train.py\n")
    (rough_path / "bin").mkdir()
    (rough_path / "bin" / "python9").write_text("#!/bin/sh\n")
    (rough_path / "bin" / "python9").chmod(0o755)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{rough_path / 'bin'}:/usr/bin:/bin")
    return rough_path


def check(*command: str, **values: Any) -> None:
    values.setdefault("chdir", str(Path.cwd()))
    precheck.check_commands(JobSpec(command=command, **values), os.environ)


def refused(*command: str, **values: Any) -> tuple[str, str]:
    """What the error says, without the path of the working folder, and its hint."""
    with pytest.raises(SpecError) as caught:
        check(*command, **values)
    return caught.value.what.replace(str(Path.cwd()), "HERE"), caught.value.hint.replace(str(Path.cwd()), "HERE")


@pytest.mark.parametrize(
    ("words", "call"),
    [
        (["train.py", "-m", "x"], ("train.py", "")),
        (["-u", "-O", "train.py"], ("train.py", "")),
        (["-uO", "--", "train.py"], ("train.py", "")),
        (["-W", "error", "-Xdev", "-X", "utf8", "train.py"], ("train.py", "")),
        (["--check-hash-based-pycs", "never", "train.py"], ("train.py", "")),
        (["-m", "pkg.train", "x.py"], ("", "pkg.train")),
        (["-um", "pkg.train"], ("", "pkg.train")),
        (["-mpkg", "x.py"], ("", "pkg")),
        (["-c", "import train", "x.py"], ("", "")),
        (["-uc", "import train"], ("", "")),
        (["-"], ("", "")),
        (["-V"], ("", "")),
        ([], ("", "")),
    ],
)
def test_script_and_module_of_a_python_command(words: list[str], call: tuple[str, str]) -> None:
    assert precheck.python_call(words) == call


@pytest.mark.parametrize(
    "command",
    [
        ["python9", "-u", "train.py", "--data", "none"],
        ["python9", "-m", "trian"],  # another Python has other modules
        [OWN, "-m", "train"],
        [OWN, "-m", "json.tool"],
        [OWN, "-c", "print({})"],
        ["bash", "run.sh"],
        ["bash", "-c", "cd data; python trian.py"],
        ["bash", "true"],  # bash finds it on the PATH
        ["bin/python9", "train.py"],
        ["python9", "{run_dir}/train.py"],
        ["{run_dir}/train"],
        ["python9", "/tmp/of-a-host/train.py"],
        ["true", "trian.py"],
    ],
)
def test_programs_and_scripts_that_exist_pass(command: list[str]) -> None:
    check(*command)


@pytest.mark.parametrize(
    ("command", "what", "hint"),
    [
        (["python9", "trian.py"], "there is no file HERE/trian.py", "did you mean train.py?"),
        (["python9", "-u", "src/train.py"], "there is no file HERE/src/train.py", "there is no folder HERE/src either"),
        (["python9", "$HOME/train.py"], "there is no file HERE/$HOME/train.py", "no shell reads the command"),
        (["python9", "model"], "there is no file HERE/model", "relative paths begin in the working folder, HERE"),
        (["bash", "rnu.sh"], "there is no file HERE/rnu.sh", "did you mean run.sh?"),
        (["bin/python8", "train.py"], "there is no file HERE/bin/python8", "did you mean python9?"),
        (
            ["./run.sh"],
            "HERE/run.sh is not executable",
            "write bash ./run.sh, or make it executable: chmod +x ./run.sh",
        ),
        (["./train.py"], "HERE/train.py is not executable", "write python ./train.py"),
        (["./bin"], "HERE/bin is a folder", "write a program"),
        (["train.py"], "there is no program train.py on the PATH", "write python train.py"),
        (["pyton9", "x"], "there is no program pyton9 on the PATH", "did you mean python9"),
        (["trainium"], "there is no program trainium on the PATH", "--setup 'module load …'"),
        (["EPOCHS=3", "python9"], "there is no program EPOCHS=3", "--env EPOCHS=3"),
        (["source", "venv/bin/activate"], "there is no program source", "--setup 'source venv/bin/activate …'"),
        (
            ["python train.py", "--epochs", "3"],
            "'python train.py' is one word, and no program has this name",
            "write the words apart: -- python train.py --epochs 3; in a file: "
            "command = ['python', 'train.py', '--epochs', '3']",
        ),
        (["cd x && python y"], "'cd x && python y' is one word", "let a shell read it: -- bash -c 'cd x && python y'"),
        ([OWN, "-m", "trian"], "there is no module trian in HERE", "did you mean train?"),
    ],
)
def test_missing_programs_and_scripts_are_refused(command: list[str], what: str, hint: str) -> None:
    said, advice = refused(*command)
    assert said.startswith(f"command: {what}")
    assert hint in advice


def test_commands_of_task_types_are_checked() -> None:
    ps = TaskSpec(count=1, command=["python9", "sp.py"])
    assert refused("true", tasks={"ps": ps})[0] == "tasks.ps.command: there is no file HERE/sp.py"
    check("true", tasks={"ps": ps.replace(count=0)})


def test_set_up_lines_may_bring_programs() -> None:
    check("trainium", setup=["module load trainium"])
    check("trainium", template="own.j2")
    assert "is one word" in refused("python train.py", setup=["module load python"])[0]


@pytest.mark.parametrize("line", ["git clone x .", "cd src", "source env.sh; cp a b", "eval $COPY"])
def test_set_up_lines_may_make_scripts(line: str) -> None:
    check("python9", "trian.py", setup=["module load python", line])


@pytest.mark.parametrize(
    "line",
    ["module load cuda", "  source venv/bin/activate", "# a comment\n\nexport A=1", 'eval "$(conda shell.bash hook)"'],
)
def test_set_up_lines_that_only_change_the_environment_make_no_script(line: str) -> None:
    assert refused("python9", "trian.py", setup=[line]) == (
        "command: there is no file HERE/trian.py",
        "did you mean train.py?",
    )


def test_path_that_the_job_sets_counts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    check("python9", "train.py", env={"PATH": str(folder / "bin")})


def test_script_in_the_current_folder_but_not_in_the_working_folder(folder: Path) -> None:
    assert refused("python9", "train.py", chdir=str(folder / "bin"))[1].endswith(": add --chdir .")


def test_syntax_errors_are_those_of_gridtf_s_own_python(folder: Path) -> None:
    (folder / "broken.py").write_text("import os\nprint 'two'\n")
    said, _ = refused(OWN, "broken.py")
    assert said.startswith("command: HERE/broken.py:2: Missing parentheses")
    check("python9", "broken.py")
    check(OWN, "broken.py", setup=["module load python"])
    (folder / "latin.py").write_bytes(b"# coding: latin-1\nprint('\xe9 \\d')\n")
    check(OWN, "latin.py")


# --- containers


@pytest.mark.parametrize(
    "command", [("python17", "train.py"), ("/opt/bin/python", "/opt/train.py"), ("bash", "run.sh")]
)
def test_programs_and_absolute_paths_are_those_of_the_container(command: tuple[str, ...]) -> None:
    check(*command, container="docker://i")


def test_scripts_of_the_working_folder_are_the_same_in_a_container(folder: Path) -> None:
    expected = ("command: there is no file HERE/trian.py", "did you mean train.py?")
    assert refused("python17", "trian.py", container="docker://i") == expected
    (folder / "broken.py").write_text("print 'two'\n")
    check(OWN, "broken.py", container="docker://i")  # the container's Python may be another one


@pytest.mark.parametrize(
    ("image", "hint"),
    [
        ("tf2.sif", "did you mean tf-2.sif?"),
        ("other.sif", "`apptainer pull other.sif docker://NAME:TAG` makes one"),
        ("tf-2.sif/other.sif", "`apptainer pull other.sif docker://NAME:TAG` makes one"),
        ("ubuntu", "an image of a registry is written docker://ubuntu"),
    ],
)
def test_image_that_does_not_exist_is_refused(image: str, hint: str, folder: Path) -> None:
    (folder / "tf-2.sif").touch()
    path = str(folder / image)
    with pytest.raises(SpecError) as caught:
        precheck.check(JobSpec(command=("x",), container=path), {})
    assert (caught.value.what, caught.value.hint) == (f"container: there is no image {path}", hint)
    precheck.check(JobSpec(command=("x",), container=path, setup=[f"cp /images/{image} ."]), {})
    precheck.check(JobSpec(command=("x",), container=str(folder / "tf-2.sif")), {})


def test_entry_function_may_be_in_a_module_of_the_image() -> None:
    precheck.check(JobSpec(entry="of_the_image:main", container="docker://i"), {})


def test_notes_on_placeholders_without_braces() -> None:
    spec = JobSpec(command=("train", "--ps_hosts", "ps_hosts", "--task_index={task_index}"))
    assert precheck.notes(spec) == (
        "command: `--ps_hosts ps_hosts` passes a word; the placeholder is '{ps_hosts}', in quotes, "
        "since tcsh removes braces",
    )


@pytest.mark.parametrize(
    ("values", "note"),
    [
        ({"time": 3600}, "time: 3600 is in minutes, 2-12:00:00; in seconds it is 3600s"),
        ({"time": "02:00"}, "time: 02:00 is in minutes and seconds, 00:02:00; or write 02:00:00"),
        (
            {"time": "2h", "checkpoint_before": 60},
            "checkpoint_before: 60 is in minutes, 01:00:00; in seconds it is 60s",
        ),
        ({"stall_after": "600"}, "stall_after: 600 is in minutes, 10:00:00; in seconds it is 600s"),
    ],
)
def test_notes_on_times_that_may_be_meant_in_another_unit(values: dict[str, Any], note: str) -> None:
    assert precheck.notes(JobSpec(command=("x",), **values)) == (note,)


def test_no_notes_on_times_with_units_or_as_slurm_users_write_them() -> None:
    assert precheck.notes(JobSpec(command=("x",), time=90, checkpoint_before="5m", stall_after="off")) == ()
    assert precheck.notes(JobSpec(command=("x",), time="1-12")) == ()


@pytest.mark.parametrize("values", [{"mem": 16}, {"mem_per_task": "64"}, {"tasks": {"worker": {"mem": 8}}}])
def test_memory_of_a_few_mib_without_a_unit_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"without a unit is .* MiB, too few for TensorFlow"):
        precheck.check(JobSpec(command=("true",), **values), {})


@pytest.mark.parametrize("values", [{"mem": "16M"}, {"mem": 4096}, {"mem_per_task": "1G"}, {}])
def test_memory_with_a_unit_or_of_hundreds_of_mib_is_not_refused(values: dict[str, Any]) -> None:
    precheck.check(JobSpec(command=("true",), **values), {})


@pytest.mark.parametrize("name", ["13", "4711.1", "4711_3"])
def test_name_that_looks_like_a_job_id_is_refused(name: str) -> None:
    with pytest.raises(SpecError, match=rf"{name} would be taken for the id of a job"):
        precheck.check(JobSpec(command=("true",), name=name), {})
    precheck.check(JobSpec(command=("true",), name=f"run-{name}"), {})


def test_folder_of_the_path_that_may_not_be_searched_is_passed_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.is_file

    def is_file(path: Path) -> bool:
        if path.parent == folder / "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(Path, "is_file", is_file)
    monkeypatch.setenv("PATH", f"{folder / 'closed'}:{folder / 'bin'}:/usr/bin:/bin")
    check("python9", "train.py")


def test_suggestions_pass_over_folders_that_may_not_be_searched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    close(folder / "closed", monkeypatch)
    monkeypatch.setenv("PATH", f"{folder / 'closed' / 'bin'}:{folder / 'bin'}")
    assert refused("pythn9", "train.py")[1] == "did you mean python9?"
    assert (
        refused("nosuchprog", chdir=str(folder / "closed"))[0] == "command: there is no program nosuchprog on the PATH"
    )


@pytest.mark.parametrize(
    ("words", "what", "hint"),
    [
        (
            ["srun", "-n", "2", "python9", "train.py"],
            "each task would call srun",
            ": -- python9 train.py; as the ranks",
        ),
        (["/opt/mpi/bin/mpirun", "bash", "run.sh"], "each task would call mpirun", ": -- bash run.sh; as the ranks"),
        (
            ["sbatch", "run.sh"],
            "sbatch would submit a job of its own in each task",
            "gridtf_run in a script for sbatch",
        ),
    ],
)
def test_programs_that_start_others_are_refused(words: list[str], what: str, hint: str) -> None:
    said, advice = refused(*words)
    assert what in said
    assert hint in advice


@pytest.mark.parametrize("words", [["bash", "job.sh"], ["./job.sh"]])
@pytest.mark.parametrize(("line", "by"), [("#SBATCH --nodes=2", "sbatch"), ("#$ -pe mpi 8", "qsub")])
def test_job_script_as_a_command_is_refused(words: list[str], line: str, by: str, folder: Path) -> None:
    (folder / "job.sh").write_text(f"#!/bin/bash\n{line}\npython train.py\n")
    (folder / "job.sh").chmod(0o755)
    said, advice = refused(*words)
    what = f"HERE/job.sh is a job script: gridtf does not read its requests, such as {line.removesuffix(' mpi 8')}"
    assert said == f"command: {what}"
    assert f"submit it with {by};" in advice


def test_scripts_with_other_comments_are_commands(folder: Path) -> None:
    (folder / "own.sh").write_text(
        "#!/bin/bash\n# SBATCH --nodes=2 would be read by sbatch, #$ by qsub\npython train.py\n"
    )
    check("bash", "own.sh")
