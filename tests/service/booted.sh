#!/bin/sh
# Boots systemd as process 1 of namespaces, with the units in FOLDER/units and no others. It sees this machine's files, and
# all that it writes stays in memory: its root is an overlay. FOLDER is its /run/test, and each PATH is /opt/NAME, read-only.
# LAYER may have files to put above this machine's, such as those of another version of systemd.
# Usage: unshare --mount booted.sh FOLDER [NAME=PATH ...]
set -eu

if [ -z "${INNER:-}" ]; then
  mount --make-rprivate /
  mount -t tmpfs none /mnt
  mkdir /mnt/cgroup /mnt/upper /mnt/work /mnt/root
  mount -t cgroup2 none /mnt/cgroup
  own=/mnt/cgroup/sbpair-$$
  mkdir "$own"
  sh -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$own" \
    env INNER=1 unshare --mount --pid --cgroup --ipc --uts --fork --kill-child sh "$0" "$@" || true
  find "$own" -depth -type d -exec rmdir {} +
  exit
fi

root=/mnt/root
test -z "${LAYER:-}" || cp -a "$LAYER/." /mnt/upper
mount -t overlay none -o "lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work" "$root"
test "$(stat -f -c %T "$root")" = overlayfs # or its start would clear the /tmp of this machine
folder=$1
shift
for each in "$@"; do
  mkdir "$root/opt/${each%%=*}"
  mount --bind "${each#*=}" "$root/opt/${each%%=*}"
  mount -o remount,bind,ro "$root/opt/${each%%=*}"
done
for each in tmp run dev; do mount -t tmpfs -o mode=755 none "$root/$each"; done
mkdir "$root/run/test" "$root/dev/shm" "$root/dev/pts"
mount --bind "$folder" "$root/run/test"
mount -t devpts none "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
for each in null zero full random urandom tty; do
  touch "$root/dev/$each"
  mount --bind "/dev/$each" "$root/dev/$each"
done
mount -t proc none "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount -t sysfs -o ro none "$root/sys"
mount -t cgroup2 none "$root/sys/fs/cgroup"
cd "$root"
pivot_root . mnt
umount -l /mnt
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin container=sbpair SYSTEMD_UNIT_PATH=/run/test/units \
  SYSTEMD_GENERATOR_PATH=/run/none SYSTEMD_LOG_TARGET=null /lib/systemd/systemd --system --unit=test.target </dev/null
