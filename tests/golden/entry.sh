#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=2
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

export GRIDTF_RUN_DIR=/shared/runs/digits-1
export GRIDTF_PYTHON=/opt/gridtf/bin/python
export GRIDTF_SPEC='{
  "entry": "train:main",
  "scheduler": "slurm",
  "tasks": {
    "ps": {
      "count": 2,
      "cpus": 4
    },
    "worker": {
      "count": 8
    }
  }
}'

# shellcheck source=/dev/null
source /opt/gridtf/lib/gridtf-bootstrap.sh || _gridtf_stop 'gridtf is not there on this host: install it where all hosts see it'
gridtf_exec
