"""The tasks of one host: started in their own sessions, watched, and torn down until no process is left.

Each test runs a supervisor in a process of its own, which adopts all orphans below it, as an agent does.
"""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gridtf.bootstrap.agent.supervisor import Supervisor, TaskProcess
from gridtf.bootstrap.system import System
from gridtf.host import processes, procfs, usage
from tests.support.jobs import gone
from tests.support.python import environment, python
from tests.support.system import FakeSystem

PREAMBLE = """
import atexit, json, os, signal, sys, time
from pathlib import Path
from gridtf.host import processes, procfs
from gridtf.bootstrap.agent.supervisor import InPlace, Program, Supervisor
from gridtf.bootstrap.system import System
processes.block_signals()
processes.become_subreaper()
here = Path.cwd()
atexit.register(lambda: processes.signal_all(procfs.descendants(os.getpid()), signal.SIGKILL))  # where a test fails

def until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)

def start(s, name, *argv, cwd=here, **env):
    s.start(name, Program(argv, {"PATH": os.environ["PATH"], **env}, cwd, here / f"{name}.log"))

def ended(s):
    until(lambda: s.collect() or not s.running())
    while s.running():
        s.collect(); time.sleep(0.01)

def pid_in(name):
    until(lambda: (here / name).exists() and (here / name).read_text().endswith("\\n"))
    return int((here / name).read_text())

def tell(s, **more):
    print(json.dumps({"tasks": {name: task.record() for name, task in s.tasks.items()}, **more}), flush=True)
"""


def supervised(folder: Path, code: str, *, seconds: float = 60.0) -> dict[str, Any]:
    """Run code with the helpers above in another process; returns what it reported."""
    command = python(PREAMBLE + code)
    done = subprocess.run(command, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True, timeout=seconds)
    assert done.returncode == 0
    return json.loads(done.stdout)  # type: ignore[no-any-return]


# --- starting


