"""Other versions of Slurm: the packages of other Debian releases, extracted once, and used by a bed's hosts alone."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from .errors import UNAVAILABLE, TestbedError
from .processes import only_one

SUITES = {"20.11": "bullseye", "22.05": "bookworm", "24.11": "trixie", "26.05": "sid"}
TOOLS = {"mmdebstrap": "mmdebstrap", "patchelf": "patchelf"}
CACHE = Path("/var/cache/gridtf-testbed")
_PACKAGES = "slurmctld,slurmd,slurm-client,slurmdbd"
_WITH_PMIX = ("bullseye", "bookworm")  # whose plugin for it does not depend on its library; that of sid has none
# Where a bed's hosts have their own. Debian's slurmd is a link to slurmd-wlm.
_PROGRAMS = {
    "/usr/bin": "sacct sacctmgr salloc sattach sbatch sbcast scancel scontrol scrontab sdiag sinfo sprio squeue "
    "sreport srun sshare sstat strigger",
    "/usr/sbin": "slurmctld slurmd slurmstepd slurmdbd",
}
_LIMIT = 400  # seconds for extracting one


def check(version: str) -> None:
    """TestbedError for a version that no Debian release has."""
    if version not in SUITES:
        known = ", ".join(f"{number} ({suite})" for number, suite in SUITES.items())
        raise TestbedError(f"--version {version}: no Debian release has it", hint=f"there are: {known}", code=2)


def release(version: str) -> str:
    """The exact version that was extracted, such as 24.11.5; empty: none was, or not all of it is left."""
    root = _root(version)
    try:
        return (root / "version").read_text() if _plugins(root).is_dir() else ""
    except (FileNotFoundError, StopIteration):
        return ""


def obtain(version: str, say: Callable[[str], None]) -> None:
    """Extract the packages of this version, unless an earlier call has.

    Raises:
        TestbedError: When they cannot be had; nothing is left of them then.
    """
    suite = SUITES[version]
    CACHE.mkdir(parents=True, exist_ok=True, mode=0o755)
    with only_one(CACHE, f"extracts to {CACHE}", say) as lock:
        if not release(version):
            say(f"extracting Slurm {version} of Debian {suite} to {_root(version)} (100 MB)")
            try:
                _remove(version)  # what a call that was killed has left
                _extract(suite, _part(version), lock)
                _relocate(_part(version), _root(version))
                _part(version).rename(_root(version))
                _record(version)
            except (OSError, TestbedError) as error:
                _remove(version)
                lines = error.lines if isinstance(error, TestbedError) else [str(error)]
                hint = "without --version, the bed has the Slurm of this machine"
                what = f"Slurm {version} of Debian {suite} cannot be had: {lines[0]}"
                raise TestbedError(what, why="\n".join(lines[1:]), hint=hint, code=UNAVAILABLE) from None
            except BaseException:
                _remove(version)
                raise
    found = release(version)
    moved = "" if found.startswith(f"{version}.") else f", which has followed {version} in Debian {suite}"
    say(f"the hosts have Slurm {found}{moved}")


def binds(version: str) -> list[tuple[Path, str]]:
    """(Real path, path on the hosts) of programs and plugins that hide those of this machine.

    Raises:
        TestbedError: When they were removed after `up`.
    """
    root = _root(version)
    if not release(version):
        raise TestbedError(f"{root} is gone", hint="down and up with the same --version extract it again")
    plugins = _plugins(root)
    found = [(plugins, f"/{plugins.relative_to(root)}")]
    for folder, names in _PROGRAMS.items():
        here = [Path(folder, name) for name in names.split()]
        found += [(program, str(path)) for path in here if path.exists() and (program := _program(root, path))]
    return found


def environ(version: str) -> dict[str, str]:
    """What its slurmd needs in its environment: where the library for PMIx has its parts, if there is one."""
    parts = ":".join(map(str, _root(version).glob("usr/lib/*/pmix2/lib/pmix")))
    return {"PMIX_MCA_mca_base_component_path": parts} if parts else {}


def _root(version: str) -> Path:
    return CACHE / f"slurm-{version}"


def _part(version: str) -> Path:
    return CACHE / f"slurm-{version}.part"


def _remove(version: str) -> None:
    for folder in (_part(version), _root(version)):
        shutil.rmtree(folder, ignore_errors=True)


def _program(root: Path, path: Path) -> Path | None:
    places = (Path(f"{root}{path}-wlm"), Path(f"{root}{path}"))
    return next((place for place in places if place.is_file()), None)


def _plugins(root: Path) -> Path:
    return next(root.glob("usr/lib/*/slurm-wlm"))


def _extract(suite: str, folder: Path, lock: int) -> None:
    # the releases' own packages alone: their security updates may have moved to an archive
    source = [f"deb {_mirror()} {suite} main"] if _mirror() else []
    # a Release file of an archive is old, and that of a machine that was off may be
    packages = f"{_PACKAGES},libpmix2" if suite in _WITH_PMIX else _PACKAGES
    options = ["--variant=extract", f"--include={packages}", "--aptopt=Acquire::Check-Valid-Until false"]
    _run(["mmdebstrap", *options, suite, str(folder), *source], lock)


def _mirror() -> str:
    """The mirror of Debian that this machine's apt uses; empty on a machine of another origin."""
    asked = ["apt-get", "indextargets", "--format", "$(ORIGIN) $(SUITE) $(REPO_URI)", "Created-By: Packages"]
    lines = _run(asked).splitlines()
    return next((line.split()[-1] for line in lines if re.match(r"Debian \S+ ", line) and "-security" not in line), "")


