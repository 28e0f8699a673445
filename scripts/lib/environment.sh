# Makes the virtual environments of the scripts in the folder above. To be sourced by bash.
# shellcheck shell=bash

root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P) # the checkout
unset PYTHONHOME PYTHONPATH PIP_TARGET PIP_PREFIX # each would redirect where packages are installed or found
export PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

say() {
    printf '==> %s\n' "$*"
}

# fail WHAT [LINE…]: print an error (what, then why and what to do, one line each) and exit.
fail() {
    printf 'error: %s\n' "$1" >&2
    shift
    (($# == 0)) || printf '       %s\n' "$@" >&2
    exit 1
}

# python_version PYTHON: prints its version, such as 3.11; nothing when it does not run.
python_version() {
    "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || :
}

# python_kind PYTHON NEWEST: prints old, new (no packages are locked for it), bare (without ensurepip) or good; nothing
# when it does not run.
python_kind() {
    "$1" -c '
import sys
if sys.version_info < (3, 10):
    kind = "old"
elif sys.version_info[:2] > tuple(map(int, sys.argv[1].split("."))):
    kind = "new"
else:
    try:
        import ensurepip, venv
        kind = "good"
    except ImportError:
        kind = "bare"
print(kind)' "$2" 2>/dev/null || :
}

# find_python LOCK: sets python and kind to the best interpreter of this machine, or to the one that PYTHON names.
find_python() {
    local candidate candidates=(python3 python3.{13,12,11,10,14,15}) newest
    [[ -z ${PYTHON:-} ]] || candidates=("$PYTHON")
    local -A first=()
    read -r _ _ _ _ newest _ <"$1" # its first line: # Python 3.10 to 3.13, on …
    newest=${newest%,}
    for candidate in "${candidates[@]}"; do
        kind=$(python_kind "$candidate" "$newest")
        [[ -z $kind || -n ${first[$kind]:-} ]] || first[$kind]=$candidate
        [[ $kind != good ]] || break
    done
    for kind in good bare; do
        python=${first[$kind]:-}
        [[ -z $python ]] || return 0
    done
    [[ -z ${first[new]:-} ]] ||
        fail "${first[new]} is Python $(python_version "${first[new]}"), too new: ${1#"$root/"} has packages for 3.10 to $newest" \
            "name another one: PYTHON=/path/to/python$newest $0; once its packages are released: scripts/lock --upgrade"
    [[ -z ${PYTHON:-} ]] ||
        fail "PYTHON=$PYTHON is not Python 3.10 or newer" "name another one, or leave PYTHON unset to have one found"
    fail "no Python 3.10 or newer was found" \
        "looked for: ${candidates[*]}${first[old]:+; ${first[old]} is $(python_version "${first[old]}")}" \
        "install one (Debian, Ubuntu: apt install python3 python3-venv), or name one: PYTHON=/path/to/python3.12 $0"
}

# find_pip_wheel FOLDER: sets pip_wheel to a pip that runs without installation. Debian has ensurepip and pip in packages
# of their own, which only root can install, but any user can download and unpack.
find_pip_wheel() {
    local wheels=(/usr/share/python-wheels/pip-*.whl)
    if [[ ! -f ${wheels[0]} ]]; then
        mkdir -p "$1"
        (cd "$1" && apt-get -qq download python3-pip-whl && dpkg-deb -x python3-pip-whl_*.deb .) >/dev/null 2>&1 || :
        wheels=("$1"/usr/share/python-wheels/pip-*.whl)
    fi
    pip_wheel=${wheels[0]}
    [[ -f $pip_wheel ]] ||
        fail "$python ($(python_version "$python")) cannot make virtual environments: it has no ensurepip" \
            "install it (Debian, Ubuntu: apt install python3-venv), or name another Python: PYTHON=/path/to/python3 $0"
}

# explain OUTPUT FOLDER: fails with the reason of a failed installation, from pip's output.
explain() {
    case $1 in
        *'No space left'* | *'Errno 28'* | *'Disk quota exceeded'* | *'Errno 122'*)
            fail "the disk is full: the packages did not fit into $2 or ${TMPDIR:-/tmp}" \
                "free some space, or set TMPDIR=/a/larger/folder if it was ${TMPDIR:-/tmp}, then run this again" ;;
        *'DO NOT MATCH THE HASHES'*)
            fail "a downloaded package is not the one in scripts/locks: its hash differs" \
                "$(sed -n -E '/^ *[^ ]+==.* from /{ s/^ *//; s/ from .*//; p; q }' <<<"$1")" \
                "do not install it by other means before you know why; scripts/lock --upgrade pins newer ones" ;;
        *'Max retries'* | *'connection broken'* | *'NewConnectionError'* | *'ReadTimeout'* | *'ProxyError'* | \
            *'SSLError'* | *'name resolution'* | *'(from versions: none)'*)
            fail "pip could not reach the package index" "$(sed -n -E '/^ *(WARNING: Retrying|ERROR)/ { s/^ *//; p; q }' <<<"$1")" \
                "check the network (behind a proxy: set https_proxy; with a mirror: PIP_INDEX_URL), then run this again" ;;
        *) fail "the packages could not be installed; pip's last lines:" "$(tail -n 8 <<<"$1")" ;;
    esac
}

