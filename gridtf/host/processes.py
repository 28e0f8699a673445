"""Signals, children and orphans of this process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
from collections.abc import Collection, Iterable

from gridtf.errors import GridtfError
from gridtf.text import plain

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

# Sent to all processes of a job or a terminal at once: to the commands that gridtf runs as well.
TO_ALL = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_ENDING = TO_ALL | {signal.SIGALRM}
# Passed on to the tasks, such as Slurm's --signal=USR1@120, which requests a checkpoint.
PASSED_ON = frozenset({signal.SIGUSR1, signal.SIGUSR2})
_WAKING = _ENDING | PASSED_ON | {signal.SIGCHLD, signal.SIGIO}


def tell(text: str) -> None:
    """Write lines to stderr, which in a job is its log, each prefixed with ``gridtf:``.

    Never raises: a full disk must not keep a job from ending its tasks and writing its verdict. Bypasses sys.stderr,
    which would try again at exit.

    Args:
        text: One or more lines; control characters are escaped.
    """
    with contextlib.suppress(OSError):
        write_log(text)


def write_log(text: str) -> None:
    """As tell.

    Raises:
        OSError: The lines could not be written.
    """
    lines = "".join(f"gridtf: {plain(line)}\n" for line in text.splitlines())
    os.write(2, lines.encode(errors="replace"))


def become_subreaper() -> None:
    """Adopt orphaned descendants from now on, even after setsid(2): prctl(2), PR_SET_CHILD_SUBREAPER."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int, number: signal.Signals) -> None:
    """Have a signal sent to this process, a new child, when its parent dies (prctl(2), PR_SET_PDEATHSIG).

    The kernel watches the parent's thread, so the parent must fork from its main thread.

    Args:
        parent: Process id of the parent; if it has died already, this process exits with 128 + ``number``.
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
    """Block the signals that wait_for_signal returns; new children call unblock_signals, also those that exec.

    The parent may have ignored some of them: a script with `trap '' TERM`, or a daemon with SIGCHLD ignored, whose
    children leave no exit code. Their default disposition is restored.

    Args:
        spared: Signals that stay ignored, and are not blocked, if they are ignored now.
    """
    blocked = _WAKING - {number for number in spared if signal.getsignal(number) == signal.SIG_IGN}
    signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    for number in blocked:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def unblock_signals() -> None:
    """Unblock all signals, in a new child.

    A Ctrl-C that reaches the child before it has called exec ends it, and raises no KeyboardInterrupt in it.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def ignore_signals(numbers: Iterable[int]) -> None:
    """Ignore signals from now on, in this process and in programs that it starts, unless they handle them."""
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


def wait_for_signal(seconds: float) -> int | None:
    """Wait for a signal that block_signals has blocked.

    Args:
        seconds: The maximum time to wait.

    Returns:
        The signal's number; None when none arrived.
    """
    got = signal.sigtimedwait(_WAKING, max(0.0, seconds))
    return got.si_signo or None if got else None  # 0 after SIGSTOP and SIGCONT, as by scontrol suspend


def is_end(number: int | None) -> bool:
    """Whether a result of wait_for_signal is a signal that ends gridtf: TERM, INT, HUP or ALRM."""
    return number in _ENDING


def signal_at_end_of(descriptor: int) -> bool:
    """Request SIGIO when a pipe or socket is written to or its last writer closes it: fcntl(2), O_ASYNC.

    Args:
        descriptor: Its reading end, which becomes non-blocking.

    Returns:
        False for any other file, such as /dev/null, for which nothing is requested.
    """
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return False
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK)
    return True


def at_end(descriptor: int) -> bool:
    """Whether a non-blocking pipe or socket no longer has a writer; discards up to 512 bytes."""
    try:
        return os.read(descriptor, 512) == b""
    except BlockingIOError:
        return False
    except OSError:  # a broken connection
        return True


_BASE_FILES = 32  # open files of Python, srun or qrsh themselves


_PIDFD_GETFD = 438  # the number of this system call, on all machines but alpha


def borrow_sockets(inodes: Collection[int], pids: Iterable[int]) -> dict[int, int]:
    """Duplicate sockets of other processes: a connection stays while a duplicate of it is open (pidfd_getfd(2)).

    Args:
        inodes: The sockets.
        pids: The processes that may have them.

    Returns:
        Inode -> descriptor. Sockets are missing that nobody has, or that this process may not have: before Linux 5.6,
        and where only an ancestor may trace a process (Yama).
    """
    import ctypes

    from gridtf.host import procfs

    libc, found = ctypes.CDLL(None), {}
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    for pid in pids:
        with contextlib.suppress(OSError, AttributeError):
            for number, name in procfs.descriptors(pid):
                if (inode := wanted.get(name, 0)) and inode not in found:
                    process = os.pidfd_open(pid)
                    descriptor = libc.syscall(_PIDFD_GETFD, process, number, 0)
                    os.close(process)
                    if descriptor >= 0:
                        found[inode] = descriptor
        if len(found) == len(wanted):
            break
    return found


def keep_only(descriptors: Iterable[int]) -> None:
    """Close all other descriptors of this process, whose owners must not wait for it; its stdio becomes /dev/null."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    kept = {0, 1, 2, *descriptors}
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself is closed by now
                os.close(int(name))


def need_open_files(count: int) -> None:
    """Raise the limit on open files (``ulimit -n``), which children inherit, if it is too low.

    Args:
        count: Number of files that this process, or one that it starts, will open in addition to its usual ones.

    Raises:
        GridtfError: When the hard limit is too low.
    """
    import resource

    needed = _BASE_FILES + count
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < needed:
            raise GridtfError(
                f"about {needed} open files are needed on host {os.uname().nodename}, but the limit is {soft}",
                hint="raise it with `ulimit -n 1024` in the set-up lines or before starting the job, or ask your site",
            )


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
    """``killed by SIGTERM``; for SIGKILL with its likely senders."""
    text = f"killed by {signal_name(number)}"
    return f"{text}: by a user, or by the kernel because memory ran out" if number == signal.SIGKILL else text


def childless() -> bool:
    """Whether this process has no children; then a subreaper has no descendants either.

    Unlike a walk through /proc, which can miss processes that fork meanwhile, waitid(2) is atomic.
    """
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def signal_all(pids: Iterable[int], number: int) -> None:
    """Send a signal to processes, except those that are gone or belong to other users."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
