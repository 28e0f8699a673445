"""The life of an agent, with a clock that the test moves, a launcher that only sends messages, and no processes."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gridtf import contract
from gridtf.bootstrap.agent import local_dir
from gridtf.bootstrap.agent.agent import Agent
from gridtf.bootstrap.agent.api import Prepared
from gridtf.bootstrap.agent.exits import BROKEN, LEFTOVERS, NO_LAUNCHER, NO_RUN_DIR, NO_WRITE, ORPHANED
from gridtf.bootstrap.plan import rendezvous
from gridtf.bootstrap.wire import messages
from gridtf.errors import PlacementError
from gridtf.features import hostsetup, membership, stage
from gridtf.features.exec import InAgent
from gridtf.host.gpus import GpuGrant
from gridtf.jobspec.request import Request
from gridtf.run.rundir import Record, cannot, read_record, write_record
from gridtf.schedulers.agents import NEEDS_ENVIRONMENT, STOP_SIGNAL
from gridtf.schedulers.api import Allocation, GpuNeed, Host, Wait
from gridtf.schedulers.local import LocalScheduler
from gridtf.schedulers.local.injob import LocalInJob
from tests.support.plans import NONCE, task_plan
from tests.support.streams import FakeLink
from tests.support.system import FakeSystem

ENVIRON = {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": ""}


class FakeSite(LocalInJob):
    """Grants what the test wants."""

    warnings = frozenset({int(signal.SIGUSR2)})

    def __init__(self) -> None:
        super().__init__(LocalScheduler())
        vars(self.scheduler)["injob"] = self  # the half that it shows
        self.waits: list[tuple[str, float]] = []
        self.refusal: PlacementError | None = None
        self.is_suspended: bool | None = False

    def gpu_grant(self, environ: Mapping[str, str], request: Request, need: GpuNeed, wait: Wait) -> GpuGrant:
        for why, seconds in self.waits:
            wait(why, seconds)
        if self.refusal:
            raise self.refusal
        return GpuGrant((), (9,))

    def suspended(self, environ: Any) -> bool | None:  # type: ignore[override]
        return self.is_suspended


class OneHost:
    """An agent of a job on one host, and the launcher's side: plan and meeting come after a second, and signs of life
    go on, unless it is silent."""

    def __init__(
        self, folder: Path, *, start_timeout: float = 60.0, address: str | None = "127.0.0.1", **spec: Any
    ) -> None:
        values = {
            "tasks": {"worker": {"count": 2}},
            "fence": "off",
            "kill_grace": 1.0,
            "heartbeat_timeout": 20.0,
            **spec,
        }
        self.plan = task_plan(folder / "run", Allocation((Host("h0", 4, 0, 4, address),)), **values)
        self.attempt = self.plan.attempt
        self.system, self.site = FakeSystem({**ENVIRON, "TMPDIR": str(folder)}), FakeSite()
        self.gpus: GpuGrant | None = None  # what the launcher has claimed
        self.link = FakeLink(self.system)
        self.silent = False
        self.agent = Agent(
            "h0",
            self.attempt,
            NONCE,
            start_timeout,
            self.system,
            lambda name: self.site.scheduler,
            link_of=self.link.of,
        )
        self.system.known = {1234}
        listener = {"nonce": NONCE, "addresses": ["127.0.0.1"], "port": 4711, "secret": "5e" * 32}
        write_record(self.attempt.listener, listener, mode=0o600)
        self.system.at(0.0, self.tell_launcher)
        self.system.every(1.0, self._beat)

    def _beat(self) -> None:
        if not self.silent:
            self.link.say(messages.ALIVE)

    def tell_launcher(self, **more: object) -> None:
        """The launcher says which process it is."""
        who = {"began": 1.0, "host": "h0", "pid": 1234, "start": 1, "boot": "b"}
        self.link.say(messages.LAUNCHER, {**who, **more})

    def tell_plan(self) -> None:
        self.link.say(messages.PLAN, self.plan.of_host("h0").to_record())

    def answer(self, plan: float = 1.0) -> OneHost:
        """The launcher sends the plan, and the meeting once the host has published."""
        self.system.at(plan, self.tell_plan)
        self.system.at(plan, self._meet)
        return self

    def _meet(self) -> None:
        if not self.published:
            self.system.at(0.2, self._meet)
            return
        meeting = rendezvous.merge(self.plan.tasks, {"h0": self.published})
        self.link.say(messages.RENDEZVOUS, meeting.to_record())

    def stop(self, seconds: float) -> OneHost:
        """The launcher says so, and sends STOP_SIGNAL."""
        self.system.at(seconds, self.tell_stop)
        self.system.at(seconds, lambda: self.system.receive(STOP_SIGNAL))
        return self

    def tell_stop(self) -> None:
        self.link.say(messages.STOP, {"state": "COMPLETED", "reason": "", "task": None})

    def exit(self, index: int, code: int, seconds: float) -> OneHost:
        """A task's process ends."""
        self.system.at(seconds, lambda: self.system.exit(self.pids[index], code))
        return self

    @property
    def pids(self) -> Sequence[int]:
        return sorted(self.system.started)

    @property
    def record(self) -> Record:
        return self.link.state

    @property
    def published(self) -> Record:
        return self.link.host

    def states(self) -> dict[str, tuple[str, int | None, str | None]]:
        return {name: (task["state"], task["exit"], task["signal"]) for name, task in self.record["tasks"].items()}

    def main(self) -> int:
        return self.agent.main(self.gpus)


