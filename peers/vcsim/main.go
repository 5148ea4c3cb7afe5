// Command vcsim is a simulated vCenter for tests: govmomi's simulator with an inventory file, enforced privileges, faults on
// demand and call counters. See README.md.
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

// options are the parsed and checked command line.
type options struct {
	listen, control, source, readyFile string
	inventory                          Inventory
	certificate                        *tls.Certificate
	quiet                              bool
}

// run is the command. Usage errors and a bad inventory exit with 2, errors of the environment with 1.
func run(args []string, stdout, stderr io.Writer) int {
	begin := time.Now()
	fail := func(code int, err error) int {
		if err != nil {
			_, _ = fmt.Fprintf(stderr, "vcsim: %s\n", err)
		}
		return code
	}
	o, err := readOptions(args, stderr)
	if err != nil {
		return fail(2, err)
	}
	if o == nil {
		return 2 // the flag package has printed the error
	}
	for _, address := range []string{o.listen, o.control} {
		if err := bindable(address); err != nil {
			return fail(1, err)
		}
	}
	log.SetOutput(stderr)
	if o.quiet {
		log.SetOutput(io.Discard)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	folder, err := workFolder()
	if err != nil {
		return fail(1, err)
	}
	defer func() { _ = os.RemoveAll(folder) }()
	listener, err := net.Listen("tcp", o.control)
	if err != nil {
		return fail(1, err)
	}
	sim, err := start(o.inventory, o.listen, o.certificate)
	if err != nil {
		return fail(2, fmt.Errorf("inventory %s: %w", o.source, err))
	}
	levers := &control{sim: sim, ready: sim.readyLine(listener.Addr(), begin)}
	serve := make(chan error, 1)
	go func() { serve <- http.Serve(listener, levers) }()
	if err := announce(levers.ready, stdout, o.readyFile); err != nil {
		return fail(1, err)
	}
	select {
	case <-stop:
		return 0
	case err := <-serve:
		return fail(1, err)
	}
}

// readOptions returns nil without an error if the flag package has printed the error.
func readOptions(args []string, stderr io.Writer) (*options, error) {
	o := &options{}
	flags := flag.NewFlagSet("vcsim", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.listen, "listen", "127.0.0.1:0", "address of the vCenter API")
	flags.StringVar(&o.control, "control", "127.0.0.1:0", "loopback address of the control port")
	flags.StringVar(&o.source, "inventory", "", "JSON file with the inventory (default: one datacenter, no VM)")
	flags.StringVar(&o.readyFile, "ready-file", "", "also write the ready line to this file")
	flags.BoolVar(&o.quiet, "quiet", false, "do not log refused calls to stderr")
	cert := flags.String("cert", "", "PEM certificate of the API (default: a built-in one for localhost)")
	key := flags.String("key", "", "PEM key of the certificate")
	if flags.Parse(args) != nil {
		return nil, nil
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("%q is no option", flags.Arg(0))
	}
	err := loopback(o.control)
	if err == nil {
		o.inventory, err = readInventory(o.source)
	}
	if err == nil && o.readyFile != "" {
		o.readyFile, err = filepath.Abs(o.readyFile)
	}
	if err == nil && *cert+*key != "" {
		pair, failed := tls.LoadX509KeyPair(*cert, *key)
		if failed != nil {
			err = fmt.Errorf("-cert and -key: %w", failed)
		}
		o.certificate = &pair
	}
	return o, err
}

func (s *Sim) readyLine(control net.Addr, begin time.Time) Ready {
	url := *s.url
	url.User = nil
	ready := Ready{URL: url.String(), Control: "http://" + control.String(), Seconds: time.Since(begin).Seconds()}
	for _, dc := range s.inv.Datacenters {
		ready.VMs += len(dc.VMs)
	}
	return ready
}

// announce prints that the simulator is ready, and writes it to the file if there is one.
func announce(ready Ready, stdout io.Writer, file string) error {
	line, err := json.Marshal(ready)
	if err != nil {
		return err
	}
	line = append(line, '\n')
	if file != "" { // atomic: never a partial file
		if err := os.WriteFile(file+".part", line, 0o600); err != nil {
			return err
		}
		if err := os.Rename(file+".part", file); err != nil {
			return err
		}
	}
	_, err = stdout.Write(line)
	return err
}

// bindable checks an address early, because govmomi would panic.
func bindable(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	return l.Close()
}
