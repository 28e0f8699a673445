"""The packages that a Python has, such as TensorFlow, read from names of folders: nothing is started or imported."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

TYPE_CHECKING = False  # typing would take longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

_PYTHON = re.compile(r"python(\d(\.\d+)?)?")
# Distributions that provide the module tensorflow, as installers name their metadata: tensorflow_cpu-2.21.0.dist-info.
_TENSORFLOW = re.compile(
    r"(?:intel_)?(?:tensorflow|tf_nightly)(?:_(?:cpu|gpu|rocm|intel|macos|aws|cpu_aws))?-(\d[^-]*)(?:-py[\d.]+)?"
    r"\.(?:dist|egg)-info"
)
_PACKAGE = re.compile(r"(.+?)-(\d[^-]*)(?:-py[\d.]+)?\.(?:dist|egg)-info")
_NUMBER = re.compile(r"/python(\d\.\d+)/")


def tensorflow_version(program: str, environ: Mapping[str, str], folder: Path) -> str | None:
    """Find the version of TensorFlow that a command would import.

    Args:
        program: The first word of the command.
        environ: Its environment: PATH, PYTHONPATH, HOME.
        folder: Its working folder.

    Returns:
        Such as ``2.21.0``; empty when the Python has none. None when that is not known: the program is not a Python,
        or not one whose folders are where Python's own build, venv, conda and Debian put them.
    """
    found = _installed(program, environ, folder)
    if found is None:
        return None
    return next((match[1] for name in found[1] if (match := _TENSORFLOW.fullmatch(name))), "")


def packages(program: str, environ: Mapping[str, str], folder: Path) -> dict[str, Any] | None:
    """Find what is installed for the Python of a command.

    Args:
        program: The first word of the command.
        environ: Its environment: PATH, PYTHONPATH, HOME.
        folder: Its working folder.

    Returns:
        ``python``: its path; ``version``: such as 3.11, empty when not known; ``packages``: name -> version. None as
        tensorflow_version.
    """
    found = _installed(program, environ, folder)
    if found is None:
        return None
    python, names, number = found
    matches = [match for name in names if (match := _PACKAGE.fullmatch(name))]
    versions = {match[1].replace("_", "-").lower(): match[2] for match in reversed(matches)}  # the first one counts
    return {"python": str(python), "version": number, "packages": dict(sorted(versions.items()))}


def _installed(program: str, environ: Mapping[str, str], folder: Path) -> tuple[Path, list[str], str] | None:
    """The file of a Python, the names in its folders for packages, and its version."""
    if not _PYTHON.fullmatch(program.rpartition("/")[2]):
        return None
    python = _found(program, environ.get("PATH", os.defpath), folder)
    sites = [site for site in _site_folders(python, environ) if _is(Path.is_dir, site)] if python else []
    if python is None or not sites:
        return None
    extra = (folder / path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path)
    names = [
        name for site in (*extra, *(each for site in sites for each in _with_named(site))) for name in _names(site)
    ]
    return python, names, next((match[1] for site in sites if (match := _NUMBER.search(str(site)))), "")


def _found(program: str, path: str, folder: Path) -> Path | None:
    """The file that is run, links not followed: a venv is found by where its link lies."""
    files = (folder / each / program for each in ([""] if "/" in program else path.split(os.pathsep)))
    return next((file for file in files if _is(Path.is_file, file) and os.access(file, os.X_OK)), None)


def _is(kind: Callable[[Path], bool], path: Path) -> bool:
    """Whether a path is of a kind; not if that cannot be seen, as in a folder of another user."""
    try:
        return kind(path)
    except OSError:
        return False


def _site_folders(python: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    """The folders for packages that a Python may have, in the order of its sys.path."""
    prefix = python.parent.parent
    settings = _settings(prefix / "pyvenv.cfg")
    if settings:
        # in the words of venv, or of virtualenv and uv
        version = settings.get("version") or settings.get("version_info", "")
        yield from _packages(prefix, ".".join(version.split(".")[:2]))
        if settings.get("include-system-site-packages", "").lower() != "true":
            return
    real = python.resolve()
    number = re.fullmatch(r"python(\d\.\d+)", real.name)
    if number is None:
        return
    if home := environ.get("HOME"):
        yield from _packages(Path(home, ".local"), number[1])
    prefix = real.parent.parent
    if prefix == Path("/usr"):  # Debian's
        yield from _packages(Path("/usr/local"), number[1])
        yield Path("/usr/lib/python3/dist-packages")
    yield from _packages(prefix, number[1])


def _packages(prefix: Path, number: str) -> Iterator[Path]:
    for lib in ("lib", "lib64"):
        for name in ("site-packages", "dist-packages"):
            yield prefix / lib / f"python{number}" / name


def _with_named(site: Path) -> Iterator[Path]:
    """A folder for packages, and those that its .pth files name (site.html of Python's library)."""
    yield site
    for name in _names(site):
        if name.endswith(".pth"):
            with contextlib.suppress(OSError):
                lines = (site / name).read_text(encoding="utf-8", errors="replace").splitlines()
                yield from (
                    site / line
                    for line in map(str.strip, lines)
                    if line and not line.startswith(("#", "import ", "import\t"))
                )


def _settings(file: Path) -> dict[str, str]:
    """The settings of a virtual environment (PEP 405); none where the file does not exist."""
    try:
        pairs = [line.partition("=") for line in file.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        return {}
    return {key.strip().lower(): value.strip() for key, _, value in pairs}


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
