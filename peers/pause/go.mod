module github.com/vmware-tanzu/vsphere-kubernetes-drivers-operator/peers/pause

go 1.26.0
