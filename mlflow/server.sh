#!/usr/bin/env bash
# A tracking server for one person: on loopback, runs in a sqlite file, artifacts in a folder beside it.
#
#   mlflow/server.sh [FOLDER] [PORT]        then: export MLFLOW_TRACKING_URI=http://127.0.0.1:5000
#
# The server knows no passwords, so it must not listen to anybody else: team-server.sh is for that.
set -euo pipefail
folder=$(mkdir -p "${1:-mlflow-store}" && cd "${1:-mlflow-store}" && pwd)
port=${2:-5000}
here=$(cd "$(dirname "$0")/.." && pwd)
mlflow=$([ -x "$here/.venv/bin/mlflow" ] && echo "$here/.venv/bin/mlflow" || command -v mlflow)
cd "$folder"
exec "$mlflow" server --host 127.0.0.1 --port "$port" --workers 1 \
    --backend-store-uri "sqlite:///mlflow.db" --artifacts-destination "$folder/artifacts"