def test_task_runs_with_its_environment_folder_and_log(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    report = supervised(
        tmp_path,
        "s = Supervisor(['worker:0'], System())\n"
        "script = 'echo \"$A $PWD\"; echo two >&2; cat; exit 0'\n"
        "start(s, 'worker:0', 'bash', '-c', script, cwd=here / 'sub', A='x')\n"
        "ended(s); tell(s)\n",
    )
    task = report["tasks"]["worker:0"]
    assert (task["state"], task["exit"], task["signal"], task["error"], task["oom"]) == (
        "COMPLETED",
        0,
        None,
        None,
        False,
    )
    assert task["started"] <= task["ended"]
    assert (tmp_path / "worker:0.log").read_text() == f"x {tmp_path}/sub\ntwo\n"


def test_task_has_its_own_session_and_default_signals(tmp_path: Path) -> None:
    """A task that inherited blocked signals could not be ended by TERM, nor hear of its children's end."""
    report = supervised(
        tmp_path,
        "s = Supervisor(['a', 'b'], System())\n"
        "code = 'import os, signal, sys; print(os.getpid() == os.getsid(0), os.getpgid(0) == os.getpid(),'\\\n"
        "    ' sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())))'\n"
        "for name in s.tasks: start(s, name, sys.executable, '-c', code)\n"
        "ended(s); tell(s)\n",
    )
    assert {task["state"] for task in report["tasks"].values()} == {"COMPLETED"}
    assert (tmp_path / "a.log").read_text() == (tmp_path / "b.log").read_text() == "True True []\n"


def test_task_inherits_only_kept_descriptors(tmp_path: Path) -> None:
    report = supervised(
        tmp_path,
        "s = Supervisor(['a'], System())\n"
        "lock, other = os.open('/dev/null', os.O_RDONLY), os.open('/dev/zero', os.O_RDONLY)\n"
        "env = {'PATH': os.environ['PATH']}\n"
        "s.start('a', Program(['ls', '-l', '/proc/self/fd'], env, here, here / 'a.log', [lock]))\n"
        "ended(s); tell(s, lock=lock)\n",
    )
    listing = (tmp_path / "a.log").read_text()
    assert f"{report['lock']} -> /dev/null" in listing
    assert "/dev/zero" not in listing
    assert "0 -> /dev/null" in listing  # a task has no input


@pytest.mark.parametrize(
    ("program", "code", "error"),
    [
        ("no-such-command", 127, "command not found: no-such-command (PATH="),
        ("./no-such-file", 127, "command not found: ./no-such-file"),
        ("./plain.txt", 126, "cannot run ./plain.txt: Permission denied"),
        (".", 126, "cannot run .: Permission denied"),
    ],
)
def test_command_that_cannot_be_started_fails_the_task(tmp_path: Path, program: str, code: int, error: str) -> None:
    (tmp_path / "plain.txt").write_text("x")
    report = supervised(tmp_path, f"s = Supervisor(['a', 'b'], System()); start(s, 'a', {program!r}); tell(s)\n")
    task = report["tasks"]["a"]
    assert (task["state"], task["exit"], task["pid"], task["signal"]) == ("FAILED", code, None, None)
    assert task["error"].startswith(error)
    assert task["ended"] is not None
    assert (tmp_path / "a.log").read_text() == f"gridtf: {task['error']}\n"
    assert report["tasks"]["b"]["state"] == "PENDING"


def test_missing_interpreter_of_a_script_is_reported(tmp_path: Path) -> None:
    (tmp_path / "train").write_text("#!/no/such/python\n")
    (tmp_path / "train").chmod(0o755)
    report = supervised(tmp_path, "s = Supervisor(['a'], System()); start(s, 'a', './train'); tell(s)\n")
    task = report["tasks"]["a"]
    assert task["exit"] in (126, 127)
    assert "command not found" not in task["error"]
    assert "/no/such/python" in task["error"]


def test_missing_working_folder_is_reported(tmp_path: Path) -> None:
    report = supervised(
        tmp_path, "s = Supervisor(['a'], System()); start(s, 'a', 'true', cwd=here / 'gone'); tell(s)\n"
    )
    assert report["tasks"]["a"]["error"] == f"the working folder {tmp_path}/gone does not exist on this host"
    assert report["tasks"]["a"]["exit"] == 127


def test_log_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """A full disk when the tasks start: the job must fail cleanly, not with a traceback."""
    report = supervised(
        tmp_path,
        "from gridtf.errors import GridtfError\n"
        "s, said = Supervisor(['a'], System()), ''\n"
        "try: s.start('a', Program(['true'], dict(os.environ), here, here / 'gone' / 'a.log'))\n"
        "except GridtfError as error: said = error.what\n"
        "tell(s, said=said)\n",
    )
    assert f"{tmp_path}/gone/a.log" in (report["said"] or str(report["tasks"]["a"]["error"]))


# --- ends


def test_collect_records_exit_codes_and_signals(tmp_path: Path) -> None:
    report = supervised(
        tmp_path,
        "ends = {'ok': 'exit 0', 'three': 'exit 3', 'saved': 'exit 42',\n"
        "        'kill': 'kill -KILL $$', 'segv': 'kill -SEGV $$',\n"
        "        'real-time': 'kill -40 $$', 'term': 'kill -TERM $$'}\n"
        "s = Supervisor([*ends, 'never'], System())\n"
        "for name, end in ends.items(): start(s, name, 'bash', '-c', end)\n"
        "ended(s); tell(s, again=s.collect(), running=len(s.running()))\n",
    )
    found = {name: (task["state"], task["exit"], task["signal"]) for name, task in report["tasks"].items()}
    assert found == {
        "ok": ("COMPLETED", 0, None),
        "three": ("FAILED", 3, None),
        "saved": ("SAVED", 42, None),
        "kill": ("FAILED", None, "SIGKILL"),
        "segv": ("FAILED", None, "SIGSEGV"),
        "real-time": ("FAILED", None, "signal 40"),
        "term": ("FAILED", None, "SIGTERM"),
        "never": ("PENDING", None, None),
    }
    assert (report["again"], report["running"]) == (False, 0)


def test_tasks_collected_together_have_the_same_end_time(tmp_path: Path) -> None:
    """It is unknown which ended first; the order of the table must not decide which task is the cause."""
    report = supervised(
        tmp_path,
        "import itertools\n"
        "ticks = itertools.count(1)\n"
        "class Ticking(System):\n"
        "    def time(self): return float(next(ticks))\n"
        "s = Supervisor(['a', 'b'], Ticking())\n"
        "start(s, 'a', 'false'); start(s, 'b', 'false')\n"
        "until(lambda: not procfs.descendants(os.getpid()))\n"
        "s.collect(); tell(s)\n",
    )
    assert report["tasks"]["a"]["ended"] == report["tasks"]["b"]["ended"]


def test_out_of_memory_kill_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    kills = iter([5, 5, 6])
    monkeypatch.setattr(usage, "out_of_memory_kills", lambda: next(kills))
    supervisor = Supervisor(["a", "b"], System())
    for pid, task in enumerate(supervisor.tasks.values(), 100):
        task.state, task.pid = "RUNNING", pid
    ended = iter([{100: -signal.SIGKILL}, {101: -signal.SIGKILL}])
    monkeypatch.setattr("gridtf.host.processes.reap", lambda: next(ended))
    assert supervisor.collect()
    assert supervisor.collect()
    assert [task.oom for task in supervisor.tasks.values()] == [False, True]


def test_task_record_is_json() -> None:
    record = TaskProcess("a").record()
    assert json.loads(json.dumps(record)) == record
    assert record == {
        "state": "PENDING",
        "pid": None,
        "started": None,
        "ended": None,
        "exit": None,
        "signal": None,
        "oom": False,
        "error": None,
        "restarts": 0,
    }


# --- tear-down


def test_tear_down_stops_a_task_with_sigterm(tmp_path: Path) -> None:
    report = supervised(
        tmp_path,
        "s = Supervisor(['a', 'b', 'c'], System())\n"
        "polite = \"trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done\"\n"
        "start(s, 'a', 'bash', '-c', polite); start(s, 'b', 'bash', '-c', 'exit 4'); start(s, 'c', 'sleep', '100')\n"
        "until(lambda: (here / 'a.log').read_text() == 'up\\n')\n"
        "until(lambda: s.collect() or s.tasks['b'].state == 'FAILED')\n"
        "beats = []\n"
        "left = s.tear_down(20.0, lambda: beats.append(1)); tell(s, left=left, beats=len(beats))\n",
    )
    assert report["left"] == []
    assert (tmp_path / "a.log").read_text().endswith("bye\n")
    found = {name: (task["state"], task["exit"], task["signal"]) for name, task in report["tasks"].items()}
    assert found == {"a": ("STOPPED", 0, None), "b": ("FAILED", 4, None), "c": ("STOPPED", None, "SIGTERM")}


@pytest.mark.thorough
def test_tear_down_ends_descendants_in_other_sessions(tmp_path: Path) -> None:
    """A child that ignores TERM, one that called setsid, a daemon that forked twice, one that is stopped."""
    for name, script in {
        "stubborn.sh": "trap '' TERM INT HUP; echo $$ >stubborn; while :; do sleep 1; done",
        "session.sh": "trap 'echo bye >goodbye; exit' TERM; echo $$ >session; while :; do sleep 0.05; done",
        "daemon.sh": "trap '' TERM; echo $$ >daemon; sleep 1000; :",
        "stopped.sh": "echo $$ >stopped; kill -STOP $$",
        "task.sh": "bash stubborn.sh & setsid bash session.sh & (setsid bash -c '(setsid bash daemon.sh &)' &)\n"
        "bash stopped.sh & sleep 1000",
    }.items():
        (tmp_path / name).write_text(script)
    report = supervised(
        tmp_path,
        "s = Supervisor(['a'], System()); start(s, 'a', 'bash', 'task.sh')\n"
        "pids = {name: pid_in(name) for name in ('stubborn', 'session', 'daemon', 'stopped')}\n"
        "sessions = {name: os.getsid(pid) for name, pid in pids.items()}\n"
        "left = s.tear_down(3.0, lambda: None)\n"
        "tell(s, pids=pids, sessions=sessions, left=left, top=s.tasks['a'].pid)\n",
    )
    assert report["left"] == []
    assert report["sessions"]["session"] == report["pids"]["session"]
    assert report["sessions"]["daemon"] == report["pids"]["daemon"]
    assert report["sessions"]["stubborn"] == report["top"]
    assert gone(*report["pids"].values())
    assert report["tasks"]["a"]["state"] == "STOPPED"
    assert (tmp_path / "goodbye").read_text() == "bye\n"  # every process has received SIGTERM first


@pytest.mark.thorough
def test_tear_down_leaves_tasks_time_to_save_before_what_has_started_them_notices(tmp_path: Path) -> None:
    """Like mpirun, which ends all ranks when one is gone, or when it is told to end."""
    starter = "trap 'touch told' TERM; echo $$ >starter; until [ -e gone ]; do sleep 0.1; done; touch told; sleep 1000"
    (tmp_path / "starter.sh").write_text(starter)
    task = "trap 'touch gone; sleep 1; ls told; echo saved; exit' TERM; echo $$ >task; sleep 9 & wait"
    (tmp_path / "task.sh").write_text(task)
    report = supervised(
        tmp_path,
        "s = Supervisor(['a'], System()); start(s, 'a', 'bash', 'task.sh')\n"
        "other = System().start(['bash', 'starter.sh'], dict(os.environ)); s.others[other] = None\n"
        "pids = [pid_in('task'), pid_in('starter')]\n"
        "left = s.tear_down(1000.0, lambda: None)\n"  # more than this process may take
        "tell(s, pids=pids, left=left, others=s.others)\n",
    )
    assert (report["left"], [*report["others"].values()]) == ([], [-signal.SIGKILL])
    assert gone(*report["pids"])
    log = (tmp_path / "a.log").read_text()
    assert log.endswith("saved\n")
    assert "cannot access" in log


def test_tear_down_ends_orphans_of_ended_tasks(tmp_path: Path) -> None:
    report = supervised(
        tmp_path,
        "s = Supervisor(['a'], System())\n"
        "start(s, 'a', 'bash', '-c', \"setsid bash -c 'echo $$ >daemon; exec sleep 1000' & exit 0\")\n"
        "ended(s); pid = pid_in('daemon'); before = procfs.alive(pid)\n"
        "left = s.tear_down(5.0, lambda: None); tell(s, left=left, pid=pid, before=before)\n",
    )
    assert report["before"]
    assert report["left"] == []
    assert gone(report["pid"])
    assert report["tasks"]["a"]["state"] == "COMPLETED"


@pytest.mark.thorough
def test_tear_down_ends_processes_that_keep_forking(tmp_path: Path) -> None:
    code = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "end = time.monotonic() + 30\n"
        "while time.monotonic() < end:\n"
        "    time.sleep(0.02)\n"
        "    if os.fork(): os._exit(0)\n"  # a new pid every time: a process that was found has ended at once
        "    os.setsid()\n"
    )
    report = supervised(
        tmp_path,
        f"s = Supervisor(['a'], System()); start(s, 'a', sys.executable, '-c', {code!r}); time.sleep(0.3)\n"
        "left = s.tear_down(0.1, lambda: None); time.sleep(0.2)\n"
        "tell(s, left=left, later=procfs.descendants(os.getpid()))\n",
    )
    assert (report["left"], report["later"]) == ([], [])


