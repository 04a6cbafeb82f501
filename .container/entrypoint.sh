#!/bin/sh
# Runs the emulator with the configuration file at the place where Azure's own emulator reads it. Arguments are options.
# ACCEPT_EULA, SQL_SERVER, MSSQL_SA_PASSWORD and SQL_WAIT_INTERVAL may be set as for that emulator; they have no effect.
set -eu

http_port=${EMULATOR_HTTP_PORT:-5300}
if [ "${1:-}" = health ]; then
  exec /opt/sbpair/venv/bin/python -c "import urllib.request as r; r.urlopen('http://127.0.0.1:$http_port/health')"
fi
exec /opt/sbpair/venv/bin/sbpair emulator --config-file /ServiceBus_Emulator/ConfigFiles/Config.json \
  --host 0.0.0.0 --expose --http-port "$http_port" "$@"
