// Command pause holds the namespaces of a pod open until it is asked to end, as Kubernetes' own pause image does.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGINT, syscall.SIGTERM)
	<-end
}