def test_tasks_run_until_the_launcher_stops_the_agent(tmp_path: Path) -> None:
    host = OneHost(tmp_path).answer().exit(0, 0, 5).stop(10)
    assert host.main() == 0
    assert host.states() == {"worker:0": ("COMPLETED", 0, None), "worker:1": ("STOPPED", None, "SIGTERM")}
    assert (host.record["over"], host.record.get("gone")) == (True, None)
    assert host.system.alive == set()
    started = host.system.started[host.pids[0]]
    assert started["argv"] == ["train"]
    assert started["keep"] == (9,)  # the locks of the grant
    assert set(started["ignored"]) == {signal.SIGUSR2}
    config = json.loads(started["env"]["TF_CONFIG"])
    assert config["task"] == {"type": "worker", "index": 0}
    published = host.published
    assert config["cluster"]["worker"] == [f"127.0.0.1:{port}" for port in published["ports"].values()]
    assert started["env"]["MASTER_PORT"] == str(published["master_port"])


def test_task_addresses_are_those_of_the_chosen_interface(tmp_path: Path) -> None:
    host = OneHost(tmp_path, address=None, interface="lo").answer().stop(5)
    assert host.main() == 0
    env = host.system.started[host.pids[0]]["env"]
    published = host.published
    assert (published["address"], env["MASTER_ADDR"]) == ("127.0.0.1", "127.0.0.1")
    ports = published["ports"].values()
    assert json.loads(env["TF_CONFIG"])["cluster"]["worker"] == [f"127.0.0.1:{port}" for port in ports]


def test_missing_interface_is_the_reason_in_the_host_s_record(tmp_path: Path) -> None:
    host = OneHost(tmp_path, address=None, interface="none9").answer()
    assert host.main() == BROKEN
    assert host.record["gone"]["what"] == "host h0 has no network interface none9"
    # the launcher must not learn of the end without the reason
    assert all("gone" in content for kind, content in host.link.sent if kind == messages.STATE and content["over"])
    assert not host.pids


def test_tasks_start_in_their_container(tmp_path: Path) -> None:
    (tmp_path / "apptainer").touch(mode=0o755)
    host = OneHost(tmp_path, container="docker://i").answer().stop(5)
    host.system.environ["PATH"] = str(tmp_path)
    assert host.main() == 0
    started = host.system.started[host.pids[0]]
    run = host.plan.attempt.run.path
    local = local_dir.places(host.system.environ, NONCE, "h0")[0]
    binds = [f"--bind={folder}:{folder}" for folder in ("/home/user", run, local)]
    options = ["exec", *binds, "--pwd=/home/user"]
    assert started["argv"] == [str(tmp_path / "apptainer"), *options, "docker://i", "train"]
    assert started["env"]["APPTAINERENV_TF_CONFIG"].replace("\\", "") == started["env"]["TF_CONFIG"]


def test_host_without_apptainer_is_the_reason_in_its_record_before_it_publishes(tmp_path: Path) -> None:
    host = OneHost(tmp_path, container="docker://i").answer()
    host.system.environ["PATH"] = str(tmp_path)
    assert host.main() == BROKEN
    assert host.record["gone"]["what"] == "host h0 has neither apptainer nor singularity"
    assert not host.pids
    assert not host.published


def test_agent_waits_for_a_late_plan(tmp_path: Path) -> None:
    host = OneHost(tmp_path, start_timeout=60).answer(plan=50).stop(55)
    assert host.main() == 0
    assert len(host.pids) == 2


def test_missing_plan_is_an_error_after_start_timeout_with_the_state_of_the_connection(tmp_path: Path) -> None:
    host = OneHost(tmp_path, start_timeout=60)
    host.link.cut("10.0.0.1 port 4711 does not answer")
    assert host.main() == NO_LAUNCHER
    why = "no plan from the launcher after 60 s: 10.0.0.1 port 4711 does not answer"
    assert host.system.logged == [f"agent on h0: {why}"]
    assert 60 <= host.system.clock - 1000 < 61


def test_missing_listener_record_is_an_error_after_start_timeout(tmp_path: Path) -> None:
    host = OneHost(tmp_path, start_timeout=60)
    host.attempt.listener.unlink()
    assert host.main() == NO_RUN_DIR
    assert host.system.logged == [f"agent on h0: {host.attempt.listener} did not appear on host h0"]
    assert 60 <= host.system.clock - 1000 < 61


@pytest.mark.parametrize("nonce", ["of another attempt", None])
def test_listener_record_of_another_attempt_is_ignored(nonce: str | None, tmp_path: Path) -> None:
    host = OneHost(tmp_path).answer().stop(20)
    listener = read_record(host.attempt.listener) or {}
    write_record(host.attempt.listener, {**listener, "nonce": nonce})
    seen: list[Record] = []
    host.system.at(9, lambda: seen.append(dict(host.link.listener)))
    host.system.at(10, lambda: write_record(host.attempt.listener, listener))
    assert host.main() == 0
    assert (seen, host.link.listener) == ([{}], listener)
    assert len(host.pids) == 2


def test_unshared_run_directory_ends_the_agent_early(tmp_path: Path) -> None:
    host = OneHost(tmp_path, start_timeout=600)
    host.attempt.run.path.rename(tmp_path / "elsewhere")
    assert host.main() == NO_RUN_DIR
    assert host.system.clock - 1000 < 20


@pytest.mark.parametrize("number", [signal.SIGTERM, STOP_SIGNAL])
def test_stop_signal_before_the_plan_ends_the_agent(number: int, tmp_path: Path) -> None:
    host = OneHost(tmp_path)
    host.system.at(5, lambda: host.system.receive(number))
    assert host.main() == 0
    assert host.system.started == {}
    assert host.record == {}


def test_stop_before_the_rendezvous_starts_no_tasks(tmp_path: Path) -> None:
    host = OneHost(tmp_path).stop(5)
    host.system.at(1, host.tell_plan)
    assert host.main() == 0
    assert host.system.started == {}
    assert host.states() == {"worker:0": ("PENDING", None, None), "worker:1": ("PENDING", None, None)}
    assert host.record["over"] is True


