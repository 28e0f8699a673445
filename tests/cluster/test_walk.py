"""README's first screens, word by word, as a plain user with gridtf from the wheel alone."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gridtf
from gridtf.doctor.conformance import ROWS
from tests.support.beds import on_every_scheduler
from tests.support.cluster import CHECKOUT, Bed
from tests.support.pilots import result
from tests.support.releases import Site, wheel

SECTIONS = ("Install", "The first job", "While it runs, and afterwards")
# The commands of these sections, in their order -> a pattern of what each prints.
SAYS = {
    "pip install '/path/to/gridtf[cpu]'": "",  # the wheel, of which the bed has what it needs
    "gridtf doctor": r"(?m)^ok +scheduler",
    "gridtf init": r"config\.toml is written",
    "gridtf submit -f --nodes 4 --gpus-per-node 4 --time 2:00:00 -- python train.py": "COMPLETED",
    "gridtf submit -f --pe mpi --workers 16 --gpus-per-task 1 --setup 'source ~/venv/bin/activate' "
    "-- python train.py": "COMPLETED",
    "gridtf submit -f --scheduler local --workers 2 -- python train.py": "COMPLETED",
    "gridtf doctor --conformance": "0 failures, 0 warnings",
    "gridtf list": r"(?m)^train .* RUNNING ",
    "gridtf status train": r"(?m)^worker:1 +n\d +RUNNING",
    "gridtf logs train -f": "step 3",
    "gridtf monitor train": r"(?m)^worker:1 +n\d +RUNNING",
    "gridtf report train": r"train-\S+\.html",
    "gridtf report --bundle train": r"train-\S+\.tar\.gz",
    "gridtf stacks train": r"train\.py",
    "gridtf exec train worker:1 -- nvidia-smi": r"(?m)^n\d$",
    "gridtf cancel train": "CANCELLED",
    "gridtf resume train": r"(?m)^job +\d+$",
    "gridtf rerun train --set lr=0.1": r"(?m)^job +\d+$",
    "gridtf sweep sweep.toml": r"(?m)^job +\d+$",
    "gridtf diff 4711 4712": r"lr\b.*0\.1",
}
PROGRAM = """\
import os, time, gridtf
step = 0
while step < 20 or os.path.exists("hold"):
    step += 1
    gridtf.progress(step, loss=1 / step)
    print("step", step, flush=True)
    time.sleep(0.1)
"""


SWEEP = """\
command = ["python", "train.py"]
[tasks.worker]
count = 1
[params]
lr = 0.1
[sweep]
lr = [0.1, 0.2]
"""


def commands() -> list[str]:
    """The commands in the code blocks of the sections, without comments."""
    text = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    parts = [text.partition(f"\n## {title}\n")[2].partition("\n## ")[0] for title in SECTIONS]
    blocks = [block for part in parts for block in re.findall(r"^```\n(.*?)^```$", part, re.MULTILINE | re.DOTALL)]
    return [re.sub(r" +# .*", "", line) for block in blocks for line in block.splitlines()]


@pytest.fixture
def walk(bed: Bed, tmp_path: Path) -> Iterator[Path]:
    """A working folder of alice's, who has installed the wheel in ~/venv; both are removed."""
    built = wheel(gridtf.__version__, tmp_path)
    folder = bed.home() / "walk"
    bed.run("login", "mkdir", bed.seen(folder))
    try:
        (folder / built.name).write_bytes(built.read_bytes())
        (folder / "train.py").write_text(PROGRAM)
        (folder / "sweep.toml").write_text(SWEEP)
        Site(bed, bed.seen(bed.home())).install(bed.seen(folder / built.name), "venv")
        yield folder
    finally:
        for made in (folder, bed.home() / "venv"):
            shutil.rmtree(made, ignore_errors=True)


@pytest.mark.tensorflow
@on_every_scheduler
def test_first_screens_of_the_readme_do_what_they_say(bed: Bed, walk: Path) -> None:
    assert commands() == [*SAYS], "whoever changes a command of README's first screens walks it here"
    seen = bed.seen(walk)
    activated = f"{bed.seen(bed.home())}/venv/bin:{bed.path.replace(str(Path(sys.executable).parent), '')}"
    env = {"PATH": activated, "XDG_CONFIG_HOME": f"{seen}/config", "PYTHONPATH": ""}

    def shell(line: str) -> str:
        done = bed.run("login", "bash", "-c", f"{line} 2>&1", cwd=seen, env=env, timeout=400, check=False)
        assert done.returncode == 0, f"$ {line}\n{done.stdout}"
        return done.stdout

    started = "until gridtf status train | grep -q '^worker:1 .* RUNNING'; do sleep 0.5; done"
    waits = "gridtf submit --nodes 2 --tasks-per-node 1 -- python train.py"
    before = {
        "gridtf list": ["touch hold", waits, started],
        "gridtf resume train": ["rm hold"],
        "gridtf rerun train --set lr=0.1": ["gridtf wait train"],
        "gridtf sweep sweep.toml": ["gridtf wait train"],
    }
    # what README leaves open, or this bed does not have
    own = {"--pe mpi --workers 16": "--pe rr --workers 8", "nvidia-smi": "hostname"}
    own |= {"monitor train": "monitor train --once", "logs train -f": "logs train -f | head -n 40"}
    of_the_other = {"slurm": "--pe mpi", "sge": "--nodes 4"}[bed.kind]
    for command, says in SAYS.items():
        if not says or of_the_other in command:
            continue
        for line in before.get(command, ()):
            shell(line)
        if command == "gridtf sweep sweep.toml":
            rerun, resumed, *_ = json.loads(shell("gridtf list --json"))
            own["4711 4712"] = f"{resumed['job_id']} {rerun['job_id']}"
        line = command
        for there, here in own.items():
            line = line.replace(there, here)
        said = shell(line)
        assert re.search(says, said), f"$ {line}\n{said}"
    shell("gridtf wait train")
    sent = result(walk)
    assert ({*sent["passed"]}, sent["failed"], sent["hosts"], sent["tasks"]) == ({*ROWS}, [], 2, 2)
    assert not re.search(r"\b(alice|mnt|home|n[1-4]|c1|login|ctl|gpu|rr|all\.q)\b(?!\")", json.dumps(sent))
