// Command catalog-client asks a served catalog about a package over gRPC, with the client library of OLM's own
// controllers. It prints the package and all bundles of the catalog as JSON, and exits with 1 if the catalog is not
// healthy or does not have the package.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/operator-framework/operator-registry/pkg/api"
	"github.com/operator-framework/operator-registry/pkg/client"
)

// answer is what OLM reads from a catalog to resolve a Subscription.
type answer struct {
	Package *api.Package  `json:"package"`
	Bundles []*api.Bundle `json:"bundles"`
}

func ask(address, name string) (*answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	catalog, err := client.NewClient(address)
	if err != nil {
		return nil, err
	}
	defer catalog.Close()
	healthy, err := catalog.HealthCheck(ctx, time.Second)
	if err != nil {
		return nil, err
	}
	if !healthy {
		return nil, fmt.Errorf("the catalog does not serve")
	}
	found, err := catalog.GetPackage(ctx, name)
	if err != nil {
		return nil, err
	}
	bundles, err := catalog.ListBundles(ctx)
	if err != nil {
		return nil, err
	}
	all := []*api.Bundle{}
	for bundle := bundles.Next(); bundle != nil; bundle = bundles.Next() {
		all = append(all, bundle)
	}
	return &answer{Package: found, Bundles: all}, bundles.Error()
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: catalog-client ADDRESS PACKAGE")
		os.Exit(2)
	}
	answer, err := ask(os.Args[1], os.Args[2])
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(answer)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "catalog-client:", err)
		os.Exit(1)
	}
}
