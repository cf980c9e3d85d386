# Shared by .ci/run and .ci/full; sourced from the project's root.
started=$SECONDS
parts=()
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# More threads than cores cost several times what they gain; how long they wait is set by the programs.
cores=$(nproc 2>/dev/null || sysctl -n hw.ncpu)
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((cores > 4 ? 4 : cores))} TOKENIZERS_PARALLELISM=false
# Official games, where they lie beside the project; tests that need them say so and skip elsewhere.
if [[ -z ${ROLEAGENT_SHARED:-} && -d ../shared ]]; then
    ROLEAGENT_SHARED=$(cd ../shared && pwd)
    export ROLEAGENT_SHARED
fi

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

# step NAME COMMAND…: runs it, prints how long it took, stops everything if it fails. Not in a pipe, which would forget its
# time.
step() {
    local name=$1 begun=$SECONDS
    shift
    echo "=== $name"
    "$@" || fail "$name (after $((SECONDS - begun)) s)"
    echo "=== $name: $((SECONDS - begun)) s"
    parts+=("$name $((SECONDS - begun)) s")
}

# check_result PROGRAM LOG: a benchmark must end with a RESULT line; prints what it could not measure here.
check_result() {
    grep -q '^RESULT {' "$2" || fail "$1 ended without a RESULT line"
    grep '^RESULT {' "$2" | grep -oE '"[a-z0-9_]*": (null|"not run[^"]*")' || true
}

# readme NAME: the code block that follows the line <!-- ci: NAME --> of the README.
readme() {
    local block
    block=$(awk -v marker="<!-- ci: $1 -->" '
        $0 == marker { armed = 1; next }
        armed && /^```/ { if (inside) exit; inside = 1; next }
        inside { print }' README.md)
    [[ -n $block ]] || fail "README.md has no code block after <!-- ci: $1 -->"
    printf '%s\n' "$block"
}

fresh_environment() {
    step "virtual environment" "${PYTHON:-python3}" -m venv "$scratch/venv"
    export PATH="$scratch/venv/bin:$PATH" PIP_DISABLE_PIP_VERSION_CHECK=1
    unset PYTHONPATH PYTHONHOME
}

# The last line of a script: how long everything took, and each step.
finish() {
    local each
    printf -v each '; %s' "${parts[@]}"
    echo "=== all passed: $((SECONDS - started)) s (${each:2})"
}