def test_agent_that_does_not_inherit_the_environment_of_the_job_receives_it(tmp_path: Path) -> None:
    host = OneHost(tmp_path).answer(4).stop(8)
    host.system.environ[NEEDS_ENVIRONMENT] = "1"
    job = {**ENVIRON, "TMPDIR": "/tmp/of-another-host", "TOKEN": "secret"}
    host.system.at(3, lambda: host.link.say(messages.ENVIRONMENT, {"environ": job}))
    assert host.main() == 0
    env = host.system.started[host.pids[0]]["env"]
    assert (host.link.needs_environment, env["TOKEN"], env["TMPDIR"]) == (True, "secret", str(tmp_path))
    assert NEEDS_ENVIRONMENT not in env


def test_agent_that_inherits_the_environment_does_not_ask_for_it(tmp_path: Path) -> None:
    host = OneHost(tmp_path).answer().stop(8)
    assert host.main() == 0
    assert not host.link.needs_environment


def test_task_failure_is_reported_at_once(tmp_path: Path) -> None:
    host = OneHost(tmp_path).answer().exit(1, 3, 5.0)
    seen: list[dict[str, Any]] = []
    host.system.at(5.4, lambda: seen.append(host.states()))
    host.stop(8)
    assert host.main() == 0
    assert seen == [{"worker:0": ("RUNNING", None, None), "worker:1": ("FAILED", 3, None)}]
    assert host.states() == {"worker:0": ("STOPPED", None, "SIGTERM"), "worker:1": ("FAILED", 3, None)}


def test_missing_command_fails_the_tasks_with_exit_code_127(tmp_path: Path) -> None:
    host = OneHost(tmp_path, chdir=str(tmp_path)).answer().stop(8)
    host.system.missing = {"train"}
    assert host.main() == 0
    assert {task["exit"] for task in host.record["tasks"].values()} == {127}


@pytest.mark.parametrize(("version", "free"), [("1.15.5", True), ("2.21.0", False)])
def test_port_of_a_task_with_an_old_tensorflow_is_let_go_before_its_start(
    version: str, free: bool, tmp_path: Path
) -> None:
    host = OneHost(tmp_path, command=["python", "train.py"]).answer().stop(10)
    host.system.tensorflow = {"python": version}
    bound: list[bool] = []

    def bind() -> None:
        for port in host.published["ports"].values():
            with socket.socket() as server, contextlib.suppress(OSError):
                server.bind(("", port))
                bound.append(True)

    host.system.at(5, bind)
    host.main()
    assert bound == [True, True] * free
    published = host.published
    assert published["tensorflow"] == {"worker:0": version, "worker:1": version}


def test_progress_of_a_task_is_in_the_record_also_what_it_reports_at_its_end(tmp_path: Path) -> None:
    host = OneHost(tmp_path).answer().stop(10)

    def report(step: int) -> None:
        folder = Path(host.system.started[host.pids[0]]["env"]["GRIDTF_LOCAL_DIR"])
        record = {"step": step, "values": {"loss": 0.5, "accuracy": "nan"}, "time": 1.0}
        write_record(folder / "progress-worker-0.json", record)

    seen: list[object] = []
    host.system.at(4, lambda: report(100))
    host.system.at(6, lambda: seen.append(host.record["tasks"]["worker:0"].get("progress")))
    host.system.at(9.99, lambda: report(200))
    host.main()
    values = {"loss": 0.5, "accuracy": "nan"}
    assert seen == [{"step": 100, "values": values, "time": 1.0}]
    assert host.record["tasks"]["worker:0"]["progress"] == {"step": 200, "values": values, "time": 1.0}
    assert "progress" not in host.record["tasks"]["worker:1"]


def test_exception_is_in_the_record_before_its_task_has_ended(tmp_path: Path) -> None:
    host = OneHost(tmp_path).answer().stop(10)
    noted = {"type": "ValueError", "message": "bad", "place": "train.py:1", "time": 5004.0, "pid": 7}

    def note(name: str) -> None:
        folder = Path(host.system.started[host.pids[0]]["env"]["GRIDTF_LOCAL_DIR"])
        (folder / f"exception-worker-{name}.json").write_text(json.dumps(noted))

    seen: list[object] = []
    host.system.at(4, lambda: note("0"))
    host.system.at(8, lambda: seen.append(host.record["tasks"]["worker:0"]))
    host.system.at(9.99, lambda: note("1"))
    host.main()
    (before,) = seen
    assert isinstance(before, dict)
    assert (before["state"], before["exception"]) == ("RUNNING", noted)
    assert host.record["tasks"]["worker:1"]["exception"] == noted


def test_exception_is_known_where_the_clock_was_set_back(tmp_path: Path) -> None:
    host = OneHost(tmp_path).answer().stop(10)
    noted = {"type": "ValueError", "message": "bad", "place": "train.py:1", "time": 1004.0, "pid": 7}

    def note() -> None:
        folder = Path(host.system.started[host.pids[0]]["env"]["GRIDTF_LOCAL_DIR"])
        (folder / "exception-worker-0.json").write_text(json.dumps(noted))

    host.system.at(4, note)
    host.main()
    assert host.record["tasks"]["worker:0"]["exception"] == noted


def test_exception_of_before_a_restart_is_not_that_of_the_task(tmp_path: Path) -> None:
    host = OneHost(tmp_path, **SERVED).answer().exit(1, -signal.SIGKILL, 5).stop(10)
    noted = {"type": "ValueError", "message": "bad", "place": "", "time": 5004.0, "pid": 7}

    def note() -> None:
        env = host.system.started[host.pids[1]]["env"]
        name = contract.exception_name(env["GRIDTF_TASK_TYPE"], env["GRIDTF_TASK_INDEX"])
        (Path(env["GRIDTF_LOCAL_DIR"]) / name).write_text(json.dumps(noted))

    host.system.at(4, note)
    host.main()
    (restarted,) = (task for task in host.record["tasks"].values() if task["restarts"])
    assert "exception" not in restarted


