#!/usr/bin/env bash
# with_device_node.sh COMMAND...: runs a command where /dev/infiniband/uverbs-softhca0 is a character device, which UCX
# asks for before it opens a verbs device. It is /dev/null, in a mount namespace of its own; no root is needed where
# user namespaces are allowed.
set -eu
if [ "${1:-}" != --inside ]; then
    exec unshare --user --map-root-user --mount bash "$0" --inside "$@"
fi
shift
dev=$(mktemp -d)
mount -t tmpfs none "$dev"
mkdir "$dev/infiniband" "$dev/shm"
for node in null zero random urandom infiniband/uverbs-softhca0; do
    : >"$dev/$node"
    case $node in infiniband/*) from=/dev/null ;; *) from=/dev/$node ;; esac
    mount --bind "$from" "$dev/$node"
done
chmod 1777 "$dev/shm"
mount --rbind "$dev" /dev
umount -l "$dev"
rmdir "$dev"
exec "$@"
