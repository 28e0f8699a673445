"""Two releases of gridtf, installed as sites do: each in its own folder behind a link, or one over the other."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import gridtf
from tests.support.cluster import CHECKOUT, Bed
from tests.support.jobs import until

PATIENCE = 240.0  # seconds that a test waits for what takes a tenth of it on a quiet machine
_FILES = ("gridtf", "templates", "scripts", "docs", "pyproject.toml", "README.md", "LICENSE", ".gitignore")
# A virtual environment without a network: gridtf from the wheel, what it needs from the environment of the tests.
_INSTALL = """
set -e
[ -e "$1/bin/python" ] || python -m venv --without-pip "$1"
site=$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
python -c 'import jinja2, pathlib; print(pathlib.Path(jinja2.__file__).parents[1])' >"$site/needs.pth"
python -m pip --python "$1/bin/python" install --quiet --no-index --no-deps --upgrade "$2"
"""


def released(folder: Path = CHECKOUT) -> tuple[str, str] | None:
    """The newest version that the CHANGELOG of the last commit dates, and the commit that did; None: it dates none."""
    git = ["git", "-C", str(folder)]
    text = subprocess.run([*git, "show", "HEAD:CHANGELOG.md"], capture_output=True, text=True, check=False).stdout
    dated = re.search(r"^## \[(.+)\] - \d{4}-\d\d-\d\d$", text, re.MULTILINE)
    if not dated:
        return None
    found = [*git, "log", "--format=%H", f"-S{dated[0]}", "--", "CHANGELOG.md"]
    commits = subprocess.run(found, capture_output=True, text=True, check=True).stdout.split()
    return dated[1], commits[-1]


def versions() -> tuple[str, str]:
    """The last release, or where there is none what will be it, and a version that the checkout tells of itself."""
    old = (released() or (gridtf.__version__, ""))[0]
    *front, last = old.split(".")
    return old, ".".join([*front, str(int(last) + 1)])


OLD, NEW = versions()


def unpack(commit: str, folder: Path) -> None:
    """Write the files of a commit into a folder."""
    tree = subprocess.run(["git", "-C", str(CHECKOUT), "archive", commit], capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=tree, check=True)


def wheel(version: str, folder: Path) -> Path:
    """Build a wheel: of the last release from its commit, of any other version from this checkout."""
    source, last = folder / f"source-{version}", released()
    source.mkdir(parents=True)
    if last and last[0] == version:
        unpack(last[1], source)
    else:
        _copy(source, version)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob(f"gridtf-{version}-*.whl")
    return built


def _copy(source: Path, version: str) -> None:
    for name in _FILES:
        path = CHECKOUT / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=shutil.ignore_patterns("__pycache__", "gridtf-runs"))
        else:
            shutil.copy(path, source / name)
    init = source / "gridtf/__init__.py"
    text = init.read_text(encoding="utf-8")
    (line,) = (line for line in text.splitlines() if line.startswith("__version__"))
    init.write_text(text.replace(line, f'__version__ = "{version}"'), encoding="utf-8")


class Site:
    """gridtf of a site on a bed: what users have on their PATH is ``current``.

    Args:
        bed: The bed.
        apps: The folder of installations, as the hosts see it.
    """

    def __init__(self, bed: Bed, apps: str) -> None:
        self.bed, self.apps = bed, apps

    def install(self, wheel: str, version: str) -> None:
        """Install a wheel in the folder of a version, over what is there."""
        self.bed.run("login", "sh", "-c", _INSTALL, "install", f"{self.apps}/{version}", wheel, timeout=400)

    def choose(self, version: str) -> None:
        """Have ``current`` be the folder of this version, as the default of a module is."""
        self.bed.run("login", "ln", "-sfn", version, f"{self.apps}/current")

    def gridtf(self, *words: str, check: bool = True) -> CompletedProcess[str]:
        """Run the site's gridtf command on the login host, as a user does."""
        return self.bed.run("login", f"{self.apps}/current/bin/gridtf", *words, check=check, env={"PYTHONPATH": ""})

    def json(self, command: str, *words: str) -> Any:
        return json.loads(self.gridtf(command, "--json", *words).stdout)

    def until(self, job: str, *states: str) -> dict[str, Any]:
        """Wait until a job has one of these states; returns what ``gridtf status`` tells of it."""

        def seen() -> Any:
            view = self.json("status", job)
            return view if view["state"] in states else None

        said = partial(self.gridtf, "logs", job, check=False)
        return dict(until(seen, f"{job} to be {' or '.join(states)}", PATIENCE, lambda: said().stdout))