@pytest.mark.parametrize("hook", [True, False])
def test_tasks_get_the_hook_from_the_folder_of_their_host(hook: bool, tmp_path: Path) -> None:
    host = OneHost(tmp_path, hook=hook).answer().stop(10)
    folder = local_dir.places(host.system.environ, NONCE, "h0")[0]
    seen: list[str] = []

    def look() -> None:
        seen.extend(path.name for path in (folder / "hook").glob("*"))
        if hook:
            (folder / "hook" / "__pycache__").mkdir()  # as Python does
            (folder / "hook" / "__pycache__" / "sitecustomize.pyc").touch()

    host.system.at(5, look)
    assert host.main() == 0
    paths = {started["env"].get("PYTHONPATH") for started in host.system.started.values()}
    assert paths == {str(folder / "hook") if hook else None}
    assert seen == (["sitecustomize.py"] if hook else [])
    assert not folder.exists()


def test_what_was_seen_of_tensorflow_is_in_the_record(tmp_path: Path) -> None:
    spec: dict[str, Any] = {
        "tasks": {"worker": {"count": 2}, "ps": {"count": 1, "env": {"TF_CONFIG": ""}}},
        "serve": ["ps"],
    }
    host = OneHost(tmp_path, **spec).answer().stop(10)
    loaded = "7f00-7f01 r-xp 0 fe:00 1  /lib/libtensorflow_framework.so.2\n"

    def use_tensorflow() -> None:
        host.system.files = dict.fromkeys(host.pids, loaded)
        host.system.opened = {host.published["ports"]["worker:1"]}

    host.system.at(5, use_tensorflow)
    host.main()
    seen = {name: task.get("tensorflow", "") for name, task in host.record["tasks"].items()}
    assert seen == {"worker:0": "loaded", "worker:1": "joined", "ps:0": ""}


def test_a_job_that_sets_tf_config_to_nothing_has_none_and_is_not_watched(tmp_path: Path) -> None:
    host = OneHost(tmp_path, env={"TF_CONFIG": ""}).answer().stop(10)
    loaded = "7f00-7f01 r-xp 0 fe:00 1  /lib/libtensorflow_framework.so.2\n"
    host.system.at(5, lambda: host.system.files.update(dict.fromkeys(host.pids, loaded)))
    host.main()
    assert [task.get("tensorflow", "") for task in host.record["tasks"].values()] == ["", ""]
    assert all("TF_CONFIG" not in started["env"] for started in host.system.started.values())


@pytest.mark.parametrize("late", [0.05, 0.9])
def test_task_ended_by_the_job_s_sigterm_is_stopped_not_failed(late: float, tmp_path: Path) -> None:
    """A scheduler sends TERM to all processes of a job: the agent may see the task's end first."""
    host = OneHost(tmp_path).answer().exit(0, -signal.SIGTERM, 5.0)
    seen: list[str] = []
    host.system.at(4.99 + late, lambda: seen.append(host.states()["worker:0"][0]))
    host.system.at(5.0 + late, lambda: host.system.receive(signal.SIGTERM))
    assert host.main() == 0
    assert seen == ["RUNNING"]  # a failure that was reported would be the job's
    assert host.states()["worker:0"] == ("STOPPED", None, "SIGTERM")
    assert host.record["gone"]["signal"] == signal.SIGTERM
    assert host.record["gone"]["what"] == "the agent on host h0 received SIGTERM"


def test_task_ended_after_its_agent_has_lost_srun_is_stopped_not_failed(tmp_path: Path) -> None:
    """The launcher was killed, and with it srun; then Slurm sends TERM to what is left of the job."""
    host = OneHost(tmp_path).answer().exit(0, -signal.SIGTERM, 5.3)
    host.system.at(5.0, lambda: host.system.receive(STOP_SIGNAL))
    assert host.main() == 0
    assert host.states()["worker:0"] == ("STOPPED", None, "SIGTERM")
    assert host.record["gone"]["orphaned"] is True


def test_task_ended_together_with_the_launcher_is_stopped_not_failed(tmp_path: Path) -> None:
    """The job runner ends all that a killed launcher has left; that the agent has lost it may wake the agent first."""
    host = OneHost(tmp_path).answer().exit(0, -signal.SIGTERM, 5.0)
    host.system.at(5.0, lambda: setattr(host.system, "ppid", 1))
    host.system.at(5.05, lambda: host.system.receive(signal.SIGTERM))
    assert host.main() == 0
    assert host.states()["worker:0"] == ("STOPPED", None, "SIGTERM")
    assert host.record["gone"]["orphaned"] is True


@pytest.mark.parametrize("number", [ORPHANED, STOP_SIGNAL])
def test_agent_reports_that_it_was_orphaned(number: int, tmp_path: Path) -> None:
    host = OneHost(tmp_path).answer()
    host.system.at(5, lambda: host.system.receive(number))
    assert host.main() == 0
    assert host.record["gone"]["orphaned"] is True


def test_sigusr_is_forwarded_except_the_scheduler_s_warning(tmp_path: Path) -> None:
    host = OneHost(tmp_path).answer().stop(10)
    host.system.at(5, lambda: host.system.receive(signal.SIGUSR1))
    host.system.at(6, lambda: host.system.receive(signal.SIGUSR2))  # the scheduler's warning, which they got as well
    assert host.main() == 0
    passed = [(pid, number) for pid, number in host.system.sent if number in (signal.SIGUSR1, signal.SIGUSR2)]
    assert passed == [(pid, signal.SIGUSR1) for pid in host.pids]


