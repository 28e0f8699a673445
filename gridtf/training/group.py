"""Averaging: every task trains alone, and every N steps the variables of all become their mean."""

from __future__ import annotations

import atexit
import linecache
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from gridtf import contract, reporting
from gridtf.contract import Task
from gridtf.errors import GridtfError, UsageError
from gridtf.text import counted, percent
from gridtf.training import exchange, shares
from gridtf.training.exchange import Interval, LostError, Member, TooLateError
from gridtf.training.variables import built, describe, floating, name_of, tensorflow_variable, variables_of

if TYPE_CHECKING:
    from typing_extensions import Self

    from gridtf.training.collective import Average
    from gridtf.training.members import Members
    from gridtf.training.seen import Seen

Told = TypeVar("Told")

_NOTICE_AFTER = 60.0  # seconds until a member that waits for others says so
_group: Group | None = None


class Link(Protocol):
    """The members' connection; see gridtf.training.collective.Collective."""

    def total(self, values: Sequence[float]) -> list[float]:
        """Sum vectors over all members."""

    def average(self, variables: Sequence[Any]) -> Average:
        """Make the function that averages variables over all members, unless one of them has diverged."""


class _Alone:
    """The link of the only member."""

    def total(self, values: Sequence[float]) -> list[float]:
        return list(values)

    def average(self, variables: Sequence[Any]) -> Average:
        return lambda numbers, weight: (list(numbers), 0.0)


_ALONE: Link = _Alone()


