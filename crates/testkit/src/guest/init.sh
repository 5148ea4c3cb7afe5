# The first process of a virtual machine of the tests, in a copy-on-write root of this computer: udev, network and
# cgroup v2 as on any Linux computer, then the agent that does what the test asks for. The kernel's command line names
# the folder of the machine and that of the programs of udev, and the program that is the agent.
set -eu
setting() { sed -n "s/.* vdo.$1=\([^ ]*\).*/\1/p" /proc/cmdline; }
folder=$(setting folder) parts=$(setting parts) agent=$(setting agent)
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
trap 'echo "guest: line $LINENO failed"; busybox poweroff -f' ERR

mount -t tmpfs run /run
mkdir -p /dev/pts /dev/shm /dev/mqueue /run/lock
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t mqueue mqueue /dev/mqueue
mount -t cgroup2 cgroup2 /sys/fs/cgroup
# The folders of this computer are read over the network: what the guest writes is in memory.
for each in /var/lib/kubelet /var/lib/containerd /var/log; do
  mkdir -p "$each"
  mount -t tmpfs memory "$each"
done
mount --make-rshared /

ip link set lo up
ip address add 10.0.2.15/24 dev eth0
ip link set eth0 up
ip route add default via 10.0.2.2

# The rules of the distribution. A disk of VMware has an id of 128 bits, which they make a link of; that of QEMU has 64
# bits. Its serial number has the other 64.
mkdir -p /usr/lib/udev /run/udev/rules.d
mount --bind "$parts/udev/lib/udev" /usr/lib/udev
cat >/run/udev/rules.d/61-vmware.rules <<'RULES'
SUBSYSTEM=="block", KERNEL=="sd*[!0-9]", ENV{ID_SCSI_SERIAL}=="6000c29*", SYMLINK+="disk/by-id/wwn-0x$env{ID_SCSI_SERIAL}"
RULES
cp "$parts/udev/bin/udevadm" /run/udevadm
ln -s udevadm /run/systemd-udevd
/run/systemd-udevd --daemon
/run/udevadm trigger --action=add --subsystem-match=block
/run/udevadm settle

echo "guest: ready"
cd "$folder"
exec "$agent" agent