def test_tear_down_waits_for_threads_whose_process_looks_ended(tmp_path: Path) -> None:
    """TensorFlow's threads hold ports and memory for a while after the main thread: /proc shows a zombie by then."""
    code = (
        "import ctypes, os, threading, time\n"
        "def goes_on():\n"
        "    end = time.monotonic() + 60\n"
        "    while not os.path.exists('asked') and time.monotonic() < end: time.sleep(0.02)\n"
        "    os._exit(7)\n"
        "threading.Thread(target=goes_on).start()\n"
        "print('up', flush=True)\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    report = supervised(
        tmp_path,
        f"s = Supervisor(['a'], System()); start(s, 'a', sys.executable, '-c', {code!r})\n"
        "until(lambda: (here / 'a.log').read_text() == 'up\\n' and procfs.state(s.tasks['a'].pid) == 'Z')\n"
        "s.spared = [os.posix_spawnp('sleep', ['sleep', '100'], os.environ, setsigmask=[])]\n"
        "before = s.collect(); left = s.tear_down(40.0, (here / 'asked').touch); tell(s, left=left, before=before)\n",
    )
    assert (report["before"], report["left"]) == (False, [])
    assert (report["tasks"]["a"]["state"], report["tasks"]["a"]["exit"]) == ("STOPPED", 7)


