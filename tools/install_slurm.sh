#!/usr/bin/env bash
# Installs what `make test-slurm` starts: SLURM's daemons and commands, and munge. Nothing of it is started here.
set -euo pipefail
export PATH="$PATH:/usr/sbin"
missing=()
for program in slurmctld slurmd sbatch munged unshare; do
  command -v "$program" >/dev/null || missing+=("$program")
done
if [[ ${#missing[@]} == 0 ]]; then
  exit 0
fi
if [[ $(id -u) != 0 ]]; then
  echo "missing: ${missing[*]}; run this as root, or: sudo apt-get install slurmctld slurmd slurm-client munge" >&2
  exit 1
fi
# Debian starts daemons at once, which have no configuration yet and fail
apt-get update -q
DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends slurmctld slurmd slurm-client munge util-linux
