//go:build tools

// Package snapshotcontroller pins the controller that binds snapshots of volumes to their contents, and the sidecar that
// takes them.
package snapshotcontroller

import (
	_ "github.com/kubernetes-csi/external-snapshotter/v8/cmd/csi-snapshotter"
	_ "github.com/kubernetes-csi/external-snapshotter/v8/cmd/snapshot-controller"
)
