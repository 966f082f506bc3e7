#!/bin/bash
# boot.sh FOLDER: becomes the first process of a systemd of its own, in the namespaces that it was
# started in. Its root shows this machine's files; whatever is written goes to memory and is lost.
set -e
folder="$1"
root="$folder/root"
mount --make-rprivate /
mkdir -p "$folder/upper" "$root"
mount -t tmpfs tmpfs "$folder/upper"
mkdir "$folder/upper/files" "$folder/upper/work"
mount -t overlay overlay "$root" \
    -o "lowerdir=/,upperdir=$folder/upper/files,workdir=$folder/upper/work"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
mkdir "$root/dev/shm" "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
for name in null zero full random urandom tty; do
    touch "$root/dev/$name"
    mount --bind "/dev/$name" "$root/dev/$name"
done
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mkdir "$root/tmp/host"
mount --bind "$folder" "$root/tmp/host"
# Nothing of this machine's own services is to start, and nothing that sets up a machine.
rm -rf "$root/etc/systemd/system" "$root"/lib/systemd/system/*.wants
mkdir -p "$root/etc/systemd/system"
printf '[Unit]\nDescription=nothing\n' >"$root/etc/systemd/system/bare.target"
ip link set lo up
mkdir "$root/tmp/old"
cd "$root"
# Not chroot: in one, services could not have user namespaces.
mount --make-private "$root"
pivot_root . tmp/old
umount -l /tmp/old
# As a booted machine has it: credentials are mounted by a child and must appear here too.
mount --make-rshared /
exec env -i container=test NOTIFY_SOCKET=/tmp/host/booted.sock \
    /lib/systemd/systemd --system --unit=bare.target --log-target=null --show-status=no
