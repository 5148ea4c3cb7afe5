//go:build tools

// Package olm pins the programs that check the OLM bundle.
package olm

import _ "github.com/operator-framework/operator-registry/cmd/opm"