@pytest.mark.parametrize("by", ["signal", "launcher"])
def test_request_for_a_checkpoint_reaches_the_tasks_and_the_launcher(by: str, tmp_path: Path) -> None:
    host = OneHost(tmp_path).answer().stop(10)
    folder = local_dir.places(host.system.environ, NONCE, "h0")[0]
    seen: list[tuple[object, object]] = []
    if by == "signal":
        host.system.at(5, lambda: host.system.receive(signal.SIGUSR1))
    else:
        host.system.at(5, lambda: host.tell_launcher(checkpoint=True))
    host.system.at(4, lambda: seen.append((folder.stat().st_mode & 0o777, (folder / contract.NOTICE).exists())))
    host.system.at(8, lambda: seen.append(((folder / contract.NOTICE).exists(), host.record.get("checkpoint"))))
    assert host.main() == 0
    assert seen == [(0o700, False), (True, True)]
    assert {started["env"]["GRIDTF_LOCAL_DIR"] for started in host.system.started.values()} == {str(folder)}
    assert not folder.exists()


@pytest.mark.parametrize("name", ["USR1", "USR2", None])
def test_request_for_a_checkpoint_sends_its_signal_once_to_those_that_catch_it(
    name: str | None, tmp_path: Path
) -> None:
    host = OneHost(tmp_path, checkpoint_signal=name).answer().stop(30)
    number = signal.Signals[f"SIG{name or 'USR2'}"]

    def catch(*pids: int) -> None:
        host.system.sessions = {7001: host.pids[0]}  # a child of the first task
        host.system.catches = {number: list(pids)}

    host.system.at(4, lambda: catch(host.pids[0]))
    host.system.at(5, lambda: host.tell_launcher(checkpoint=True))
    host.system.at(15, lambda: catch(host.pids[0], 7001))  # that one has installed its handler only now
    assert host.main() == 0
    sent = [(pid, sent) for pid, sent in host.system.sent if sent in (signal.SIGUSR1, signal.SIGUSR2)]
    assert sent == ([(host.pids[0], number), (7001, number)] if name else [])


def test_request_for_a_checkpoint_before_the_tasks_start_is_kept_for_them(tmp_path: Path) -> None:
    host = OneHost(tmp_path).answer().stop(15)
    host.site.waits = [("waiting for a GPU", 5.0)]
    host.system.at(3, lambda: host.system.receive(signal.SIGUSR1))
    seen: list[tuple[object, object]] = []
    notice = local_dir.places(host.system.environ, NONCE, "h0")[0] / contract.NOTICE
    host.system.at(12, lambda: seen.append((notice.exists(), host.record.get("checkpoint"))))
    assert host.main() == 0
    assert seen == [(True, True)]


def test_request_for_a_checkpoint_that_comes_before_the_plan_is_kept_for_the_tasks(tmp_path: Path) -> None:
    host = OneHost(tmp_path).answer(plan=2.0).stop(10)
    host.system.at(1, lambda: host.tell_launcher(checkpoint=True))
    seen: list[object] = []
    notice = local_dir.places(host.system.environ, NONCE, "h0")[0] / contract.NOTICE
    host.system.at(8, lambda: seen.append(notice.exists()))
    assert host.main() == 0
    assert seen == [True]


def test_local_folder_is_in_tmp_where_the_job_has_the_tmpdir_of_another_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_dir, "_COMMON", str(tmp_path))
    host = OneHost(tmp_path).answer().stop(10)
    host.system.environ = {**ENVIRON, "TMPDIR": str(tmp_path / "gone")}
    assert host.main() == 0
    (folder,) = local_dir.places({}, NONCE, "h0")
    assert folder.parent == tmp_path
    assert {started["env"]["GRIDTF_LOCAL_DIR"] for started in host.system.started.values()} == {str(folder)}
    assert not folder.exists()


def test_tasks_run_without_a_local_folder_where_none_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_dir, "_COMMON", str(tmp_path / "gone too"))
    host = OneHost(tmp_path).answer().stop(10)
    host.system.environ = {**ENVIRON, "TMPDIR": str(tmp_path / "gone")}
    host.system.at(5, lambda: host.system.receive(signal.SIGUSR1))
    assert host.main() == 0
    assert not any("GRIDTF_LOCAL_DIR" in started["env"] for started in host.system.started.values())
    assert "cannot pass the request for a checkpoint on" in "".join(host.system.logged)


def test_silent_launcher_ends_the_tasks(tmp_path: Path) -> None:
    host = OneHost(tmp_path).answer()
    host.system.known = set()  # on another host
    host.system.at(5, lambda: setattr(host, "silent", True))
    assert host.main() == NO_LAUNCHER
    assert host.record["gone"]["unheard"] is True
    assert host.system.alive == set()
    assert 24 <= host.system.clock - 1000 < 30
    assert host.system.logged[-1] == "agent on h0: no heartbeat from the launcher for 20 s"


def test_launcher_silence_in_a_suspended_job_ends_nothing(tmp_path: Path) -> None:
    host = OneHost(tmp_path).answer().stop(90)
    host.system.known = set()
    host.site.is_suspended = True
    host.system.at(5, lambda: setattr(host, "silent", True))
    assert host.main() == 0


def silent_here(host: OneHost) -> None:
    """The launcher is on this host, and writes no heartbeat from now on."""
    host.system.at(5, lambda: setattr(host, "silent", True))


def test_stalled_launcher_is_continued_and_ends_the_job(tmp_path: Path) -> None:
    host = OneHost(tmp_path).answer()
    silent_here(host)
    host.system.stopped = {1234}
    host.system.at(30, lambda: setattr(host, "silent", (1234, signal.SIGCONT) not in host.system.sent))
    host.stop(32)
    assert host.main() == NO_LAUNCHER
    assert (1234, signal.SIGCONT) in host.system.sent
    assert (1234, signal.SIGKILL) not in host.system.sent
    assert read_record(host.attempt.verdict) is None


