//go:build tools

// Package cosign pins the tool that signs releases and their images.
package cosign

import _ "github.com/sigstore/cosign/v3/cmd/cosign"
