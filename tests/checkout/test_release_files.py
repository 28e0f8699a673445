"""Files that a release or a site needs beside the package: they are valid, agree with it, and do what they are for."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import gridtf
from gridtf.jobspec import jobfile
from tests.support import releases
from tests.support.ondemand import rendered
from tests.support.packages import need_program

ROOT = Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "packaging"
PROJECT: dict[str, Any] = jobfile.toml_parser().loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_UV = Path(sys.executable).with_name("uv")
_UNREACHED = ("dns error", "Failed to fetch", "error sending request", "Connection refused", "timed out")


def run_tool(package: str, *command: object, code: int = 0) -> str:
    """Run a command with a package such as ``twine==7.0.0`` at hand; returns what it printed, stderr last.

    Skips the test where the package index is not reached.
    """
    words = [str(_UV), "run", "--no-project", "--quiet", "--with", package, *map(str, command)]
    done = subprocess.run(words, cwd="/", capture_output=True, text=True, timeout=400, check=False)
    if done.returncode and any(words in done.stderr for words in _UNREACHED):
        pytest.skip(f"{package} cannot be had: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == code, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def loaded(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ("citation-file-format", "CITATION.cff"),
        ("github-issue-forms", ".github/ISSUE_TEMPLATE/bug.yml"),
        ("github-workflows", ".github/workflows/publish.yml"),
    ],
)
def test_file_has_the_form_that_its_reader_expects(schema: str, path: str) -> None:
    check = ("check-jsonschema", "--builtin-schema", f"vendor.{schema}", ROOT / path)
    assert run_tool("check-jsonschema==0.39.0", *check).startswith("ok")


def test_citation_is_of_this_version() -> None:
    cited = loaded("CITATION.cff")
    assert (cited["version"], cited["license"]) == (gridtf.__version__, PROJECT["license"])
    assert [author["name"] for author in cited["authors"]] == [author["name"] for author in PROJECT["authors"]]


def test_issue_asks_for_what_doctor_and_the_job_tell() -> None:
    asked = json.dumps(loaded(".github/ISSUE_TEMPLATE/bug.yml"))
    for command in ("gridtf doctor --json", "gridtf report --bundle", "gridtf --version", "SECURITY.md"):
        assert command in asked


def test_workflow_publishes_what_scripts_release_has_checked_and_stores_no_password() -> None:
    text = (ROOT / ".github/workflows/publish.yml").read_text(encoding="utf-8")
    flow = yaml.safe_load(text)
    build, publish = flow["jobs"]["build"], flow["jobs"]["publish"]
    assert flow[True] == {"push": {"tags": ["v*"]}}  # YAML's "on"
    assert flow["permissions"] == {}
    assert (build["permissions"], publish["permissions"]) == ({"contents": "read"}, {"id-token": "write"})
    assert (publish["needs"], publish["environment"]) == ("build", "pypi")
    assert {"run": "scripts/release"} in build["steps"]
    assert publish["steps"][-1]["with"] == {"attestations": True}
    actions = [step["uses"] for job in (build, publish) for step in job["steps"] if "uses" in step]
    assert all(re.search(r"@v\d+(\.\d+\.\d+)?$", action) for action in actions), actions
    assert "secrets." not in text


# --- conda

_RENDER = """
import sys
from rattler_build import Stage0Recipe, VariantConfig
(one,) = Stage0Recipe.from_file(sys.argv[1]).render(VariantConfig({"python_min": [sys.argv[2]]}))
print(one)
"""


def test_conda_recipe_has_the_requirements_of_the_package() -> None:
    recipe = loaded("packaging/conda/recipe.yaml")
    assert recipe["context"]["version"] == gridtf.__version__
    needs = [re.match(r"([\w-]+)([^;#]*)", need) for need in PROJECT["dependencies"]]
    wanted = {f"{need[1]} {need[2].strip()}" for need in needs if need}
    assert {*recipe["requirements"]["run"]} - {"python >=${{ python_min }}", "__linux"} == wanted


def test_recipes_build_with_the_version_of_the_package() -> None:
    build = jobfile.toml_parser().loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"][
        "requires"
    ]
    assert [*loaded("packaging/conda/recipe.yaml")["requirements"]["host"]][-1:] == [build[0].replace(">=", " >=")]
    assert build[0].replace(">=", "@") + ":" == _of_spack()[1].removeprefix("py-")
    assert {build[0]} <= {*PROJECT["optional-dependencies"]["test"]}


def test_conda_recipe_is_rendered() -> None:
    lowest = PROJECT["requires-python"].removeprefix(">=")
    recipe = PACKAGING / "conda/recipe.yaml"
    rendered = run_tool("py-rattler-build==0.73.0", "python", "-c", _RENDER, recipe, lowest)
    assert f"package='gridtf', version='{gridtf.__version__}'" in rendered


# --- Spack and EasyBuild


def _of_spack() -> list[str]:
    """What the recipe depends on, in its order: python, what builds it, the rest."""
    return re.findall(r'^ +depends_on\("(.+?)"', (PACKAGING / "spack/package.py").read_text(encoding="utf-8"), re.M)


def test_spack_recipe_has_the_requirements_of_the_package() -> None:
    text = (PACKAGING / "spack/package.py").read_text(encoding="utf-8")
    ast.parse(text)
    assert f'version("{gridtf.__version__}", sha256="{"0" * 64}")' in text
    assert f"gridtf-{gridtf.__version__}.tar.gz" in text
    assert f'license("{PROJECT["license"]}")' in text
    python, _, *others = _of_spack()
    assert python == f"python@{PROJECT['requires-python'].removeprefix('>=')}:"
    needs = [re.match(r"([\w-]+)>=([\d.]+)", need) for need in PROJECT["dependencies"]]
    assert others == [f"py-{need[1]}@{need[2]}:" for need in needs if need and need[1] != "drmaa"]


def test_easybuild_recipe_is_of_this_version_and_installs_in_an_environment_of_its_own(tmp_path: Path) -> None:
    """Its commands, as EasyBuild runs them in the folder of the source; pip would download what gridtf needs."""
    path = PACKAGING / f"easybuild/gridtf-{gridtf.__version__}.eb"
    recipe: dict[str, Any] = {"SYSTEM": {}}
    exec(compile(path.read_text(encoding="utf-8"), path, "exec"), recipe)
    assert (recipe["name"], recipe["version"], recipe["checksums"]) == ("gridtf", gridtf.__version__, ["0" * 64])
    built = releases.wheel(gridtf.__version__, tmp_path)
    names = {"name": recipe["name"], "version": recipe["version"], "installdir": str(tmp_path / "installed")}
    assert [built.name] == [source % names for source in recipe["sources"]]
    (tmp_path / "installed").mkdir()  # EasyBuild makes it
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHON": sys.executable, "PIP_NO_DEPS": "1"}
    for command in recipe["install_cmds"]:
        words = ["bash", "-c", command % names]
        done = subprocess.run(
            words, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=180, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    there = tmp_path / "installed"
    assert [path.name for path in (there / "bin").iterdir()] == ["gridtf"], "python in jobs is that of the user"
    assert all((there / name).is_file() for name in recipe["sanity_check_paths"]["files"])
    said = subprocess.run([there / "bin/gridtf", "--version"], env=environ, capture_output=True, text=True, timeout=180)
    assert said.stdout.split()[-1] == gridtf.__version__


# --- environment module


def environment_modules(folder: Path) -> list[str]:
    """The modulecmd of Debian's package, unpacked: installed, it would replace Lmod where a site has that."""
    tclsh = need_program("tclsh", "tcl")
    for command in (["apt-get", "-qq", "download", "environment-modules"], ["sh", "-c", "dpkg-deb -x *.deb ."]):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            pytest.skip(f"environment-modules cannot be had: {done.stderr.strip()}")
    (modulecmd,) = folder.glob("usr/lib/*/modulecmd.tcl")
    return [tclsh, str(modulecmd), "bash"]