def _relocate(part: Path, root: Path) -> None:
    """Have the programs use the loader and the libraries that were extracted with them, as of their later place."""
    programs = [_program(part, Path(folder, name)) for folder, names in _PROGRAMS.items() for name in names.split()]
    libraries = [_plugins(part), *part.glob("usr/lib/*-linux-gnu"), *part.glob("lib/*-linux-gnu")]
    loader = next(file for folder in libraries for file in folder.glob("ld-linux-*.so.*"))
    path = ":".join(str(root / folder.relative_to(part)) for folder in libraries)
    options = ["--set-interpreter", str(root / loader.relative_to(part)), "--force-rpath", "--set-rpath", path]
    _run(["patchelf", *options, *(str(program) for program in programs if program)])
    _relocate_pmix(part, root)


def _relocate_pmix(part: Path, root: Path) -> None:
    """Have the plugin for PMIx open the library that was extracted with it, not this machine's, by its path."""
    plugins = _plugins(part)
    for library in part.glob("usr/lib/*/pmix2/lib/libpmix.so.2"):
        path = f"/{library.parent.relative_to(part)}\0".encode()
        for plugin in plugins.glob("mpi_pmix_v*.so"):
            plugin.write_bytes(plugin.read_bytes().replace(path, b"$ORIGIN".ljust(len(path), b"\0")))
        for name in ("libpmix.so", "libpmix.so.2"):
            (plugins / name).symlink_to(root / library.relative_to(part))


def _record(version: str) -> None:
    """Write down which version was extracted, as it says itself: slurm 24.11.5."""
    server = _program(_root(version), Path("/usr/sbin/slurmctld"))
    said = _run([str(server), "-V"])
    if not (match := re.match(r"slurm(?:-wlm)? (\d\S*)", said)):
        raise TestbedError("its slurmctld does not run", why=said.strip())
    (_root(version) / "version").write_text(match[1])


def _run(command: Sequence[str], *inherited: int) -> str:
    """Run a command, and end all that it has started where it takes too long or this process is interrupted.

    inherited: descriptors that it keeps open.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
        pass_fds=inherited,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=_LIMIT)
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise TestbedError(f"{command[0]} has not ended after {_LIMIT} s") from None
        raise
    if process.returncode != 0:
        said = err.strip().splitlines()
        shown = [line for line in said if line.startswith("E: ")][:2] or said[-2:]
        raise TestbedError(f"{command[0]} has failed", why="\n".join(shown))
    return out
