//go:build tools

// Package tools pins upstream's external-resizer.
package tools

import _ "github.com/kubernetes-csi/external-resizer/cmd/csi-resizer"
