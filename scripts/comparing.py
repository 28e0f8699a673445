"""Compares how random attempts end in two trees of gridtf: scripts/differential."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
WANTED = ROOT / "tests/recorded/differences.json"
Ends = dict[int, dict[str, Any]]
_SOON = 0.6  # simulated seconds by which an attempt may take longer or shorter
_MOST_SHOWN = 3
_AT_ONCE = 250  # attempts with another order, which may be seen in them


@contextlib.contextmanager
def tree_of(commit: str) -> Iterator[Path]:
    """The files of a commit."""
    from tests.support.releases import unpack

    with tempfile.TemporaryDirectory(prefix="gridtf-differential-") as folder:
        unpack(commit, Path(folder))
        yield Path(folder)


def start(tree: Path, first: int, last: int, *order: str) -> subprocess.Popen[str]:
    """Start to let attempts of these seeds end in a tree."""
    command = [sys.executable, str(ROOT / "scripts/randomends.py"), str(tree), str(first), str(last), *order]
    return subprocess.Popen(command, cwd=tree, stdout=subprocess.PIPE, text=True)


def ends_of(process: subprocess.Popen[str]) -> Ends:
    """How they have ended, by seed."""
    lines, _ = process.communicate()
    assert process.returncode == 0, f"{process.args!r} has ended with {process.returncode}"
    return {end["seed"]: end for end in map(json.loads, lines.splitlines())}


def _flat(end: Mapping[str, Any]) -> dict[str, Any]:
    parts = {key: value for key, value in end.items() if not isinstance(value, dict)}
    for part in ("verdict", "stop"):
        parts |= {f"{part}.{key}": value for key, value in end.get(part, {}).items()}
    return parts


def differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What differs of two ends: the names of records and their entries."""
    before, after = _flat(old), _flat(new)
    names = [name for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name)]
    if abs(before.get("seconds", 0.0) - after.get("seconds", 0.0)) <= _SOON:
        names = [name for name in names if name != "seconds"]
    return names


def _told(end: Mapping[str, Any]) -> str:
    if "error" in end:
        return str(end["error"])
    verdict, stop = end["verdict"], end["stop"].get("reason")
    return f"{verdict['state']}: {verdict['reason']} [{verdict['hint']}] (stop: {stop}, {end['seconds']} s)"


def wanted(names: list[str], old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether a difference is one of those that are listed: all that differs, and both texts, have to match."""
    rows = json.loads(WANTED.read_text())
    texts = _told(old), _told(new)
    return any(
        set(names) <= set(row["names"])
        and all(re.search(row[which], text) for which, text in zip(("old", "new"), texts, strict=True))
        for row in rows
    )


def compare(commit: str, first: int, count: int) -> int:
    """Compare this tree with that of a commit. Returns how many attempts differ and are not listed, or show nothing."""
    with tree_of(commit) as tree:
        processes = [start(each, first, first + count) for each in (tree, ROOT)]
        old, new = map(ends_of, processes)
    listed = 0
    found: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for seed, end in old.items():
        names = differing(end, new[seed])
        if names and wanted(names, end, new[seed]):
            listed += 1
        elif names:
            found[tuple(names)].append(seed)
    states = Counter(end["verdict"]["state"] if "verdict" in end else "error" for end in old.values())
    print(f"{count} attempts: {', '.join(f'{number} {state}' for state, number in states.most_common())}")
    missed = sum(map(len, found.values())) + states["error"]  # what has not ended shows nothing
    print(f"{count - listed - missed} end as at {commit}, {listed} differ as they should, {missed} differ")
    for seed in [seed for seed, end in old.items() if "error" in end][:_MOST_SHOWN]:
        print(f"  {seed} has not ended: {_told(old[seed])}")
    for keys, seeds in sorted(found.items(), key=lambda item: -len(item[1])):
        print(f"\n{len(seeds)} in {', '.join(keys)}")
        for seed in seeds[:_MOST_SHOWN]:
            print(f"  {seed} before: {_told(old[seed])}\n  {seed} now:    {_told(new[seed])}")
    return missed


def other_orders() -> dict[tuple[str, str], list[str]]:
    """Each pair of kinds of ends that stand one after the other at a moment -> an order in which they change places.

    As few other kinds that may be known at the same moment as possible do so as well.
    """
    from gridtf.bootstrap.judge.evidence import MOMENTS, ORDER

    usual = [*ORDER]
    moments = [[kind for kind in usual if kind in moment] for moment in MOMENTS]

    def changed(order: list[str]) -> int:
        pairs = [pair for moment in moments for pair in combinations(moment, 2)]
        return sum(order.index(former) > order.index(latter) for former, latter in pairs)

    def moved(kind: str, place: str, after: int) -> list[str]:
        rest = [each for each in usual if each != kind]
        rest.insert(rest.index(place) + after, kind)
        return rest

    pairs = dict.fromkeys(pair for moment in moments for pair in pairwise(moment))
    return {(one, two): min(moved(one, two, 1), moved(two, one, 0), key=changed) for one, two in pairs}


def unseen_orders(first: int, most: int) -> list[tuple[str, str]]:
    """The pairs of kinds that may change places without a difference in any of so many attempts."""
    left = other_orders()
    for begin in range(first, first + most, _AT_ONCE):
        seeds = begin, min(begin + _AT_ONCE, first + most)
        right = ends_of(start(ROOT, *seeds))
        for pair, order in tuple(left.items()):
            other = ends_of(start(ROOT, *seeds, *order))
            if found := [seed for seed, end in right.items() if differing(end, other[seed])]:
                print(f"{pair[1]} before {pair[0]} is seen in {found[:_MOST_SHOWN]}", flush=True)
                del left[pair]
    print(*(f"{two} before {one} is not seen" for one, two in left), sep="\n")
    return [*left]


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/differential")
    parser.add_argument("commit", nargs="?", help="default: that of the last release")
    parser.add_argument("--attempts", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--orders", action="store_true")
    typed = parser.parse_args()
    if typed.orders:
        return bool(unseen_orders(typed.first, typed.attempts))
    if typed.commit is None:
        from tests.support.releases import released

        typed.commit = (released() or ("", "HEAD"))[1]
    return bool(compare(typed.commit, typed.first, typed.attempts))


if __name__ == "__main__":
    sys.exit(main())
