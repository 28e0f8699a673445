"""scripts/release, on a copy of this checkout with a commit of its own: what it refuses, builds, checks and signs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import releasing

import gridtf
from tests.support import releases

ROOT = Path(__file__).resolve().parents[2]
VERSION = gridtf.__version__


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with the files of this one as its only commit; those that git ignores are not among them."""
    folder = tmp_path / "a check out"
    listed = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).exists():  # otherwise it was removed, and that is not committed
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    git(folder, "init", "--quiet")
    (folder / "CHANGELOG.md").write_text(dated((folder / "CHANGELOG.md").read_text(encoding="utf-8"), "2026-01-31"))
    commit(folder)
    return folder


def git(folder: Path, *words: str) -> None:
    names = {f"GIT_{who}_{what}": "test@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    subprocess.run(["git", *words], cwd=folder, env={**os.environ, **names}, check=True, timeout=180)


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "a release")


def release(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(folder / "scripts/releasing.py"), *options],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=1000,
        check=False,
    )


def dated(text: str, how: str) -> str:
    lines = text.splitlines()
    return "\n".join(f"## [{VERSION}] - {how}" if line.startswith(f"## [{VERSION}]") else line for line in lines) + "\n"


def test_last_release_is_the_commit_that_dates_the_newest_version(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    changelog = tmp_path / "CHANGELOG.md"
    entries = {"0.2.0": "unreleased", "0.1.1": "2027-02-03", "0.1.0": "2027-01-02"}
    commits = []
    for known in (("0.1.0",), ("0.1.1", "0.1.0"), ("0.2.0", "0.1.1", "0.1.0")):
        changelog.write_text("".join(f"## [{name}] - {entries[name]}\n\n- more\n" for name in known))
        commit(tmp_path)
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tmp_path, capture_output=True, text=True, check=True)
        commits.append(head.stdout.strip())
    assert releases.released(tmp_path) == ("0.1.1", commits[1])
    changelog.write_text("## [0.1.0] - unreleased\n")
    commit(tmp_path)
    assert releases.released(tmp_path) is None


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda text: dated(text, "unreleased"), f"CHANGELOG.md has version {VERSION} as unreleased"),
        (lambda text: text.replace(f"## [{VERSION}]", "## [0.0.9]"), f"CHANGELOG.md does not have version {VERSION}"),
        (
            lambda text: f"{text}\n",
            "not all is committed, and a release is made from the last commit",
        ),
    ],
    ids=["unreleased", "not there", "not committed"],
)
def test_release_is_refused(checkout: Path, change: Callable[[str], str], error: str) -> None:
    path = checkout / "CHANGELOG.md"
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
    if "committed" not in error:
        commit(checkout)
    done = release(checkout)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {error}\n       ")
    assert not (checkout / "dist").exists()


def test_draft_is_built_twice_installed_and_signed(checkout: Path, tmp_path: Path) -> None:
    """What the script itself compares: both builds, the sdist with the commit, what is installed."""
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True, timeout=180)
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    done = release(checkout, "--draft", "--only", own, "--key", str(key))
    assert done.returncode == 0, done.stdout + done.stderr
    dist = checkout / "dist"
    wheel, sdist = f"gridtf-{VERSION}-py3-none-any.whl", f"gridtf-{VERSION}.tar.gz"
    assert {path.name for path in dist.iterdir()} == {
        *(wheel, sdist, "SHA256SUMS", "SHA256SUMS.sig", "NOTES.md", "recipe.yaml", "package.py"),
        f"gridtf-{VERSION}.eb",
    }
    assert f"==> Python {own}: installed, and used\n" in done.stdout
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=dist, check=True, timeout=180)
    verify = ["ssh-keygen", "-Y", "check-novalidate", "-n", "file", "-s", "SHA256SUMS.sig"]
    sums = (dist / "SHA256SUMS").read_bytes()
    subprocess.run(verify, cwd=dist, input=sums, check=True, capture_output=True, timeout=180)
    assert subprocess.run(verify, cwd=dist, input=sums + b" ", capture_output=True, timeout=180).returncode != 0
    digests = {line.split()[1]: line.split()[0] for line in sums.decode().splitlines()}
    assert f'sha256: "{digests[sdist]}"' in (dist / "recipe.yaml").read_text(encoding="utf-8")
    assert f'sha256="{digests[sdist]}"' in (dist / "package.py").read_text(encoding="utf-8")
    assert f"checksums = ['{digests[wheel]}']" in (dist / f"gridtf-{VERSION}.eb").read_text(encoding="utf-8")
    with tarfile.open(dist / sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"tests/conftest.py", "docs/man/man1/gridtf.1", "CHANGELOG.md", ".ci/run"} <= names
    assert done.stdout.endswith("==> a draft is not published\n")
    notes = (dist / "NOTES.md").read_text(encoding="utf-8")
    assert notes.startswith(f"# gridtf {VERSION} (2026-01-31)\n\nThe first version.")
    assert "\n### Security\n" in notes and "## [" not in notes
    assert sums.decode() in notes
    changed(dist / wheel, "gridtf/__init__.py")
    seen = subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=dist, capture_output=True, text=True, timeout=180)
    assert (seen.returncode, seen.stdout) == (1, f"{wheel}: FAILED\n{sdist}: OK\n"), seen


def changed(wheel: Path, name: str) -> None:
    """Change one file in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        members = {member: archive.read(member) for member in archive.namelist()}
    members[name] += b"\n"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in members.items():
            archive.writestr(member, data)


def test_publication_needs_an_address_and_is_left_to_a_person() -> None:
    (why,) = releasing.last_words("1.0", {}, draft=False)
    assert "no [project.urls]" in why
    *_, command = releasing.last_words("1.0", {"urls": {"Source": "https://example.org"}}, draft=False)
    assert command == "git tag --sign v1.0 --message 'gridtf 1.0' && git push origin v1.0"


def test_files_that_differ_between_two_builds_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def builds(*command: object, cwd: Path, env: dict[str, str]) -> str:
        folder = Path(str(command[-2]))
        folder.mkdir()
        (folder / "gridtf.whl").write_text(env["TZ"])
        return ""

    monkeypatch.setattr(releasing, "export", Path.mkdir)
    monkeypatch.setattr(releasing, "run", lambda *words, **how: builds(*words, **how) if how else "0")
    with pytest.raises(releasing.Refusal, match=r"built twice, these differ: gridtf\.whl"):
        releasing.build(tmp_path)