class Group:
    """The tasks that train a model by averaging, as one of them sees it. Made by ``gridtf.training.averaging()``.

    As a context manager, it calls finish() at the end of the block, unless the block raised an exception.

    Attributes:
        members: Names of all members, such as ``worker:0``; this task's alone outside of gridtf.
        rank: This member's place among them.
        exchanged: Whether the last step() has averaged.
        agreed_checkpoint: Whether a checkpoint had been requested from any member at the last exchange. The same in all
            members.
        on_agreed_checkpoint: Called in finish() after an exchange that has set agreed_checkpoint, since a member whose
            data have ended makes no steps after which it could look; None: nothing.
        keeper: Keeps the members' own states in checkpoints; None: nothing does.
        epochs: Those that ``fit`` trains for; None: unknown.
    """

    def __init__(
        self,
        members: Sequence[str],
        rank: int,
        link: Link,
        interval: Interval | None = None,
        *,
        optimizer_state: bool = False,
        wish: Callable[[], bool] = lambda: False,
        seen: Seen | None = None,
    ) -> None:
        self.members = tuple(members)
        self.rank = rank
        self.exchanged = False
        self.agreed_checkpoint = False
        self.on_agreed_checkpoint: Callable[[], object] | None = None
        self.keeper: Members | None = None
        self.epochs: int | None = None
        self._link = link
        self._interval = interval or Interval()
        self._optimizer_state = optimizer_state
        self._wish = wish
        self._seen = seen
        self._average: Average | None = None
        self._find: Callable[[], list[Any]] = list
        self._attached: dict[int, Any] = {}  # by id, in the order of the vector
        self._steps = 0  # since the beginning
        self._exchanges = 0
        self._distance = 0.0  # from the mean, at the last of them
        self._finished = False

    def attach(self, model: Any, optimizer: Any = None) -> None:
        """Say what is averaged, and give all members the leader's values.

        All floating-point variables of the model are averaged, also those that are not trained, such as the moving
        means of a batch normalization. Counters and seeds (integers) stay each member's own. All members call this,
        with the same model.

        Args:
            model: A model with all its variables (Keras 3, tf_keras, tf.Module), or a list of variables.
            optimizer: Averaged as well with ``optimizer_state=True``; None: the one the model was compiled with.

        Raises:
            GridtfError: When the model has no variables yet, when another was attached before, when members have
                attached different models, and when a member is lost.
        """

        def find() -> list[Any]:
            return floating([*variables_of(model), *(variables_of(optimizer) if self._optimizer_state else ())])

        if not floating(variables_of(model)):
            raise GridtfError(
                "group.attach(model): the model has no variables to average",
                hint="build it before: model.build(input_shape), or call it once",
            )
        if self._optimizer_state:
            optimizer = built(model, optimizer)
        variables = find()
        if self._average is not None:
            if [id(variable) for variable in variables] != list(self._attached):
                raise GridtfError(
                    "group.attach() was called before, with other variables",
                    hint="to average two models, write group.attach([*a.variables, *b.variables])",
                )
            self._finished = False
            return
        self._compare(variables, self._seen.learned(model) if self._seen else [])
        self._find, self._attached = find, {id(variable): variable for variable in variables}
        self._average = self._link.average([tensorflow_variable(variable) for variable in variables])
        restored = self.keeper.restored if self.keeper else 0
        members = self._exchange(Member(weight=float(self.rank == 0), token=restored))  # as follow()
        self._finished = False
        if self.keeper and all(member.token == restored for member in members):
            self.keeper.resume()
        elif restored:
            print("gridtf: the members see different checkpoints: they go on with the leader's", flush=True)

    def resume(self, steps: int, weight: float) -> None:
        """Go on between two exchanges: a member's own state was restored.

        Args:
            steps: Since the last exchange.
            weight: Of these steps.
        """
        self._interval.steps, self._interval.weight = steps, weight

    def follow(self) -> None:
        """Give all members the leader's values. All of them call this; callback() does at the end of ``fit``.

        Raises:
            GridtfError: As step().
        """
        self._exchange(Member(weight=float(self.rank == 0)))

    def step(self, weight: float = 1.0) -> None:
        """Say that a step of training is done; averages when it is time to.

        Args:
            weight: Of this step in the average, such as the number of its examples. The weight of a member is the sum
                of those since the last exchange.

        Raises:
            GridtfError: When no model was attached, when the model has got new variables since then, when a member is
                lost, and when the values of one are NaN or infinite: they are given to nobody.
        """
        self.steps(1, weight)

    def steps(self, number: int, weight: float) -> None:
        """Like step(), for several steps at once.

        Args:
            number: How many.
            weight: Of all of them together.
        """
        if not 0 <= weight < float("inf"):
            raise GridtfError(f"group.step(weight={weight}): a weight is 0 or greater, and finite")
        self._need_attached()
        self.exchanged = self._finished = False
        self._steps += number
        if self.keeper:
            self.keeper.kept = None
        if self._interval.add(number, weight):
            due = self.keeper is not None and self.keeper.saved.due(number)
            own = Member(weight=self._interval.weight, token=self._token(), due=due)
            self._keep(self._exchange(own, of_steps=True))
            self.exchanged = True

    def finish(self) -> None:
        """Say that this member's data have ended, and wait until those of all members have.

        Its steps since the last exchange take part in the next one; in later ones it has weight 0. Afterwards all
        members have the same values. Nothing is done when it was called before and no step was made since.

        Raises:
            GridtfError: As step().
        """
        first = self.keeper
        while not self._finished:
            steps, weight = self._interval.steps, self._interval.weight
            before = first.take(steps, weight) if first else None
            due = first is not None and (self.rank > 0 or first.saved.due(0))
            own = Member(weight=weight, done=True, token=self._token(), due=due)
            members = self._exchange(own, of_steps=weight > 0)
            self._finished = all(member.done for member in members)
            self._keep(members, before)
            first = None
            if self.agreed_checkpoint and self.on_agreed_checkpoint is not None:
                self.on_agreed_checkpoint()

    def callback(self) -> Any:
        """Make a callback for ``fit`` of Keras 3 (of tf_keras with ``TF_USE_LEGACY_KERAS=1``).

        It attaches the model with its optimizer when training begins (after the first batch where that builds the
        model), makes a step after each batch, of weight 1, and finishes at the end of the last epoch. What Keras does
        to the weights after that, with ``use_ema`` or ``restore_best_weights``, each member does by itself; when the
        last callback has ended, all get the leader's values. After each batch it reports the steps of the optimizer,
        loss and metrics, as ``gridtf.progress`` does.

        Returns:
            A ``keras.callbacks.Callback``.
        """
        from gridtf.training.fit import AveragingCallback

        return AveragingCallback(self)

    def share(self, *data: Any) -> Any:
        """This member's part of the training data: of n members, every n-th example, beginning with its rank.

        Args:
            data: Arrays of examples in the first dimension, dicts and lists of such arrays, a ``tf.data.Dataset`` (of
                which every n-th element is taken, such as a batch), or None.

        Returns:
            The same, of this member; of several arguments a tuple: ``model.fit(*group.share(x, y))``.

        Raises:
            GridtfError: When there are fewer examples than members, and when data cannot be divided.
        """
        parts = tuple(shares.part(each, self.rank, len(self.members)) for each in data)
        return parts[0] if len(parts) == 1 else parts

    def told(self) -> dict[str, Any]:
        """What `gridtf status` and the verdict tell: exchanges, steps, this member's distance from the mean before the
        last exchange, as a part of that; and whether an exchange was due, but none was made."""
        seen = self._seen
        if self._exchanges or seen is None:
            return {"exchanges": self._exchanges, "steps": self._steps, "distance": self._distance}
        elapsed = time.monotonic() - (seen.since or time.monotonic())
        return {"exchanges": 0, "steps": seen.steps, "due": seen.steps > 0 and self._interval.due(seen.steps, elapsed)}

    def tell(self) -> None:
        """At the end of the program: into its log, and to the agent."""
        if getattr(sys, "last_value", None) is not None:  # an exception has ended it: that comes last in its log
            return
        told = self.told()
        reporting.finish(told["steps"])
        steps = counted(told["steps"], "step")
        if told["exchanges"]:
            far = f"{self.members[self.rank]} was {percent(told['distance'])} from the mean"
            line = f"averaging made {counted(told['exchanges'], 'exchange')} in {steps}; before the last one {far}"
        else:
            line = f"nothing was averaged in {steps}: {contract.TO_AVERAGE}" if told["due"] else ""
        if line:
            print(f"gridtf: {line}", file=sys.stderr, flush=True)

    @property
    def attached(self) -> bool:
        """Whether a model was attached."""
        return self._average is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._average is not None:
            self.finish()

    def _exchange(self, own: Member, *, of_steps: bool = False) -> list[Member]:
        """Take part in an exchange; returns what all members have told. of_steps: this member has made steps before."""
        average = self._need_attached()
        late = [variable for variable in self._find() if id(variable) not in self._attached]
        if late:
            raise GridtfError(
                f"{name_of(late[0])} was created after group.attach(model), and is not averaged",
                hint="build the whole model before it is attached: call it once, or model.build(input_shape)",
            )
        own = own.replace(wish=self._wish())
        numbers, distance = self._told(lambda: average(self._encode(own), own.weight))
        members = exchange.decode(numbers)
        if culprits := [name for name, member in zip(self.members, members, strict=True) if member.weight < 0]:
            raise exchange.diverged(culprits, self._steps)
        if of_steps:
            self._exchanges, self._distance = self._exchanges + 1, distance
        self.agreed_checkpoint = any(member.wish for member in members)
        self._interval.begin()
        return members

    def _token(self) -> int:
        return 0 if self.keeper is None else 1 + secrets.randbits(23)

    def _keep(self, members: Sequence[Member], before: dict[str, Any] | None = None) -> None:
        """Keep the members' own states, if the leader saves after the exchange in which they have told this.

        Args:
            members: What they have told.
            before: This member's state before the exchange, where its data have ended.
        """
        end = all(member.done and member.due for member in members)
        due = end or (members[0].due and not members[0].done) or self.agreed_checkpoint
        if self.keeper is None or not due or not all(member.token for member in members):
            return
        same = frozenset(id(tensorflow_variable(variable)) for variable in self._attached.values())
        problem = self.keeper.write(members[0].token, before if end and before else self.keeper.take(0, 0.0, same))
        told = self._told(lambda: self._link.total(self._encode(Member(wish=bool(problem)))))
        if problem:
            raise problem
        if any(member.wish for member in exchange.decode(told)):
            self.keeper.kept = None

    def _need_attached(self) -> Average:
        if self._average is None:
            raise GridtfError(
                "group.step() before group.attach(model)",
                hint="call group.attach(model) where the model and its optimizer have been made",
            )
        return self._average

    def _compare(self, variables: Sequence[Any], learned: Sequence[exchange.Learned]) -> None:
        """Check that all members have the same variables, before their vectors are summed; and that layers have learned
        the same of the data."""
        text = exchange.describe([describe(variable) for variable in variables], learned)
        own = Member(signature=exchange.signature(text), size=len(text))
        members = exchange.decode(self._told(lambda: self._link.total(self._encode(own))))
        if len({member.signature for member in members}) == 1:
            return
        width = max(member.size for member in members)
        places: list[float] = [0] * (width * len(members))
        places[width * self.rank : width * self.rank + len(text)] = text
        everyone = self._told(lambda: self._link.total(places))
        texts = [everyone[width * rank : width * rank + member.size] for rank, member in enumerate(members)]
        decoded = (bytes(map(round, text)).decode() for text in texts)
        if different := exchange.difference(dict(zip(self.members, decoded, strict=True))):
            raise different

    def _encode(self, own: Member) -> list[float]:
        return exchange.encode(own, self.rank, len(self.members))

    def _told(self, operation: Callable[[], Told]) -> Told:
        try:
            return operation()
        except LostError as error:
            raise exchange.failure(str(error), self.members[self.rank], self.members, self._steps) from error