def test_stalled_launcher_that_stays_silent_is_killed_and_its_verdict_written(tmp_path: Path) -> None:
    host = OneHost(tmp_path).answer()
    silent_here(host)
    host.system.stopped = {1234}
    assert host.main() == NO_LAUNCHER
    assert [number for pid, number in host.system.sent if pid == 1234] == [signal.SIGCONT, signal.SIGKILL]
    verdict = read_record(host.attempt.verdict) or {}
    assert verdict["state"] == "FAILED"
    assert verdict["reason"].startswith("the launcher on host h0 was stalled for ")
    assert "it was stopped by a signal" in verdict["reason"]


def test_verdict_of_a_stalled_launcher_is_not_replaced(tmp_path: Path) -> None:
    host = OneHost(tmp_path).answer()
    silent_here(host)
    host.system.at(30, lambda: write_record(host.attempt.verdict, {"state": "COMPLETED"}))
    assert host.main() == NO_LAUNCHER
    assert (1234, signal.SIGKILL) in host.system.sent
    assert read_record(host.attempt.verdict) == {"state": "COMPLETED"}


def test_stalled_launcher_is_left_alone_while_suspension_is_unknown(tmp_path: Path) -> None:
    host = OneHost(tmp_path).answer()
    silent_here(host)
    host.site.is_suspended = None
    host.system.at(300, lambda: setattr(host, "silent", False))
    assert host.main() == NO_LAUNCHER
    assert [number for pid, number in host.system.sent if pid == 1234] == []


def test_run_directory_that_fails_at_the_start_ends_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = OneHost(tmp_path).answer()

    def fail(path: Path, folder: Path) -> bool:
        raise cannot("list", path.parent, OSError(errno.ELOOP, os.strerror(errno.ELOOP)))

    monkeypatch.setattr("gridtf.bootstrap.agent.agent.is_listed", fail)
    assert host.main() == NO_WRITE
    assert host.system.logged[-1].startswith("agent on h0: cannot list ")


@pytest.mark.parametrize("spec", [{}, {"entry": "train:main"}])
def test_agent_writes_nothing_but_logs_into_the_run_directory(spec: dict[str, Any], tmp_path: Path) -> None:
    host = OneHost(tmp_path, **spec).answer().exit(0, 0, 5).stop(10)
    before = set(host.attempt.run.path.rglob("*"))
    assert host.main() == 0
    logs = {host.attempt.task_log("worker", index) for index in (0, 1)}
    assert set(host.attempt.run.path.rglob("*")) - before - {host.attempt.logs} == logs


def test_unchanged_state_is_not_sent_again(tmp_path: Path) -> None:
    host = OneHost(tmp_path).answer().stop(60)
    counted: list[tuple[int, int]] = []
    for when in (10, 50):
        host.system.at(when, lambda: counted.append((len(host.link.sent), host.link.beats)))
    assert host.main() == 0
    (sent, beats), (sent_later, beats_later) = counted
    assert sent == sent_later
    assert 20 <= beats_later - beats <= 45


def test_last_state_leaves_the_host_before_the_agent_ends(tmp_path: Path) -> None:
    host = OneHost(tmp_path).answer().stop(5)
    assert host.main() == 0
    assert host.record["over"] is True
    assert (host.link.drained, host.link.closed) == (True, True)


def test_stop_message_alone_ends_the_tasks(tmp_path: Path) -> None:
    """srun may be gone, and with it the way of signals."""
    host = OneHost(tmp_path).answer()
    host.system.at(5, host.tell_stop)
    assert host.main() == 0
    assert {how[0] for how in host.states().values()} == {"STOPPED"}
    assert host.system.clock - 1000 < 10


def test_stop_signal_before_its_message_is_no_orphan_s(tmp_path: Path) -> None:
    host = OneHost(tmp_path).answer()
    host.system.at(5.0, lambda: host.system.receive(STOP_SIGNAL))
    host.system.at(5.5, host.tell_stop)
    assert host.main() == 0
    assert host.record.get("gone") is None


def test_gpu_grant_error_is_reported_in_the_host_record(tmp_path: Path) -> None:
    host = OneHost(tmp_path).answer()
    host.site.refusal = PlacementError("too few GPUs", why="1 of 2", hint="ask for more")
    assert host.main() == BROKEN
    assert host.record["gone"] == {"what": "too few GPUs", "why": "1 of 2", "hint": "ask for more"}


def test_wait_for_gpus_is_reported_in_the_host_record(tmp_path: Path) -> None:
    host = OneHost(tmp_path).answer().stop(20)
    host.site.waits = [("waiting for 2 GPUs", 3.0), ("waiting for 2 GPUs", 3.0)]
    seen: list[Any] = []
    host.system.at(5, lambda: seen.append(host.record.get("waits")))
    host.system.at(15, lambda: seen.append(host.record.get("waits")))
    assert host.main() == 0
    assert seen == ["waiting for 2 GPUs", None]
    assert host.system.logged == ["agent on h0: waiting for 2 GPUs"]


SERVED: dict[str, Any] = {"tasks": {"chief": {}, "worker": {"count": 1}}, "serve": ["worker"]}


def test_killed_served_worker_is_restarted(tmp_path: Path) -> None:
    host = OneHost(tmp_path, **SERVED).answer().exit(1, -signal.SIGKILL, 5).stop(10)
    assert host.main() == 0
    worker = host.record["tasks"]["worker:0"]
    assert (len(host.pids), worker["restarts"], worker["state"], worker["pid"]) == (3, 1, "STOPPED", host.pids[2])
    assert host.system.started[host.pids[1]]["env"] == host.system.started[host.pids[2]]["env"]
    assert "the task was killed: restart 1 of at most 5" in host.attempt.task_log("worker", 0).read_text()


