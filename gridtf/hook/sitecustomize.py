"""Runs at the start of every Python program of a task: notes what ends it, shows stacks, prints whole lines.

The program's Python may be any from 3.6 on, and need not have gridtf: this uses the standard library only, and at the
start nothing that Python has not loaded itself. Python 2 can read it and has no use for it. Whatever goes wrong here is
no concern of the program's.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import types  # noqa: F401 - in comments

_LONGEST = 4096  # bytes of a message
_STACKS = 7  # SIGRTMIN + this asks for the stacks of all threads
_HERE = os.path.dirname(os.path.abspath(__file__))


def _where(trace):
    # type: (types.TracebackType | None) -> str
    """The last line of the user's own code in a traceback, such as ``train.py:41``; without one, the last of all."""
    library = os.path.dirname(os.__file__)
    places = []
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        module = str(trace.tb_frame.f_globals.get("__name__")).split(".")[0]
        theirs = module == "gridtf" or name.startswith(("<", library)) or "-packages" + os.sep in name
        places.append((not theirs, "%s:%d" % (os.path.basename(name), trace.tb_lineno)))
        trace = trace.tb_next
    own = [place for is_own, place in places if is_own]
    return (own or [place for _, place in places] or [""])[-1]


def _quoted(text):
    # type: (str) -> str
    """A string of JSON. The program's folder may have a module json of its own."""
    units = text.encode("utf-16-be", "surrogatepass").hex()
    return '"%s"' % "".join("\\u" + units[begin : begin + 4] for begin in range(0, len(units), 4))


def _note(kind, value, trace):
    # type: (type[BaseException], BaseException, types.TracebackType | None) -> None
    """Write down what is known of an exception, for the agent of this host."""
    import time  # built in

    try:
        text = str(value).replace("\0", "\\0")
    except Exception:  # of its own __str__
        text = ""
    message = text.encode("utf-8", "backslashreplace")[:_LONGEST].decode("utf-8", "ignore")
    texts = (("type", kind.__name__), ("message", message), ("place", _where(trace)))
    found = "".join('"%s": %s, ' % (name, _quoted(value)) for name, value in texts)
    name = "exception-%s-%s.json" % (os.environ["GRIDTF_TASK_TYPE"], os.environ["GRIDTF_TASK_INDEX"])
    folder = os.environ["GRIDTF_LOCAL_DIR"]
    if not os.path.isdir(folder):  # somebody has tidied up the disk
        os.mkdir(folder, 0o700)
    path = os.path.join(folder, name)
    new = "%s.%d" % (path, os.getpid())
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # O_EXCL: what others put there is not followed
    try:
        os.fchmod(file, 0o600)  # whatever the umask is
        os.write(file, ('{%s"time": %r, "pid": %d}' % (found, time.time(), os.getpid())).encode())
    finally:
        os.close(file)
    os.replace(new, path)


def _give_up(reserve):
    # type: (list[int]) -> None
    """Close a descriptor, unless the program has closed it, and its number may be another file's."""
    while reserve:
        number = reserve.pop()
        try:
            if os.fstat(number).st_rdev == os.stat(os.devnull).st_rdev:
                os.close(number)
        except OSError:
            pass


def _install():
    # type: () -> None
    import atexit  # built in

    previous = sys.excepthook
    reserve = []  # type: list[int] # a descriptor, where the program has used up all others
    last = []  # type: list[BaseException] # that was noted
    try:
        reserve.append(os.open(os.devnull, os.O_RDONLY))
        if reserve[0] <= 2:  # the program was started without, and may give it another meaning
            os.close(reserve.pop())
    except OSError:
        pass

    def note(kind, value, trace):
        # type: (type[BaseException], BaseException, types.TracebackType | None) -> None
        try:
            _give_up(reserve)
            if not issubclass(kind, KeyboardInterrupt):
                _note(kind, value, trace)
            last[:] = [value]
        except Exception:  # the program's own message comes in any case
            pass

    def excepthook(kind, value, trace):
        # type: (type[BaseException], BaseException, types.TracebackType | None) -> None
        note(kind, value, trace)
        previous(kind, value, trace)

    def at_exit():
        # type: () -> None
        """Note what another excepthook, which a library has put into the place of this one, has printed."""
        value = getattr(sys, "last_value", None)
        if value is not None and not any(value is known for known in last):
            note(type(value), value, sys.last_traceback)

    sys.excepthook = excepthook
    atexit.register(at_exit)


