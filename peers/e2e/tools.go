//go:build tools

// Package e2e pins Kubernetes' own e2e tests and the program of their test images. It has a module of its own, because
// the tests need more libraries than the kubelet.
package e2e

import (
	_ "k8s.io/kubernetes/test/e2e"
	_ "k8s.io/kubernetes/test/images/agnhost"
)
