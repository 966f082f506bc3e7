#!/bin/sh
# Healthy: the process is ready, and has made progress within the last minute.
set -eu
state="${LLAMAPOOL_STATE_FILE:-${RUNTIME_DIRECTORY:-/tmp}/state}"
grep -qx ready "$state"
find "$state" -mmin -1 | grep -q .
