"""Builds and checks a release of the last commit, for scripts/release, which says more."""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gridtf.jobspec.jobfile import toml_parser

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
# Below packaging, with the version -> the end of the file whose checksum it has.
RECIPES = {"conda/recipe.yaml": ".tar.gz", "easybuild/gridtf-{}.eb": ".whl", "spack/package.py": ".tar.gz"}
TWINE = "twine==7.0.0"
UV = Path(sys.executable).with_name("uv")
_INSTALLED = (
    "share/man/man1/gridtf.1",
    "share/man/man5/gridtf.toml.5",
    "share/bash-completion/completions/gridtf",
    "share/zsh/site-functions/_gridtf",
    "share/fish/vendor_completions.d/gridtf.fish",
)


class Refusal(Exception):
    """What is wrong, in a line, and what to do."""


def say(line: str) -> None:
    print(f"==> {line}", flush=True)


def run(*command: object, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    """Run a command; returns its stdout. Refusal with its output when it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise Refusal(f"{' '.join(words)} has failed with exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def entry(version: str) -> tuple[str, str]:
    """What CHANGELOG.md has of a version: its date, or "unreleased", and its text; empty where it has none."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    found = re.search(rf"^## \[{re.escape(version)}\] - (.+)\n((?:(?!## \[).*\n?)*)", text, re.MULTILINE)
    return (found[1], found[2].strip()) if found else ("", "")


def tell_version(draft: bool) -> str:
    """The version to release."""
    found = re.search(
        r'^__version__ = "(.+)"$', (ROOT / "gridtf/__init__.py").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert found
    version = found[1]
    date, _ = entry(version)
    if not draft and not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
        what = f"has version {version} as {date}" if date else f"does not have version {version}"
        raise Refusal(
            f"CHANGELOG.md {what}\nwrite the date of the release there and commit it; to try this before: --draft"
        )
    return version


def need_clean() -> None:
    if changed := run("git", "status", "--porcelain"):
        raise Refusal(f"not all is committed, and a release is made from the last commit\n{changed.rstrip()}")


def export(folder: Path) -> None:
    """The files of the last commit."""
    folder.mkdir()
    run("git", "archive", "--output", folder / "tree.tar", "HEAD")
    run("tar", "-xf", "tree.tar", cwd=folder)
    (folder / "tree.tar").unlink()


def build(work: Path) -> list[Path]:
    """Wheel and sdist, built twice: from the commit; and from the commit the sdist, from which comes the wheel."""
    epoch = run("git", "log", "-1", "--format=%ct").strip()
    made = []
    # also the folder, the mode of new files and the time zone differ
    for name, mask, zone, options in (
        ("one", 0o022, "UTC", ("--sdist", "--wheel")),
        ("other", 0o077, "Asia/Tokyo", ()),
    ):
        old = os.umask(mask)
        try:
            export(work / name)
            command = (
                sys.executable,
                "-m",
                "build",
                "--no-isolation",
                *options,
                "--outdir",
                work / f"{name}-dist",
                ".",
            )
            run(*command, cwd=work / name, env={"SOURCE_DATE_EPOCH": epoch, "TZ": zone})
        finally:
            os.umask(old)
        made.append({path.name: path for path in sorted((work / f"{name}-dist").iterdir())})
    first, second = made
    differ = [name for name in {*first, *second} if read(first.get(name)) != read(second.get(name))]
    if differ:
        raise Refusal(f"built twice, these differ: {', '.join(sorted(differ))}\nin {work}")
    return list(first.values())


def read(path: Path | None) -> bytes:
    return path.read_bytes() if path else b""


def check_sdist(sdist: Path) -> None:
    """It has the files of the commit, what hatchling adds, and nothing else."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {*run("git", "ls-files", "-z").split("\0")} - {""} | {"PKG-INFO"}
    if names != wanted:
        raise Refusal(f"files of the sdist and of the commit differ: {', '.join(sorted(names ^ wanted))}")


def project() -> dict[str, Any]:
    """The table of pyproject.toml."""
    return dict(toml_parser().loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"])


def pythons(only: str | None) -> Iterator[tuple[str, str | None]]:
    """Each version in the classifiers of pyproject.toml, or one, with an interpreter; None: it cannot be had."""
    for classifier in project()["classifiers"]:
        found = re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", classifier)
        if found and only in (None, version := found[1]):
            of_pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
            here = [shutil.which(f"python{version}"), sys.executable, *of_pyenv]
            usable = (str(python) for python in here if python and is_version(str(python), version))
            yield version, next(usable, None) or fetched(version)


def is_version(python: str, version: str) -> bool:
    code = "import sys, ensurepip; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() == version


def fetched(version: str) -> str | None:
    try:
        run(UV, "python", "install", "--quiet", version)
        return run(UV, "python", "find", "--managed-python", version).strip()
    except Refusal:
        return None


def check_installed(wheel: Path, python: str, version: str, work: Path) -> None:
    """Install the wheel as a user does, and use it in a folder that is empty."""
    folder, elsewhere = work / "environment", work / "elsewhere"
    bare = {"PYTHONPATH": "", "GRIDTF_SITE_CONFIG": "", "XDG_CONFIG_HOME": str(elsewhere)}
    run(python, "-m", "venv", "--clear", folder)
    run(folder / "bin/python", "-m", "pip", "install", "--quiet", wheel)
    elsewhere.mkdir(exist_ok=True)
    said = run(folder / "bin/gridtf", "--version", cwd=elsewhere, env=bare).split()
    script = run(folder / "bin/gridtf", "render", "--scheduler", "local", "--", "true", cwd=elsewhere, env=bare)
    if said[-1] != version or not script.startswith("#!/") or str(folder) not in script:
        raise Refusal(f"the installed gridtf says {' '.join(said)}, and renders:\n{script}")
    if missing := [name for name in _INSTALLED if not (folder / name).is_file()]:
        raise Refusal(f"not installed: {', '.join(missing)}")
    run("bash", "-c", 'source "$1" && complete -p gridtf', "-", folder / _INSTALLED[2])


def check(wheel: Path, sdist: Path, version: str, work: Path, draft: bool, only: str | None) -> None:
    check_sdist(sdist)
    run(UV, "tool", "run", "--quiet", TWINE, "check", "--strict", wheel, sdist)
    say("twine check --strict finds no fault")
    for minor, python in pythons(only):
        if python is None and not draft:
            raise Refusal(
                f"Python {minor} cannot be had here\ninstall it, or have uv fetch it: uv python install {minor}"
            )
        if python:
            check_installed(wheel, python, version, work)
        say(f"Python {minor}: {'installed, and used' if python else 'cannot be had here, not tried'}")


def notes(version: str, sums: Mapping[str, str]) -> str:
    """What a release tells: its part of the CHANGELOG, with what was mended of security, and how to check its files."""
    date, text = entry(version)
    lines = "".join(f"{digest}  {name}\n" for name, digest in sums.items())
    how = "`sha256sum --check SHA256SUMS`, beside the files, names one that was changed."
    return f"# gridtf {version} ({date or 'a draft'})\n\n{text}\n\n### Files\n\n```\n{lines}```\n\n{how}\n"


def deliver(made: list[Path], version: str) -> None:
    """Put files, checksums, notes and recipes into dist/."""
    DIST.mkdir(exist_ok=True)
    for pattern in ("gridtf-*", "SHA256SUMS*", "NOTES.md", "recipe.yaml", "package.py"):
        for old in DIST.glob(pattern):
            old.unlink()
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in made}
    for path in made:
        shutil.copyfile(path, DIST / path.name)
    (DIST / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name, digest in sums.items()), encoding="utf-8")
    (DIST / "NOTES.md").write_text(notes(version, sums), encoding="utf-8")
    for recipe in RECIPES:
        digest = next(digest for name, digest in sums.items() if name.endswith(RECIPES[recipe]))
        path = ROOT / "packaging" / recipe.format(version)
        text = re.sub(r"\b0{64}\b", digest, path.read_text(encoding="utf-8"))
        (DIST / path.name).write_text(text, encoding="utf-8")


def signature(key: str) -> list[str]:
    """The command that signs the checksums with a private key of ssh, or a key that gpg knows."""
    if Path(key).is_file():
        return ["ssh-keygen", "-Y", "sign", "-f", key, "-n", "file", "dist/SHA256SUMS"]
    return ["gpg", "--local-user", key, "--armor", "--detach-sign", "dist/SHA256SUMS"]


def last_words(version: str, project: dict[str, object], draft: bool) -> list[str]:
    """How what lies in dist is published: by no one but a person. Pure."""
    if draft:
        return ["==> a draft is not published"]
    if "urls" not in project:
        return ["==> it cannot be published yet: pyproject.toml has no [project.urls], for want of a public address"]
    tag = f"git tag --sign v{version} --message 'gridtf {version}' && git push origin v{version}"
    return ["==> to publish it, by .github/workflows/publish.yml", tag]


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/release")
    parser.add_argument("--draft", action="store_true")
    parser.add_argument("--key", metavar="FILE|ID")
    parser.add_argument("--only", metavar="3.11")
    given = parser.parse_args()
    if given.only and not given.draft:
        parser.error("--only goes with --draft: a release is tried on every Python")
    try:
        version = tell_version(given.draft)
        need_clean()
        with tempfile.TemporaryDirectory(prefix="gridtf-release-") as folder:
            made = build(Path(folder))
            say(f"built twice, the same each time: {', '.join(path.name for path in made)}")
            sdist, wheel = sorted(made, key=lambda path: path.suffix)
            check(wheel, sdist, version, Path(folder), given.draft, given.only)
            deliver(made, version)
        say("dist/NOTES.md, dist/SHA256SUMS")
        print((DIST / "SHA256SUMS").read_text(encoding="utf-8"), end="")
        if given.key:
            run(*signature(given.key))
            say(f"signed: {', '.join(f'dist/{path.name}' for path in DIST.glob('SHA256SUMS.*'))}")
        else:
            say("to sign it: scripts/release --key ~/.ssh/KEY, or one of these")
            print(f"ssh-keygen -Y sign -f ~/.ssh/KEY -n file dist/SHA256SUMS\n{' '.join(signature('KEY'))}")
        print(*last_words(version, project(), given.draft), sep="\n")
    except Refusal as error:
        what, *more = str(error).splitlines()
        print(f"error: {what}", *(f"       {line}" for line in more), sep="\n", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
