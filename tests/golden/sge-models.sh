#!/bin/bash
#$ -N digits
#$ -S /bin/bash
#$ -j y
#$ -r y
#$ -notify
#$ -pe mpi 2
#$ -l gpu=1
#$ -l ib=TRUE
#$ -l arch=lx-amd64
#$ -l matlab=2
#$ -l tensor=1
#$ -l h=(n1|n2)&!(n7)
#$ -l gpu_type=a100
#$ -ar 12
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
    "worker": {
      "count": 2
    }
  },
  "gpus_per_task": 1,
  "pe": "mpi",
  "gpu_model": "a100",
  "gpu_model_resource": "gpu_type",
  "chdir": "/home/me/digits"
}'
export GRIDTF_REQUEST='{
  "scheduler": "sge",
  "name": "digits",
  "nodes": [1, 1],
  "tasks_per_node": 2,
  "gpus_per_node": 2,
  "gpus_per_task": 1,
  "training": 2,
  "roles": [{"type": "worker", "count": 2, "gpus": 1, "cpus": null, "mem": null, "component": 0, "served": false, "in_cluster": true, "kind": ""}],
  "components": [{"partition": null, "types": ["worker"], "count": 0, "cpus": null, "mem": null, "gpus": 0, "gpu_model": "a100"}],
  "task_cpus": null,
  "non_training_cpus": 0,
  "host_non_training_cpus": 0,
  "host_mem": null,
  "spare_nodes": 0,
  "mpi": "",
  "walltime": null,
  "options": {"pe": "mpi", "gpu_resource": "gpu", "gpu_model": "a100", "gpu_model_resource": "gpu_type", "constraint": "ib,arch=lx-amd64", "reservation": "12", "licenses": "matlab:2,tensor", "nodelist": ["n1", "n2"], "exclude": ["n7"]},
  "native": {},
  "left_open": ["gpus_per_node", "nodes", "tasks_per_node"]
}'

[ -e /opt/gridtf/lib/gridtf-bootstrap.sh ] || sleep 10 # its files may be just replaced by those of another version
# shellcheck source=/dev/null
source /opt/gridtf/lib/gridtf-bootstrap.sh || _gridtf_stop 'gridtf is not installed on this host: install it in a shared folder'
gridtf_exec
