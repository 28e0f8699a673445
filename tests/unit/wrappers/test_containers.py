"""Command lines and environments of tasks in containers, and what a host must have for them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gridtf.bootstrap.plan.environment import own_variables, task_environment
from gridtf.bootstrap.plan.rendezvous import merge
from gridtf.errors import GridtfError
from gridtf.jobspec.units import LONGEST_VARIABLE
from gridtf.wrappers import containers
from gridtf.wrappers.containers import Entrance
from tests.support.plans import hosts, job, records, task_plan

APPTAINER = Entrance("/usr/bin/apptainer", "APPTAINERENV_", ("--nv",))
PLAIN = Entrance("/usr/bin/podman")


def wrapped(entrance: Entrance, folders: Sequence[str] = (), *, gpus: bool = False, **values: Any) -> list[str]:
    paths = [Path(folder) for folder in folders]
    names = {"RANK", "TF_CONFIG"}
    return containers.command(entrance, job(**values), ["python", "a b"], Path("/work"), paths, names, gpus=gpus)


def test_apptainer_gets_the_folders_of_the_job_and_the_command_unchanged() -> None:
    words = wrapped(APPTAINER, ["/runs/1", "/site/gridtf"], container="/i.sif", container_binds=["/data:/d:ro", "/x"])
    binds = ["--bind=/work:/work", "--bind=/runs/1:/runs/1", "--bind=/site/gridtf:/site/gridtf"]
    binds += ["--bind=/data:/d:ro", "--bind=/x:/x"]
    assert words == ["/usr/bin/apptainer", "exec", *binds, "--pwd=/work", "/i.sif", "python", "a b"]


def test_folder_below_another_one_is_not_bound_again() -> None:
    words = wrapped(APPTAINER, ["/work/runs/1", "/work"], container="/i.sif")
    assert [word for word in words if word.startswith("--bind")] == ["--bind=/work:/work"]


def test_colons_and_commas_in_a_path_are_escaped_for_apptainer() -> None:
    assert r"--bind=/a\,b\:c:/a\,b\:c" in wrapped(APPTAINER, ["/a,b:c"], container="/i.sif")


def test_driver_comes_in_for_tasks_with_gpus_only() -> None:
    assert wrapped(APPTAINER, container="docker://i", gpus=True)[:3] == ["/usr/bin/apptainer", "exec", "--nv"]
    assert "--nv" not in wrapped(APPTAINER, container="docker://i")


def test_words_of_a_container_command_are_repeated_for_binds_and_variables() -> None:
    template = ["podman", "run", "-v={bind}", "-e={env}", "-w={chdir}", "{image}", "--"]
    words = wrapped(PLAIN, container="i:1", container_binds=["/data:/d:ro"], container_command=template)
    expected = ["run", "-v=/work:/work", "-v=/data:/d:ro", "-e=RANK", "-e=TF_CONFIG", "-w=/work", "i:1", "--"]
    assert words == ["/usr/bin/podman", *expected, "python", "a b"]


def test_own_variables_have_a_prefix_except_those_of_the_image(tmp_path: Path) -> None:
    plan = task_plan(tmp_path / "run", hosts(1), env={"PATH": "/x", "HOME": "/h", "KEY": 'a"$b`c\\'})
    task, meeting = plan.tasks[0], merge(plan.tasks, records(plan))
    base = {"PATH": "/bin", "LANG": "C", "CUDA_VISIBLE_DEVICES": "0"}
    env = task_environment(base, plan, task, meeting, ("0",))
    env["APPTAINERENV_PREPEND_PATH"] = "/opt"
    made = containers.environment(APPTAINER, env, {*own_variables(plan, task, meeting), "APPTAINERENV_PREPEND_PATH"})
    assert made.items() >= env.items()
    inside = {name.removeprefix("APPTAINERENV_"): text for name, text in made.items() if name.startswith("APP")}
    assert inside["PREPEND_PATH"] == "/opt"
    # as Apptainer has its shell read it, after escaping the quotes
    quoted = 'export KEY="{}"; printf %s "$KEY"'.format(inside.pop("KEY").replace('"', '\\"'))
    assert subprocess.run(["sh", "-c", quoted], capture_output=True, text=True, check=True).stdout == env["KEY"]
    for name in ("TF_CONFIG", "CUDA_VISIBLE_DEVICES", "RANK", "MASTER_PORT", "GRIDTF_NONCE", "OUTPUT_DIR"):
        assert inside[name] == env[name], name
    assert not inside.keys() & {"HOME", "LANG", "PATH", "APPTAINERENV_PREPEND_PATH"}
    assert containers.environment(PLAIN, env, env) == env


def test_variable_that_is_too_long_with_its_prefix_is_passed_on_without() -> None:
    env = {"TF_CONFIG": "x" * (LONGEST_VARIABLE - len("TF_CONFIG="))}
    assert containers.environment(APPTAINER, env, env) == env


# --- what a host must have


def program(folder: Path, name: str) -> str:
    (folder / name).touch(mode=0o755)
    return str(folder / name)


def test_apptainer_comes_before_singularity(tmp_path: Path) -> None:
    spec, environ = job(container="docker://i"), {"PATH": str(tmp_path)}
    singularity = program(tmp_path, "singularity")
    assert containers.find(spec, "n2", environ).replace(drivers=()) == Entrance(singularity, "SINGULARITYENV_")
    apptainer = program(tmp_path, "apptainer")
    assert containers.find(spec, "n2", environ).replace(drivers=()) == Entrance(apptainer, "APPTAINERENV_")


def test_container_command_is_looked_for_on_the_path(tmp_path: Path) -> None:
    spec, environ = job(container="i:1", container_command=["podman", "{image}"]), {"PATH": str(tmp_path)}
    with pytest.raises(GridtfError, match="host n2 has no program podman, with which container_command begins"):
        containers.find(spec, "n2", environ)
    assert containers.find(spec, "n2", {"PATH": str(tmp_path), "X": program(tmp_path, "podman")}).prefix == ""


def test_host_without_apptainer_is_named_and_so_is_one_without_the_image(tmp_path: Path) -> None:
    with pytest.raises(GridtfError) as caught:
        containers.find(job(container=str(tmp_path)), "n2", {"PATH": os.devnull})
    assert caught.value.what == "host n2 has neither apptainer nor singularity"
    assert "--setup 'module load apptainer'" in caught.value.hint
    for image in (f"{tmp_path}/i.sif", f"{tmp_path}/{'x' * 300}"):  # of the second, the system tells nothing
        with pytest.raises(GridtfError, match=f"host n2 does not see the container's image {image}"):
            containers.find(job(container=image), "n2", {})
