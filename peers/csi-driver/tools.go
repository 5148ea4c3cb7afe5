//go:build tools

// Package peers pins the upstream vSphere CSI driver. It has its own module because it
// replaces Kubernetes' libraries with an older minor than the rest of our peers use.
package peers

import (
	_ "sigs.k8s.io/vsphere-csi-driver/v3/cmd/vsphere-csi"
	_ "sigs.k8s.io/vsphere-csi-driver/v3/pkg/common/config"
)
