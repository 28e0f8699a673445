#!/bin/bash
#SBATCH --job-name=digits
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=a100:4
#SBATCH --constraint=ib|opa
#SBATCH --qos=high
#SBATCH --reservation=course
#SBATCH --licenses=matlab:2
#SBATCH --nodelist=n1
#SBATCH --exclude=n7
#SBATCH --open-mode=append
#SBATCH hetjob
#SBATCH --partition=old
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-node=v100:2
#SBATCH --constraint=ib|opa
#SBATCH --exclude=n7
#
# Job digits, rendered by gridtf 1.2.3 for slurm from job.sh.j2
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
  "name": "digits",
  "scheduler": "slurm",
  "tasks": {
    "worker": {
      "count": 8
    },
    "chief": {
      "gpus": 2,
      "gpu_model": "v100",
      "partition": "old"
    }
  },
  "nodes": 2,
  "gpus_per_node": 4,
  "gpu_model": "a100",
  "chdir": "/home/me/digits"
}'
export GRIDTF_REQUEST='{
  "scheduler": "slurm",
  "name": "digits",
  "nodes": [2, 2],
  "tasks_per_node": 4,
  "gpus_per_node": 4,
  "gpus_per_task": 1,
  "training": 8,
  "roles": [{"type": "chief", "count": 1, "gpus": 2, "cpus": null, "mem": null, "component": 1, "served": false, "in_cluster": true, "kind": ""}, {"type": "worker", "count": 8, "gpus": 1, "cpus": null, "mem": null, "component": 0, "served": false, "in_cluster": true, "kind": ""}],
  "components": [{"partition": null, "types": ["worker"], "count": 0, "cpus": null, "mem": null, "gpus": 0, "gpu_model": "a100"}, {"partition": "old", "types": ["chief"], "count": 1, "cpus": null, "mem": null, "gpus": 2, "gpu_model": "v100"}],
  "task_cpus": null,
  "non_training_cpus": 0,
  "host_non_training_cpus": 0,
  "host_mem": null,
  "spare_nodes": 0,
  "mpi": "",
  "walltime": null,
  "options": {"qos": "high", "gpu_model": "a100", "constraint": "ib|opa", "reservation": "course", "licenses": "matlab:2", "nodelist": ["n1"], "exclude": ["n7"]},
  "native": {},
  "left_open": ["gpus_per_task", "tasks_per_node"]
}'

[ -e /opt/gridtf/lib/gridtf-bootstrap.sh ] || sleep 10 # its files may be just replaced by those of another version
# shellcheck source=/dev/null
source /opt/gridtf/lib/gridtf-bootstrap.sh || _gridtf_stop 'gridtf is not installed on this host: install it in a shared folder'
gridtf_exec