_LOADED = 'gridtf; echo "$(type -P python)|$MANPATH|$XDG_DATA_DIRS|${LOADEDMODULES-}"'
_UNLOADED = 'echo "$PATH|${MANPATH-}|${LOADEDMODULES-}"'


@pytest.mark.timeout(600)  # with the download
def test_module_offers_the_command_and_leaves_python_to_the_user(tmp_path: Path) -> None:
    modulecmd = environment_modules(tmp_path)
    apps, modules = tmp_path / "apps", tmp_path / "modules/gridtf"
    modules.mkdir(parents=True)
    text = (PACKAGING / "modulefile").read_text(encoding="utf-8")
    for version in ("9.9.9", "9.9.10"):
        (modules / version).write_text(text.replace("/apps/gridtf/$version", f"{apps}/$version"), encoding="utf-8")
        for name in ("bin/python", "bin/gridtf"):
            program = apps / version / name
            program.parent.mkdir(parents=True, exist_ok=True)
            program.write_text(f"#!/bin/sh\necho gridtf {version}\n", encoding="utf-8")
            program.chmod(0o755)
        (apps / version / "command").mkdir()
        (apps / version / "command/gridtf").symlink_to("../bin/gridtf")

    def module(*words: str) -> str:
        return f'said=$({shlex.join([*modulecmd, *words])}); eval "$said"'

    def bash(*lines: str) -> list[str]:
        env = {"PATH": "/usr/bin:/bin", "MODULEPATH": str(modules.parent), "HOME": str(tmp_path)}
        words = ["bash", "-euc", "\n".join(lines)]
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=180, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    one = apps / "9.9.9/share"
    said = bash(module("load", "gridtf/9.9.9"), _LOADED, module("unload", "gridtf"), _UNLOADED)
    assert said[0] == "gridtf 9.9.9"
    python, man, data, names = said[1].split("|")
    assert not python.startswith(str(apps))
    assert (man, data) == (f"{one}/man:", f"{one}:/usr/local/share:/usr/share")  # the empty part: the system's
    assert names == "gridtf/9.9.9"
    assert said[2] == "/usr/bin:/bin||"
    assert bash(module("load", "gridtf/9.9.9"), module("switch", "gridtf/9.9.10"), "gridtf") == ["gridtf 9.9.10"]


