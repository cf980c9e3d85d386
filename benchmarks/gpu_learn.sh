#!/usr/bin/env bash
# What reinforcement gains on one GPU within half an hour: SmolLM2 on the official games, one warm start, GRPO, GiGPO
# and Role-Agent with two seeds side by side, and a table of paired differences at the largest iteration that an arm of
# every method has.
#
#   ALFWORLD_DATA=games MODEL=models/smollm2 benchmarks/gpu_learn.sh runs/learn
#   benchmarks/gpu_learn.sh --cpu runs/rehearsal        the same steps on a CPU with a tiny policy and two iterations
#
# The steps run apart from this command: it ends after WAIT seconds (540), and the same command looks again. A step that is
# done is not repeated, and a killed one continues, so nothing is lost by `kill -9`. One that failed makes the status 1, and
# is repeated by the next command with all after it. After each step there is an archive of its metrics and evaluations in
# OUT (by default the folder itself); of an unpacked one
#
#   python benchmarks/parts/gpu_learn.py table FOLDER
#
# prints the table as far as it goes. MINUTES (28) count from the first command. Without vLLM the local sampler plays GRPO
# and GiGPO. Each step prints a line RESULT {json}. PYTHON names another Python.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/parts/gpu_device.sh"
[[ $# == 1 ]] || { echo "usage: benchmarks/gpu_learn.sh [--cpu] FOLDER" >&2; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export VLLM_USE_FLASHINFER_SAMPLER=${VLLM_USE_FLASHINFER_SAMPLER:-0}
seen=0
show() {
    local total
    total=$(wc -l 2>/dev/null <"$folder/results.jsonl") || return 0
    if ((total > seen)); then sed -n "$((seen + 1)),${total}s/^/RESULT /p" "$folder/results.jsonl"; fi
    seen=$total
}
# A second one ends at once: the folder is locked.
setsid nohup "${PYTHON:-python}" benchmarks/parts/gpu_learn.py "$device" "$folder" >>"$folder/driver.log" 2>&1 &
until=$((SECONDS + ${WAIT:-540})) status=0 ended=
while [[ -z $ended ]] && ((SECONDS < until)); do
    sleep 1
    if ! kill -0 "$!" 2>/dev/null && flock --nonblock "$folder/.lock" true; then ended=yes; fi
    show
done
if [[ -n $ended ]] && ! tail -n 1 "$folder/results.jsonl" 2>/dev/null | grep -q '^{"step": "all", "passed": true'; then
    echo "gpu_learn: not all steps passed; $folder/driver.log ends with: $(tail -n 1 "$folder/driver.log")" >&2
    status=1
fi
for archive in "$folder"/*.tar.xz; do
    if [[ -f $archive && -n ${OUT:-} ]]; then cp -u "$archive" "$OUT"; fi
done
[[ ! -f $folder/table.md ]] || cat "$folder/table.md"
exit "$status"
