#!/bin/bash
#SBATCH --job-name=digits
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=3
#SBATCH --gpus-per-node=2
#SBATCH --mem-per-gpu=1536M
#SBATCH --time=00:30:00
#SBATCH --partition=gpu
#SBATCH --open-mode=append
#SBATCH hetjob
#SBATCH --partition=cpu
#SBATCH --nodes=1-2
#SBATCH --ntasks=2
#SBATCH --cpus-per-task=3
#SBATCH --mem-per-cpu=683M
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
    "chief": {
      "count": 1
    },
    "worker": {
      "count": 3
    },
    "ps": {
      "count": 2,
      "cpus": 3,
      "mem": "2G",
      "partition": "cpu"
    },
    "evaluator": {
      "count": 1
    }
  },
  "nodes": 2,
  "gpus_per_node": 2,
  "cpus_per_task": 2,
  "mem_per_task": "1G",
  "time": "30m",
  "chdir": "/home/me/digits"
}'
export GRIDTF_REQUEST='{
  "scheduler": "slurm",
  "name": "digits",
  "nodes": [2, 2],
  "tasks_per_node": 2,
  "gpus_per_node": 2,
  "gpus_per_task": 1,
  "training": 4,
  "roles": [{"type": "chief", "count": 1, "gpus": 1, "cpus": 2, "mem": 1024, "component": 0, "served": false, "in_cluster": true, "kind": ""}, {"type": "worker", "count": 3, "gpus": 1, "cpus": 2, "mem": 1024, "component": 0, "served": false, "in_cluster": true, "kind": ""}, {"type": "ps", "count": 2, "gpus": 0, "cpus": 3, "mem": 2048, "component": 1, "served": false, "in_cluster": true, "kind": ""}, {"type": "evaluator", "count": 1, "gpus": 0, "cpus": 2, "mem": 1024, "component": 0, "served": false, "in_cluster": false, "kind": ""}],
  "components": [{"partition": "gpu", "types": ["chief", "worker", "evaluator"], "count": 0, "cpus": null, "mem": null, "gpus": 0, "gpu_model": ""}, {"partition": "cpu", "types": ["ps"], "count": 2, "cpus": 3, "mem": 2048, "gpus": 0, "gpu_model": ""}],
  "task_cpus": 2,
  "non_training_cpus": 2,
  "host_non_training_cpus": 2,
  "host_mem": 3072,
  "spare_nodes": 0,
  "mpi": "",
  "walltime": 1800,
  "options": {"partition": "gpu"},
  "native": {},
  "left_open": ["gpus_per_task", "tasks_per_node"]
}'

[ -e /opt/gridtf/lib/gridtf-bootstrap.sh ] || sleep 10 # its files may be just replaced by those of another version
# shellcheck source=/dev/null
source /opt/gridtf/lib/gridtf-bootstrap.sh || _gridtf_stop 'gridtf is not installed on this host: install it in a shared folder'
gridtf_exec
