#!/bin/sh
# Runs a command in a root file system of its own: FOLDER, with everything of this machine that FOLDER lacks. /tmp is its own,
# but for the folders in KEEP. With WRITABLE, a folder that begins empty, the rest of FOLDER is read-only.
# Usage: unshare --map-root-user --mount [--net] isolated.sh FOLDER COMMAND...
set -eu

root=$1
shift
mkdir -p "$root/opt/.own" "$root/.machine"
mount --rbind "$root" "$root"
for from in /* /opt/*; do
  to=$root$from
  if [ -L "$to" ] || [ -n "$(ls -A "$to" 2>/dev/null)" ]; then
    continue # of the folder itself
  elif [ -L "$from" ]; then
    cp -P "$from" "$to"
  elif [ -d "$from" ]; then
    mkdir -p "$to"
    mount --rbind "$from" "$to"
  fi
done
mount -t tmpfs tmpfs "$root/tmp"
for kept in ${KEEP:-}; do
  case $kept in
    /tmp/*)
      mkdir -p "$root$kept"
      mount --rbind "$kept" "$root$kept"
      ;;
  esac
done
cd "$root"
pivot_root . .machine
umount -l .machine
if [ -n "${WRITABLE:-}" ]; then
  mount -t tmpfs -o mode=700 tmpfs "$WRITABLE" # of the user, as a volume of the image is
  mount -o remount,bind,ro /
fi
# In a network of its own, loopback has to be started.
ip link set lo up 2>/dev/null || true
exec "$@"
