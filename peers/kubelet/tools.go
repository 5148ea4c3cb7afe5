//go:build tools

// Package kubelet pins the kubelet of the real nodes. It has a module of its own, so that a change here does
// not rebuild the control plane.
package kubelet

import _ "k8s.io/kubernetes/cmd/kubelet"
