"""Programs that make containers, and an image, for tests of tasks in containers.

Debian has Apptainer in its unstable suite alone, for a newer C library than that of stable. So the packages are
unpacked into a folder of the checkout, and the programs are told to load the libraries from there. Where they cannot be
had, a stand-in with Apptainer's command line makes the container with Charliecloud.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support.jobs import ROOT
from tests.support.packages import need_program

MARKER = "etc/of-the-image"  # a file that exists in the image only
_FOLDER = ROOT / ".venv-test.apptainer"
_PACKAGES = ("apptainer", "libc6", "libseccomp2", "libsqlite3-0")
_LIBRARIES = "lib/x86_64-linux-gnu"
_STAND_IN = """\
#!/bin/bash
# apptainer exec [--bind=SOURCE:TARGET…] --pwd=FOLDER IMAGE COMMAND…
shift
options=()
while [[ $1 == -* ]]; do
    case $1 in --bind=*) options+=("${1//\\\\/}") ;; --pwd=*) options+=("--cd=${1#*=}") ;; esac
    shift
done
image=$1
shift
for option in "${options[@]}"; do
    [[ $option != --bind=* ]] || mkdir -p "$image/${option##*:}"
done
unset TMPDIR # it would be /tmp in the container
USER=$(id -un) exec ch-run "${options[@]}" "$image" -- "$@"
"""


class Image(NamedTuple):
    """An image folder in which this machine's programs run.

    Attributes:
        path: The folder.
        binds: What it lacks, as items of container_binds.
    """

    path: Path
    binds: tuple[str, ...]

    @property
    def options(self) -> list[str]:
        """The options of gridtf submit that run tasks in it."""
        return ["--container", str(self.path), *(f"--container-binds={bind}" for bind in self.binds)]


def make_image(path: Path) -> Image:
    """Make an image without any programs: those of this machine, and the Python in use, are bound in."""
    for name in ("dev", "etc", "proc", "sys", "tmp", "usr", "var/tmp", "root", "home"):
        (path / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (path / name).symlink_to(f"usr/{name}")
    (path / "etc/passwd").write_text(f"tester:x:{os.geteuid()}:{os.getegid()}::/:/bin/sh\n")
    (path / "etc/group").touch()
    (path / MARKER).write_text("inside\n")
    pythons = (str(ROOT), sys.prefix, sys.base_prefix)
    binds = ("/usr", *(folder for folder in dict.fromkeys(pythons) if not folder.startswith("/usr")))
    return Image(path, binds)


def need_charliecloud() -> str:
    """The path of ch-run; skips the test where it cannot be installed."""
    return need_program("ch-run", package="charliecloud")


def need_apptainer() -> Path:
    """The folder of a real Apptainer, or of the stand-in; skips the test where neither can be had."""
    if found := shutil.which("apptainer"):
        return Path(found).parent
    with Path(f"{_FOLDER}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (_FOLDER / "usr/bin/apptainer").exists():
            part = Path(f"{_FOLDER}.part")
            shutil.rmtree(part, ignore_errors=True)
            try:
                _unpack(part)
                part.rename(_FOLDER)
                _run(str(_FOLDER / "usr/bin/apptainer"), "version")
            except (OSError, subprocess.SubprocessError) as error:
                shutil.rmtree(_FOLDER, ignore_errors=True)
                said = getattr(error, "stderr", None) or ""
                warnings.warn(f"Charliecloud stands in for Apptainer: {error} {said}", stacklevel=2)
                return _stand_in()
    return _FOLDER / "usr/bin"


def _unpack(folder: Path) -> None:
    patchelf = need_program("patchelf")
    packages = folder / "packages"
    packages.mkdir(parents=True, exist_ok=True)
    (packages / "lists/partial").mkdir(parents=True)
    (packages / "sources").write_text("".join(_sources()))
    places = {"Dir::Etc::sourcelist": "sources", "Dir::State::lists": "lists", "Dir::Cache": "cache"}
    options = [f"-o{name}={packages / place}" for name, place in places.items()]
    apt = ["apt-get", "-q", "-oDir::Etc::sourceparts=-", "-oAPT::Sandbox::User=root", *options]
    _run(*apt, "update")
    _run(*apt, "download", *_PACKAGES, cwd=packages)
    for package in packages.glob("*.deb"):
        _run("dpkg-deb", "-x", str(package), str(folder))
    shutil.rmtree(packages)
    usr = folder / "usr"
    # where Apptainer looks for its other parts, once it is not in /usr/bin
    (usr / "libexec").mkdir(exist_ok=True)
    (usr / _LIBRARIES / "apptainer").rename(usr / "libexec/apptainer")
    (usr / _LIBRARIES / "apptainer").symlink_to("../../libexec/apptainer")
    shutil.move(folder / "etc", usr / "etc")
    (usr / "var/lib/apptainer/mnt/session").mkdir(parents=True)
    libraries = _FOLDER / "usr" / _LIBRARIES
    for program in (usr / "libexec/apptainer/bin/starter", usr / "bin/apptainer"):
        loader = ("--set-interpreter", str(libraries / "ld-linux-x86-64.so.2"))
        _run(patchelf, *loader, "--force-rpath", "--set-rpath", str(libraries), str(program))


def _sources() -> Iterator[str]:
    """The unstable suite of the distribution's own package source."""
    listed = _run("apt-get", "indextargets", "--format", "$(LABEL) $(REPO_URI)", "Created-By: Packages")
    for uri in sorted({line.split()[1] for line in listed.splitlines() if line.startswith("Debian ")}):
        yield f"deb {uri} sid main\n"


def _run(*command: str, cwd: Path | None = None) -> str:
    environ = {**os.environ, "LC_ALL": "C.UTF-8"}
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=300, check=True)
    return done.stdout


def _stand_in() -> Path:
    need_charliecloud()
    folder = _FOLDER / "stand-in"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "apptainer").write_text(_STAND_IN)
    (folder / "apptainer").chmod(0o755)
    return folder
