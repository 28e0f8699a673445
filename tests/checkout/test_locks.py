"""scripts/locks against pyproject.toml: every package is pinned, with hashes, for each Python and machine."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ROOT / "scripts" / "locks"
# The extras of pyproject.toml that each environment has in addition to the dependencies.
EXTRAS = {
    "build": None,
    "quickstart-cpu": ("cpu", "examples"),
    "quickstart-cuda": ("cuda", "examples"),
    "test": ("cpu", "test"),
    "bench-slurm": (),
    "bench-sge": (),
}


@cache
def pyproject() -> dict[str, Any]:
    return dict(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8")))


def entries(lock: str) -> list[tuple[Requirement, list[str]]]:
    """Each pinned package, and the hashes it may have."""
    lines = (LOCKS / f"{lock}.txt").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    split = [line.split("--hash=") for line in lines if line and not line.startswith("#")]
    return [(Requirement(first.strip()), [text.strip() for text in hashes]) for first, *hashes in split]


def machines(lock: str) -> Iterator[dict[str, str]]:
    """The Pythons and machines that a lock is for, by its first line: values to evaluate markers with."""
    head = re.match(r"# Python 3\.10 to 3\.(\d+), on x86_64 and aarch64\.", (LOCKS / f"{lock}.txt").read_text())
    assert head is not None
    for minor in range(10, int(head[1]) + 1):
        for machine in ("x86_64", "aarch64"):
            yield {
                "python_version": f"3.{minor}",
                "python_full_version": f"3.{minor}.9",
                "implementation_name": "cpython",
                "platform_python_implementation": "CPython",
                "os_name": "posix",
                "sys_platform": "linux",
                "platform_system": "Linux",
                "platform_machine": machine,
                "extra": "",
            }


def wanted(extras: tuple[str, ...] | None) -> list[Requirement]:
    build = [Requirement(text) for text in pyproject()["build-system"]["requires"]]
    if extras is None:
        return build
    project = pyproject()["project"]
    optional = project["optional-dependencies"]
    lists = [project["dependencies"], *(optional[extra] for extra in extras)]
    return [Requirement(text) for texts in lists for text in texts]


def here(requirement: Requirement, machine: dict[str, str]) -> bool:
    return requirement.marker is None or requirement.marker.evaluate(machine)


def test_every_environment_has_a_lock() -> None:
    assert sorted(path.name for path in LOCKS.iterdir()) == sorted(f"{lock}.txt" for lock in EXTRAS)
    used = "".join((ROOT / "scripts" / name).read_text(encoding="utf-8") for name in ("quickstart", "test", "bench"))
    assert set(re.findall(r"make_environment \S+ \S+ (\S+)", used)) == {
        "quickstart-cpu",
        "quickstart-cuda",
        "test",
        '"bench-$bed"',
    }


@pytest.mark.parametrize("lock", EXTRAS)
def test_every_requirement_is_pinned_once_per_python_and_machine(lock: str) -> None:
    pins = [entry for entry, _ in entries(lock)]
    for machine in machines(lock):
        versions: dict[str, str] = {}
        for pin in pins:
            (specifier,) = pin.specifier
            assert specifier.operator == "=="
            if here(pin, machine):
                name = canonicalize_name(pin.name)
                assert name not in versions, f"{pin} twice on {machine}"
                versions[name] = specifier.version
        for requirement in wanted(EXTRAS[lock]):
            if here(requirement, machine):
                version = versions.get(canonicalize_name(requirement.name))
                assert version is not None, f"run scripts/lock: no {requirement} on {machine}"
                assert requirement.specifier.contains(version, prereleases=True), f"run scripts/lock: {requirement}"


@pytest.mark.parametrize("lock", EXTRAS)
def test_every_package_has_hashes_and_no_url(lock: str) -> None:
    for pin, hashes in entries(lock):
        assert hashes, pin
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", text) for text in hashes), pin
        assert pin.url is None
    assert "://" not in (LOCKS / f"{lock}.txt").read_text(encoding="utf-8")


def test_environments_agree() -> None:
    """The checkout is built with the same packages everywhere, and tested with those of the quickstart."""
    for lock, base in [(lock, "build") for lock in EXTRAS] + [("test", "quickstart-cpu")]:
        ours, theirs = ({str(pin) for pin, _ in entries(name)} for name in (lock, base))
        names = {Requirement(text).name for text in ours}
        assert {text for text in theirs if Requirement(text).name in names} <= ours


def test_only_drmaa_is_built_from_source() -> None:
    """Everything else must have a wheel: the programs that build a package are not pinned."""
    text = (ROOT / "scripts/lib/environment.sh").read_text(encoding="utf-8")
    assert re.findall(r"--no-binary (\S+?)\)?$", text, re.MULTILINE) == ["drmaa"]
    assert text.count("--require-hashes --only-binary :all:") + text.count("--no-build-isolation --only-binary") == 2
