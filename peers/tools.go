//go:build tools

// Package peers pins the real programs that the tests and the sandbox run on. Nothing here is
// compiled into the product; `build` turns each import into a binary in the cache.
package peers

import (
	_ "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity"
	_ "go.etcd.io/etcd/server/v3"
	_ "k8s.io/cloud-provider-vsphere/cmd/vsphere-cloud-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
	_ "sigs.k8s.io/kwok/cmd/kwok"
)
