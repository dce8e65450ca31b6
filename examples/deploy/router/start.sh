#!/bin/sh
# Two replicas on this machine, and sglang-router in front of them on port 8000. Ctrl-C ends all.
# Arguments go to `paceline serve`. PYTHON has paceline, ROUTER_PYTHON sglang-router; they may be
# different environments.
set -eu
: "${PYTHON:=python3}" "${ROUTER_PYTHON:=$PYTHON}"
trap 'kill 0' EXIT INT TERM

for port in 8001 8002; do
    "$PYTHON" -m paceline serve --port "$port" --vllm-metrics "$@" &
done
"$ROUTER_PYTHON" -m sglang_router.launch_router --host 127.0.0.1 --port 8000 \
    --worker-urls http://127.0.0.1:8001 http://127.0.0.1:8002 \
    --policy cache_aware --prometheus-port 29000
