"""A hook for MLflow: parameters, the newest values and the end of a job become a run of an experiment.

gridtf calls it at each event, with the record of docs/experiments.md on standard input. MLFLOW_TRACKING_URI says where
the runs are kept, a server or a folder.
"""

import json
import sys
from pathlib import Path

from mlflow import MlflowClient

STATUS = {"COMPLETED": "FINISHED", "SAVED": "FINISHED", "CANCELLED": "KILLED"}
TAGS = ("job_id", "scheduler", "run_dir", "attempt", "commit", "state", "reason")


def main() -> None:
    record = json.load(sys.stdin)
    client = MlflowClient()
    note = Path(record["run_dir"], "mlflow-run")  # a job that is continued goes on in the same run of MLflow
    if note.exists():
        run = note.read_text()
    else:
        known = client.get_experiment_by_name("gridtf")
        experiment = known.experiment_id if known else client.create_experiment("gridtf")
        run = client.create_run(experiment, run_name=record["name"]).info.run_id
        note.write_text(run)
        for name, value in record["params"].items():
            client.log_param(run, name, value)
    for name in TAGS:
        if record.get(name) is not None:
            client.set_tag(run, name, record[name])
    progress = record["progress"] or {"values": {}}
    for name, value in progress["values"].items():
        if isinstance(value, (int, float)):
            client.log_metric(run, name, value, step=progress["step"])
    if record["event"] == "end":
        client.set_terminated(run, STATUS.get(record["state"], "FAILED"))


if __name__ == "__main__":
    main()