def _show_stacks():
    # type: () -> None
    """Have a signal, whose handler no program has now, append the stacks of all threads to a file, whatever they do."""
    import _signal  # type: ignore[import-not-found] # built in; signal itself would take ten times as long as all of this
    import faulthandler

    number = _signal.SIGRTMIN + _STACKS
    if _signal.getsignal(number) != _signal.SIG_DFL:
        return
    name = "stacks-%s-%s.txt" % (os.environ["GRIDTF_TASK_TYPE"], os.environ["GRIDTF_TASK_INDEX"])
    path = os.path.join(os.environ["GRIDTF_LOCAL_DIR"], name)
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if file <= 2:  # the program was started without, and may give it another meaning
        os.close(file)
    else:
        faulthandler.register(number, file, all_threads=True)


def _show_crashes():
    # type: () -> None
    """Have a crash in native code print the stacks of all threads: without them such a program may say nothing."""
    import _signal
    import faulthandler

    if not faulthandler.is_enabled():  # as PYTHONFAULTHANDLER has it
        abort = _signal.getsignal(_signal.SIGABRT)
        faulthandler.enable()
        # A library that aborts has said why, in lines that must stay the last: the first cause is read in them.
        _signal.signal(_signal.SIGABRT, abort)


def _print_whole_lines():
    # type: () -> None
    """Have a line be written at once where nothing is buffered, lest another process of the log writes into it."""
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "write_through", False):
            stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]


def _use_snapshot():
    # type: () -> None
    """Have what an editable install names in the folder of a snapshot be imported from that."""
    top, copy = (os.path.realpath(os.environ["GRIDTF_SNAPSHOT_" + end]) for end in ("FROM", "TO"))
    if not (os.getcwd() + os.sep).startswith(copy + os.sep):  # another job, of which this one was submitted
        return

    def moved(path):
        # type: (str) -> str
        real = os.path.realpath(path)
        copied = copy + real[len(top) :]
        inside = (real + os.sep).startswith(top + os.sep) and os.path.exists(copied)
        return copied if inside and os.path.realpath(copied) == copied else path  # a link leads to what is no code

    sys.path[:] = map(moved, sys.path)
    for name, module in list(sys.modules.items()):
        if name.startswith("__editable__"):  # setuptools' finder
            module.MAPPING.update({key: moved(path) for key, path in module.MAPPING.items()})


def _load_hidden():
    # type: () -> None
    """Load the sitecustomize of the user's or the site's, which this one hides. Its errors are its own."""
    ours = sys.modules.pop(__name__)
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != _HERE]
    try:
        import sitecustomize  # type: ignore[import-not-found] # noqa: F401
    except ImportError as error:
        if getattr(error, "name", __name__) != __name__:
            raise
    finally:
        sys.modules.setdefault(__name__, ours)


if __name__ == "sitecustomize":
    _wanted = "GRIDTF_LOCAL_DIR" in os.environ and sys.version_info >= (3,)
    try:
        if _wanted and os.environ["GRIDTF_LOCAL_DIR"]:
            _show_stacks()  # first, so that what others register takes its place
    except Exception:  # without it, the program runs as well
        pass
    for _step in (_show_crashes, _print_whole_lines, _use_snapshot):
        try:
            if _wanted and (_step is not _use_snapshot or "GRIDTF_SNAPSHOT_TO" in os.environ):
                _step()
        except Exception:
            pass
    try:
        _load_hidden()
    finally:
        if _wanted:
            _install()
