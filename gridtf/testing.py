"""Conformance tests that every scheduler passes, gridtf's own and plugins. They need pytest.

A plugin's author derives a class and sets what is specific to the scheduler::

    class TestPBS(BatchConformance):
        scheduler = PBS()
        native = ("-p 100",)
        recorded = Recorded(accepted=(Output("qsub", "1234.pbs01\\n"),), job_id="1234.pbs01", ...)
        job = RecordedJob({"PBS_JOBID": "1234.pbs01", ...}, job_id="1234.pbs01", hosts={"n1": 2, "n2": 2})

SchedulerConformance is for all schedulers, BatchConformance for those whose halves are a CommandLogin and a BatchInJob
(CommandConformance: a CommandLogin): programs on PATH stand in for their commands and print recorded outputs.
LiveConformance submits jobs to a real cluster of the scheduler. pytest with ``-p gridtf.testing --gridtf-result FILE``
writes which of its tests have passed, and on which versions, into a file that a site can send.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest

from gridtf import resources, schedulers
from gridtf.errors import GridtfError, MaybeSubmittedError, SchedulerError, SpecError
from gridtf.findings import result
from gridtf.jobspec.options import Option
from gridtf.jobspec.request import Request
from gridtf.jobspec.spec import JobSpec
from gridtf.run.rundir import RunDir
from gridtf.schedulers import plugins
from gridtf.schedulers.api import API_VERSION, AgentCall, JobIdentity, JobStatus, Plan, Scheduler
from gridtf.schedulers.injob import BatchInJob
from gridtf.schedulers.login import CommandLogin
from gridtf.states import ENDED, JobState
from gridtf.values import Value, of_dict

# --- recorded outputs


class Output(Value):
    """The recorded output of one call of a command.

    Attributes:
        program: Name of the command, such as ``qsub``.
        out: Standard output.
        err: Standard error.
        code: Exit code.
    """

    program: str
    out: str = ""
    err: str = ""
    code: int = 0

    @classmethod
    def read(cls, program: str, path: Path, code: int = 0) -> Output:
        """Read an output from the files PATH.out and PATH.err, of which one may be missing.

        Args:
            program: Name of the command.
            path: Path of the files without their suffix.
            code: Exit code of the command.
        """
        files = [path.with_name(f"{path.name}.{kind}") for kind in ("out", "err")]
        assert any(file.exists() for file in files), f"neither {files[0]} nor {files[1]} exists"
        out, err = (file.read_text() if file.exists() else "" for file in files)
        return cls(program, out, err, code)


Outputs = Sequence[Output]
Error = TypeVar("Error", bound=GridtfError)


class Recorded(Value):
    """Recorded outputs of the scheduler's commands, by situation.

    In each situation, only the commands with an output exist. A command with several outputs prints one per call, and
    the last one from then on.

    Attributes:
        accepted: A successful submission.
        job_id: The id that a successful submission returns.
        refused: A submission that the scheduler refuses.
        garbled: A submission that exits with 0 and prints no job id, and a queue that does not have the job.
        unreachable: All commands while the server does not answer.
        listed: The queue command, with jobs in all states.
        states: Job id -> its expected state, for the jobs in ``listed``.
        unknown: The queue command, for a job that the scheduler no longer knows.
        cancelled: The cancel command, for a running job.
        ended: The cancel command, for a job that has ended.
        denied: The cancel command, for another user's job.
        environ: Variables of a login node besides PATH, such as SGE_ROOT.
    """

    accepted: Outputs
    job_id: str
    refused: Outputs
    garbled: Outputs
    unreachable: Outputs
    listed: Outputs
    states: Mapping[str, JobState]
    unknown: Outputs
    cancelled: Outputs
    ended: Outputs
    denied: Outputs
    environ: Mapping[str, str] = {}


class RecordedJob(Value):
    """The environment of a recorded job of two or more hosts, on its first host.

    Attributes:
        environ: The job's variables, except those that name files.
        job_id: Expected id of the job.
        hosts: Expected hosts -> slots, in order.
        files: Variable -> text of the file that it names.
        element: Expected element, if the job is an element of a job array; else empty.
        outputs: Outputs of commands that the scheduler runs to read the allocation.
        values: Keys of the job file that the job has in addition.
    """

    environ: Mapping[str, str]
    job_id: str
    hosts: Mapping[str, int]
    files: Mapping[str, str] = {}
    element: str = ""
    outputs: Outputs = ()
    values: Mapping[str, Any] = {}


# Records its arguments and its input, and prints the output for this call.
_FAKE = """\
#!/bin/sh
folder={folder}
number=0
while [ -e "$folder/$number.call" ]; do number=$((number + 1)); done
for word; do printf '%s\\n' "$word"; done > "$folder/$number.call"
command -p cat > "$folder/$number.in"
[ -e "$folder/$number.out" ] || number={last}
command -p cat "$folder/$number.err" >&2
command -p cat "$folder/$number.out"
exit "$(command -p cat "$folder/$number.code")"
"""


class Commands:
    """Stand-ins for a scheduler's commands, in a folder that is the whole PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._bin = folder / "bin"
        self._bin.mkdir(parents=True)

    @property
    def path(self) -> str:
        """Value of PATH."""
        return str(self._bin)

    def print(self, outputs: Outputs) -> None:
        """Replace all commands by those of these outputs."""
        assert outputs, "nothing was recorded"
        for old in self._bin.iterdir():
            old.unlink()
        for program in {output.program for output in outputs}:
            self._add(program, [output for output in outputs if output.program == program])

    def _add(self, program: str, outputs: Outputs) -> None:
        folder = self.folder / program
        if folder.exists():
            folder.rename(f"{folder}.{time.monotonic_ns()}")
        folder.mkdir()
        for number, output in enumerate(outputs):
            (folder / f"{number}.out").write_text(output.out)
            (folder / f"{number}.err").write_text(output.err)
            (folder / f"{number}.code").write_text(str(output.code))
        self._install(program, _FAKE.format(folder=shlex.quote(str(folder)), last=len(outputs) - 1))

    def hang(self, program: str) -> None:
        """Add a command that never ends."""
        pipe = self.folder / f"{program}.pipe"
        os.mkfifo(pipe)
        self._install(program, f"#!/bin/sh\nread line < {shlex.quote(str(pipe))}\n")

    def _install(self, program: str, text: str) -> None:
        path = self._bin / program
        path.write_text(text)
        path.chmod(0o755)

    def calls(self, program: str) -> list[list[str]]:
        """The arguments of each call of a command since its outputs were set."""
        files = sorted((self.folder / program).glob("*.call"), key=lambda path: int(path.stem))
        return [path.read_text().splitlines() for path in files]

    def inputs(self, program: str) -> list[str]:
        """What the calls of a command, in any order, have read from standard input."""
        return [path.read_text() for path in (self.folder / program).glob("*.in")]