def test_own_process_that_a_driver_blocks_is_no_survivor() -> None:
    system = FakeSystem()
    supervisor = Supervisor(["a"], system)
    system.alive, system.immortal = {7, 8}, {7}
    supervisor.spared = [7]
    assert supervisor.tear_down(1.0, lambda: None) == []
    system.alive, system.immortal = {7, 8}, {7, 8}
    assert supervisor.tear_down(1.0, lambda: None) == [8]


def test_tear_down_without_processes_returns_at_once(tmp_path: Path) -> None:
    report = supervised(
        tmp_path, "s = Supervisor(['a'], System()); left = s.tear_down(1000.0, lambda: 1 / 0); tell(s, left=left)\n"
    )
    assert report["left"] == []
    assert report["tasks"]["a"]["state"] == "PENDING"


def test_tasks_die_with_a_killed_supervisor(tmp_path: Path) -> None:
    code = PREAMBLE + "s = Supervisor(['a'], System()); start(s, 'a', 'sleep', '1000'); tell(s); time.sleep(1000)\n"
    command = python(code)
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        pid = json.loads(supervisor.stdout.readline())["tasks"]["a"]["pid"]
        try:
            assert procfs.alive(pid)
            supervisor.kill()
            assert gone(pid)
        finally:
            processes.signal_all([pid], signal.SIGKILL)


