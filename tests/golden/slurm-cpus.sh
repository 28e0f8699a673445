#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=2-4
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=4
#SBATCH --open-mode=append
#
# Job train, rendered by gridtf 1.2.3 for slurm from slurm.sh.j2
# Run directory: /shared/runs/digits-1

# shellcheck disable=SC1003,SC2016  # values are meant as they stand

_gridtf_stop() {
    trap - EXIT
    printf 'gridtf: %s: %s\n' "${HOSTNAME}" "$1" >&2
    exit 1
}

cd -- /home/me/digits || _gridtf_stop 'the working folder is not there on this host: see --chdir'

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

# shellcheck source=/dev/null
source /opt/gridtf/lib/gridtf-bootstrap.sh || _gridtf_stop 'gridtf is not there on this host: install it where all hosts see it'
gridtf_exec
