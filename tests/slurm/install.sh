#!/usr/bin/env bash
# Slurm and munge, for tests/tests/slurm: installs them from Debian or Ubuntu when they are missing and we may.
set -euo pipefail
export PATH=$PATH:/usr/sbin:/sbin

missing=()
for program in munged slurmctld slurmd srun; do
	command -v "$program" > /dev/null || missing+=("$program")
done
if ((${#missing[@]} == 0)); then
	exit 0
fi
if [[ $(id -u) != 0 ]] || ! command -v apt-get > /dev/null; then
	printf 'error: %s missing; install Slurm and munge (Debian: apt-get install slurm-wlm munge)\n' "${missing[*]}" >&2
	exit 4
fi
export DEBIAN_FRONTEND=noninteractive
# The lists of packages may be absent or old.
apt-get update -q
apt-get install -qy --no-install-recommends slurm-wlm munge