def averaging(every: int = 20, seconds: float | None = None, optimizer_state: bool = False) -> Group:
    """Make the averaging group of this process: every task trains alone, and all are averaged every so many steps.

    This must be the program's first use of TensorFlow, except for ``tf.config``. Members are the tasks that train: the
    chief (master) and the workers. Outside of gridtf, in an evaluator and in a job with one worker the group has a
    single member, so that the same program runs on a laptop.

    Args:
        every: Steps between two exchanges.
        seconds: Seconds between two exchanges, in place of steps: for members of different speed.
        optimizer_state: Whether to average the optimizer's variables as well, such as Adam's moments.

    Returns:
        The group: attach(model), step() after each step, and finish(), or callback() for Keras.

    Raises:
        GridtfError: When it is called twice or too late, for wrong arguments, and when the members cannot connect.
    """
    global _group
    _check(every, seconds)
    if _group is not None:
        raise GridtfError(
            "training.averaging() was called twice in this process", hint="use the group of the first call"
        )
    task = contract.own_task()
    members = _members(task)
    rank, link, seen = 0, _ALONE, None
    if task is not None and len(members) > 1:
        rank, link = members.index(task.name), _connected(task)
        from gridtf.training.seen import Seen

        seen = Seen()
    interval, wish = Interval(every, seconds), contract.checkpoint_requested
    _group = Group(members, rank, link, interval, optimizer_state=optimizer_state, wish=wish, seen=seen)
    if seen:
        reporting.also("averaging", _group.told)
        atexit.register(_group.tell)
    return _group


