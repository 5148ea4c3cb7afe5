//go:build tools

// Package manifests pins the programs that check manifests.
package manifests

import (
	_ "github.com/yannh/kubeconform/cmd/kubeconform"
	_ "github.com/zegl/kube-score/cmd/kube-score"
)
