// Command vcsim is a simulated vCenter for tests: govmomi's simulator with an inventory file,
// privileges that are enforced, faults on demand and call counters. README.md tells what it adds.
package main

import (
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// usage errors and a bad inventory exit with 2, what the machine refuses with 1.
func run(args []string, stdout, stderr io.Writer) int {
	begin := time.Now()
	flags := flag.NewFlagSet("vcsim", flag.ContinueOnError)
	flags.SetOutput(stderr)
	listen := flags.String("listen", "127.0.0.1:0", "address of the vCenter API")
	controlAt := flags.String("control", "127.0.0.1:0", "loopback address of the control port")
	inventory := flags.String("inventory", "", "JSON file with the inventory (default: one datacenter, no VM)")
	cert := flags.String("cert", "", "PEM certificate of the API (default: a built-in one for localhost)")
	key := flags.String("key", "", "PEM key of the certificate")
	readyFile := flags.String("ready-file", "", "also write the ready line to this file")
	quiet := flags.Bool("quiet", false, "do not log refused calls to stderr")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	fail := func(code int, err error) int {
		_, _ = fmt.Fprintf(stderr, "vcsim: %s\n", err)
		return code
	}
	if flags.NArg() > 0 {
		return fail(2, fmt.Errorf("%q is no option", flags.Arg(0)))
	}
	if err := loopback(*controlAt); err != nil {
		return fail(2, err)
	}
	inv, err := readInventory(*inventory)
	if err != nil {
		return fail(2, err)
	}
	var pair *tls.Certificate
	if *cert != "" || *key != "" {
		loaded, err := tls.LoadX509KeyPair(*cert, *key)
		if err != nil {
			return fail(2, fmt.Errorf("-cert and -key: %w", err))
		}
		pair = &loaded
	}
	if *readyFile != "" {
		if *readyFile, err = filepath.Abs(*readyFile); err != nil {
			return fail(1, err)
		}
	}
	for _, address := range []string{*listen, *controlAt} {
		if err := bindable(address); err != nil {
			return fail(1, err)
		}
	}
	log.SetOutput(stderr)
	if *quiet {
		log.SetOutput(io.Discard)
	}

	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	folder, err := workFolder()
	if err != nil {
		return fail(1, err)
	}
	defer func() { _ = os.RemoveAll(folder) }()

	listener, err := net.Listen("tcp", *controlAt)
	if err != nil {
		return fail(1, err)
	}
	sim, err := start(inv, *listen, pair)
	if err != nil {
		return fail(2, fmt.Errorf("inventory %s: %w", *inventory, err))
	}
	url := *sim.url
	url.User = nil
	ready := Ready{URL: url.String(), Control: "http://" + listener.Addr().String(), Seconds: time.Since(begin).Seconds()}
	for _, dc := range inv.Datacenters {
		ready.VMs += len(dc.VMs)
	}
	serve := make(chan error, 1)
	go func() { serve <- http.Serve(listener, &control{sim: sim, ready: ready}) }()
	line, err := json.Marshal(ready)
	if err == nil && *readyFile != "" {
		err = writeWhole(*readyFile, append(line, '\n'))
	}
	if err != nil {
		return fail(1, err)
	}
	_, _ = fmt.Fprintf(stdout, "%s\n", line)
	select {
	case <-stop:
		return 0
	case err := <-serve:
		return fail(1, err)
	}
}

// bindable finds out early that an address cannot be had: govmomi would panic.
func bindable(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	return l.Close()
}

// writeWhole makes a file appear with its content, never half of it.
func writeWhole(path string, content []byte) error {
	if err := os.WriteFile(path+".part", content, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".part", path)
}
