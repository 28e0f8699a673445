"""scripts/testbed slurm up --version: other versions of Slurm than this machine's, from other Debian releases."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from testbeds import errors, slurmconf, versions

from tests.support.cluster import Bed
from tests.support.footprints import footprint, left_by


def programs_of(folder: Path, **texts: str) -> str:
    """A PATH with these programs in place of real ones."""
    folder.mkdir()
    for name, text in texts.items():
        program = folder / name.replace("_", "-")
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.mark.root
def test_unknown_version_is_refused_and_the_bed_that_is_up_stays(slurm: Bed) -> None:
    before = footprint()
    for version, scheduler in (("99", "slurm"), ("24.11", "sge")):
        tool = [*slurm.own_command("up", "--version", version)]
        tool[tool.index("slurm")] = scheduler
        refused = subprocess.run(tool, env=slurm.environ(), capture_output=True, text=True, timeout=180)
        assert refused.returncode == 2
        expected = {
            "slurm": "error: --version 99: no Debian release has it\n"
            "       there are: 20.11 (bullseye), 22.05 (bookworm), 24.11 (trixie), 26.05 (sid)\n",
            "sge": "error: --version is not for sge\n       Debian's releases have one version of Grid Engine\n",
        }
        assert refused.stderr == expected[scheduler]
    assert slurm.run("login", "srun", "hostname").stdout == "n1\n"
    assert not left_by(slurm, before)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(versions, "CACHE", tmp_path / "cache")
    return tmp_path / "cache"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (
            "I: running apt-get update...\nE: The repository 'x sid Release' does not have a Release file.\nE: failed",
            "mmdebstrap has failed\nE: The repository 'x sid Release' does not have a Release file.\nE: failed",
        ),
        ("cannot open shared object", "mmdebstrap has failed\ncannot open shared object"),
    ],
)
def test_release_that_cannot_be_had(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, why: str
) -> None:
    """It is said why, in place of a bed of the version of this machine; nothing is left."""
    path = programs_of(tmp_path / "bin", mmdebstrap=f'mkdir "$5"; cat >&2 <<"END"\n{said}\nEND\nexit 25', apt_get="")
    monkeypatch.setenv("PATH", path)
    with pytest.raises(errors.TestbedError) as caught:
        versions.obtain("26.05", lambda _: None)
    first, *others = why.splitlines()
    hint = "without --version, the bed has the Slurm of this machine"
    assert caught.value.lines == [f"Slurm 26.05 of Debian sid cannot be had: {first}", *others, hint]
    assert not [*cache.iterdir()]


def test_what_was_extracted_by_halves_is_extracted_anew(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the version is the one that its slurmctld tells; sid may have gone on."""
    for half in ("slurm-26.05", "slurm-26.05.part"):
        (cache / half / "usr").mkdir(parents=True)
        (cache / half / "version").write_text("26.05.1")
    server = "#!/bin/sh\\necho slurm-wlm 26.11.1\\n"
    extract = (
        'eval "folder=\\$$(($# - 1))"; mkdir -p $folder/usr/sbin $folder/usr/lib/x-linux-gnu\n'
        "cd $folder/usr/lib/x-linux-gnu; mkdir -p slurm-wlm pmix2/lib/pmix\n"
        "touch ld-linux-x.so.2 pmix2/lib/libpmix.so.2\n"
        "printf '/usr/lib/x-linux-gnu/pmix2/lib\\0libpmix.so' >slurm-wlm/mpi_pmix_v4.so\n"
        f"printf '{server}' >$folder/usr/sbin/slurmctld-wlm; chmod +x $folder/usr/sbin/*"
    )
    mirror = 'echo "Debian stable-security http://s"; echo "Debian stable http://mirror/debian/"'
    patched = tmp_path / "patched"
    path = programs_of(tmp_path / "bin", mmdebstrap=extract, apt_get=mirror, patchelf=f'echo "$@" >{patched}')
    monkeypatch.setenv("PATH", path)
    said: list[str] = []
    for _ in range(2):
        versions.obtain("26.05", said.append)
    told = "the hosts have Slurm 26.11.1, which has followed 26.05 in Debian sid"
    assert said == [f"extracting Slurm 26.05 of Debian sid to {cache}/slurm-26.05 (100 MB)", told, told]
    assert [folder.name for folder in cache.iterdir()] == ["slurm-26.05"]
    library = cache / "slurm-26.05/usr/lib/x-linux-gnu"
    assert patched.read_text().split() == [
        *("--set-interpreter", f"{library}/ld-linux-x.so.2", "--force-rpath"),
        *("--set-rpath", f"{library}/slurm-wlm:{library}", f"{cache}/slurm-26.05.part/usr/sbin/slurmctld-wlm"),
    ]
    # the plugin for PMIx opens the library that lies in its own folder
    assert (library / "slurm-wlm/mpi_pmix_v4.so").read_bytes() == b"$ORIGIN".ljust(31, b"\0") + b"libpmix.so"
    assert (library / "slurm-wlm/libpmix.so").samefile(library / "pmix2/lib/libpmix.so.2")
    assert versions.environ("26.05") == {"PMIX_MCA_mca_base_component_path": str(library / "pmix2/lib/pmix")}
    assert dict(versions.binds("26.05"))[library / "slurm-wlm"] == "/usr/lib/x-linux-gnu/slurm-wlm"
    (cache / "slurm-26.05/version").unlink()
    with pytest.raises(errors.TestbedError, match="is gone"):
        versions.binds("26.05")


def test_settings_that_differ_by_version() -> None:
    """20.11 refuses the key of control groups, and would not start."""

    def lines(file: str, version: str, *options: str) -> set[str]:
        files = slurmconf.files(cgroups=True, extra={}, options=options, version=version)
        return set(files[file].splitlines())

    assert lines("cgroup.conf", "") - lines("cgroup.conf", "20.11") == {"CgroupPlugin=cgroup/v1"}
    assert lines("slurm.conf", "24.11") == lines("slurm.conf", "20.11")
    assert "SlurmdTimeout=45" in lines("slurm.conf", "24.11", "SlurmdTimeout=45")
