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
    from collections.abc import Iterable  # noqa: F401

_LONGEST = 4096  # bytes of a message
_SEARCHED = 8192  # characters of one, behind the places in it
_STACKS = 7  # SIGRTMIN + this asks for the stacks of all threads
_HERE = os.path.dirname(os.path.abspath(__file__))
# Parts of the names of files that are not the user's: some have TensorFlow's packages in a folder of their own.
_THEIRS = ("-packages/", "/__autograph_generated_file", "/tensorflow/python/", "/keras/src/", "/tf_keras/src/")


def _is_own(name):
    # type: (str) -> bool
    """Whether a file has the user's code."""
    return not name.startswith(("<", os.path.dirname(os.__file__))) and not any(part in name for part in _THEIRS)


def _places(trace):
    # type: (types.TracebackType | None) -> list[tuple[str, object, bool]]
    """The files and lines of a traceback, and whether they are the user's own."""
    places = []  # type: list[tuple[str, object, bool]]
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        module = str(trace.tb_frame.f_globals.get("__name__")).split(".")[0]
        places.append((name, trace.tb_lineno, module != "gridtf" and _is_own(name)))
        trace = trace.tb_next
    return places


def _unwrapped(kind, text):
    # type: (type[BaseException], str) -> tuple[str, str, list[tuple[str, object, bool]]]
    """Type, message, and the places in it, of the exception that another one has in its message.

    AutoGraph has the user's traceback there, tf.data and py_function that of their function, and "Graph execution
    error" that of the operation; Keras puts a heading above and the arguments below.
    """
    import re

    name, message, found = kind.__name__, re.sub(r"\x1b\[[01]m", "", text), []
    if "in user code:" in text or kind.__module__.startswith("tensorflow."):
        place = r'(?m)^( *)(?:File "(.+)", line (\d+)|(\S+\.py):(\d+) ).*\n(?:\1 +.*\n| *\n)*'  # and as before 2.6
        found = list(re.finditer(place, re.split(r"\n(?:Original stack trace for |  \(1\) )", message)[0]))
        message = message[found[-1].end() if found else 0 :].lstrip()[:_SEARCHED]
        for noise in (
            r"^(?:\s*(?:Graph execution error:|Detected at node .*|<stack traces .*|Node: .*|\d+ root error.*)\n)*",
            r"^\s*\(0\) [\w ]+: *",
            r"\{\{function_node .*?\}\} ?",
            r"Error in user-defined function .*? iterator: \S+: +",
            r"\[Op:\w+\](?: name: ?\S*)?",
        ):
            message = re.sub(noise, "", message)
        inner = re.match(r"\s*(?:\w+\.)*([A-Za-z_]\w{0,99})(?:: |:?\s*$)", message)
        if inner and ("in user code:" in text or "Traceback (most recent call last):" in text):
            name, message = inner.group(1), message[inner.end() :]
    message = message.lstrip()[:_SEARCHED]
    message = re.sub(r"^(?:\s*(?:Exception encountered when calling .*|.* Error encountered:)\n *\n)+", "", message)
    lines = [line.strip() for line in message.splitlines() if line.strip()] or [""]
    more = " " + lines[1] if lines[0].endswith(":") and lines[1:] and lines[1][0] != "[" else ""  # no tensor
    groups = [one.groups() for one in found]
    return name, lines[0] + more, [(a or b, line or number, _is_own(a or b)) for _, a, line, b, number in groups]


def _quoted(text):
    # type: (str) -> str
    """A string of JSON. The program's folder may have a module json of its own."""
    units = text.encode("utf-16-be", "surrogatepass").hex()
    return '"%s"' % "".join("\\u" + units[begin : begin + 4] for begin in range(0, len(units), 4))


def _told(value, trace):
    # type: (BaseException, types.TracebackType | None) -> tuple[str, str, str, str]
    """Type and message of an exception, the last line of the user's own code, such as ``train.py:41``, or without one
    the last of all, and its whole text."""
    try:
        text = str(value).replace("\0", "\\0")
    except BaseException:  # of its own __str__, whose SystemExit would be the program's
        text = "<exception str() failed>"  # as Python prints
    try:
        name, message, places = _unwrapped(type(value), text)
    except Exception:  # the program has a module re of its own
        name, message, places = type(value).__name__, text, []
    places = _places(trace) + places
    last = ([place for place in places if place[2]] or places)[-1:]
    return name, message, "".join("%s:%s" % (os.path.basename(file), line) for file, line, _ in last), text


def _cause(value):
    # type: (BaseException) -> str
    """What an exception goes back to, in words that follow it; empty where it is the first one."""
    words, seen = [], [value]  # type: list[str], list[BaseException]
    while True:
        group, below, word = getattr(value, "exceptions", None), value.__cause__, "caused by"
        if isinstance(group, (list, tuple)) and group:
            below, word = group[0], "first of them"
        elif below is None and not value.__suppress_context__:
            below, word = value.__context__, "while handling"
            if below is not None and not any(own for _, _, own in _places(below.__traceback__)):
                below = None  # a library's own affair
        if below is None or type(below).__name__.endswith("RemoteTraceback"):  # of a pool: the same one, as text
            break
        if any(below is one for one in seen):  # a program has chained them in a circle
            break
        value = below
        seen.append(value)
        words.append(word)
    if not words:
        return ""
    name, message, place, _ = _told(value, value.__traceback__)
    word = "caused by" if "caused by" in words else words[0]
    return "%s %s%s%s%s" % (word, name, message and ": ", message[:200], place and " (%s)" % place)


def _note(kind, value, trace):
    # type: (type[BaseException], BaseException, types.TracebackType | None) -> None
    """Write down what is known of an exception, for the agent of this host."""
    import time  # built in

    name, first, place, text = _told(value, trace)
    try:
        cause = _cause(value)
    except BaseException:  # the user's own code is in it
        cause = ""
    text = text if text.partition("\n")[0][:_SEARCHED] == first else first[:1000] + "\n" + text
    message = text.encode("utf-8", "backslashreplace")[:_LONGEST].decode("utf-8", "ignore")
    texts = [("type", name[:200]), ("message", message), ("place", place)] + ([("cause", cause)] if cause else [])
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
        except BaseException:  # the program's own message comes in any case
            pass

    def excepthook(kind, value, trace):
        # type: (type[BaseException], BaseException, types.TracebackType | None) -> None
        note(kind, value, trace)
        show = previous
        if sys.version_info < (3, 11) and previous is sys.__excepthook__:  # the backport of groups would replace it
            show = getattr(sys.modules.get("exceptiongroup"), "print_exception", previous)
        show(kind, value, trace)

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