# --- the tests


def expect_error(kind: type[Error], call: Callable[[], object]) -> Error:
    """Assert that a call raises an error whose what, why and hint are one printable line each.

    Args:
        kind: Class of the error.
        call: Called without arguments.

    Returns:
        The error.
    """
    with pytest.raises(kind) as caught:
        call()
    error = caught.value
    assert error.what, "the error does not say what is wrong"
    for text in (error.what, error.why, error.hint):
        assert text.isprintable(), f"not one printable line: {text!r}"
    return error


def _no_wait(reason: str, seconds: float) -> None:
    raise AssertionError(f"it waits: {reason}")


class _Plans:
    """Plans of jobs for the tested scheduler.

    Attributes:
        scheduler: The tested scheduler.
        values: Keys of the job file that every job of the scheduler needs, such as a parallel environment.
        most_hosts: Most hosts of a job.
        native: Raw options that the scheduler accepts.
    """

    scheduler: ClassVar[Scheduler]
    values: ClassVar[Mapping[str, Any]] = {}
    most_hosts: ClassVar[int] = 2
    native: ClassVar[tuple[str, ...]] = ()

    def spec(self, **values: Any) -> JobSpec:
        """A specification with these keys of the job file, besides those that every job needs."""
        return JobSpec.from_dict({"command": ["python", "train.py"], "name": "digits", **self.values, **values})

    def specs(self) -> dict[str, JobSpec]:
        """Specifications of various jobs, by a description for messages."""
        hosts = self.most_hosts
        tasks = {"chief": {"count": 1}, "worker": {"count": 2}, "ps": {"count": 2}, "evaluator": {"count": 1}}
        others = {"data_worker": {"count": 2}, "board": {"kind": "service"}}
        uneven = {"chief": {"gpus": 2}, "worker": {"count": 4 * hosts - 2, "gpus": 1}}
        return {
            "the least": self.spec(),
            "hosts and CPUs": self.spec(nodes=hosts, tasks_per_node=4, cpus_per_task=2),
            "GPUs": self.spec(nodes=hosts, gpus_per_node=4),
            "GPUs by role": self.spec(nodes=hosts, gpus_per_node=4, tasks=uneven),
            "all task types": self.spec(tasks={**tasks, **others}, cpus_per_task=2),
            "memory and time": self.spec(mem_per_task="2G", time="26:00:00"),
            "options": self.spec(**self.options(), native=self.native),
        }

    def options(self) -> dict[str, str]:
        """A value for each option of the scheduler that is a name."""
        keys = {option.key for option in self.scheduler.options}
        return {key: "long" for key in ("partition", "account", "pe") if key in keys}

    def plan(self, run_dir: Path, spec: JobSpec) -> Plan:
        """A plan as `gridtf submit` makes it; the run directory need not exist."""
        return Plan(
            spec=spec,
            scheduler=self.scheduler,
            request=self.scheduler.login.resolve(spec),
            run_dir=run_dir,
            python=sys.executable,
            bootstrap=resources.bootstrap_script(),
            sources={},
        )