# The first worker fails once; what it has begun is done the second time. It imports gridtf only after the upgrade.
_PROGRAM = """\
import os, sys, time
go = sys.argv[1]
while not os.path.exists(go):
    time.sleep(0.1)
import gridtf
me = gridtf.task()
gridtf.progress(1, loss=0.5)
print("a task of", gridtf.__version__, flush=True)
begun = os.path.join(os.environ["OUTPUT_DIR"], "begun")
if me.index == 0 and not os.path.exists(begun):
    open(begun, "w").close()
    sys.exit(3)
"""


def outlive(site: Site, wheels: Path, shared: Path, seen: str, *, beside: bool, hold: tuple[str, ...] = ()) -> None:
    """Replace a version of gridtf by the next while jobs run, wait in the queue and have failed, and assert that they
    start, restart, are asked, end and are resumed, and that old ones are shown.

    Args:
        site: Where no gridtf is installed yet.
        wheels: The folder with both wheels, as the hosts see it.
        shared: A folder that the hosts share, as this machine sees it.
        seen: The same, as the hosts see it.
        beside: Whether the next version has a folder of its own, and not that of the one before.
        hold: Options of a job that stays in the queue until it is released; empty: the scheduler has none.
    """
    program, go = shared / "program.py", shared / "go"
    program.write_text(_PROGRAM, encoding="utf-8")

    def submit(*options: str, wait_for: str = f"{seen}/go") -> str:
        where = [*site.bed.options, "--run-root", f"{seen}/runs", *options]
        task = [f"{site.apps}/current/bin/python", f"{seen}/program.py", wait_for]
        return str(site.json("submit", *where, "--", *task)["run_dir"])

    def install(version: str, folder: str) -> None:
        site.install(str(wheels / f"gridtf-{version}-py3-none-any.whl"), folder)
        site.choose(folder)
        assert site.gridtf("--version").stdout.split()[-1] == version

    install(OLD, OLD)
    two = ("--workers", "2") if site.bed.kind == "local" else ("--nodes", "2", "--tasks-per-node", "1")
    failed = submit(*two, "--name", "failed", wait_for="/")
    site.until(failed, "FAILED")
    queued = submit(*two, "--name", "queued", "--restarts", "1", *hold) if hold else ""
    running = submit(*two, "--name", "running", "--restarts", "1")
    tasks = partial(site.json, "status", running)
    until(lambda: {task["state"] for task in tasks()["tasks"]} == {"RUNNING"}, "all tasks to run", PATIENCE)
    install(NEW, NEW if beside else OLD)
    assert site.json("status", running)["state"] == "RUNNING"
    assert {failed, running, *([queued] if hold else [])} <= {job["run_dir"] for job in site.json("list")}
    said = site.gridtf("exec", running, "worker:1", "--", "sh", "-c", "echo beside $GRIDTF_TASK_INDEX")
    assert said.stdout == "beside 1\n"
    stacks = site.gridtf("stacks", running).stdout
    assert "program.py" in stacks, stacks
    assert "exit code 3" in site.gridtf("report", failed, "-o", "-").stdout
    go.touch()
    for run in filter(None, (running, queued)):
        if run == queued:
            assert site.json("status", run)["state"] == "PENDING"
            release = {"slurm": ["scontrol", "release"], "sge": ["qrls"]}[site.bed.kind]
            site.bed.run("login", *release, site.json("status", run)["job_id"])
        assert site.until(run, "COMPLETED", "FAILED")["state"] == "COMPLETED"
        assert f"a task of {NEW}" in site.gridtf("logs", "--task", "worker:1", run).stdout
    resumed = site.json("resume", failed)["run_dir"]
    assert site.until(resumed, "COMPLETED", "FAILED")["state"] == "COMPLETED"
