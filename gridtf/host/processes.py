"""Signals, children and orphans of this process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
from collections.abc import Iterable

from gridtf.errors import GridtfError
from gridtf.text import plain

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM})
# Passed on to the tasks, such as Slurm's --signal=USR1@120, which requests a checkpoint.
PASSED_ON = frozenset({signal.SIGUSR1, signal.SIGUSR2})
_WAKING = _ENDING | PASSED_ON | {signal.SIGCHLD, signal.SIGIO}


def tell(text: str) -> None:
    """Write lines to stderr, which in a job is its log, each with ``gridtf:`` before it.

    Never fails: a full disk must not keep a job from ending its tasks and writing its verdict. Bypasses sys.stderr,
    which would try again at exit.
    """
    lines = "".join(f"gridtf: {plain(line)}\n" for line in text.splitlines())
    with contextlib.suppress(OSError):
        os.write(2, lines.encode(errors="replace"))


def become_subreaper() -> None:
    """Adopt orphaned descendants from now on, also those that called setsid: prctl(2), PR_SET_CHILD_SUBREAPER."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int, number: signal.Signals) -> None:
    """In a new child: receive a signal when the parent dies (prctl(2), PR_SET_PDEATHSIG).

    The kernel watches the parent's thread, so the parent must fork from its main thread.

    Args:
        parent: Process id of the parent; the child ends at once when that has died already.
        number: The signal.
    """
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(128 + number)


def _prctl(option: int, value: int) -> None:
    import ctypes  # not for `gridtf list`

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def block_signals(spared: Iterable[int] = ()) -> None:
    """Block the signals that wait_for_signal takes; children must call unblock_signals before they exec.

    The parent may have ignored some of them: a script with `trap '' TERM`, or a daemon with SIGCHLD ignored, whose
    children leave no exit code. They get their default disposition back.

    Args:
        spared: Signals that stay ignored, and are not taken, if they are ignored now.
    """
    heeded = _WAKING - {number for number in spared if signal.getsignal(number) == signal.SIG_IGN}
    signal.pthread_sigmask(signal.SIG_BLOCK, heeded)
    for number in heeded:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def unblock_signals() -> None:
    """Unblock all signals."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def ignore_signals(numbers: Iterable[int]) -> None:
    """Ignore signals from now on, here and in programs started from here unless they handle them."""
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


def wait_for_signal(seconds: float) -> int | None:
    """Wait for a signal that block_signals has blocked.

    Args:
        seconds: The longest time to wait.

    Returns:
        The signal's number; None when none came.
    """
    got = signal.sigtimedwait(_WAKING, max(0.0, seconds))
    return got.si_signo or None if got else None  # 0 after SIGSTOP and SIGCONT, as by scontrol suspend


def is_end(number: int | None) -> bool:
    """Whether this result of wait_for_signal is a signal to end."""
    return number in _ENDING


def signal_at_end_of(descriptor: int) -> bool:
    """Request SIGIO when a pipe or socket is written to or its last writer closes it: fcntl(2), O_ASYNC.

    Args:
        descriptor: Its reading end; becomes non-blocking.

    Returns:
        False for anything else, such as /dev/null, whose end means nothing.
    """
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return False
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK)
    return True


def at_end(descriptor: int) -> bool:
    """Whether a non-blocking pipe or socket has no writer any more."""
    try:
        return os.read(descriptor, 512) == b""
    except BlockingIOError:
        return False
    except OSError:  # a broken connection
        return True


_OWN_FILES = 32  # what Python, srun or qrsh have open themselves


def need_open_files(count: int) -> None:
    """Raise the limit on open files (``ulimit -n``), which children inherit, where it is too low.

    Args:
        count: How many files this process, or one that it starts, has to open beside their own ones.

    Raises:
        GridtfError: The limit is too low and cannot be raised that far.
    """
    needed = _OWN_FILES + count
    allowed = _allow_open_files(needed)
    if allowed < needed:
        raise GridtfError(
            f"about {needed} files have to be open at once on host {os.uname().nodename}, where {allowed} may be",
            hint="raise it with `ulimit -n 1024`, in the set-up lines or in what starts the job, or ask your site",
        )


def _allow_open_files(count: int) -> int:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return count
    if soft < count:
        soft = count if hard == resource.RLIM_INFINITY else min(count, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft


def reap() -> dict[int, int]:
    """Collect all children that have ended.

    Returns:
        Process id -> exit code, or minus the number of the signal that ended it.
    """
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9; real-time signals have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def killed_by(number: int) -> str:
    """``killed by SIGTERM``; for SIGKILL with its likely sources."""
    words = f"killed by {signal_name(number)}"
    return f"{words}: by a user, or by the kernel because memory ran out" if number == signal.SIGKILL else words


def childless() -> bool:
    """Whether this process has no children. A subreaper without children has no descendants, and asking the kernel is
    atomic, whereas a walk through /proc can miss processes that fork meanwhile."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes; ignores those that are gone or belong to other users."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue
