# The first process of a real node: in its own network, mount and process namespaces. What it mounts and starts
# ends with it. Arguments: the folder of the node, its name, its address, the addresses it can reach.
set -eu
folder=$1 name=$2 address=$3
shift 3

# The network: every address on the loopback device. Testkit listens on those that lead out of the node.
ip link set lo up
for each in "$address" "$@"; do ip address add "$each/32" dev lo; done
echo 1 >/proc/sys/net/ipv4/ip_forward

# A /dev with what every machine has. Disks are added to it while the node runs.
mount -t tmpfs -o mode=755 dev "$folder/dev"
device() { mknod -m "$1" "$folder/dev/$2" "$3" "$4" "$5"; }
mkdir -p "$folder"/dev/{pts,shm,mqueue,net,disk/by-id}
device 666 null c 1 3
device 666 zero c 1 5
device 666 full c 1 7
device 666 random c 1 8
device 666 urandom c 1 9
device 644 kmsg c 1 11
device 666 tty c 5 0
device 666 fuse c 10 229
device 660 loop-control c 10 237
for number in $(seq 0 63); do device 660 "loop$number" b 7 "$number"; done
ln -s /proc/self/fd "$folder/dev/fd"
ln -s pts/ptmx "$folder/dev/ptmx"
for number in 0:stdin 1:stdout 2:stderr; do ln -s "fd/${number%%:*}" "$folder/dev/${number#*:}"; done
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$folder/dev/pts"
mount -t tmpfs shm "$folder/dev/shm"
mount -t mqueue mqueue "$folder/dev/mqueue"
mount --rbind "$folder/dev" /dev

# The firmware: the uuid of the VM that the node runs as. The kernel's folder takes no new entries, so the node gets
# a copy of it that refers to the same classes of devices.
options=()
if [[ -n ${VM_UUID:-} ]]; then
  mkdir -p "$folder/class"
  mount -t tmpfs class "$folder/class"
  for each in /sys/class/*; do
    mkdir "$folder/class/${each##*/}"
    mount --bind "$each" "$folder/class/${each##*/}"
  done
  mkdir -p "$folder/class/dmi/id"
  echo "$VM_UUID" >"$folder/class/dmi/id/product_uuid"
  hex=${VM_UUID//-/}
  pairs=$(sed 's/../& /g; s/ $//' <<<"$hex")
  echo "VMware-${pairs:0:23}-${pairs:24}" >"$folder/class/dmi/id/product_serial"
  mount --rbind "$folder/class" /sys/class
  options=(--cloud-provider=external)
fi

# A disk of its own, if it is to be full.
if [[ -n ${DISK_BYTES:-} ]]; then
  if [[ ! -e $folder/disk.img ]]; then
    truncate -s "$DISK_BYTES" "$folder/disk.img"
    mkfs.ext4 -q -m 0 "$folder/disk.img"
  fi
  mkdir -p "$folder/disk"
  mount -o loop "$folder/disk.img" "$folder/disk"
  for part in kubelet containerd; do
    mkdir -p "$folder/disk/$part" "$folder/$part"
    mount --bind "$folder/disk/$part" "$folder/$part"
  done
fi

# The folders of kubelet and containerd, at their usual places.
for pair in kubelet:/var/lib/kubelet containerd:/var/lib/containerd run:/run/containerd pods:/var/log/pods \
  containers:/var/log/containers cni:/etc/cni/net.d; do
  mkdir -p "$folder/${pair%%:*}" "${pair#*:}"
  mount --bind "$folder/${pair%%:*}" "${pair#*:}"
done
mount --make-rshared /

export PATH=$folder/bin:$PATH
# Both start again when they end, as under a service manager.
supervise() {
  local program=$1
  while :; do
    "$@" >>"$folder/$program.log" 2>&1 &
    echo $! >"$folder/$program.pid"
    wait $! || true
    sleep 0.2
  done
}
supervise containerd --config "$folder/containerd.toml" &
for _ in {1..1200}; do
  [[ -S /run/containerd/containerd.sock ]] && break
  sleep 0.05
done
[[ -S /run/containerd/containerd.sock ]] || { tail -5 "$folder/containerd.log" >&2; exit 1; }
supervise kubelet --config="$folder/kubelet.yaml" --kubeconfig="$folder/kubeconfig" --hostname-override="$name" \
  --node-ip="$address" --root-dir=/var/lib/kubelet --v=2 "${options[@]}"
