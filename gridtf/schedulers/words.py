"""Options that several schedulers have, and values in directive lines, which no shell reads. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NoReturn

from gridtf.errors import SpecError
from gridtf.jobspec.options import OPTIONS, of_scheduler

if TYPE_CHECKING:
    from gridtf.jobspec.request import Request
    from gridtf.jobspec.spec import JobSpec

# Where a job runs, and who pays for it.
PLACE = (
    of_scheduler(
        "partition", "--partition -p --queue -q", "NAME", "Slurm's partition, Grid Engine's queue; several: a,b"
    ),
    of_scheduler("account", "--account -A --project", "NAME", "Slurm's account, Grid Engine's project"),
)
GPU_MODEL = of_scheduler("gpu_model", "--gpu-model", "MODEL", "the model of the GPUs, such as a100 or 1g.10gb")
# Which hosts, and what else a job needs there. qsub's -l takes constraint and licenses, too.
CONSTRAINT, RESERVATION, LICENSES = NEEDS = (
    of_scheduler("constraint", "--constraint -C", "EXPR", "features of nodes (Slurm), resources (Grid Engine)"),
    of_scheduler("reservation", "--reservation", "NAME", "the advance reservation to run in"),
    of_scheduler("licenses", "--licenses -L", "NAME[:N]", "licenses that the job needs, with commas between them"),
)
NODELIST = of_scheduler("nodelist", "--nodelist -w", "HOST[,HOST]", "hosts that the job must use", kind="words")
EXCLUDE = of_scheduler("exclude", "--exclude -x", "HOST[,HOST]", "hosts that the job must not use", kind="words")
NOTIFY = of_scheduler("notify", "--notify", "mail[:ADDRESS]", "have the scheduler send mail when the job ends")

# Quotes, backslashes and # have a meaning in some scheduler's directives; whitespace ends a value.
_WORD = re.compile(r"""[^\s'"`\\#-][^\s'"`\\#]*""")


def word(key: str, value: str) -> str:
    """Check a value for a directive line, which no shell reads and which each scheduler parses in its own way.

    Args:
        key: Key of the job file that the value comes from.
        value: The value.

    Returns:
        The value, unchanged.

    Raises:
        SpecError: When a directive line cannot contain the value; it names the key.
    """
    if not value.isprintable() or not _WORD.fullmatch(value):
        raise SpecError(
            key,
            f"a directive line cannot contain {value!r}",
            why="whitespace, quotes, backslashes and # end or change a value there, and a dash begins an option",
            hint="if you need it, pass the whole option with native, quoted as the scheduler's manual says",
        )
    return value


def mail(request: Request, when: tuple[str, str], to: str) -> dict[str, str]:
    """The scheduler's options that have it send mail, less those that the user's raw options have.

    Args:
        request: What the job requests.
        when: The option for the events that it reports, without dashes, and its value.
        to: The option for the recipient, without dashes.

    Returns:
        Option, without dashes -> its value; without a recipient, schedulers send it to the user who submits.

    Raises:
        SpecError: When a directive line cannot contain the address.
    """
    if NOTIFY.key not in request.options:
        return {}
    _, _, address = request.options[NOTIFY.key].partition(":")
    found = {when[0]: when[1], **({to: word(NOTIFY.key, address)} if address else {})}
    return {option: value for option, value in found.items() if option not in request.native}


def native(spec: JobSpec) -> tuple[str, ...]:
    """The user's raw options, one per directive line.

    Raises:
        SpecError: For text that is not one line beginning with a dash.
    """
    for option in spec.native:
        if not option.startswith("-") or not option.isprintable():
            hint = "write one option per string, such as '--qos=high'"
            raise SpecError("native", f"{option!r} is not an option", hint=hint)
    return tuple(spec.native)


def refuse_native(text: str, option: str, value: str) -> NoReturn:
    """Refuse a raw option for what a key requests.

    Args:
        text: The option as the user wrote it.
        option: Its name.
        value: Its value.

    Raises:
        SpecError: Always; it says what to write.
    """
    from gridtf.jobspec import synonyms

    hint = synonyms.key(option.replace("-", "_"), value or None, OPTIONS)
    why = "gridtf places the tasks, and would not know of it"
    other = "write gpus_per_task and cpus_per_task"
    raise SpecError(
        "native", f"{text} is requested by a key", why=why, hint=other if not hint or text in hint else hint
    )
