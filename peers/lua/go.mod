module github.com/vmware-tanzu/vsphere-kubernetes-drivers-operator/peers/lua

go 1.26.0

require github.com/yuin/gopher-lua v1.1.1