# --- starting again


RESTARTED = """
s = Supervisor(["worker:0"], System())
script = "echo $$ >>pids; exec sleep 1000"
env = {"PATH": os.environ["PATH"]}
s.start("worker:0", Program(["bash", "-c", script], env, here, here / "log", in_place=InPlace(2)))

def pids():
    return [int(line) for line in (here / "pids").read_text().split()] if (here / "pids").exists() else []

def killed(number, with_signal=signal.SIGKILL):
    until(lambda: len(pids()) == number)
    os.kill(pids()[-1], with_signal)
    until(s.collect)
    return s.tasks["worker:0"].record()
"""


def test_killed_task_is_restarted_up_to_max_restarts(tmp_path: Path) -> None:
    report = supervised(
        tmp_path,
        RESTARTED + "states = []\n"
        "for number in (1, 2, 3):\n"
        "    states.append((killed(number)['state'], s.restart()))\n"
        "tell(s, states=states, pids=pids(), more=s.restart())\n",
    )
    assert report["states"] == [["PENDING", True], ["PENDING", True], ["FAILED", False]]
    task = report["tasks"]["worker:0"]
    assert (task["state"], task["signal"], task["restarts"], report["more"]) == ("FAILED", "SIGKILL", 2, False)
    assert len(set(report["pids"])) == 3
    said = (tmp_path / "log").read_text().splitlines()
    assert said == [f"gridtf: the task was killed: restart {number} of at most 2" for number in (1, 2)]


def test_task_that_exits_is_not_restarted(tmp_path: Path) -> None:
    report = supervised(
        tmp_path,
        "s = Supervisor(['worker:0'], System())\n"
        "env = {'PATH': os.environ['PATH']}\n"
        "s.start('worker:0', Program(['bash', '-c', 'exit 3'], env, here, here / 'log', in_place=InPlace(2)))\n"
        "ended(s); tell(s, more=s.restart())\n",
    )
    assert (report["tasks"]["worker:0"]["state"], report["more"]) == ("FAILED", False)


def test_restart_waits_until_no_process_of_the_task_is_left(tmp_path: Path) -> None:
    """A child that it has left might hold its port: two servers on one port would each get half of the calls."""
    report = supervised(
        tmp_path,
        RESTARTED.replace("exec sleep", "sleep 999 & echo $! >child; exec sleep")
        + "child = pid_in('child'); until(lambda: len(pids()) == 1); killed(1)\n"
        "assert procfs.alive(child)\n"
        "first = s.restart()\n"
        "until(lambda: s.collect() or not procfs.alive(child))\n"
        "until(s.restart)\n"
        "until(lambda: len(pids()) == 2)\n"
        "tell(s, first=first)\n"
        "s.tear_down(1.0, lambda: None)\n",
    )
    assert not report["first"]
    assert (report["tasks"]["worker:0"]["state"], report["tasks"]["worker:0"]["restarts"]) == ("RUNNING", 1)


@pytest.mark.parametrize("how", ["s.mark_stopped()", "s.tear_down(1.0, lambda: None)"])
def test_task_is_not_restarted_when_the_job_ends(tmp_path: Path, how: str) -> None:
    report = supervised(
        tmp_path,
        f"{RESTARTED}killed(1, signal.SIGTERM); report = bool(s.possibly_terminated())\n"
        f"{how}; tell(s, report=report, more=s.restart())",
    )
    assert (report["tasks"]["worker:0"]["state"], report["report"], report["more"]) == ("STOPPED", True, False)
