"""An installed Grid Engine: where its files are, and which attributes they show that it knows."""

from __future__ import annotations

import contextlib
import pwd
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

from .errors import TestbedError
from .sgeconf import ARCH, Engine
from .sgedefaults import CLUSTER_OF_SOME, ENVIRONMENT
from .view import enterable

BIN, UTILBIN, LIB = (f"{folder}/{ARCH}" for folder in ("bin", "utilbin", "lib"))
_DEBIAN = Path("/usr/lib/gridengine")  # /usr/bin/qsub and the like are Debian's shell scripts that start these
DRMAA = Path("/usr/lib/gridengine-drmaa/lib/libdrmaa.so.1.0")
# qrsh of Open Cluster Scheduler makes the two characters \ and n of a newline
_NEWLINES = """#!/bin/bash
[[ " $* " == *" -inherit "* ]] && set -- "${@//$'\\n'/\\\\n}"
exec PROGRAM "$@"
"""


def links(home: str) -> dict[str, Path]:
    """Name below SGE_ROOT -> the folder or file of an installation. home: its folder; empty: Debian's packages."""
    if home:
        return {name: Path(home, name) for name in (BIN, UTILBIN, LIB, "util")}
    return {
        BIN: _DEBIAN,
        UTILBIN: _DEBIAN,
        "util": Path("/usr/share/gridengine/util"),
        f"{LIB}/libspoolc.so": _DEBIAN / "libspoolc.so",
        f"{LIB}/libdrmaa.so.1.0": DRMAA,
        f"{LIB}/libdrmaa.so": Path("libdrmaa.so.1.0"),
    }


def need(home: str) -> None:
    """Check that a folder holds a Grid Engine which runs on this machine.

    Raises:
        TestbedError: When it does not.
    """
    hint = f"--root takes the folder with bin/{ARCH}, utilbin, lib and util of a Grid Engine: SGE_ROOT at a site"
    qmaster = Path(home, BIN, "sge_qmaster")
    missing = [name for name in (f"{BIN}/sge_qmaster", f"{BIN}/sge_execd", UTILBIN, LIB, "util/resources/centry")
               if not Path(home, name).exists()]  # fmt: skip
    if missing:
        others = ", ".join(sorted({found.parent.name for found in Path(home).glob("bin/*/sge_qmaster")} - {ARCH}))
        why = f"there is no {missing[0]}{f', but programs for {others}' if others else ''}"
        raise TestbedError(f"{home} holds no Grid Engine for {ARCH}", why=why, hint=hint, code=2)
    for name in ("bin", BIN, "utilbin", UTILBIN, "lib", LIB, "util"):
        if not enterable(Path(home, name)):
            why, open_it = "plain users may not enter it", f"chmod -R o+rX {shlex.quote(home)} lets them in"
            raise TestbedError(f"{home}/{name} cannot be shared", why=why, hint=open_it, code=2)
    try:
        done = subprocess.run([qmaster, "-help"], capture_output=True, text=True, timeout=20, env={"SGE_ROOT": home})
        fault = done.stderr.strip() if done.returncode == 127 else ""  # of the dynamic linker
    except OSError as error:
        fault = f"sge_qmaster: {error.strerror}"
    if fault:
        raise TestbedError(f"the Grid Engine in {home} does not run on this machine", why=fault, hint=hint, code=2)


def engine(home: str) -> Engine:
    """What an installation shows of its Grid Engine."""
    own = links(home)
    program = (own[BIN] / "sge_qmaster").read_bytes()
    admin = "root"
    with contextlib.suppress(KeyError):
        admin = pwd.getpwnam("sgeadmin").pw_name
    return Engine(
        admin=admin,
        cluster={name: value for name, value in CLUSTER_OF_SOME.items() if name.encode() in program},
        environment=environment(own["util"]),
    )


def environment(util: Path) -> Mapping[str, str]:
    """The attributes of a parallel environment: those of one that the installer adds to every cell."""
    for file in sorted(util.glob("resources/pe/*")):
        lines = [line.split(None, 1) for line in file.read_text().splitlines() if not line.startswith("#")]
        found = {words[0]: words[1].strip() for words in lines if len(words) == 2}
        return {name: ENVIRONMENT.get(name, value) for name, value in found.items() if name != "pe_name"}
    return ENVIRONMENT


def make(root: Path, home: str, *, newlines: bool) -> None:
    """Make SGE_ROOT, with links to the files of an installation.

    Args:
        root: The folder to make.
        home: The folder of the installation; empty: Debian's packages.
        newlines: Whether `qrsh -inherit` is to pass newlines as Open Cluster Scheduler does.
    """
    own = links(home)
    if newlines:
        programs = own.pop(BIN)
        own.update({f"{BIN}/{path.name}": path for path in programs.iterdir() if path.name != "qrsh"})
    for name, target in own.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(target)
    if newlines:
        (root / BIN / "qrsh").write_text(_NEWLINES.replace("PROGRAM", str(programs / "qrsh")))
        (root / BIN / "qrsh").chmod(0o755)
