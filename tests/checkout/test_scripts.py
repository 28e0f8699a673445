"""Shell scripts pass bash -n and shellcheck, have help, and report what they lack."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from testbeds import cli
from testbeds.errors import UNAVAILABLE

from tests.support.cluster import Bed
from tests.support.topics import FEATURES, TOPICS
from tests.support.versions import EVERYDAY

ROOT = Path(__file__).resolve().parents[2]


def _is_shell(path: Path) -> bool:
    if path.suffix == ".sh":
        return True
    with path.open("rb") as file:
        return b"sh" in file.readline().partition(b"#!")[2]


SCRIPTS = sorted(
    path
    for folder in ("scripts", ".ci", "examples")
    for path in (ROOT / folder).rglob("*")
    if path.is_file() and "gridtf-runs" not in path.parts and _is_shell(path)
)


def test_scripts_are_found() -> None:
    names = {str(path.relative_to(ROOT)) for path in SCRIPTS}
    assert {
        "scripts/quickstart",
        "scripts/test",
        "scripts/bench",
        "scripts/lock",
        "scripts/release",
        "scripts/gridtf-bootstrap.sh",
        ".ci/run",
    } <= names


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_shellcheck(script: Path) -> None:
    shellcheck = shutil.which("shellcheck", path=str(Path(sys.executable).parent)) or shutil.which("shellcheck")
    assert shellcheck, "shellcheck is not here: apt install shellcheck"
    for command in (["bash", "-n"], [shellcheck, "--external-sources"]):
        done = subprocess.run([*command, script], cwd=ROOT, capture_output=True, text=True, timeout=180, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["quickstart", "test", "bench", "lock", "release"])
def test_help_needs_no_environment(name: str, tmp_path: Path) -> None:
    """Help is shown from any folder, with a space in the path of the checkout, and makes no files."""
    checkout = tmp_path / "a check out"
    shutil.copytree(ROOT / "scripts", checkout / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    before = sorted(tmp_path.rglob("*"))
    done = subprocess.run(
        [checkout / "scripts" / name, "--help"], cwd="/", capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 2
    assert sorted(tmp_path.rglob("*")) == before


def _quickstart(checkout: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [checkout / "scripts" / "quickstart"],
        cwd="/",
        env={"PATH": "/usr/bin:/bin", "HOME": str(checkout), **env},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The part of a checkout that an environment is made from, in a path with a space."""
    folder = tmp_path / "a check out"
    for name in ("scripts", "gridtf", "templates"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def test_missing_python(checkout: Path, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "dirname", "cat", "sha256sum", "flock", "df", "awk", "uname", "grep"):
        (tools / name).symlink_to(str(shutil.which(name)))
    done = _quickstart(checkout, PATH=str(tools))
    assert done.returncode == 1
    assert "error: no Python 3.10 or newer was found" in done.stderr
    assert "apt install python3 python3-venv" in done.stderr


def test_python_too_old(checkout: Path, tmp_path: Path) -> None:
    old = tmp_path / "python3.9"
    old.write_text("#!/bin/sh\necho old\n")
    old.chmod(0o755)
    done = _quickstart(checkout, PYTHON=str(old))
    assert done.returncode == 1
    assert f"error: PYTHON={old} is not Python 3.10 or newer" in done.stderr


def test_python_newer_than_the_locks_is_refused(checkout: Path, tmp_path: Path) -> None:
    """Refused by the lock's first line, before anything is downloaded."""
    new = tmp_path / "python3.99"
    new.write_text(f'#!/bin/sh\n"{sys.executable}" -c "import sys; sys.version_info = (3, 99)\n$2" "$3"\n')
    new.chmod(0o755)
    done = _quickstart(checkout, PYTHON=str(new))
    assert done.returncode == 1
    assert (
        f"error: {new} is Python 3.99, too new: scripts/locks/quickstart-cpu.txt has packages for 3.10 to 3.1"
        in done.stderr
    )
    assert not (checkout / ".venv").exists()


def test_package_with_a_wrong_hash_is_refused(checkout: Path, tmp_path: Path) -> None:
    """Its name and version are right, and pip finds it without a package index."""
    wheel = tmp_path / "wheels" / "pinned-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("pinned-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: pinned\nVersion: 1.0\n")
        archive.writestr("pinned-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("pinned-1.0.dist-info/RECORD", "")
    head = (checkout / "scripts/locks/build.txt").read_text().partition("\n")[0]
    (checkout / "scripts/locks/build.txt").write_text(f"{head}\npinned==1.0 --hash=sha256:{'0' * 64}\n")
    here = {"PIP_CONFIG_FILE": "/dev/null", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheel.parent)}
    done = _quickstart(checkout, PYTHON=sys.executable, **here)
    assert done.returncode == 1
    assert (
        "error: a downloaded package is not the one in scripts/locks: its hash differs\n       pinned==1.0\n"
        in done.stderr
    )
    assert not list((checkout / ".venv").rglob("pinned*"))


def test_environment_of_other_origin_is_left_alone(checkout: Path) -> None:
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / "mine").touch()
    done = _quickstart(checkout)
    assert done.returncode == 1
    assert "was not made by this script" in done.stderr
    assert [path.name for path in (checkout / ".venv").iterdir()] == ["mine"]


