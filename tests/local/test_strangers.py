"""Another user of the host plants files and folders: gridtf does not act upon them, and alice's jobs run."""

from __future__ import annotations

import json
import os
import pwd
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridtf.cli import main
from gridtf.host import procfs
from gridtf.host.processes import signal_all
from gridtf.host.users import run_as
from tests.support.jobs import until
from tests.support.python import ROOT, environment
from tests.support.strangers import (
    ALICE,
    BOB,
    EXCHANGE,
    GROUP,
    LIMIT,
    MOMENTS,
    START_TIMEOUT,
    Done,
    Strangers,
    share_with,
)

pytestmark = pytest.mark.root
NONCE = "0123456789abcdef"


@pytest.fixture
def strangers() -> Iterator[Strangers]:
    folder = Path(tempfile.mkdtemp(prefix="gridtf-strangers-", dir="/tmp"))
    folder.chmod(0o755)
    made = Strangers(folder)
    # learns from the end of its input that it is time, also when this process is killed
    remove = ["sh", "-c", 'cat; rm -rf "$0"', str(folder)]
    guard = subprocess.Popen(remove, stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield made
        until(lambda: not made.jobs(), "the end of alice's jobs")
    finally:
        signal_all(made.jobs(), signal.SIGKILL)
        until(lambda: not made.jobs(), "the end of what was killed")
        guard.communicate(timeout=LIMIT)


# --- what bob puts in the place of a run directory of alice's (he has read the nonce, which is everybody's to read)

FORGE = """
import os, signal, sys, time
from contextlib import suppress
from pathlib import Path
from gridtf.bootstrap.wire import messages
from gridtf.bootstrap.plan import placement, rendezvous
from gridtf.bootstrap.plan.rendezvous import AttemptPlan
from gridtf.bootstrap.wire.stream import Listener
from gridtf.bootstrap.system import System
from gridtf.run.rundir import RunDir, write_record
from gridtf.schedulers.api import Allocation, Host
from gridtf.jobspec.request import resolve
from gridtf.jobspec.spec import JobSpec

def forge(path, ran, nonce):
    os.umask(0)
    attempt, host, spec = RunDir(path).attempt(1), os.uname().nodename, JobSpec(command=("touch", ran))
    for folder in (attempt.state, attempt.logs):
        folder.mkdir(parents=True)
    request = resolve(spec, "local", memory=False)
    tasks = placement.place(Allocation((Host(host, 1, cpus=1),)), request)
    hosts, python = {host: "127.0.0.1"}, sys.executable
    plan = AttemptPlan(attempt, nonce, "7", spec, request, hosts, tasks, python, Path("/"))
    plan.write()
    record = dict(nonce=nonce, host=host, address="127.0.0.1", ports={"worker:0": 1}, master_port=1)
    meeting = rendezvous.merge(tasks, {host: record})
    rendezvous.publish(attempt, "7", nonce, meeting)
    write_record(attempt.launcher, dict(nonce=nonce, beat=1))
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])
    secret = os.urandom(32)
    listener = Listener(secret, System())
    write_record(attempt.listener, dict(nonce=nonce, addresses=["127.0.0.1"], port=listener.port, secret=secret.hex()))
    for path in attempt.path.rglob("*"):
        with suppress(OSError):  # alice's launcher may have put one of its own there meanwhile
            path.chmod(0o777)
    if os.fork():  # the child serves whoever connects, until the test removes the plan for good
        return
    for number in (0, 1, 2):
        os.close(number)
    listener.send(host, messages.PLAN, plan.of_host(host).to_record())
    listener.send_all(messages.RENDEZVOUS, meeting.to_record())
    end = time.monotonic() + 120
    while time.monotonic() < end and attempt.plan.exists():
        listener.receive()
        if os.path.exists(ran):
            listener.send_all(messages.STOP, {})
        time.sleep(0.02)
    os._exit(0)
"""
AGENT = "import sys; from gridtf.bootstrap.agent.agent import main; sys.exit(main(sys.argv[1:]))"


def agent(strangers: Strangers, run: Path, timeout: float = 20.0) -> Done:
    """alice's agent, as her launcher has started it."""
    words = [sys.executable, "-c", AGENT, os.uname().nodename, run, 1, NONCE, timeout]
    return strangers.run(ALICE, words, strangers.folder)


def test_agent_refuses_a_launcher_of_another_user(strangers: Strangers) -> None:
    run = strangers.folder / "bob" / "digits"
    strangers.bob(f"{FORGE}\nforge(*sys.argv[1:])", run, strangers.ran, NONCE, cwd=strangers.folder)
    listener = run / "attempt-1" / "listener.json"
    done = agent(strangers, run)
    assert done.code != 0
    assert f"{listener} belongs to user {BOB}" in done.err
    # nor one that alice has written, where bob has a hand in
    os.chown(listener, ALICE, ALICE)
    assert f"{listener} is writable by other users (mode 777)" in agent(strangers, run).err
    moved = strangers.folder / "alice" / "listener.json"
    listener.rename(moved)
    listener.symlink_to(moved)
    assert f"{listener} is damaged: it is not a regular file" in agent(strangers, run).err
    assert not strangers.ran.exists()
    # and all of that would have run, had it been hers
    listener.unlink()
    moved.rename(listener)
    for path in (run, *run.rglob("*")):
        os.chown(path, ALICE, ALICE)
        path.chmod(0o755)
    agent(strangers, run)
    assert strangers.ran.exists()
    (run / "attempt-1" / "plan.json").unlink()  # ends bob's launcher


RACE = f"""
import json
{FORGE}
root, ran = Path(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
while not (found := list(root.glob("*/attempt-1/state/launcher.json"))):
    pass
nonce = json.loads(found[0].read_text())["nonce"]
root.rename(root.with_name("taken"))
forge(found[0].parents[2], ran, nonce)
"""


@pytest.mark.parametrize("umask", [0o002, 0o022])
def test_run_root_in_a_group_folder_is_accepted(strangers: Strangers, umask: int) -> None:
    """bob is in the group, and may rename entries of the folder."""
    project = strangers.own(strangers.folder / "project", 0, 0o2775)
    done = strangers.gridtf("submit", "--workers", 2, "--wait", "--", "sleep", "0.1", cwd=project, umask=umask)
    assert done.code == 0, done.out + done.err
    root = project / "gridtf-runs"
    until(lambda: not strangers.jobs(), "the launcher's last records")
    loose = [path for path in (root, *root.rglob("*")) if path.lstat().st_mode & 0o022 and not path.is_symlink()]
    assert loose == []
    until(lambda: removed(root), "the removal of the run directory")
    for _ in range(5):
        with strangers.start(BOB, [sys.executable, "-c", RACE, root, strangers.ran], project) as attack:
            assert attack.stdout is not None
            assert attack.stdout.readline() == "ready\n"
            strangers.gridtf("submit", "--", "sleep", "0.5", cwd=project, umask=umask)
            assert attack.wait(LIMIT) == 0, attack.stderr and attack.stderr.read()
        until(lambda: not strangers.jobs(), "the end of the job")
        # a process that calls exec has no environment for a moment, and may still write
        until(lambda: removed(project / "taken") and removed(root), "the removal of the run directories")
    assert not strangers.ran.exists()


@pytest.mark.parametrize(("entry", "times"), MOMENTS)
def test_script_that_another_user_exchanges_is_not_run(strangers: Strangers, entry: str, times: int) -> None:
    project = strangers.own(strangers.folder / "project", 0, 0o2775)
    folder = strangers.own(project / "mine", ALICE, 0o755)
    run = strangers.own(folder / "runs", ALICE, 0o755) / "job"
    words = [sys.executable, "-c", EXCHANGE, folder, run, entry, times, strangers.ran]
    with strangers.start(BOB, words, project) as attack:
        assert attack.stdout is not None
        assert attack.stdout.readline() == "ready\n"
        strangers.gridtf("submit", "--run-dir", run, *START_TIMEOUT, "--", "true", cwd=project)
        assert attack.wait(LIMIT) == 0, attack.stderr and attack.stderr.read()
    until(lambda: not strangers.jobs(), "the end of the job", LIMIT)
    assert not strangers.ran.exists()


def test_job_of_another_user_is_not_run_again(strangers: Strangers) -> None:
    project = strangers.own(strangers.folder / "project", 0, 0o2775)
    assert strangers.gridtf("submit", "--run-dir", "run", "--", "true", cwd=project).code == 0
    done = strangers.run(BOB, [sys.executable, "-m", "gridtf", "rerun", project / "run"], project)
    assert done.code == 1
    assert f"the job in {project}/run belongs to user {ALICE}" in done.err
    assert f"only {ALICE} can rerun it" in done.err
    assert {path.name for path in project.iterdir()} == {"run"}


def removed(folder: Path) -> bool:
    """Remove a folder into which an ending job may still write: the launcher's last records follow its verdict."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def test_run_root_writable_by_all_users_is_refused(strangers: Strangers) -> None:
    """In a folder such as /tmp bob has made gridtf-runs before alice."""
    place = strangers.own(strangers.folder / "place", 0, 0o1777)
    root = strangers.own(place / "gridtf-runs", BOB, 0o777)
    refused = f"{root} is not safe for a run directory: any user may rename entries of it"
    done = strangers.gridtf("submit", "--", "touch", strangers.ran, cwd=place)
    assert (done.code, refused in done.err) == (1, True)
    done = strangers.gridtf("run", "--", "touch", strangers.ran, cwd=place)
    assert (done.code, refused in done.err) == (1, True)
    for mode in (0o1777, 0o755):  # with the sticky bit its owner may; without a right to write, alice cannot
        root.chmod(mode)
        done = strangers.gridtf("submit", "--", "touch", strangers.ran, cwd=place)
        assert (done.code, str(root) in done.err) == (1, True)
        assert "Traceback" not in done.err
    root.rmdir()
    assert strangers.gridtf("submit", "--wait", "--", "true", cwd=place).code == 0
    until(lambda: removed(root), "the removal of the run directory")
    place.chmod(0o777)
    done = strangers.gridtf("submit", "--", "true", cwd=place)
    assert f"{place} is not safe for a run directory" in done.err
    assert os.listdir(place) == []
    assert not strangers.ran.exists()


def test_default_acl_does_not_let_other_users_write(strangers: Strangers) -> None:
    root = strangers.own(strangers.folder / "alice" / "gridtf-runs", ALICE, 0o755)
    share_with(root, BOB)
    done = strangers.gridtf("submit", "--wait", "--", "true", cwd=root.parent, umask=0o077)
    assert done.code == 0, done.err
    (run,) = root.iterdir()
    code = "import os, sys; print([path for path in sys.argv[1:] if os.access(path, os.W_OK)])"
    assert len(paths := list(run.rglob("*"))) > 10
    assert strangers.bob(code, run, *paths, cwd=strangers.folder) == "[]\n"


# --- gridtf_join

OPENED = """
import json, os, sys
from pathlib import Path
os.umask(0)
run = Path(sys.argv[1])
(run / "join-run-1").mkdir(parents=True)
(run / "attempt-1" / "ranks").mkdir(parents=True)
(run / "join-run-1" / "opened.json").write_text(json.dumps(dict(attempt=1, nonce="f00d")))
"""


def test_gridtf_join_refuses_a_folder_of_another_user(strangers: Strangers) -> None:
    place = strangers.own(strangers.folder / "place", 0, 0o1777)
    run = place / "gridtf-runs" / "digits-run-1"
    strangers.bob(OPENED, run, cwd=place)
    for rank, refused in (
        (0, f"{run.parent} is not safe for a run directory"),
        (1, f"opened.json belongs to user {BOB}"),
    ):
        script = (
            f"source {shlex.quote(str(ROOT))}/scripts/gridtf-bootstrap.sh; "
            f"export RANK={rank} WORLD_SIZE=2 GRIDTF_JOB_ID=run-1; "
            "gridtf_join --name digits --start-timeout 20 && echo joined"
        )
        done = strangers.run(ALICE, ["env", f"GRIDTF_PYTHON={sys.executable}", "bash", "-c", script], place)
        assert refused in done.err
        assert "joined" not in done.out
    assert os.listdir(run / "attempt-1" / "ranks") == []


# --- gridtf cancel


def test_cancel_ignores_a_process_named_by_another_user(strangers: Strangers) -> None:
    run = strangers.own(strangers.folder / "bob" / "train", BOB, 0o777)
    with strangers.start(ALICE, ["sleep", "600"], strangers.folder) as victim:
        told = {"scheduler": "local", "job_id": "x", **procfs.identity(victim.pid)}
        (run / "job.json").write_text("{}")
        (run / "submitted.json").write_text(json.dumps(told))
        for path in run.iterdir():
            os.chown(path, BOB, BOB)
        for job, refused in (
            (run, f"the job in {run} belongs to user {BOB}"),
            ("./train", f"{BOB} and root can cancel it"),
            ("train", "no job is called train, and the folder train here belongs to another user"),
        ):
            done = strangers.gridtf("cancel", job, cwd=run.parent)
            assert refused in done.err
            assert done.code != 0
        assert not (run / "cancelled.json").exists()
        assert victim.poll() is None
        # her own job of that name is what she means
        submitted = strangers.gridtf("submit", "--name", "train", "--", "sleep", "600", cwd=strangers.folder / "alice")
        assert submitted.code == 0, submitted.err
        done = strangers.gridtf("cancel", "train", cwd=run.parent)
        assert (done.code, "CANCELLED" in done.out) == (0, True)
        assert victim.poll() is None


SWAP = """
import json, os, sys
from pathlib import Path
from gridtf.cli import main
from gridtf.host import procfs
os.umask(0o022)
run = Path(sys.argv[1])
run.rename(run.with_name("taken"))
for folder in (run / "output", run / "attempt-1" / "logs"):
    folder.mkdir(parents=True)
told = dict(scheduler="local", job_id=sys.argv[2], name="sw", host=os.uname().nodename, pid=4194303, start=1)
(run / "job.json").write_text("{}")
(run / "submitted.json").write_text(json.dumps({**told, "boot": procfs.boot_id(), "ended": str(run / "ended.json")}))
(run / "ended.json").write_text(json.dumps(dict(exit=0, signal=None, told=None, error=None)))
"""


def test_run_directory_replaced_by_another_user_is_not_shown_as_own(strangers: Strangers) -> None:
    """bob, in the same group, has made gridtf-runs in the group's folder before alice."""
    group = strangers.own(strangers.folder / "group", 0, 0o2775)
    root = strangers.own(group / "gridtf-runs", BOB, 0o775)
    done = strangers.gridtf("submit", "--name", "sw", "--", "sleep", "600", cwd=group)
    assert done.code == 0, done.err
    (run,) = root.iterdir()
    until(lambda: list((run / "attempt-1" / "logs").glob("worker-0.log")), "the start of the tasks")
    job = json.loads((run / "submitted.json").read_text())["job_id"]
    strangers.bob(SWAP, run, job, cwd=group)  # even with alice's own job id
    replaced = f"the run directory of job {job} was replaced: {run} belongs to user {BOB}"
    for command in ("wait", "status", "output", "logs"):
        for name in ("sw", job):
            done = strangers.gridtf(command, name, cwd=group)
            assert (done.code, done.out) == (1, ""), command
            assert replaced in done.err
    (view,) = json.loads(strangers.gridtf("list", "--json", cwd=group).out)
    assert (view["state"], view["reason"]) == ("UNKNOWN", replaced)
    done = strangers.gridtf("cancel", "sw", cwd=group)
    assert (done.code, done.out) == (1, "")
    assert f"local job {job} can only be cancelled through its run directory" in done.err
    assert replaced in done.err
    assert "has already ended" not in done.err
    done = strangers.gridtf("status", run, cwd=group)  # a path may belong to any user
    assert (done.code, "COMPLETED" in done.out) == (0, True), done.out + done.err
    shutil.rmtree(run)
    (root / "taken").rename(run)
    assert strangers.gridtf("cancel", "sw", cwd=group).code == 0


# --- root, and reading


@pytest.fixture
def running(strangers: Strangers) -> Path:
    """The run directory of a job of alice's that runs."""
    done = strangers.gridtf("submit", "--name", "hers", "--", "sleep", "600", cwd=strangers.folder / "alice")
    assert done.code == 0, done.err
    (run,) = (strangers.folder / "alice" / "gridtf-runs").iterdir()
    until(lambda: list((run / "attempt-1" / "logs").glob("worker-0.log")), "the start of the tasks")
    return run


def test_root_can_look_at_and_cancel_the_job_of_any_user(
    strangers: Strangers, running: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", str(running)]) == 0
    assert "RUNNING" in capfd.readouterr().out
    assert main(["stacks", str(running)]) == 0
    assert "(sleep): " in capfd.readouterr().out
    assert main(["cancel", str(running)]) == 0
    job = json.loads((running / "submitted.json").read_text())["job_id"]
    assert f"hers ({job}): CANCELLED" in capfd.readouterr().out
    verdict = json.loads((running / "attempt-1" / "verdict.json").read_text())
    assert verdict["reason"] == f"cancelled by root on {os.uname().nodename}"
    assert (running / "cancelled.json").stat().st_uid == ALICE
    assert main(["cancel", str(running)]) == 0  # once more
    assert "has already ended" in capfd.readouterr().err


@pytest.mark.parametrize(("uid", "code"), [(ALICE, 0), (0, 0), (BOB, 1)])
def test_command_beside_a_task_is_for_the_owner_and_root(
    strangers: Strangers, running: Path, uid: int, code: int
) -> None:
    """Whoever asks for it, it runs as the owner of the job."""
    until(lambda: (running / "attempt-1" / "rendezvous.json").exists(), "the addresses of the tasks")
    argv = [sys.executable, "-m", "gridtf", "exec", running, "--", "id", "-u"]
    done = strangers.run(uid, argv, strangers.folder / ("bob" if uid == BOB else "alice"))
    assert (done.code, done.out) == (code, "" if code else f"{ALICE}\n"), done.err
    attempt = running / "attempt-1"
    if code:
        hint = f"only {ALICE} and root can ask it"
        assert done.err == f"gridtf: the job in {running} belongs to user {ALICE}\n  {hint}\n"
        assert "exec" not in (attempt / "events.jsonl").read_text()
    else:
        event = f'"user":"{uid or "root"}","text":"id -u"'
        until(lambda: event in (attempt / "events.jsonl").read_text(), "the event")
    assert not [name for name in os.listdir(attempt) if name.startswith("exec-")]
    assert main(["cancel", str(running)]) == 0


def test_request_of_another_user_is_not_answered(strangers: Strangers, running: Path) -> None:
    """bob has put it into the folder of the attempt, which a wrong mode allows, and alice's comes after it."""
    attempt = running / "attempt-1"
    nonce = json.loads((attempt / "plan.json").read_text())["nonce"]
    attempt.chmod(0o777)
    forge = "import sys; from pathlib import Path; Path(sys.argv[1]).write_text(sys.argv[2])"
    order = {"task": "worker:0", "command": ["touch", str(strangers.ran)], "term": "", "user": str(ALICE)}
    order |= {"nonce": nonce, "id": "0" * 16, "certificate": ""}
    strangers.bob(
        forge, attempt / "exec-0000000000000000.request.json", json.dumps(order), cwd=strangers.folder / "bob"
    )
    done = strangers.gridtf("exec", running, "worker:0", "--", "echo", "mine", cwd=strangers.folder / "alice")
    assert (done.code, done.out) == (0, "mine\n"), done.err
    events = attempt / "events.jsonl"
    until(lambda: '"event":"exec ended"' in events.read_text(), "the events")
    (begun,) = [line for line in events.read_text().splitlines() if '"event":"exec"' in line]
    assert "echo mine" in begun
    attempt.chmod(0o755)
    assert main(["cancel", str(running)]) == 0
    assert not strangers.ran.exists()


def test_root_ends_no_process_that_another_user_has_named(
    strangers: Strangers, capfd: pytest.CaptureFixture[str]
) -> None:
    run = strangers.own(strangers.folder / "bob" / "train", BOB, 0o755)
    sleep = ["sleep", "600"]
    with strangers.start(ALICE, sleep, strangers.folder) as victim, subprocess.Popen(sleep) as own:
        for pid in (victim.pid, own.pid):
            told = {"scheduler": "local", "job_id": "x", "user": "\x1b[2J", **procfs.identity(pid)}
            (run / "job.json").write_text("{}")
            (run / "submitted.json").write_text(json.dumps(told))
            for path in run.iterdir():
                os.chown(path, BOB, BOB)
            assert main(["cancel", str(run)]) == 1
            assert capfd.readouterr().err == "gridtf: job x is not yours\n  \\x1b[2J can cancel it\n"
        assert (victim.poll(), own.poll()) == (None, None)
        own.kill()


def test_root_follows_no_link_of_one_user_to_the_job_of_another(
    strangers: Strangers, running: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    link = strangers.folder / "bob" / "runs"
    link.symlink_to(running.parent)
    os.lchown(link, BOB, BOB)
    for command in ("cancel", "stacks"):
        assert main([command, str(link / running.name)]) == 1
        what = f"gridtf: {link} is a link of user {BOB} that leads to files of user {ALICE}\n"
        assert capfd.readouterr().err == f"{what}  if these are meant, write {running}\n"
    os.lchown(link, 0, 0)
    assert main(["cancel", str(link / running.name)]) == 0


# An account of alice's, since she has none on this machine; then a command of root's.
AS_ROOT = """
import pwd, sys
from gridtf.cli import main
known, alice = pwd.getpwnam, pwd.struct_passwd(("alice", "x", int(sys.argv[1]), int(sys.argv[1]), "", sys.argv[2], ""))
pwd.getpwnam = lambda name: alice if name == "alice" else known(name)
pwd.getpwuid = lambda uid, of_id=pwd.getpwuid: alice if uid == alice.pw_uid else of_id(uid)
sys.exit(main(sys.argv[3:]))
"""


def test_root_lists_the_jobs_of_a_user_and_no_link_or_fifo_of_hers_harms(strangers: Strangers, running: Path) -> None:
    home = strangers.folder / "alice"

    def listed(*more: str, uid: int = 0) -> Done:
        words = [sys.executable, "-c", AS_ROOT, ALICE, home, "list", "--user", "alice", *more]
        if uid:
            return strangers.run(uid, words, home)
        done = subprocess.run(
            [*map(str, words)], env=environment(), capture_output=True, text=True, timeout=LIMIT, check=False
        )
        return Done(done.returncode, done.stdout, done.stderr)

    (home / ".local").mkdir()
    (home / ".local" / "state").symlink_to(home)  # XDG_STATE_HOME of these tests
    index = home / "gridtf" / "runs"
    secret = strangers.own(strangers.folder / "secret", 0, 0o700)
    shutil.copytree(running, secret / "run", symlinks=True)
    hostile = strangers.own(home / "hostile", ALICE, 0o755)
    (hostile / "attempt-1").mkdir()
    os.mkfifo(hostile / "job.json")
    os.mkfifo(hostile / "submitted.json")
    (hostile / "attempt-1" / "plan.json").symlink_to("/etc/shadow")
    (index.parent / "ended.json").unlink(missing_ok=True)
    (index.parent / "ended.json").symlink_to(secret / "written")
    for number, target in enumerate((secret / "run", hostile)):
        (index / f"20251121-080712.00000{number},local,{number},odd{number}").symlink_to(target)
    for path in (home / ".local", *home.rglob("*")):
        os.chown(path, ALICE, GROUP, follow_symlinks=False)
    done = listed("--all")
    assert (done.code, done.err) == (0, "")
    lines = {line.split()[0]: line for line in done.out.splitlines()}
    assert "RUNNING" in lines["hers"]
    assert "UNKNOWN" in lines["run"]  # she cannot read it, and it is not read for her
    assert "UNKNOWN" in lines["hostile"]
    assert [view["name"] for view in json.loads(listed("--json", "--state", "RUNNING").out)] == ["hers"]
    assert sorted(os.listdir(secret)) == ["run"]
    assert not [path for path in home.rglob("*") if path.lstat().st_uid == 0]
    done = listed(uid=BOB)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("gridtf: only root can list the jobs of alice\n  without --user")
    assert main(["cancel", str(running)]) == 0


def test_sums_of_a_user_s_jobs_are_for_those_whom_the_site_permits_it(
    strangers: Strangers, running: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, site = strangers.folder / "alice", strangers.own(strangers.folder / "site.toml.d", BOB, 0o755) / "site.toml"

    def advised(uid: int, owner: int, text: str = "[limits]\nadvise_users = true\n") -> Done:
        site.write_text(text)
        os.chown(site, owner, owner)
        words = [sys.executable, "-c", AS_ROOT, ALICE, home, "advise", "--user", "alice", "--json"]
        env = {"GRIDTF_SITE_CONFIG": str(site)}
        if uid:
            return strangers.run(uid, ["env", f"GRIDTF_SITE_CONFIG={site}", *words], strangers.folder / "bob")
        done = subprocess.run(
            [*map(str, words)], env=environment(**env), capture_output=True, text=True, timeout=LIMIT, check=False
        )
        return Done(done.returncode, done.stdout, done.stderr)

    (home / ".local").mkdir()
    (home / ".local" / "state").symlink_to(home)  # XDG_STATE_HOME of these tests
    for path in (home / ".local", home / ".local" / "state"):
        os.chown(path, ALICE, GROUP, follow_symlinks=False)
    refused = "gridtf: this site does not permit advice on the jobs of other users\n"
    for uid, owner, text in ((0, 0, ""), (BOB, 0, "[limits]\nadvise_users = false\n"), (BOB, BOB, "[limits]\n")):
        assert advised(uid, owner, text).err.startswith(refused), uid
    assert advised(BOB, BOB).err.startswith(refused)  # a file of his own
    for uid in (0, BOB):
        done = advised(uid, 0)
        assert (done.code, done.err) == (0, "")
        assert json.loads(done.out)["states"] == {"RUNNING": 1}
        assert not [word for word in ("hers", "sleep", str(running.name)) if word in done.out]
    home.chmod(0o700)  # what bob may not read is not read for him
    known = pwd.struct_passwd(("alice", "x", ALICE, GROUP, "", str(home), ""))
    monkeypatch.setattr(pwd, "getpwnam", lambda name: known)
    monkeypatch.setenv("GRIDTF_SITE_CONFIG", str(site))
    assert main(["advise", "--user", "alice"]) == 0  # which imports what bob may not read
    capfd.readouterr()
    run_as(strangers.folder / "bob", lambda: print("exit code", main(["advise", "--user", "alice"]), flush=True))
    captured = capfd.readouterr()
    assert (captured.out, "Permission denied" in captured.err) == ("exit code 1\n", True), captured.err
    home.chmod(0o755)
    assert not [path for path in home.rglob("*") if path.lstat().st_uid == 0]
    assert main(["cancel", str(running)]) == 0


def test_user_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--user", "nobody-such"]) == 2
    assert capsys.readouterr().err == "gridtf: no user is called nobody-such on this host\n"


def test_other_users_may_read_a_job_and_not_act_upon_it(
    strangers: Strangers, running: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def bob(*words: object) -> tuple[str, str]:
        run_as(strangers.folder / "bob", lambda: print("exit code", main([*map(str, words)]), flush=True))
        captured = capfd.readouterr()
        return captured.out, captured.err

    for words, shown in (
        (("status", running), "RUNNING"),
        (("logs", running), "exit code 0"),
        (("output", running), str(running / "output")),
        (("address", running, "worker:0"), "127.0.0.1:"),
        (("wait", running, "--timeout", "0"), "exit code 124"),
    ):
        out, err = bob(*words)
        assert shown in out, err
    for command in ("cancel", "resume", "stacks"):
        out, err = bob(command, running)
        assert ("exit code 1" in out, err.count("\n")) == (True, 2)
        assert f"belongs to user {ALICE}" in err
    running.chmod(0o700)
    why = f"{running} belongs to user {ALICE}: ask for permission to read it"
    closed = f"gridtf: cannot list {running}: Permission denied\n  {why}\n"
    for words in (("status", running), ("logs", running), ("cancel", running), ("output", running)):
        out, err = bob(*words)
        assert ("exit code 1" in out, err) == (True, closed)
    assert main(["cancel", str(running)]) == 0
