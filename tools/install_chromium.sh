#!/usr/bin/env bash
# Installs the browser that `make test-browser` opens the report's page in, where there is none.
set -euo pipefail
for program in chromium chromium-browser google-chrome google-chrome-stable; do
  if command -v "$program" >/dev/null; then
    exit 0
  fi
done
if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
  echo "no Chromium is here; install one (sudo apt-get install chromium), or run this as root on Debian." >&2
  exit 1
fi
apt-get update -q
DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends chromium fonts-dejavu-core
