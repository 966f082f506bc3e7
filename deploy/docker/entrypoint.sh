#!/bin/sh
# entrypoint.sh [COMMAND] [OPTIONS]: runs the image's own command, LLAMAPOOL_ROLE, or the one named.
# Keys come as a secret, LLAMA_ARG_API_KEY_FILE or LLAMA_API_KEY. A gateway that others can reach does
# not start without one (LLAMA_ARG_REQUIRE_KEY): it says so and ends with 78.
set -eu

case "${1:-}" in
    "" | -*) set -- "${LLAMAPOOL_ROLE:?is not set}" "$@" ;;
esac

secret="${LLAMAPOOL_SECRETS:-/run/secrets}/keys"
if [ "$1" != worker ] && [ -z "${LLAMA_ARG_API_KEY_FILE:-}" ] && [ -e "$secret" ]; then
    export LLAMA_ARG_API_KEY_FILE="$secret"
fi
# What the health check and probes read; of `serve` it would be its supervisor's.
export LLAMAPOOL_STATE_FILE="${LLAMAPOOL_STATE_FILE:-${RUNTIME_DIRECTORY:-/tmp}/state}"
export WATCHDOG_USEC="${WATCHDOG_USEC:-30000000}"

exec llamapool "$@"
