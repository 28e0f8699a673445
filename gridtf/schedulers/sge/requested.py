"""What a job requests of Grid Engine, the user's raw options included, and the keys to blame for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gridtf.jobspec.request import Request
from gridtf.jobspec.spec import JobSpec
from gridtf.schedulers.api import Plan
from gridtf.schedulers.sge import directives
from gridtf.schedulers.sge.directives import HOST, MEMORY, Resource, Site, Slots, requests_gpus
from gridtf.values import Value


class Requested(Value):
    """All that a job requests: by gridtf's options, and by the user's raw options, which override them.

    Attributes:
        request: What gridtf's options request.
        pe: The parallel environment, or a pattern such as ``mpi*``; empty without one.
        slots: The slots.
        resources: Hard resources: name -> amount as qsub takes it.
        queues: Patterns of queues; empty: any queue.
        keys: Option of qsub, or name of a resource -> the key of the specification to blame.
        counting: How Grid Engine counts GPUs; None when gridtf requests none, or it is not known.
        site: What is known of the site.
    """

    request: Request
    pe: str
    slots: Slots
    resources: Mapping[str, str]
    queues: tuple[str, ...]
    keys: Mapping[str, str]
    counting: Resource | None = None
    site: Site = Site()

    def counts(self, consumable: str) -> bool:
        """Whether the GPUs that gridtf requests are counted in this way: ``YES`` (per slot), ``JOB`` or ``HOST``."""
        how = self.counting.consumable if self.counting else "YES"
        return requests_gpus(self.request) and how == consumable

    @property
    def counts_by_host(self) -> bool:
        """Whether the amount of GPUs is that of a host (of a job on one host), not of a slot."""
        return self.counts("JOB") or self.counts("HOST")

    @property
    def gpu(self) -> str:
        """The resource that stands for GPUs."""
        return str(self.request.options["gpu_resource"])

    @property
    def gpu_hint(self) -> str:
        """What shows the GPUs that there are."""
        return f"`qhost -F {self.gpu}` shows the GPUs of each host"

    def key(self, option: str) -> str:
        """The key of the specification to blame for an option of qsub, or for a resource."""
        return self.keys.get(option, "native")

    @classmethod
    def of(cls, plan: Plan, lines: Sequence[str] | None = None) -> Requested:
        """What a plan requests.

        Args:
            lines: The lines that qsub reads; None: those of the plan.
        """
        options = directives.parse_native(plan.scheduler.login.directives(plan) if lines is None else lines)
        native, site = plan.request.native, plan.site or Site()
        own = [*native, *(name.removeprefix("l ") for name in native)]
        return cls(
            request=plan.request,
            pe=options.get("pe", "").partition(" ")[0],
            slots=directives.slots(plan.request),
            resources={name[2:]: amount for name, amount in options.items() if name.startswith("l ")},
            queues=tuple(name for name in options.get("q", "").split(",") if name),
            keys={**_keys(plan.spec, plan.request), **dict.fromkeys(own, "native")},
            counting=directives.gpu_resource(plan.request, site.resources),
            site=site,
        )


def _keys(spec: JobSpec, request: Request) -> dict[str, str]:
    """The key to blame for each option that gridtf itself passes to qsub."""

    def first(*names: str) -> str:
        return next((name for name in names if getattr(spec, name) is not None), "tasks")

    return {
        "pe": "pe",
        "slots": first("slots", "nodes", "tasks_per_node"),
        "q": "partition" if spec.partition is not None else "native",
        "P": "account",
        "h_rt": "time",
        MEMORY: "mem" if spec.mem is not None else "mem_per_task",
        HOST: "nodelist" if spec.nodelist else "exclude",
        **{name: key for name, (_, key) in directives.listed(request).items()},
        request.options["gpu_resource"]: first("gpus_per_task", "gpus_per_node"),
    }
