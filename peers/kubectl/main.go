// kubectl for the tests of the book.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"

	// Like kubectl itself: all authentication plugins of a kubeconfig.
	_ "k8s.io/client-go/plugin/pkg/client/auth"
)

func main() {
	os.Exit(cli.Run(cmd.NewDefaultKubectlCommand()))
}