# install PYTHON ARGUMENT…: pip install, with the large downloads shown and failures explained.
install() {
    local line output="" result=1
    while IFS= read -r line; do
        case $line in
            'pip ended: '*) result=${line#pip ended: } ;;
            *Downloading*MB*) printf '    %s\n' "${line#"${line%%[! ]*}"}" ;;
            'Installing collected'*) printf '    unpacking\n' ;;
        esac
        output+=${output:+$'\n'}$line
    done < <("$1" -m pip install --progress-bar off "${@:2}" 2>&1; printf 'pip ended: %d\n' $?)
    output=${output%$'\n'pip ended: *}
    [[ $result == 0 ]] || explain "$output" "${1%/bin/python}"
}

# fingerprint FOLDER LOCK [TENSORFLOW]: prints a hash of everything that an environment is made from.
fingerprint() {
    {
        printf '%s\n' "$root" "$(python_version "${PYTHON:-$1/bin/python}")" "${@:2}"
        cat "$root/pyproject.toml" "$root/scripts/locks/build.txt" "$root/scripts/locks/$2.txt"
    } | sha256sum
}

# make_environment FOLDER MIB LOCK [TENSORFLOW]: an environment in FOLDER with this checkout and the packages of
# scripts/locks/LOCK.txt, made anew unless an earlier run left an identical one. MIB: the disk space it takes. TENSORFLOW:
# the version of TensorFlow, such as 2.16, where it is not the locked one; only packages that it does not work with are
# then of other versions than the locked ones.
make_environment() {
    local folder=$1 mib=$2 lock=$3 tensorflow=${4:-} locks=$root/scripts/locks stamp=$1.made-from free
    [[ ! -e $folder || -e $stamp ]] ||
        fail "$folder was not made by this script" "move it away, then run this again"
    { exec 9>>"$stamp"; } 2>/dev/null ||
        fail "$root cannot be written" "run this in a copy of your own"
    flock -n 9 || { say "Waiting for another run that is making $folder"; flock -w 1800 9; } ||
        fail "another run has been making $folder for half an hour" "end it, then run this again"
    if [[ -s $stamp && $(<"$stamp") == "$(fingerprint "$folder" "${@:3}")" ]]; then
        say "Using the environment in $folder"
    else
        find_python "$locks/$lock.txt"
        free=$(df -Pk "$root" | awk 'NR == 2 { print int($4 / 1024) }')
        ((free >= mib)) ||
            fail "too little space in $root: $free MiB free, about $mib MiB needed" "free some space, then run this again"
        say "Making an environment in $folder with Python $(python_version "$python") ($(command -v "$python"))"
        : >"$stamp"
        if [[ $kind == bare ]]; then
            find_pip_wheel "$folder.pip"
            "$python" -m venv --clear --without-pip "$folder" || fail "the environment could not be made"
            PYTHONPATH=$pip_wheel install "$folder/bin/python" --no-index "$pip_wheel"
            rm -rf "$folder.pip"
        else
            "$python" -m venv --clear "$folder" || fail "the environment could not be made"
        fi
        say "Installing the packages of scripts/locks/$lock.txt${tensorflow:+, TensorFlow $tensorflow} and gridtf from this checkout" \
            "(some minutes the first time)"
        # Build requirements are pinned like all packages, so packages are not built in isolation. drmaa has no wheel.
        local built=(--no-build-isolation --only-binary :all: --no-binary drmaa)
        local packages=$locks/$lock.txt
        if [[ -n $tensorflow ]]; then
            packages=$folder/locked.txt
            sed '/^tensorflow/,/[^\\]$/d' "$locks/$lock.txt" >"$packages" # without it and its hashes
            printf "%s==$tensorflow.*\n" tensorflow tensorflow-cpu >"$folder/wanted.txt"
        fi
        install "$folder/bin/python" --require-hashes --only-binary :all: -r "$locks/build.txt"
        install "$folder/bin/python" --require-hashes "${built[@]}" -r "$packages"
        install "$folder/bin/python" --no-index --no-deps --no-build-isolation --editable "$root"
        [[ -z $tensorflow ]] ||
            install "$folder/bin/python" "${built[@]}" --constraint "$folder/wanted.txt" --editable "${root}[cpu]"
        fingerprint "$folder" "${@:3}" >"$stamp"
    fi
    flock -u 9 # not only closed: programs started from here must not hold the lock
    exec 9>&-
}
