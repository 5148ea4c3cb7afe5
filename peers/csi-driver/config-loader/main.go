// Command config-loader reads CSI driver configurations with the upstream driver's own code and
// prints what it understood.
//
// Standard input is a JSON array of cases, standard output a JSON array of answers in the same
// order. The driver logs to standard error.
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"
	"strings"

	"sigs.k8s.io/vsphere-csi-driver/v3/pkg/common/config"
)

type question struct {
	Text string `json:"text"`
}

type answer struct {
	Error  string         `json:"error,omitempty"`
	Config *config.Config `json:"config,omitempty"`
}

func main() {
	var questions []question
	if err := json.NewDecoder(os.Stdin).Decode(&questions); err != nil {
		log.Fatalf("standard input is not a JSON array of cases: %v", err)
	}
	answers := make([]answer, 0, len(questions))
	for _, q := range questions {
		read, err := config.ReadConfig(context.Background(), strings.NewReader(q.Text))
		if err != nil {
			answers = append(answers, answer{Error: err.Error()})
		} else {
			answers = append(answers, answer{Config: read})
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(answers); err != nil {
		log.Fatal(err)
	}
}
