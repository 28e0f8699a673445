#!/bin/bash
#$ -N train
#$ -S /bin/bash
#$ -j y
#$ -r y
#$ -notify
#
# Job train, rendered by gridtf 1.2.3 for sge from job.sh.j2
# Run directory: x\n#$ -l evil=1\n#SBATCH --nodes=99\n

# shellcheck disable=SC1003,SC2016  # values are literal

_gridtf_stop() {
    trap - EXIT
    printf 'gridtf: %s: %s\n' "${HOSTNAME}" "$1" >&2
    exit 1
}

cd -- 'a; touch pwned & b | c > d < e # f' || _gridtf_stop 'cannot change to the working folder on this host: see --chdir'

# Environment of all tasks
export SPACES='  two  spaces  '
export QUOTES='it'"'"'s a "test" \'"'"' \'
export SUBSTITUTION='$(touch pwned) `touch pwned` ${HOME} $((1+1)) !! ~ *'
export SEPARATORS='a; touch pwned & b | c > d < e # f'
export NEWLINES=$'one\ntwo\n\nfour\n'
export DIRECTIVES=$'x\n#$ -l evil=1\n#SBATCH --nodes=99\n'
export TRAILING='\'
export CONTROLS=$'\t\r\033[31m\007\177\302\205\342\200\250'
export TEXT='été 数据 🎉'
export BYTES=$'\377\376 raw'
export EMPTY=''
export DASH=-n
export TEMPLATE='{{ name }} {% raw %} {# x #}'

export GRIDTF_RUN_DIR=$'x\n#$ -l evil=1\n#SBATCH --nodes=99\n'
export GRIDTF_PYTHON=/opt/gridtf/bin/python
export GRIDTF_SPEC='{
  "command": [
    "train",
    "  two  spaces  ",
    "it'"'"'s a \"test\" \\'"'"' \\",
    "$(touch pwned) `touch pwned` ${HOME} $((1+1)) !! ~ *",
    "a; touch pwned & b | c > d < e # f",
    "one\ntwo\n\nfour\n",
    "x\n#$ -l evil=1\n#SBATCH --nodes=99\n",
    "\\",
    "\t\r\u001b[31m\u0007\u007f\u0085\u2028",
    "été 数据 🎉",
    "\udcff\udcfe raw",
    "",
    "-n",
    "{{ name }} {% raw %} {# x #}"
  ],
  "scheduler": "sge",
  "env": {
    "SPACES": "  two  spaces  ",
    "QUOTES": "it'"'"'s a \"test\" \\'"'"' \\",
    "SUBSTITUTION": "$(touch pwned) `touch pwned` ${HOME} $((1+1)) !! ~ *",
    "SEPARATORS": "a; touch pwned & b | c > d < e # f",
    "NEWLINES": "one\ntwo\n\nfour\n",
    "DIRECTIVES": "x\n#$ -l evil=1\n#SBATCH --nodes=99\n",
    "TRAILING": "\\",
    "CONTROLS": "\t\r\u001b[31m\u0007\u007f\u0085\u2028",
    "TEXT": "été 数据 🎉",
    "BYTES": "\udcff\udcfe raw",
    "EMPTY": "",
    "DASH": "-n",
    "TEMPLATE": "{{ name }} {% raw %} {# x #}"
  },
  "chdir": "a; touch pwned & b | c > d < e # f"
}'
export GRIDTF_REQUEST='{
  "scheduler": "sge",
  "name": "train",
  "nodes": [1, 1],
  "tasks_per_node": 1,
  "gpus_per_node": 0,
  "gpus_per_task": 0,
  "training": null,
  "roles": [{"type": "worker", "count": null, "gpus": null, "cpus": null, "mem": null, "component": 0, "served": false, "in_cluster": true, "kind": ""}],
  "components": [{"partition": null, "types": ["worker"], "count": 0, "cpus": null, "mem": null, "gpus": 0, "gpu_model": ""}],
  "task_cpus": null,
  "non_training_cpus": 0,
  "host_non_training_cpus": 0,
  "host_mem": null,
  "spare_nodes": 0,
  "mpi": "",
  "walltime": null,
  "options": {"gpu_resource": "gpu"},
  "native": {},
  "left_open": ["gpus_per_node", "gpus_per_task", "nodes", "tasks_per_node"]
}'

[ -e /opt/gridtf/lib/gridtf-bootstrap.sh ] || sleep 10 # its files may be just replaced by those of another version
# shellcheck source=/dev/null
source /opt/gridtf/lib/gridtf-bootstrap.sh || _gridtf_stop 'gridtf is not installed on this host: install it in a shared folder'
gridtf_exec
