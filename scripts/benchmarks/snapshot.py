"""A snapshot of 2,000 files with 50 MB in a git checkout, against ``cp -r``; and submissions without one."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from measure import interleaved, scratch, table

ROUNDS = 7
FILES, SIZE = 2000, 25_000
FIRST, AGAIN, PLAIN, CHECKOUT, WITH = "first snapshot", "next one, 20 files changed", "in a folder", "in git", "with it"
AIMS = {FIRST: "1.5 s or less", AGAIN: "0.5 s or less", CHECKOUT: "as in a folder"}


def main() -> None:
    with scratch() as home:
        top, plain = home / "code", home / "plain"
        fill(top)
        plain.mkdir()
        numbers = itertools.count()
        ways = {
            "cp -r": lambda: timed("cp", "-r", str(top), str(home / f"copy-{next(numbers)}")),
            FIRST: lambda: taken(top, numbers, anew=True),
            AGAIN: lambda: taken(top, numbers, anew=False),
        }
        medians = interleaved(ways, ROUNDS)
        submits = {PLAIN: (plain, ()), CHECKOUT: (top, ()), WITH: (top, ("--snapshot",))}
        medians |= interleaved({name: partial(submitted, *way) for name, way in submits.items()}, ROUNDS)
    print(f"{FILES} files, {FILES * SIZE / 1e6:.0f} MB; median of {ROUNDS}, interleaved")
    rows = [["", "s", "ratio", "aim"]]
    for name in ways:
        rows.append([name, f"{medians[name]:.3f}", f"{medians[name] / medians['cp -r']:.1f}", AIMS.get(name, "")])
    for name in submits:
        ratio = f"{medians[name] / medians[PLAIN]:.2f}"
        rows.append([f"gridtf submit {name}", f"{medians[name]:.3f}", ratio, AIMS.get(name, "")])
    table(rows)


def fill(top: Path) -> None:
    for number in range(FILES):
        path = top / f"part{number % 100}" / f"module{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.randbytes(SIZE))
    for words in (("init", "-q"), ("add", "."), ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x")):
        subprocess.run(["git", *words], cwd=top, check=True)  # noqa: S607
    time.sleep(2.5)  # what is younger than two seconds is copied each time


def taken(top: Path, numbers: itertools.count[int], *, anew: bool) -> float:
    from gridtf.jobspec.spec import JobSpec
    from gridtf.login import code, snapshot, submission

    store = top.parent / "runs" / snapshot.STORE
    shutil.rmtree(store, ignore_errors=anew) if anew else None
    for number in range(0 if anew else 20):
        (top / f"part{number}" / f"module{number}.py").write_bytes(random.randbytes(SIZE))
    spec = JobSpec(command=("true",), scheduler="local", chdir=str(top), run_root=str(store.parent), snapshot=True)
    plan = submission.prepare(spec)
    plan = plan.replace(run_dir=plan.run_dir.with_name(f"run-{next(numbers)}"))
    plan.run_dir.mkdir(parents=True)
    os.sync()
    begin = time.perf_counter()
    with code.asked(top) as about, snapshot.of(plan, about) as (_, made):
        made.publish()
        return time.perf_counter() - begin


def submitted(folder: Path, options: tuple[str, ...]) -> float:
    main = "import sys; from gridtf.cli import main; sys.exit(main())"
    words = ("submit", "--scheduler", "local", "--workers", "1", "--name", "bench", *options, "--", "true")
    taken = timed(sys.executable, "-c", main, *words, cwd=folder)
    timed(sys.executable, "-c", main, "wait", "bench", cwd=folder)
    return taken


def timed(*words: str, cwd: Path | None = None) -> float:
    begin = time.perf_counter()
    subprocess.run(words, cwd=cwd, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begin
