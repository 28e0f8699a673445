#!/bin/bash
#$ -N digits
#$ -S /bin/bash
#$ -j y
#$ -r y
#$ -notify
#$ -pe mpi 8
#$ -l gpu=1
#$ -l mem_free=16384M
#$ -l h_rt=26:30:00
#$ -q gpu.q
#$ -P ml
#$ -l arch=lx-amd64
#
# Job digits, rendered by gridtf 1.2.3 for sge from job.sh.j2
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
  "scheduler": "sge",
  "tasks": {
    "ps": {
      "count": 2
    },
    "worker": {
      "count": 8
    }
  },
  "tasks_per_node": 2,
  "gpus_per_task": 1,
  "mem": "32G",
  "time": "26:30:00",
  "pe": "mpi",
  "chdir": "/home/me/digits"
}'
export GRIDTF_REQUEST='{
  "scheduler": "sge",
  "name": "digits",
  "nodes": [4, 4],
  "tasks_per_node": 2,
  "gpus_per_node": 2,
  "gpus_per_task": 1,
  "training": 8,
  "roles": [{"type": "worker", "count": 8, "gpus": 1, "cpus": null, "mem": null, "component": 0, "served": false, "in_cluster": true, "kind": ""}, {"type": "ps", "count": 2, "gpus": 0, "cpus": null, "mem": null, "component": 0, "served": false, "in_cluster": true, "kind": ""}],
  "components": [{"partition": "gpu.q", "types": ["worker", "ps"], "count": 0, "cpus": null, "mem": null, "gpus": 0, "gpu_model": ""}],
  "task_cpus": null,
  "non_training_cpus": 0,
  "host_non_training_cpus": 0,
  "host_mem": 32768,
  "spare_nodes": 0,
  "mpi": "",
  "walltime": 95400,
  "options": {"partition": "gpu.q", "account": "ml", "pe": "mpi", "gpu_resource": "gpu"},
  "native": {"l arch": "lx-amd64"},
  "left_open": ["gpus_per_node", "nodes"]
}'

[ -e /opt/gridtf/lib/gridtf-bootstrap.sh ] || sleep 10 # its files may be just replaced by those of another version
# shellcheck source=/dev/null
source /opt/gridtf/lib/gridtf-bootstrap.sh || _gridtf_stop 'gridtf is not installed on this host: install it in a shared folder'
gridtf_exec
