# The template from which you create node VMs. Set its datacenter, resource pool and name.
# A template cannot be changed directly: these commands convert it to a VM and back.
template=/Frankfurt/vm/k8s-template
pool=/Frankfurt/host/cluster-a/Resources

govc vm.markasvm -pool "$pool" "$template"
govc vm.change -vm "$template" -e disk.enableUUID=TRUE
govc vm.upgrade -vm "$template" -version=15 || true    # fails if the template is newer already
govc vm.markastemplate "$template"

# Create the VM behind a new template with paravirtual SCSI controllers, also for its boot disk:
#   govc vm.create -disk.controller=pvscsi ...
# Give all templates the same setting of changed block tracking (ctkEnabled).
