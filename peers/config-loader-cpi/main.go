// Command config-loader-cpi reads cloud controller configurations with the upstream controller's
// own code and prints the result.
//
// Standard input is a JSON array of cases, standard output a JSON array of answers in the same
// order. A case with "text" is a vsphere.conf; one with "secret" is the data of a credentials
// Secret, looked up for each of "servers".
package main

import (
	"encoding/json"
	"flag"
	"io"
	"log"
	"os"
	"path/filepath"

	"k8s.io/klog/v2"

	cpicfg "k8s.io/cloud-provider-vsphere/pkg/cloudprovider/vsphere/config"
	lbcfg "k8s.io/cloud-provider-vsphere/pkg/cloudprovider/vsphere/loadbalancer/config"
	routecfg "k8s.io/cloud-provider-vsphere/pkg/cloudprovider/vsphere/route/config"
	"k8s.io/cloud-provider-vsphere/pkg/common/credentialmanager"
	nsxtcfg "k8s.io/cloud-provider-vsphere/pkg/nsxt/config"
)

type question struct {
	Text    string            `json:"text"`
	Secret  map[string]string `json:"secret"`
	Servers []string          `json:"servers"`
}

type answer struct {
	Error        string                                   `json:"error,omitempty"`
	Config       *cpicfg.CPIConfig                        `json:"config,omitempty"`
	Nsxt         *nsxtcfg.Config                          `json:"nsxt,omitempty"`
	Route        *routecfg.Config                         `json:"route,omitempty"`
	LoadBalancer *lbcfg.LBConfig                          `json:"loadBalancer,omitempty"`
	Credentials  map[string]*credentialmanager.Credential `json:"credentials,omitempty"`
}

func main() {
	quietly()
	var questions []question
	if err := json.NewDecoder(os.Stdin).Decode(&questions); err != nil {
		log.Fatalf("standard input is not a JSON array of cases: %v", err)
	}
	answers := make([]answer, 0, len(questions))
	for _, q := range questions {
		if q.Secret != nil {
			answers = append(answers, readSecret(q))
		} else {
			answers = append(answers, readConfig([]byte(q.Text)))
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(answers); err != nil {
		log.Fatal(err)
	}
}

// quietly suppresses the controller's log, which repeats parts of its input.
func quietly() {
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	_ = flags.Set("logtostderr", "false")
	_ = flags.Set("alsologtostderr", "false")
	_ = flags.Set("stderrthreshold", "FATAL")
	klog.SetOutput(io.Discard)
}

func readConfig(text []byte) answer {
	config, err := cpicfg.ReadCPIConfig(text)
	if err != nil {
		return answer{Error: err.Error()}
	}
	result := answer{Config: config}
	// Like the controller, this turns off features whose section is invalid.
	if nsxt, err := nsxtcfg.ReadNsxtConfig(text); err == nil {
		result.Nsxt = nsxt
	}
	if route, err := routecfg.ReadRouteConfig(text); err == nil {
		result.Route = route
	}
	if lb, err := lbcfg.ReadLBConfig(text); err == nil {
		result.LoadBalancer = lb
	}
	return result
}

func readSecret(q question) answer {
	dir, err := os.MkdirTemp("", "credentials")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	for key, value := range q.Secret {
		if err := os.WriteFile(filepath.Join(dir, key), []byte(value), 0o600); err != nil {
			return answer{Error: err.Error()}
		}
	}
	manager := credentialmanager.NewCredentialManager("", "", dir, nil)
	found := map[string]*credentialmanager.Credential{}
	for _, server := range q.Servers {
		credential, err := manager.GetCredential(server)
		if err != nil {
			return answer{Error: err.Error()}
		}
		found[server] = credential
	}
	return answer{Credentials: found}
}