def test_restart_waits_for_child_processes_that_may_hold_the_port(tmp_path: Path) -> None:
    host = OneHost(tmp_path, **SERVED).answer().stop(10)
    child: list[int] = []

    def die_but_for_a_child() -> None:
        child.append(host.system.start(["child"], {}))
        host.system.sessions[child[0]] = host.pids[1]
        host.system.immortal = set(child)
        host.system.exit(host.pids[1], -signal.SIGKILL)

    host.system.at(5, die_but_for_a_child)
    host.system.at(8, lambda: host.system.exit(child[0], -signal.SIGKILL))
    assert host.main() == 0
    assert (child[0], signal.SIGKILL) in host.system.sent
    assert host.record["tasks"]["worker:0"]["restarts"] == 1
    assert host.record["tasks"]["worker:0"]["started"] >= 5008


@pytest.mark.parametrize(
    ("spec", "name", "restarts"),
    [
        (SERVED, "worker:0", 5),
        ({"tasks": {"worker": {"count": 1}, "ps": {}}, "serve": ["ps"]}, "ps:0", 0),
        ({"tasks": {"worker": {"count": 1}, "data_worker": {}}}, "data_dispatcher:0", 5),
    ],
)
def test_served_task_fails_after_the_restarts_of_its_type(
    spec: dict[str, Any], name: str, restarts: int, tmp_path: Path
) -> None:
    host = OneHost(tmp_path, **spec).answer().stop(30)
    for number in range(6):
        host.system.at(5 + 2 * number, lambda: host.system.exit(host.record["tasks"][name]["pid"], -9))
    assert host.main() == 0
    assert host.states()[name] == ("FAILED", None, "SIGKILL")
    assert host.record["tasks"][name]["restarts"] == restarts


ON_FAILURE: dict[str, Any] = {"tasks": {"worker": {"count": 2, "on_failure": "restart"}}}


def test_task_is_started_again_in_place_after_any_failure_if_its_table_says_so(tmp_path: Path) -> None:
    host = OneHost(tmp_path, **ON_FAILURE).answer().exit(0, 3, 5).stop(10)
    assert host.main() == 0
    first = host.record["tasks"]["worker:0"]
    assert (first["restarts"], first["state"], len(host.pids)) == (1, "STOPPED", 3)
    assert host.record["tasks"]["worker:1"]["restarts"] == 0
    again, before = (host.system.started[host.pids[number]]["env"] for number in (2, 0))
    assert again["TF_CONFIG"] == before["TF_CONFIG"]


@pytest.mark.parametrize(("code", "table"), [(127, "restart"), (3, "attempt"), (-9, "attempt"), (-9, "end")])
def test_task_is_not_started_again_in_place(code: int, table: str, tmp_path: Path) -> None:
    host = OneHost(tmp_path, tasks={"worker": {"count": 2, "on_failure": table}}).answer().exit(0, code, 5).stop(10)
    assert host.main() == 0
    assert (host.states()["worker:0"][0], len(host.pids)) == ("FAILED", 2)


@pytest.mark.parametrize(("free", "state"), [(20.0, "STOPPED"), (float("inf"), "FAILED")])
def test_port_of_a_task_that_is_started_again_is_free_before(free: float, state: str, tmp_path: Path) -> None:
    host = OneHost(tmp_path, **ON_FAILURE).answer().exit(0, 3, 5).stop(120)
    host.system.at(5, lambda: host.system.opened.add(host.published["ports"]["worker:0"]))
    if free < 100:
        host.system.at(free, host.system.opened.clear)
    assert host.main() == 0
    task = host.record["tasks"]["worker:0"]
    assert task["state"] == state
    if state == "STOPPED":
        assert task["started"] >= 5000 + free
    else:
        assert "still listens on its port" in task["error"]


def test_processes_that_survive_sigkill_are_reported(tmp_path: Path) -> None:
    host = OneHost(tmp_path).answer().stop(8)
    host.system.at(5, lambda: host.system.immortal.add(host.pids[0]))
    assert host.main() == LEFTOVERS
    assert host.record["over"] is False
    assert f"agent on h0: processes survived SIGKILL: [{host.pids[0]}]" in host.system.logged


# --- attempts in the same allocation


@pytest.mark.parametrize(("free", "begin"), [(20.0, 20.0), (float("inf"), 60.0)])
def test_further_attempt_waits_for_the_memory_of_its_gpus_for_a_minute(
    free: float, begin: float, tmp_path: Path
) -> None:
    host = OneHost(tmp_path, start_timeout=300).answer().stop(100)
    host.attempt.number = 2
    used = {"0": 4096}
    host.system.gpu_memory = lambda gpus: used if host.system.clock < 1000 + free else {}  # type: ignore[method-assign]
    host.system.at(10, lambda: seen.append(host.record.get("waits")))
    seen: list[Any] = []
    assert host.main() == 0
    assert seen == ["GPU 0 has 4096 MiB in use"]
    assert begin <= min(task["started"] for task in host.record["tasks"].values()) - 5000 < begin + 5
    assert host.published.get("gpus_in_use", {}) == (used if free > 60 else {})


def lost_launcher(folder: Path, answers: list[bool], **spec: Any) -> tuple[OneHost, list[float]]:
    """An agent whose launcher, on another host, is silent after 5 s; and when it has asked the scheduler."""
    host = OneHost(folder, **spec).answer()
    host.system.known = set()
    host.system.at(5, lambda: setattr(host, "silent", True))
    asked: list[float] = []

    def give_back(environ: Mapping[str, str]) -> bool:
        asked.append(host.system.clock - 1000)
        return answers[len(asked) - 1]

    host.site.give_back = give_back  # type: ignore[method-assign]
    return host, asked


