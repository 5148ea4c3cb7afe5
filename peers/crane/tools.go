//go:build tools

// Package crane pins a container registry and the tool that copies images to it.
package crane

import _ "github.com/google/go-containerregistry/cmd/crane"
