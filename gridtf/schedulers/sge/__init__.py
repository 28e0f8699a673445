"""The scheduler Grid Engine: Son of Grid Engine and its relatives. Each half is imported when it is first used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from gridtf import files
from gridtf.jobspec.options import of_scheduler
from gridtf.schedulers.api import MPI_PLACE, Scheduler
from gridtf.schedulers.commands import on_path, which
from gridtf.schedulers.words import EXCLUDE, GPU_MODEL, NEEDS, NODELIST, NOTIFY, PLACE

if TYPE_CHECKING:
    from gridtf.schedulers.sge.injob import GridEngineInJob
    from gridtf.schedulers.sge.login import GridEngineLogin


class GridEngine(Scheduler):
    """Jobs of a Grid Engine cell. A job's id is Grid Engine's own, ``4711`` or, in an array, ``4711.3``."""

    name = "sge"
    title = "Grid Engine"
    options = (
        *PLACE,
        of_scheduler("pe", "--pe", "NAME", "Grid Engine's parallel environment"),
        of_scheduler("slots", "--slots", "N[-M]", "Grid Engine's slots", kind="size"),
        of_scheduler("gpu_resource", "--gpu-resource", "NAME", "the site's name of its GPU resource (default: gpu)"),
        of_scheduler("gpu_variable", "--gpu-variable", "NAME", "the variable that lists the GPUs the site grants"),
        GPU_MODEL,
        of_scheduler("gpu_model_resource", "--gpu-model-resource", "NAME", "the site's resource that tells GPU models"),
        *NEEDS,
        NODELIST,
        EXCLUDE,
        NOTIFY,
    )
    # QRSH_: how qrsh passes its remote half the command to start
    place_variables = re.compile(rf"QRSH_|{MPI_PLACE}")

    @cached_property
    def login(self) -> GridEngineLogin:
        from gridtf.schedulers.sge.login import GridEngineLogin

        return GridEngineLogin(self)

    @cached_property
    def injob(self) -> GridEngineInJob:
        from gridtf.schedulers.sge.injob import GridEngineInJob

        return GridEngineInJob(self)

    def is_available(self, environ: Mapping[str, str]) -> bool:
        return "SGE_ROOT" in environ and on_path("qsub", environ)  # other schedulers have a qsub, too

    def out_of_order(self, environ: Mapping[str, str]) -> tuple[str, str]:
        root, qsub = environ.get("SGE_ROOT"), which("qsub", environ)
        if bool(root) == bool(qsub):
            return "", ""
        why = "SGE_ROOT is set, but qsub is not on the PATH" if root else "qsub is installed, but SGE_ROOT is not set"
        settings = f"{environ.get('SGE_CELL') or 'default'}/common/settings.sh"
        places = [root] if root else [str(folder) for folder in Path(qsub or "").parents]  # ROOT/bin/lx-amd64/qsub
        found = next((place for place in places if files.exists(Path(place, settings))), root)
        cure = f"source {found}/{settings}" if found else f"source {settings} in Grid Engine's folder"
        return why, f"{cure}, or load Grid Engine's module"

    def is_current(self, environ: Mapping[str, str]) -> bool:
        if "SGE_TASK_ID" not in environ or "JOB_ID" not in environ:
            return False
        # a job of another scheduler that was submitted from a Grid Engine job inherits its variables, not its folder
        return "SGE_JOB_SPOOL_DIR" not in environ or files.is_folder(environ["SGE_JOB_SPOOL_DIR"])


scheduler = GridEngine()