def test_no_network(checkout: Path) -> None:
    """The package index refuses connections; pip's retries are switched off to keep this short."""
    done = _quickstart(
        checkout,
        PYTHON=sys.executable,
        PIP_CONFIG_FILE="/dev/null",
        PIP_INDEX_URL="http://127.0.0.1:9/simple",
        PIP_RETRIES="0",
    )
    assert done.returncode == 1
    assert "error: pip could not reach the package index" in done.stderr
    assert (checkout / ".venv.made-from").read_text() == ""


def test_too_little_disk_space(checkout: Path, tmp_path: Path) -> None:
    df = tmp_path / "bin" / "df"
    df.parent.mkdir()
    df.write_text("#!/bin/sh\nprintf 'Filesystem 1024-blocks Used Available\\n/dev/x 9 8 1024\\n'\n")
    df.chmod(0o755)
    done = _quickstart(checkout, PYTHON=sys.executable, PATH=f"{df.parent}:/usr/bin:/bin")
    assert done.returncode == 1
    assert "error: too little space" in done.stderr
    assert "1 MiB free" in done.stderr


_CORES = len(os.sched_getaffinity(0))
_PARALLEL = f"--numprocesses {_CORES + 4}"
_SLURMS = f"--slurm {EVERYDAY} --slurm-versions 20.11,22.05,26.05"


def _tests(
    checkout: Path,
    *arguments: str,
    ruff: str = "",
    pytest: str = "",
    environment: str = ".venv-test",
    tensorflow: str = "",
) -> subprocess.CompletedProcess[str]:
    """scripts/test in an environment whose programs print their arguments, and then run these commands."""
    programs = checkout / environment / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "ruff"):
        (programs / name).write_text(
            f'#!/bin/bash\n[[ $1 != -c ]] || exec "{sys.executable}" "$@"\necho "{name}: $*"\n'
            f'[[ "$*" != *pytest* ]] || {{ {pytest or ":"}; exit; }}\n{ruff if name == "ruff" else ""}\n'
        )
        (programs / name).chmod(0o755)
    stamp = 'source "$0"; fingerprint "$root/$1" test ${2:+"$2"} >"$root/$1.made-from"'
    library = checkout / "scripts" / "lib" / "environment.sh"
    subprocess.run(["bash", "-c", stamp, library, environment, tensorflow], timeout=180, check=True)
    command = [str(checkout / "scripts" / "test"), *arguments]
    return subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=180, check=False)