def current() -> Group | None:
    """The averaging group of this process; None when it has none."""
    return _group


def _check(every: int, seconds: float | None) -> None:
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise UsageError(f"training.averaging(every={every!r}): write a number of steps, such as every=20")
    if seconds is not None and not 0 < seconds < float("inf"):
        raise UsageError(f"training.averaging(seconds={seconds!r}): write a time in seconds, such as seconds=5")


def _members(task: Task | None) -> tuple[str, ...]:
    """The members of a task's group, in rank order; the leader first."""
    if task is None or task.type not in exchange.TYPES or task.type not in task.cluster:
        return (task.name if task else "this process",)
    return tuple(f"{kind}:{index}" for kind in exchange.TYPES for index in range(len(task.cluster.get(kind, ()))))


def _connected(task: Task) -> Link:
    from gridtf.training.collective import Collective

    try:
        with _notice(
            f"gridtf: {task.name} waits for the other tasks that train: each has to call training.averaging()"
        ):
            return Collective(task)
    except TooLateError:
        raise _too_late(*_caller()) from None


@contextmanager
def _notice(text: str, seconds: float = _NOTICE_AFTER) -> Iterator[None]:
    """Print a text to standard error if the block takes longer than so many seconds."""
    timer = threading.Timer(seconds, lambda: print(text, file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _caller() -> tuple[str, int]:
    """File and line of the call that led into gridtf."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("gridtf."):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _too_late(file: str, line: int) -> GridtfError:
    return GridtfError(
        f"{Path(file).name}, line {line}: training.averaging() comes too late",
        why="a tensor, variable, model or data set was made before, and TensorFlow then allows no new connections",
        hint=f"move this line to right after the imports: {linecache.getline(file, line).strip()}",
    )
