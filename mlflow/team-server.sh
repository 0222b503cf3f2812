#!/usr/bin/env bash
# A tracking server for a team: users with passwords, runs in PostgreSQL, artifacts in a store of the team's.
#
#   export MLFLOW_BACKEND_STORE_URI=postgresql+psycopg2://mlflow@db.example.com/mlflow    # password in ~/.pgpass, not here
#   export MLFLOW_ARTIFACTS_DESTINATION=s3://team-artifacts                      # or a folder
#   export MLFLOW_AUTH_CONFIG_PATH=/etc/mlflow/basic_auth.ini                    # readable by the server alone
#   export MLFLOW_FLASK_SERVER_SECRET_KEY_FILE=/etc/mlflow/secret                # readable by the server alone
#   export MLFLOW_SERVER_ALLOWED_HOSTS=mlflow.example.com                        # the name that users type
#   mlflow/team-server.sh [HOST] [PORT]
#
# basic_auth.ini names the administrator, and where users are kept:
#
#   [mlflow]
#   default_permission = READ
#   database_uri = postgresql+psycopg2://mlflow@db.example.com/mlflow_auth
#   admin_username = admin
#   admin_password = (choose one: this script refuses an empty one and MLflow's own)
#
# It listens on loopback unless a HOST is given: put a proxy that speaks TLS in front of it. Needs pip install 'mlflow[auth]' and,
# for PostgreSQL, psycopg2-binary. Users: mlflow.server.get_app_client("basic-auth", ...).create_user(...).
set -euo pipefail
fail() { echo "team-server.sh: $1" >&2; exit 2; }
for name in MLFLOW_BACKEND_STORE_URI MLFLOW_ARTIFACTS_DESTINATION MLFLOW_AUTH_CONFIG_PATH \
    MLFLOW_FLASK_SERVER_SECRET_KEY_FILE MLFLOW_SERVER_ALLOWED_HOSTS; do
    [ -n "${!name:-}" ] || fail "$name must be set. Got nothing."
done
for file in "$MLFLOW_AUTH_CONFIG_PATH" "$MLFLOW_FLASK_SERVER_SECRET_KEY_FILE"; do
    [ -r "$file" ] || fail "a file must be readable. Got $file."
    case $(stat -c %A "$file") in *------) ;; *) fail "a file with a secret must be its owner's alone: chmod 600 $file." ;; esac
done
password=$(sed -n 's/^ *admin_password *= *//p' "$MLFLOW_AUTH_CONFIG_PATH")
[ -n "$password" ] || fail "admin_password must be set in $MLFLOW_AUTH_CONFIG_PATH. Got none."
case $password in password*) fail "admin_password must not be the one that MLflow ships. Got that one." ;; esac
MLFLOW_FLASK_SERVER_SECRET_KEY=$(cat "$MLFLOW_FLASK_SERVER_SECRET_KEY_FILE")
[ -n "$MLFLOW_FLASK_SERVER_SECRET_KEY" ] || fail "the secret key must not be empty. Got an empty file."
export MLFLOW_FLASK_SERVER_SECRET_KEY
here=$(cd "$(dirname "$0")/.." && pwd)
mlflow=$([ -x "$here/.venv/bin/mlflow" ] && echo "$here/.venv/bin/mlflow" || command -v mlflow)
exec "$mlflow" server --app-name basic-auth --host "${1:-127.0.0.1}" --port "${2:-5000}"