def test_agent_sees_to_it_that_a_job_without_its_launcher_s_host_ends(tmp_path: Path) -> None:
    host, asked = lost_launcher(tmp_path, [False, False, True], restarts=1)
    assert host.main() == NO_LAUNCHER
    assert host.system.alive == set()
    assert len(asked) == 3
    assert min(later - earlier for earlier, later in itertools.pairwise(asked)) >= 10


def test_agent_of_a_job_that_the_scheduler_ends_by_itself_asks_nothing(tmp_path: Path) -> None:
    host, asked = lost_launcher(tmp_path, [])
    assert host.main() == NO_LAUNCHER
    assert asked == []


def test_signal_ends_an_agent_that_asks(tmp_path: Path) -> None:
    host, asked = lost_launcher(tmp_path, [False] * 1000, restarts=1)
    host.system.at(200, lambda: host.system.receive(signal.SIGTERM))
    assert host.main() == NO_LAUNCHER
    assert host.system.clock < 1230
    assert asked


# --- what is left behind


def test_what_tasks_leave_behind_is_reported(tmp_path: Path) -> None:
    host = OneHost(tmp_path).answer().stop(8)
    host.system.memory = {"/dev/shm/before": 1 << 20}
    host.gpus = GpuGrant(("3",), (9,))
    host.system.at(5, lambda: host.system.memory.update({"/dev/shm/nccl-7": 3 << 20}))
    host.system.at(5, lambda: host.system.gpus_in_use.update({"3": 700, "4": 900}))
    host.system.at(5, lambda: host.system.opened.add(host.published["ports"]["worker:1"]))
    host.system.at(5, lambda: host.system.immortal.add(host.pids[0]))
    assert host.main() == LEFTOVERS
    assert host.record["left"] == [
        f"processes that survived SIGKILL: {host.pids[0]}",
        f"the port of worker:1, {host.published['ports']['worker:1']}",
        "/dev/shm/nccl-7 (3 MiB of memory, made by this or another job of yours)",
        "GPU 3 has 700 MiB in use",
        "claims of GPUs 3",
    ]


def test_memory_of_other_programs_on_a_gpu_is_not_left_behind(tmp_path: Path) -> None:
    host = OneHost(tmp_path).answer().stop(8)
    host.gpus = GpuGrant(("3",), (9,))
    host.system.gpus_in_use.update({"3": 62802})
    assert host.main() == 0
    assert host.published["gpus_in_use"] == {"3": 62802}
    assert "left" not in host.record


def test_nothing_is_left_behind_usually(tmp_path: Path) -> None:
    host = OneHost(tmp_path).answer().stop(8)
    host.system.memory = {"/dev/shm/before": 1 << 20}
    assert host.main() == 0
    assert "left" not in host.record


@pytest.mark.parametrize("kind", ["", "mpirun"])
def test_files_of_others_are_not_left_behind_by_a_job_that_ends_before_its_tasks_start(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = OneHost(tmp_path)
    host.plan = host.plan.replace(request=host.plan.request.replace(mpi=kind), key=os.urandom(32).hex())
    host.system.at(1, host.tell_plan)
    segment = tmp_path / "vader_segment.of.another.job"
    segment.touch()
    host.system.memory = {str(segment): 1 << 20}
    with socket.socket(socket.AF_UNIX) as ranks:  # the end of an agent closes it
        monkeypatch.setattr("gridtf.starters.mpi.world.opened", lambda plan, host: ranks)
        assert host.stop(8).main() == 0
    assert host.published["ports"]
    assert ("left" in host.record, segment.exists()) == (False, True)


def test_bug_of_a_feature_ends_an_agent_whose_job_must_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: object) -> Any:
        raise ValueError("boom")

    monkeypatch.setattr(stage.InAgent, "prepare", fails)
    monkeypatch.setattr(InAgent, "look", fails)
    one = OneHost(tmp_path, stage=["/data"]).answer()
    assert one.agent.main() == BROKEN
    assert one.record["gone"]["what"] == "gridtf's stage has failed: ValueError: boom"
    (tmp_path / "other").mkdir()
    other = OneHost(tmp_path / "other").answer().stop(5.0)
    assert other.agent.main() == 0
    assert len([line for line in other.system.logged if "gridtf's exec has failed" in line]) == 1


def test_folders_and_variables_that_features_have_prepared_reach_the_next_one_and_the_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def staged(_: object) -> Prepared:
        return Prepared({"STAGED_BY": "first", "PATH": None}, (Path("/copies"),))

    def set_up(feature: hostsetup.InAgent) -> Prepared:
        environ = feature.view.system.environ
        assert feature.view.folders == (Path("/copies"),)
        return Prepared({"SEEN": environ["STAGED_BY"], "NO_PATH": str("PATH" not in environ)})

    monkeypatch.setattr(stage.InAgent, "prepare", staged)
    monkeypatch.setattr(hostsetup.InAgent, "prepare", set_up)
    one = OneHost(tmp_path, stage=["/data"], host_setup=["module load cuda"]).answer().stop(5.0)
    assert one.agent.main() == 0
    env = one.system.started[one.pids[0]]["env"]
    assert (env["SEEN"], env["NO_PATH"]) == ("first", "True")


def test_feature_that_is_off_does_not_wake_its_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: object) -> Any:
        raise ValueError("boom")

    monkeypatch.setattr(membership.InAgent, "look", fails)
    one, waits = OneHost(tmp_path).answer().stop(20.0), []
    wait = one.system.wait

    def waited(seconds: float) -> int | None:
        waits.append(seconds)
        assert waits.count(0.0) <= 1
        return wait(seconds)

    monkeypatch.setattr(one.system, "wait", waited)
    assert one.agent.main() == 0
    assert len(waits) > 10
