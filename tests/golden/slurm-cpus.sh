#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=2-4
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=4
#SBATCH --open-mode=append
#
# Job train, rendered by gridtf 1.2.3 for slurm from job.sh.j2
# Run directory: /shared/runs/digits-1

# shellcheck disable=SC1003,SC2016  # values are literal

_gridtf_stop() {
    trap - EXIT
    printf 'gridtf: %s: %s\n' "${HOSTNAME}" "$1" >&2
    exit 1
}

cd -- /home/me/digits || _gridtf_stop 'cannot change to the working folder on this host: see --chdir'

export GRIDTF_RUN_DIR=/shared/runs/digits-1
export GRIDTF_PYTHON=/opt/gridtf/bin/python
export GRIDTF_SPEC='{
  "command": [
    "python",
    "train.py"
  ],
  "scheduler": "slurm",
  "tasks": {
    "ps": {
      "count": 2,
      "cpus": 4
    },
    "worker": {
      "count": 8
    },
    "evaluator": {
      "count": 1,
      "cpus": 1
    }
  },
  "nodes": "2-4",
  "tasks_per_node": 4,
  "cpus_per_task": 2,
  "chdir": "/home/me/digits"
}'
export GRIDTF_REQUEST='{
  "scheduler": "slurm",
  "name": "train",
  "nodes": [2, 4],
  "tasks_per_node": 4,
  "gpus_per_node": 0,
  "gpus_per_task": 0,
  "training": 8,
  "roles": [{"type": "worker", "count": 8, "gpus": null, "cpus": 2, "mem": null, "component": 0, "served": false, "in_cluster": true, "kind": ""}, {"type": "ps", "count": 2, "gpus": 0, "cpus": 4, "mem": null, "component": 0, "served": false, "in_cluster": true, "kind": ""}, {"type": "evaluator", "count": 1, "gpus": 0, "cpus": 1, "mem": null, "component": 0, "served": false, "in_cluster": false, "kind": ""}],
  "components": [{"partition": null, "types": ["worker", "ps", "evaluator"], "count": 0, "cpus": null, "mem": null, "gpus": 0, "gpu_model": ""}],
  "task_cpus": 2,
  "non_training_cpus": 9,
  "host_non_training_cpus": 8,
  "host_mem": null,
  "spare_nodes": 0,
  "mpi": "",
  "walltime": null,
  "options": {},
  "native": {},
  "left_open": ["gpus_per_node", "gpus_per_task"]
}'

[ -e /opt/gridtf/lib/gridtf-bootstrap.sh ] || sleep 10 # its files may be just replaced by those of another version
# shellcheck source=/dev/null
source /opt/gridtf/lib/gridtf-bootstrap.sh || _gridtf_stop 'gridtf is not installed on this host: install it in a shared folder'
gridtf_exec
