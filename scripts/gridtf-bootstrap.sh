# gridtf-bootstrap.sh: to be sourced (bash) inside a job script, also under `set -euo pipefail`.
# shellcheck shell=bash
#
#   source "$(gridtf bootstrap-path)"
#   gridtf_run [options of gridtf submit] -- python train.py    all hosts, all tasks, supervised; returns the exit code
#   gridtf_join [options]                                       this process, which srun or mpirun started, is one task
#
# gridtf_exec is the last line of rendered scripts. GRIDTF_PYTHON names the Python that gridtf is installed in; without
# it, the Python of the `gridtf` command on the PATH is used.

# A queue may start scripts with the C shell, which understands the next line and exits there.
test "$?shell" = 1 && \
    sh -c 'echo "gridtf: gridtf-bootstrap.sh needs bash; Grid Engine scripts need: #$ -S /bin/bash" >&2' && exit 1
if [ -z "${BASH_VERSION:-}" ]; then
    echo "gridtf: gridtf-bootstrap.sh needs bash; Grid Engine scripts need: #\$ -S /bin/bash" >&2
    # shellcheck disable=SC2317
    return 1 2>/dev/null || exit 1
fi

# The working folder stays off sys.path: a user's own random.py or logging.py must not become ours.
_gridtf_path='import sys
sys.path[:] = [folder for folder in sys.path if folder]'
# Runs gridtf.bootstrap with as little start-up as possible.
_gridtf_code="import gc
gc.disable() # until all modules are there
$_gridtf_path
from gridtf.bootstrap.main import main
sys.exit(main(sys.argv[1:]))"

# The Python that has gridtf, as GRIDTF_PYTHON: the one that the gridtf command runs under, or python3.
_gridtf_find() {
    [ -n "${GRIDTF_PYTHON:-}" ] && return 0
    local script first='' python pythons=()
    if script=$(type -P gridtf); then
        IFS= read -r first <"$script" || true
        first=${first#'#!'}
        # where a first line has no room for the path (spaces, a long path), the Python lies beside the command
        script=$(readlink -f "$script")
        pythons+=("${first%% *}" "${script%/*}/python")
    fi
    pythons+=("$(type -P python3 || true)")
    for python in "${pythons[@]}"; do
        if [[ $python == /*python* ]] && "$python" -c "$_gridtf_path; import gridtf.errors" 2>/dev/null; then
            export GRIDTF_PYTHON=$python
            return 0
        fi
    done
    echo "gridtf: no Python with gridtf on host $HOSTNAME" >&2
    echo "gridtf: put the gridtf command on the PATH, or set GRIDTF_PYTHON to the Python it is installed in" >&2
    return 1
}

# gridtf_exec: become the launcher of a rendered script, so that the scheduler's signals reach it.
gridtf_exec() {
    _gridtf_find || return 1
    exec "$GRIDTF_PYTHON" -c "$_gridtf_code" exec
}

# gridtf_run [options] -- command ...: launch on all hosts, wait for the end, return the exit code. Signals are passed on:
# bash itself would hold them back until the launcher has ended.
gridtf_run() {
    _gridtf_find || return 1
    local launcher='' stopped='' code again=0 traps signals=(TERM INT HUP)
    [ -z "${SGE_TASK_ID:-}" ] || signals+=(USR1 USR2) # Grid Engine warns by them, the launcher too: not to die of
    traps=$(trap -p "${signals[@]}")
    trap 'stopped=1; [ -z "$launcher" ] || kill -TERM "$launcher" 2>/dev/null || true' TERM INT HUP
    [ -z "${SGE_TASK_ID:-}" ] || trap : USR1 USR2
    "$GRIDTF_PYTHON" -c "$_gridtf_code" run "$@" </dev/null &
    launcher=$!
    [ -z "$stopped" ] || kill -TERM "$launcher"
    while :; do
        code=0
        wait "$launcher" || code=$?
        kill -0 "$launcher" 2>/dev/null || break # otherwise a signal ended the wait, and the launcher still runs
    done
    if [ "$code" -gt 128 ]; then # that of the signal; where the launcher has ended since, bash remembers its code
        wait "$launcher" 2>/dev/null || again=$?
        [ "$again" = 127 ] || code=$again
    fi
    trap - "${signals[@]}"
    eval "$traps"
    return "$code"
}

# gridtf_join [options]: this process becomes one task. Rank and size come from srun, mpirun or RANK and WORLD_SIZE.
gridtf_join() {
    _gridtf_find || return 1
    local contract process=$BASHPID # $$ would be the script, also in a subshell that becomes one of several tasks
    contract=$("$GRIDTF_PYTHON" -c "$_gridtf_code" join --parent "$process" "$@") || return
    eval "$contract"
}