@pytest.mark.parametrize(
    ("arguments", "pytest_arguments"),
    [
        ([], f"-m fast or smoke --durations 10 {_PARALLEL}"),
        (["--quick"], f"-m (fast or smoke) and not tensorflow --durations 10 {_PARALLEL}"),
        (["--all"], f"-m not release {_SLURMS} --durations 10 {_PARALLEL}"),
        (["--release"], f"{_SLURMS} --durations 10 {_PARALLEL}"),
        (
            ["--all", "--quick", "--record"],
            f"-m (not release) and not tensorflow {_SLURMS} --durations 10 {_PARALLEL} --record",
        ),
        (["--versions"], f"-m versions --slurm-versions 20.11,24.11,26.05 --durations 10 {_PARALLEL}"),
        (["--versions", "22.05", "26.05", "x.py"], "-m versions --slurm-versions 22.05,26.05 --durations 10 x.py"),
        (["--again", "1", "tests/unit"], "tests/unit"),
        (["--quick", "tests/unit", "-k", "a b"], "-m not tensorflow tests/unit -k a b"),
        (["tests/unit", "-k", "sge"], "tests/unit -k sge"),
        (["fast"], f"-m fast --durations 10 {_PARALLEL} tests/unit examples"),
        (["slurm", "sge", "--quick"], f"-m (slurm or sge) and not tensorflow --durations 10 {_PARALLEL}"),
        (["local", "-k", "sge"], "-m local --durations 10 -k sge"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_scripts_test_runs_checks_then_pytest(checkout: Path, arguments: list[str], pytest_arguments: str) -> None:
    done = _tests(checkout, *arguments, pytest="exit 5")
    assert done.stderr == ""
    ran = [line for line in done.stdout.splitlines() if not line.startswith("==>")]
    assert ran == ["python: -m compileall -q gridtf", f"python: -m pytest {pytest_arguments}"]
    assert "==> ruff and mypy found no fault" in done.stdout
    assert done.returncode == 5


_PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.mark.parametrize(
    ("arguments", "environment", "tensorflow"),
    [
        (["--python", sys.executable], f".venv-test-{_PYTHON}", ""),
        (["--tensorflow", "2.16"], ".venv-test-2.16", "2.16"),
        (["--tensorflow", "2.16.1", "--python", sys.executable], f".venv-test-{_PYTHON}-2.16.1", "2.16.1"),
    ],
    ids=["python", "tensorflow", "both"],
)
def test_another_python_or_tensorflow_has_an_environment_of_its_own(
    checkout: Path, arguments: list[str], environment: str, tensorflow: str
) -> None:
    """Tests and their clusters take their programs from it."""
    said = 'echo "in ${PATH%%:*}"'
    done = _tests(checkout, *arguments, "t.py", pytest=said, environment=environment, tensorflow=tensorflow)
    assert done.stderr == ""
    assert f"python: -m pytest t.py\nin {checkout}/{environment}/bin\n" in done.stdout
    assert sorted(checkout.glob(".venv*")) == [checkout / environment, checkout / f"{environment}.made-from"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--again"], "--again needs a number and a test"),
        (["--again", "20"], "--again needs a number and a test"),
        (["--again", "x", "tests/unit"], "--again needs a number and a test"),
        (["--all", "slurm"], "--all is every topic, so it goes with none"),
        (["sge", "--release"], "--release is every topic, so it goes with none"),
        (["--python"], "--python: no Python that runs here"),
        (["--python", "3.9999"], "--python 3.9999: no Python that runs here"),
        (["--tensorflow"], "--tensorflow: no version of TensorFlow 2"),
        (["--tensorflow", "local"], "--tensorflow local: no version of TensorFlow 2"),
        (["--versions", "24.11,26.05"], "--versions 24.11,26.05: no version of Slurm"),
        (["--versions", "24.11", "26"], "--versions 26: no version of Slurm"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_words_of_scripts_test_are_refused_before_an_environment_is_made(
    checkout: Path, arguments: list[str], error: str
) -> None:
    command = [str(checkout / "scripts" / "test"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {error}\n       ")
    assert not list(checkout.glob(".venv*"))


def test_green_release_is_recorded_and_an_old_record_is_told(checkout: Path) -> None:
    git = ["git", "-C", str(checkout), "-c", "user.name=a", "-c", "user.email=a@b"]
    (checkout / "tests/recorded").mkdir(parents=True)
    (checkout / ".gitignore").write_text("__pycache__/\n.venv*\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        subprocess.run([*git, *words], check=True, timeout=180)

    def again(option: str) -> str:
        words = [str(checkout / "scripts/test"), option]
        return str(subprocess.run(words, capture_output=True, text=True, timeout=180, check=True).stdout)

    done = _tests(checkout, "--release", pytest="exit 0")
    assert "python: scripts/reference.py" in done.stdout, done.stderr
    head = subprocess.run([*git, "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=True).stdout
    record = checkout / "tests/recorded/release"
    commit, date = record.read_text().split()
    assert commit == head.strip()
    assert time.strptime(date, "%Y-%m-%d")
    assert "warning" not in again("--all")
    commits = "".join(f"commit refs/heads/more\ncommitter a <a@b> {n} +0000\ndata 0\n\n" for n in range(301))
    subprocess.run([*git, "fast-import", "--quiet"], input=commits, text=True, check=True, timeout=180)
    subprocess.run([*git, "merge", "-q", "--allow-unrelated-histories", "-s", "ours", "more"], check=True, timeout=180)
    assert "==> warning: scripts/test --release was last green 302 commits ago; run it\n" in again("--all")
    record.unlink()
    assert "last green an unknown number of commits ago" in again("--all")


def test_faults_that_ruff_finds_are_shown_and_fail_scripts_test(checkout: Path) -> None:
    done = _tests(checkout, ruff="echo 'x.py:1: E501'; exit 1", pytest="exit 0")
    assert "x.py:1: E501\n==> ruff or mypy found faults\n" in done.stdout
    assert done.returncode == 1


def test_test_that_fails_the_third_time_is_not_run_a_fourth_time(checkout: Path) -> None:
    """Nor are the busy loops left."""
    count = checkout / "count"
    done = _tests(checkout, "--again", "9", "t.py", pytest=f'echo >>"{count}"; [ $(wc -l <"{count}") -lt 3 ]')
    assert "==> 3 of 9, beside busy loops\n" in done.stdout
    assert done.returncode == 1
    assert len(count.read_text()) == 3


def test_scripts_test_knows_the_topics() -> None:
    script = (ROOT / "scripts" / "test").read_text(encoding="utf-8")
    listed = re.search(r"\n +(advise .*?)\)\n", script, re.DOTALL)
    assert listed
    assert re.findall(r"[a-z]+", listed[1]) == sorted([*TOPICS, *FEATURES])
    head = script.partition("\nset ")[0]
    assert [topic for topic in TOPICS if not re.search(rf"\b{topic}\b", head)] == []


# a plain pytest has no pytest-xdist, scripts/test has
_WAYS = [[], *[["-n2"]] * (importlib.util.find_spec("xdist") is not None)]


@pytest.mark.parametrize("way", _WAYS, ids=" ".join)
@pytest.mark.parametrize(("ci", "code"), [("true", 1), ("", 0)])
def test_skipped_test_fails_in_ci(tmp_path: Path, ci: str, code: int, way: list[str]) -> None:
    shutil.copy(ROOT / "conftest.py", tmp_path)
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "def test_runs(): pass\n"
        "def test_skips(): pytest.skip('no such thing here')\n"
        "@pytest.mark.xfail(strict=True)\n"
        "def test_fails_as_expected(): raise ValueError\n"
        "@pytest.mark.versions\n"
        "def test_on_a_version_that_cannot_be_had(): pytest.skip('Slurm 20.11 cannot be had')\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = versions:\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *way, "test_it.py"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "CI": ci},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == code, done.stdout
    assert ("must not be skipped where CI=true: Skipped: no such thing here" in done.stdout) == bool(ci)
    assert ("FAILED test_it.py::test_skips - " in done.stdout) == bool(ci)
    assert f"{1 if ci else 2} skipped" in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        "slurm exec n1 hostname",
        "sge exec --root ctl ls --color -l",
        "slurm exec --user bob --env A=1 --env=B=x=y --cwd=/tmp login env",
        "slurm exec --user=bob --root n1 id",
        "slurm exec n1",
    ],
)
def test_words_of_exec_mean_the_same_without_argparse(words: str) -> None:
    """scripts/testbed reads them by itself, to start faster."""
    by_argparse = cli._parser().parse_args(words.split())
    assert vars(cli._exec_options(words.split())) == vars(by_argparse)


@pytest.mark.parametrize(
    "words", ["slurm up", "slurm exec", "slurm exec --help", "slurm exec --usr bob n1 id", "pbs exec n1 id"]
)
def test_words_that_have_to_be_explained_are_left_to_argparse(words: str) -> None:
    assert cli._exec_options(words.split()) is None


def test_test_bed_that_this_machine_cannot_have_skips_and_any_other_failure_fails(tmp_path: Path) -> None:
    script = tmp_path / "testbed"
    failing = "print('==> x', 'error: no apt-get', '       why', sep='\\n', file=sys.stderr); sys.exit({})"
    bed = Bed(tmp_path, script)
    script.write_text(f"import sys; {failing.format(UNAVAILABLE)}")
    with pytest.raises(pytest.skip.Exception, match=r"^no apt-get why$"):
        bed.up()
    script.write_text(f"import sys; {failing.format(1)}")
    with pytest.raises(AssertionError, match="error: no apt-get"):
        bed.up()