# --- Open OnDemand


@pytest.mark.timeout(600)  # with the installation
@pytest.mark.parametrize(
    ("gpus", "options"), [(0, ["--ntasks-per-node=2"]), ("4", ["--ntasks-per-node=1", "--gpus-per-node=4"])]
)
def test_ondemand_session_requests_what_the_form_says(gpus: object, options: list[str]) -> None:
    typed = {"modules": "gridtf", "command": "true", "folder": "/", "nodes": "3", "gpus_per_node": gpus}
    submit = yaml.safe_load(rendered("submit.yml.erb", **typed))
    assert submit["script"]["native"] == ["--nodes=3", *options]
    assert submit["batch_connect"] == {"template": "basic"}


@pytest.mark.timeout(600)
def test_ondemand_script_runs_the_command_word_by_word(rough_path: Path, tmp_path: Path) -> None:
    command = """sh -c 'echo "$0 $1 $GRIDTF_TASK_TYPE"' "a;b" "$(touch x)" """
    typed = {"command": command, "folder": str(rough_path), "nodes": 1, "gpus_per_node": 0}
    script = tmp_path / "script.sh"
    script.write_text(rendered("template/script.sh.erb", modules="tf/2 cuda;id", **typed))
    assert "module load tf/2 cuda\\;id || exit 1\n" in script.read_text()
    shellcheck = Path(sys.executable).with_name("shellcheck")
    subprocess.run([shellcheck, script], check=True, timeout=180)
    script.write_text(rendered("template/script.sh.erb", modules="", **typed))
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", script], env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (log,) = rough_path.glob("gridtf-runs/*/attempt-1/logs/worker-0.log")
    assert log.read_text() == "a;b $(touch x) worker\n"
    assert not (rough_path / "x").exists()
