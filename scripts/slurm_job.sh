#!/usr/bin/env bash
# A whole run inside one SLURM allocation: scheduler and streampca on its first node, one worker for each task.
# Usage: sbatch --ntasks=16 --cpus-per-task=1 --mem-per-cpu=4G --time=4:00:00 scripts/slurm_job.sh CONFIG [options of streampca run]
# Submit the same again after it ran out of time: it goes on from its checkpoint. See docs/how-to/clusters.md.
#SBATCH --job-name=streampca
#SBATCH --signal=B:TERM@120
set -euo pipefail

config=${1:?usage: sbatch [options] scripts/slurm_job.sh CONFIG [options of streampca run]}
shift
python=${STREAMPCA_PYTHON:-python}       # one that has streampca, the same on all nodes
interface=${STREAMPCA_INTERFACE:-}       # such as ib0; empty: all of them
tasks=${SLURM_NTASKS:-1}
threads=${SLURM_CPUS_PER_TASK:-1}
memory=auto
if [ -n "${SLURM_MEM_PER_CPU:-}" ]; then
    memory=$((SLURM_MEM_PER_CPU * threads))MiB
fi

# The directory must be seen by all nodes, and read by nobody else: it holds the key of this job.
private=$(mktemp -d "$PWD/.streampca-job-XXXXXX")
finish() {
    local name
    for name in "${workers:-}" "${scheduler:-}"; do   # in this order: workers that lose their scheduler look for it for a while
        if [ -n "$name" ]; then
            kill "$name" 2>/dev/null || true
            timeout 15 tail --pid="$name" -f /dev/null || kill -KILL "$name" 2>/dev/null || true
        fi
    done
    rm -rf "$private"
}
trap finish EXIT

openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=streampca-job \
    -keyout "$private/key.pem" -out "$private/cert.pem" 2>/dev/null
tls=(--tls-ca-file "$private/cert.pem" --tls-cert "$private/cert.pem" --tls-key "$private/key.pem")
common=(--protocol tls "${tls[@]}" --no-dashboard --dashboard-address 127.0.0.1:0)
listens=() works=()
if [ -n "$interface" ]; then   # the scheduler of Dask takes no interface together with certificates
    listens=(--host "$("$python" -c 'import sys; from distributed.utils import get_ip_interface as ip; print(ip(sys.argv[1]))' "$interface")")
    works=(--interface "$interface")
fi

# The plan keeps the memory, so Dask need not write to disk, wait or kill for it; frozen workers are given up after a minute.
export DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL=60s
export DASK_DISTRIBUTED__SCHEDULER__NO_WORKERS_TIMEOUT="2 minutes"
export DASK_DISTRIBUTED__WORKER__MEMORY__TARGET=False DASK_DISTRIBUTED__WORKER__MEMORY__SPILL=False
export DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE=False DASK_DISTRIBUTED__WORKER__MEMORY__TERMINATE=False
# Scheduler and workers say where pages would be, which nobody serves, and much else: warnings alone go to the output of the job.
export DASK_LOGGING__DISTRIBUTED=${DASK_LOGGING__DISTRIBUTED:-warning}
export DASK_DISTRIBUTED__SCHEDULER__HTTP__ROUTES="[]" DASK_DISTRIBUTED__WORKER__HTTP__ROUTES="[]"

"$python" -m distributed.cli.dask_scheduler --port 0 --scheduler-file "$private/scheduler.json" "${common[@]}" "${listens[@]}" &
scheduler=$!
until address=$(sed -n 's/.*"address": "\([^"]*\)".*/\1/p' "$private/scheduler.json" 2>/dev/null) && [ -n "$address" ]; do
    kill -0 "$scheduler" 2>/dev/null || { echo "error: the scheduler did not start" >&2; exit 3; }
    sleep 0.2
done

srun --ntasks="$tasks" "$python" -m distributed.cli.dask_worker "$address" --nthreads "$threads" --memory-limit "$memory" \
    --death-timeout 120 --local-directory "${TMPDIR:-/tmp}" "${common[@]}" "${works[@]}" &
workers=$!

cluster="{kind: address, address: '$address', allow_remote: true, wait: 10min, tls: {ca_file: '$private/cert.pem', cert: '$private/cert.pem', key: '$private/key.pem'}}"
"$python" -m streampca run "$config" --set "cluster=$cluster" "$@" &
run=$!
trap 'kill -TERM "$run" 2>/dev/null || true' TERM INT   # two minutes before the end: a checkpoint is written
status=0
wait "$run" || status=$?
while kill -0 "$run" 2>/dev/null; do   # the signal ended the waiting, not the run
    status=0
    wait "$run" || status=$?
done
exit "$status"