class SchedulerConformance(_Plans):
    """Tests for every scheduler, without a job and without the scheduler's commands."""

    @pytest.fixture(autouse=True)
    def _known(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Make gridtf find the scheduler by its name, as if its package were installed."""
        name, kind = self.scheduler.name, type(self.scheduler)
        if name in schedulers.BUILT_IN:
            yield
            return
        info = tmp_path / "site" / "conformance-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: conformance\nVersion: 1.0\n")
        entry = f"[{schedulers.GROUP}]\n{name} = {kind.__module__}:{kind.__qualname__}\n"
        (info / "entry_points.txt").write_text(entry)
        monkeypatch.syspath_prepend(str(info.parent))
        plugins.forget()
        yield
        plugins.forget()

    @pytest.fixture
    def nowhere(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """Make all commands and relative paths fail."""
        monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
        monkeypatch.chdir(tmp_path)

    def test_class_attributes(self) -> None:
        kind, login, injob = type(self.scheduler), self.scheduler.login, self.scheduler.injob
        assert re.fullmatch(r"[a-z][a-z0-9_-]*", kind.name), f"name {kind.name!r} is not a word of lower-case letters"
        assert kind.title and kind.title.isprintable(), f"title {kind.title!r} is not one line"
        assert kind.api_version == API_VERSION, f"api_version is {kind.api_version}, this gridtf has {API_VERSION}"
        prefix = login.directive_prefix
        assert prefix == "" or re.fullmatch(r"#\S+", prefix), f"directive_prefix {prefix!r} is not a shell comment"
        known = {option.key for option in schedulers.job_options(plugins=True)}
        for option in kind.options:
            assert isinstance(option, Option), f"options holds {option!r}, not an Option"
            assert option.flags[0].startswith("--"), f"option {option.key}: its first flag must be the long one"
            assert option.help, f"option {option.key}: it has no help"
            assert option.key in known, f"option {option.key}: another option has one of its flags, {option.flags}"
        assert injob.last_warnings <= injob.warnings, "last_warnings has signals that are not in warnings"
        assert login.template is None or login.template.is_file(), f"template {login.template}: no such file"

    def test_all_abstract_methods_are_implemented(self) -> None:
        for kind in map(type, (self.scheduler, self.scheduler.login, self.scheduler.injob)):
            lacks = ", ".join(sorted(getattr(kind, "__abstractmethods__", ())))
            assert not lacks, f"{kind.__name__} lacks {lacks}"

    def test_scheduler_is_found_by_its_name(self) -> None:
        assert type(schedulers.get(self.scheduler.name)) is type(self.scheduler)

    @pytest.mark.usefixtures("nowhere")
    def test_resolve_is_pure(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made = {kind: self.scheduler.login.resolve(spec) for kind, spec in self.specs().items()}
        for name in set(os.environ) - {"PATH"}:
            monkeypatch.delenv(name)
        for kind, spec in self.specs().items():
            assert self.scheduler.login.resolve(spec) == made[kind], f"{kind}: resolved twice, in another environment"

    def test_request_survives_json(self) -> None:
        for kind, spec in self.specs().items():
            request = self.scheduler.login.resolve(spec)
            assert of_dict(Request, json.loads(json.dumps(request.to_dict()))) == request, kind

    def test_resolve_in_a_hand_written_job(self) -> None:
        request = self.scheduler.login.resolve(self.spec(), in_job=True)
        assert request.scheduler == self.scheduler.name
        assert not request.elements, "a job cannot be an array itself"

    @pytest.mark.usefixtures("nowhere")
    def test_directives_are_printable_lines_and_reproducible(self, tmp_path: Path) -> None:
        for kind, spec in self.specs().items():
            plan = self.plan(tmp_path / "run", spec)
            lines = self.scheduler.login.directives(plan)
            assert lines == self.scheduler.login.directives(plan), f"{kind}: the second call returns other lines"
            for line in lines:
                assert line.strip() and line.isprintable(), f"{kind}: {line!r} is not one printable line"
                prefix = self.scheduler.login.directive_prefix
                assert prefix, f"{kind}: directives, but no directive_prefix"
                assert not line.startswith(prefix), f"{kind}: {line!r}: gridtf itself adds the prefix {prefix}"

    @pytest.mark.usefixtures("nowhere")
    def test_submit_command_names_no_script(self, tmp_path: Path) -> None:
        for kind, spec in self.specs().items():
            plan = self.plan(tmp_path / "run", spec)
            command = self.scheduler.login.submit_command(plan)
            script = str(RunDir(plan.run_dir).script)
            assert script not in command, f"{kind}: {command}: it reads the script from standard input"
            assert command == self.scheduler.login.submit_command(plan), (
                f"{kind}: the second call returns another command"
            )
            assert not plan.run_dir.exists(), f"{kind}: it has created the run directory"

    def test_rendered_script_is_bash_with_directives_in_its_head(self, tmp_path: Path) -> None:
        from gridtf.login import render

        for kind, spec in self.specs().items():
            plan = self.plan(tmp_path / "run", spec)
            text = render.script(plan)
            done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)  # noqa: S607
            assert done.returncode == 0, f"{kind}: {done.stderr}"
            head = re.match(r"#!/bin/bash\n(#.*\n|\n)*", text)
            assert head, f"{kind}: it does not begin with #!/bin/bash"
            for line in self.scheduler.login.directives(plan):
                whole = f"\n{self.scheduler.login.directive_prefix} {line}\n"
                assert whole in head[0], f"{kind}: {whole.strip()!r} is not in the script's head"

    def test_place_and_host_variables_match_no_common_variable(self) -> None:
        common = ("PATH", "HOME", "USER", "LANG", "PYTHONPATH", "LD_LIBRARY_PATH", "GRIDTF_RUN_DIR", "GRIDTF_SPEC")
        hosts = self.scheduler.injob.host_variables
        for name in common:
            assert not self.scheduler.place_variables.match(name), f"place_variables: tasks need {name}"
            assert not (hosts and hosts.fullmatch(name)), f"host_variables: {name} belongs to the job"


class CommandConformance(SchedulerConformance):
    """Tests for a scheduler whose half for the login node derives from CommandLogin.

    Attributes:
        recorded: Recorded outputs of its commands.
        job: A recorded job.
        array: A raw option that makes a job an array, and the expected elements; None if there are no arrays.
    """

    recorded: ClassVar[Recorded]
    job: ClassVar[RecordedJob]
    array: ClassVar[tuple[str, tuple[str, ...]] | None] = None

    @pytest.fixture
    def commands(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
        """Stand-ins for the scheduler's commands, at first none; no other command is on the PATH."""
        made = Commands(tmp_path / "commands")
        monkeypatch.setenv("PATH", made.path)
        for name, text in self.recorded.environ.items():
            monkeypatch.setenv(name, text)
        return made

    @pytest.fixture
    def made(self, tmp_path: Path) -> Plan:
        """A plan with a script, whose run directory exists."""
        plan = self.plan(tmp_path / "run", self.spec())
        plan.run_dir.mkdir()
        return plan.replace(script="#!/bin/bash\n")

    @pytest.fixture
    def inside(self, tmp_path: Path, commands: Commands) -> dict[str, str]:
        """Environment of the recorded job."""
        environ = {"HOME": str(tmp_path), "PATH": commands.path, **self.recorded.environ, **self.job.environ}
        for name, text in self.job.files.items():
            file = tmp_path / name.lower()
            file.write_text(text)
            environ[name] = str(file)
        if self.job.outputs:
            commands.print(self.job.outputs)
        return environ

    # --- the script

    def test_unsafe_characters_in_directives_are_refused(self, tmp_path: Path) -> None:
        assert self.options(), "the scheduler has none of the options partition, account, pe"
        for key in self.options():
            for value in ("two words", 'quo"ted', "quo'ted", "back\\slash", "a#b", "-option"):
                plan = self.plan(tmp_path / "run", self.spec(**{key: value}))
                error = expect_error(SpecError, partial(self.scheduler.login.directives, plan))
                assert error.key == key, f"{key} = {value!r}"

    def test_native_options_come_last_and_unchanged(self, tmp_path: Path) -> None:
        assert self.native, "native: set a raw option that the scheduler accepts"
        lines = self.scheduler.login.directives(self.plan(tmp_path / "run", self.spec(native=self.native)))
        assert lines[-len(self.native) :] == self.native

    def test_native_text_that_is_not_an_option_is_refused(self, tmp_path: Path) -> None:
        plan = self.plan(tmp_path / "run", self.spec(native=("rm -rf /",)))
        assert expect_error(SpecError, lambda: self.scheduler.login.directives(plan)).key == "native"

    def test_array_elements_of_native_options(self) -> None:
        assert self.scheduler.login.resolve(self.spec()).elements == ()
        if self.array is not None:
            option, elements = self.array
            assert self.scheduler.login.resolve(self.spec(native=(option,))).elements == elements

    # --- commands

    def test_is_not_available_without_its_commands(self, commands: Commands) -> None:
        assert not self.scheduler.is_available({"PATH": commands.path, **self.recorded.environ})

    def test_submit_returns_the_job_id(self, commands: Commands, made: Plan) -> None:
        commands.print(self.recorded.accepted)
        job = self.scheduler.login.submit(made).job
        assert job.job_id == self.recorded.job_id
        program, *arguments = self.scheduler.login.submit_command(made)
        assert arguments in commands.calls(Path(program).name), "submit does not run submit_command"
        assert made.script in commands.inputs(Path(program).name), "the script is not given by standard input"
        record = json.loads(json.dumps(job.to_record()))
        assert JobIdentity.from_record(record) == job, "submitted.json cannot store it"

    def test_refused_submission_reports_the_scheduler_s_message(self, commands: Commands, made: Plan) -> None:
        commands.print(self.recorded.refused)
        error = expect_error(SchedulerError, lambda: self.scheduler.login.submit(made))
        assert not isinstance(error, MaybeSubmittedError), "the scheduler has refused the job, so there is none"
        lines = "\n".join(output.err or output.out for output in self.recorded.refused)
        words = set(re.findall(r"\w{4,}", lines))
        assert words & set(re.findall(r"\w{4,}", error.what)), f"{error.what!r} has no word of {lines!r}"

    def test_submit_without_a_job_id_may_have_succeeded(self, commands: Commands, made: Plan) -> None:
        commands.print(self.recorded.garbled)
        error = expect_error(MaybeSubmittedError, lambda: self.scheduler.login.submit(made))
        assert str(made.run_dir) in str(error), "the error does not name the run directory that is kept"

    def test_submit_that_times_out_may_have_succeeded(
        self, commands: Commands, made: Plan, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        login = self.scheduler.login
        assert isinstance(login, CommandLogin)
        for limit in ("submit_limit", "query_limit"):
            monkeypatch.setattr(type(login.commands), limit, 0.3)
        commands.hang(Path(self.scheduler.login.submit_command(made)[0]).name)
        expect_error(MaybeSubmittedError, lambda: self.scheduler.login.submit(made))

    def calls(self, made: Plan) -> tuple[Callable[[], object], ...]:
        """Submit, query and cancel: the methods that run commands of the scheduler."""
        job, tested = JobIdentity(self.recorded.job_id), self.scheduler.login
        return lambda: tested.submit(made), lambda: tested.query([job]), lambda: tested.cancel(job)

    def test_unreachable_server_is_an_error(self, commands: Commands, made: Plan) -> None:
        commands.print(self.recorded.unreachable)
        for call in self.calls(made):
            error = expect_error(SchedulerError, call)
            assert not isinstance(error, MaybeSubmittedError), "the server was not reached, so there is no job"
            assert "does not answer" in error.what, error.what

    def test_missing_command_is_an_error(self, commands: Commands, made: Plan) -> None:
        for call in self.calls(made):
            expect_error(SchedulerError, call)

    def test_query_parses_all_states(self, commands: Commands) -> None:
        commands.print(self.recorded.listed)
        jobs = [JobIdentity(job_id) for job_id in self.recorded.states]
        statuses = self.scheduler.login.query(jobs)
        assert {job_id: status.state for job_id, status in statuses.items()} == dict(self.recorded.states)
        for job_id, status in statuses.items():
            assert isinstance(status.state, JobState), f"{job_id}: {status.state!r}"
            assert status.reason.isprintable(), f"{job_id}: {status.reason!r} is not one printable line"
            assert not status.purged, f"{job_id} is listed, so it is not purged"

    def test_unknown_job_is_purged_and_not_completed(self, commands: Commands) -> None:
        commands.print(self.recorded.unknown)
        job = JobIdentity(self.recorded.job_id)
        status = self.scheduler.login.query([job])[job.job_id]
        assert status.purged, f"{status}: a job that the scheduler no longer knows is purged"
        assert status.state not in ENDED, f"{status}: it is not known how a purged job has ended"

    def test_unlisted_job_is_purged(self, commands: Commands) -> None:
        commands.print(self.recorded.listed)
        status = self.scheduler.login.query([JobIdentity("999999"), *map(JobIdentity, self.recorded.states)])["999999"]
        assert status.purged and status.state not in ENDED, status

    def test_query_of_no_jobs_runs_no_command(self, commands: Commands) -> None:
        assert self.scheduler.login.query([]) == {}

    def test_commands_of_a_user_share_the_answers_of_a_server(self, commands: Commands) -> None:
        job = JobIdentity(self.recorded.job_id)
        server = self.scheduler.login.server(job, os.environ)
        assert server, "a user's commands share answers, since the server serves all users"
        assert self.scheduler.login.server(job, {**os.environ, "PWD": "/", "TERM": "dumb"}) == server

    def test_cancel_names_the_job(self, commands: Commands) -> None:
        commands.print(self.recorded.cancelled)
        program = self.recorded.cancelled[0].program
        self.scheduler.login.cancel(JobIdentity(self.recorded.job_id))
        self.scheduler.login.cancel(JobIdentity(self.recorded.job_id), force=True)
        calls = commands.calls(program)
        assert len(calls) == 2 and all(self.recorded.job_id in call for call in calls), calls

    def test_cancel_of_several_jobs_names_each(self, commands: Commands) -> None:
        commands.print(self.recorded.cancelled)
        ids = [self.recorded.job_id, *(name for name in self.recorded.states if name != self.recorded.job_id)][:2]
        assert list(self.scheduler.login.cancel_all([JobIdentity(name) for name in ids])) == [None] * len(ids)
        words = " ".join(map(str, commands.calls(self.recorded.cancelled[0].program)))
        assert all(name in words for name in ids), words

    def test_refused_one_of_several_jobs_is_told(self, commands: Commands) -> None:
        commands.print(self.recorded.denied)
        jobs = [JobIdentity("1"), JobIdentity(self.recorded.job_id)]
        refused = list(self.scheduler.login.cancel_all(jobs))[1]
        assert refused is not None and self.recorded.job_id in refused.what

    def test_cancel_of_an_ended_job_is_no_error(self, commands: Commands) -> None:
        commands.print(self.recorded.ended)
        self.scheduler.login.cancel(JobIdentity(self.recorded.job_id))
        self.scheduler.login.cancel(JobIdentity(self.recorded.job_id), force=True)

    def test_cancel_of_another_user_s_job_is_an_error(self, commands: Commands) -> None:
        commands.print(self.recorded.denied)
        job = JobIdentity(self.recorded.job_id)
        assert job.job_id in expect_error(SchedulerError, lambda: self.scheduler.login.cancel(job)).what

    # --- inside a job

    def test_is_not_current_outside_a_job(self, tmp_path: Path) -> None:
        assert not self.scheduler.is_current({"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)})
        assert not self.scheduler.is_current({"PATH": "/usr/bin:/bin", **self.recorded.environ}), "on a login node"

    def test_identity_inside_a_job(self, inside: dict[str, str]) -> None:
        assert self.scheduler.is_current(inside)
        job = self.scheduler.injob.identity(inside)
        assert (job.job_id, job.element) == (self.job.job_id, self.job.element)
        assert job == self.scheduler.injob.identity(inside), "the second call returns another identity"
        json.dumps(job.to_record())

    def test_allocation_has_the_hosts_and_slots(self, inside: dict[str, str]) -> None:
        request = self.scheduler.login.resolve(self.spec(**self.job.values), in_job=True)
        hosts = self.scheduler.injob.allocation(inside, request, _no_wait).hosts
        names = [host.name for host in hosts]
        assert len(names) == len(set(names)), f"a host is listed twice: {names}"
        assert [(host.name, host.slots) for host in hosts] == list(self.job.hosts.items())


class BatchConformance(CommandConformance):
    """Tests for a scheduler that derives from BatchInJob."""

    def test_agent_command_names_the_host(self, inside: dict[str, str], tmp_path: Path) -> None:
        injob = self.scheduler.injob
        assert isinstance(injob, BatchInJob)
        call = AgentCall(("RUN", "1"), lambda *_: 0, ("python", "-m", "agent"), tmp_path / "log")
        for host in self.job.hosts:
            words = list(injob.agent_command(host, call, inside))
            at = words.index("python")
            assert words[at:] == ["python", "-m", "agent", host, "RUN", "1"], words
            assert host in words[:at], f"{words}: no word before the agent's command names its host"


class LiveConformance(_Plans):
    """Tests that submit jobs to a real cluster of the scheduler.

    Attributes:
        patience: Seconds within which a job starts, and within which its end is known.
        hold: A raw option that keeps a job pending; empty if there is none.
        tells_ends: Whether the scheduler or its accounting knows how a job has ended.
    """

    patience: ClassVar[float] = 60.0
    hold: ClassVar[tuple[str, ...]] = ()
    tells_ends: ClassVar[bool] = True

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """A folder that all hosts share."""
        return tmp_path

    @pytest.fixture
    def submitted(self) -> Iterator[list[JobIdentity]]:
        """The jobs of a test; those that have not ended are cancelled after it."""
        jobs: list[JobIdentity] = []
        yield jobs
        for job in jobs:
            if self.status(job).state in (JobState.PENDING, JobState.RUNNING):
                self.scheduler.login.cancel(job)

    def submit(self, folder: Path, jobs: list[JobIdentity], *lines: str, **values: Any) -> JobIdentity:
        """Submit a job.

        Args:
            folder: Folder for the run directory.
            jobs: The fixture ``submitted``, to which the job is added.
            lines: Lines of the job script, after the directives.
            values: Keys of the job file.

        Returns:
            The identity of the job.
        """
        spec = self.spec(**values)
        run = RunDir(folder / f"run-{len(jobs)}")
        run.path.mkdir()
        plan = self.plan(run.path, spec)
        head = [f"{self.scheduler.login.directive_prefix} {line}" for line in self.scheduler.login.directives(plan)]
        job = self.scheduler.login.submit(plan.replace(script="\n".join(["#!/bin/bash", *head, *lines, ""]))).job
        jobs.append(job)
        return job

    def status(self, job: JobIdentity) -> JobStatus:
        """The status of a job from the queue, or if it is purged, from the accounting."""
        status = self.scheduler.login.query([job])[job.job_id]
        return self.scheduler.login.accounting([job]).get(job.job_id, status) if status.purged else status

    def until(self, job: JobIdentity, *states: JobState, purged: bool = False) -> JobStatus:
        """Wait until a job is in one of these states, or with ``purged``, until the scheduler no longer knows it."""
        deadline = time.monotonic() + self.patience
        while (status := self.status(job)).state not in states and not (purged and status.purged):
            assert time.monotonic() < deadline, f"job {job.job_id} is {status} after {self.patience:g} s"
            time.sleep(0.2)
        return status

    def over(self, job: JobIdentity) -> JobStatus:
        """Wait until a job has ended; with ``tells_ends``, until it is known how."""
        return self.until(job, *map(JobState, ENDED), purged=not self.tells_ends)

    def test_live_is_available(self) -> None:
        assert self.scheduler.is_available(os.environ)

    def test_live_exit_code_0_is_completed(self, folder: Path, submitted: list[JobIdentity]) -> None:
        status = self.over(self.submit(folder, submitted, "exit 0"))
        assert status.state == JobState.COMPLETED if self.tells_ends else status.purged, status

    def test_live_exit_code_3_is_failed(self, folder: Path, submitted: list[JobIdentity]) -> None:
        status = self.over(self.submit(folder, submitted, "exit 3"))
        assert status.state == JobState.FAILED if self.tells_ends else status.state != JobState.COMPLETED, status

    def test_live_cancel_of_a_running_job(self, folder: Path, submitted: list[JobIdentity]) -> None:
        begun = folder / "begun"
        job = self.submit(folder, submitted, f"echo > {shlex.quote(str(begun))}", "exec sleep 600")
        self.until(job, JobState.RUNNING)
        while not begun.exists():  # so that the cancel reaches the script, not its start
            assert self.status(job).state == JobState.RUNNING
            time.sleep(0.1)
        self.scheduler.login.cancel(job)
        assert self.until(job, *map(JobState, ENDED), purged=True).state != JobState.COMPLETED
        self.scheduler.login.cancel(job)  # a second time is no error

    def test_live_held_job_is_pending(self, folder: Path, submitted: list[JobIdentity]) -> None:
        if self.hold:
            job = self.submit(folder, submitted, "exit 0", native=self.hold)
            assert self.until(job, JobState.PENDING).state == JobState.PENDING
            self.scheduler.login.cancel(job)
            assert self.until(job, *map(JobState, ENDED), purged=True).state != JobState.COMPLETED

    def test_live_unknown_job_is_purged(self) -> None:
        job = self.unknown_job()
        status = self.scheduler.login.query([job])[job.job_id]
        assert status.purged and status.state not in ENDED, status

    def unknown_job(self) -> JobIdentity:
        """The identity of a job that does not exist."""
        return JobIdentity("999999")

    def test_live_identity_and_allocation_inside_a_job(self, folder: Path, submitted: list[JobIdentity]) -> None:
        kind = type(self.scheduler)
        result = folder / "result.json"
        code = f"""\
import json, os, sys
sys.path[:] = {[os.path.realpath(path) if path else str(Path.cwd()) for path in sys.path]!r}
from {kind.__module__} import {kind.__qualname__} as Kind
from gridtf.jobspec.spec import JobSpec
scheduler = Kind()
request = scheduler.login.resolve(JobSpec.from_dict({self.spec(nodes=self.most_hosts).to_dict()!r}), in_job=True)
hosts = scheduler.injob.allocation(os.environ, request, lambda reason, seconds: None).hosts
job = scheduler.injob.identity(os.environ)
text = json.dumps([scheduler.is_current(os.environ), job.job_id, [host.name for host in hosts]])
open({str(result)!r}, "w").write(text)
"""
        program = folder / "program.py"
        program.write_text(code)
        run = f"exec {shlex.join([sys.executable, str(program)])}"  # as gridtf's own scripts do
        job = self.submit(folder, submitted, run, nodes=self.most_hosts)
        self.over(job)
        log = RunDir(folder / "run-0").log
        assert result.exists(), log.read_text() if log.exists() else "the job has printed nothing"
        current, job_id, hosts = json.loads(result.read_text())
        assert current and job_id == job.job_id, (current, job_id)
        assert hosts and len(hosts) == len(set(hosts)), hosts


# --- what a site can send

_OPTION = "--gridtf-result"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option, where this module is a plugin of pytest."""
    parser.addoption(_OPTION, metavar="FILE", help="write what LiveConformance has tested, and on which versions")


def pytest_configure(config: pytest.Config) -> None:
    """Note what is tested, if that is to be written."""
    if config.getoption(_OPTION):
        config.pluginmanager.register(_Result(Path(config.getoption(_OPTION))))


class _Result:
    """Notes how the tests of a live scheduler have ended, and writes it at the end."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._outcomes: dict[str, bool] = {}
        self._scheduler: Scheduler | None = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Function) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if item.cls is not None and issubclass(item.cls, LiveConformance) and not report.skipped:
            self._scheduler = item.cls.scheduler
            self._outcomes[item.name] = self._outcomes.get(item.name, True) and report.passed
        return report

    def pytest_sessionfinish(self) -> None:
        if self._scheduler:
            found = result(self._scheduler.title, self._scheduler.login.version(), self._outcomes)
            self._file.write_text(f"{json.dumps(found, indent=1)}\n", encoding="utf-8")
