"""scripts/testbed KIND VERB …"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

# `exec` has to start fast, since tests call it all the time: what it does not need, the other verbs import themselves.
from . import bed as beds
from .bed import HUB, Bed
from .errors import TestbedError

if TYPE_CHECKING:
    import argparse

    from .scheduler import Scheduler

_KINDS = ("slurm", "sge")
_ABOUT = """A real cluster on this machine, from the distribution's packages, in Linux namespaces. {about}.
Users: alice and bob. Shared folder: /mnt/shared, with their homes. Needs root."""


def main(arguments: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else list(arguments)
    options = _exec_options(words) or _parser().parse_args(words)
    signal.signal(signal.SIGTERM, _end)
    try:
        _need_root()
        return int(options.action(options) or 0)
    except TestbedError as error:
        print(error, file=sys.stderr)
        return error.code
    except BrokenPipeError:  # the reader of the output, such as head, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        print(TestbedError("the test bed cannot do that", why=str(error), hint=_advice(error)), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _scheduler(kind: str) -> Scheduler:
    found: Scheduler = import_module(f"{__package__}.{kind}")
    return found


def _up(options: argparse.Namespace) -> None:
    import shlex
    import shutil
    import time

    from . import cluster, enter

    begin, scheduler = time.monotonic(), _scheduler(options.kind)
    for option in options.option:
        if "=" not in option:
            raise TestbedError(f"--option {option} is not KEY=VALUE", code=2)
    for name, why in scheduler.REFUSED.items():
        if getattr(options, name):
            raise TestbedError(f"--{name.replace('_', '-')} is not for {options.kind}", why=why, code=2)
    bed = Bed(
        options.kind,
        sharing=options.shared,
        cgroups=options.cgroups,
        accounting=options.accounting,
        second_network=options.second_network,
        version=options.version,
        shares=cluster.shares([*options.share, *filter(None, [options.root])]),
        options=tuple(options.option),
        root=str(Path(options.root).absolute()) if options.root else "",
        qrsh_newlines=options.qrsh_newlines,
        binaries=scheduler.BINARIES,
        variables=scheduler.ENVIRONMENT,
    )
    cluster.up(scheduler, bed, _quiet if options.quiet else _say)
    if not options.quiet:
        _say(f"{len(scheduler.HOSTS)} hosts are up after {time.monotonic() - begin:.1f} s: {' '.join(scheduler.HOSTS)}")
        _say(f"try: {shlex.quote(sys.argv[0])} {options.kind} exec login {scheduler.GLANCE}")
        if not shutil.which("gridtf", path=enter.search_path(os.environ)):
            _say("gridtf is not installed on the hosts yet: scripts/quickstart makes the environment that they use")


def _down(options: argparse.Namespace) -> None:
    from . import cluster

    with beds.locked():
        cluster.down(options.kind)


def _exec(options: argparse.Namespace | SimpleNamespace) -> int:
    from . import enter, processes

    bed = beds.require(options.kind)
    host = _host(bed, options.host)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        raise TestbedError("no command was given", hint=f"scripts/testbed {options.kind} exec {host} CMD …", code=2)
    environ = enter.environment(options.user, os.environ, bed.variables)
    if bed.binaries:
        environ["PATH"] = f"{bed.binaries}:{environ['PATH']}"  # before those of other installations
    environ.update(pair.partition("=")[::2] for pair in options.env)
    if not processes.alive(bed.hosts[host]):
        raise TestbedError(
            f"host {host} has no power", hint=f"boot it: scripts/testbed {options.kind} mend {host}", code=255
        )
    return enter.run(bed.hosts[host], options.user, command, environ, options.cwd)


def _exec_options(words: Sequence[str]) -> SimpleNamespace | None:
    """Parse `KIND exec …` without argparse, whose import takes long; None for words that argparse has to explain."""
    if words[1:2] != ["exec"] or words[0] not in _KINDS:
        return None
    options = SimpleNamespace(kind=words[0], action=_exec, user="alice", env=[], cwd=None)
    rest = list(words[2:])
    while rest and rest[0].startswith("-"):
        option, equals, value = rest.pop(0).partition("=")
        if option == "--root" and not equals:
            option, value = "--user", "root"
        elif not equals and rest:
            value = rest.pop(0)
        if option == "--env":
            options.env.append(value)
        elif option in ("--user", "--cwd"):
            setattr(options, option[2:], value)
        else:
            return None
    options.host, options.command = rest[0] if rest else None, rest[1:]
    return options if rest else None


def _kill(options: argparse.Namespace) -> None:
    from . import cluster

    with beds.locked():
        bed = beds.require(options.kind)
        cluster.kill(bed, _host(bed, options.host))


def _cut(options: argparse.Namespace) -> None:
    from . import cluster

    with beds.locked():
        bed = beds.require(options.kind)
        cluster.cut(bed, _host(bed, options.host))


def _mend(options: argparse.Namespace) -> None:
    from . import cluster

    with beds.locked():
        bed = beds.require(options.kind)
        cluster.mend(_scheduler(options.kind), bed, _host(bed, options.host))


def _shared(options: argparse.Namespace) -> None:
    from . import cluster

    with beds.locked():
        bed = beds.require(options.kind)
        cluster.set_shared(bed, _host(bed, options.host), options.state)


def _status(options: argparse.Namespace) -> None:
    from . import cluster

    scheduler, bed = _scheduler(options.kind), beds.require(options.kind)
    for host, address in scheduler.HOSTS.items():
        print(f"{host:8}{cluster.stands(bed, host):18}{address}")
    print(cluster.summary(scheduler, bed), end="")


def _host(bed: Bed, name: str) -> str:
    if name not in bed.hosts or name == HUB:
        known = ", ".join(host for host in bed.hosts if host != HUB)
        raise TestbedError(f"no host {name}", hint=f"there are: {known}", code=2)
    return name


def _need_root() -> None:
    if os.geteuid() != 0:
        raise TestbedError(f"{sys.argv[0]} needs root, to make hosts of namespaces", hint="run it with sudo", code=2)


def _advice(error: OSError) -> str:
    import errno

    if error.errno in (errno.EPERM, errno.EACCES):
        return "namespaces and mounts need all of root's rights; in a container: docker run --privileged"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"free some space in {beds.base()}, or name another folder in GRIDTF_TESTBED_STATE"
    return ""


def _say(line: str) -> None:
    print(f"==> {line}", flush=True)


def _quiet(line: str) -> None:
    """Print nothing."""


def _end(*_: object) -> None:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    import argparse

    from . import remote, versions

    parser = argparse.ArgumentParser(prog="scripts/testbed", description="A real cluster on this machine.")
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    for kind in _KINDS:
        scheduler = _scheduler(kind)
        about = _ABOUT.format(about=scheduler.ABOUT)
        verbs = kinds.add_parser(kind, description=about, help=scheduler.ABOUT).add_subparsers(
            required=True, metavar="VERB"
        )
        up = verbs.add_parser("up", help="bring all hosts up, until they are idle; restarts a bed that is up")
        up.add_argument(
            "--shared",
            choices=("plain", "laggy", "remote"),
            default="plain",
            help="whether hosts cache the shared folder, or reach it over their links",
        )
        for name, text in (
            ("cgroups", "constrain jobs to their GPUs by control groups (v1)"),
            ("accounting", "with slurmdbd and MariaDB (200 MB to install)"),
            ("qrsh_newlines", "qrsh passes a newline as the characters \\n, as Open Cluster Scheduler's does"),
        ):
            shown = argparse.SUPPRESS if name in scheduler.REFUSED else text
            up.add_argument(f"--{name.replace('_', '-')}", action="store_true", help=shown)
        other = "another Grid Engine's folder, as SGE_ROOT at a site (default: GRIDTF_TESTBED_SGE_ROOT)"
        refused = "root" in scheduler.REFUSED
        up.add_argument(
            "--root",
            metavar="DIR",
            default=None if refused else os.environ.get("GRIDTF_TESTBED_SGE_ROOT"),
            help=argparse.SUPPRESS if refused else other,
        )
        up.add_argument(
            "--version",
            default="",
            help=argparse.SUPPRESS
            if "version" in scheduler.REFUSED
            else f"one of another Debian release (100 MB to download): {', '.join(versions.SUITES)}",
        )
        up.add_argument(
            "--second-network", action="store_true", help="give each host a second interface, eth1, on which n1 is n1i"
        )
        up.add_argument(
            "--share", action="append", default=[], metavar="DIR", help="a folder that all hosts see at its path"
        )
        up.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help=scheduler.OPTION)
        up.add_argument("--quiet", action="store_true", help="print errors only")
        up.set_defaults(action=_up)
        verbs.add_parser("down", help="remove everything except installed packages").set_defaults(action=_down)
        run = verbs.add_parser("exec", help="run a command on a host")
        run.add_argument("--user", default="alice", help="alice (default), bob, root, …")
        run.add_argument("--root", action="store_const", dest="user", const="root", help="the same as --user root")
        run.add_argument("--env", action="append", default=[], metavar="KEY=VALUE", help="a variable for the command")
        run.add_argument("--cwd", metavar="DIR", help="working folder (default: the current one, or the user's home)")
        run.add_argument("host", metavar="HOST")
        run.add_argument("command", nargs=argparse.REMAINDER, metavar="CMD")
        run.set_defaults(action=_exec)
        for verb, action, text in (
            ("kill", _kill, "cut the power of a host"),
            ("cut", _cut, "take the link of a host down"),
            ("mend", _mend, "bring link and shared folder back, or boot the host; waits until jobs can run there"),
            ("shared", _shared, "with --shared remote: what goes wrong with the shared folder on a host"),
        ):
            subparser = verbs.add_parser(verb, help=text)
            subparser.add_argument("host", metavar="HOST")
            if verb == "shared":
                subparser.add_argument("state", choices=remote.STATES)
            subparser.set_defaults(action=action)
        verbs.add_parser("status", help="show the state of the hosts").set_defaults(action=_status)
    return parser
