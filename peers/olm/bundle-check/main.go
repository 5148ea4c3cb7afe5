// Command bundle-check runs the validators of operator-framework/api on a bundle: those of `operator-sdk bundle
// validate --select-optional suite=operatorframework`, which is not to be had as a module. It prints errors and
// warnings, and exits with 1 on an error.
//
// One validator is left out: MultipleArchitectures pulls the operator's image with docker.
package main

import (
	"fmt"
	"os"

	"github.com/operator-framework/api/pkg/manifests"
	"github.com/operator-framework/api/pkg/validation"
	interfaces "github.com/operator-framework/api/pkg/validation/interfaces"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: bundle-check FOLDER KUBERNETES")
		os.Exit(2)
	}
	bundle, err := manifests.GetBundleFromDir(os.Args[1])
	if err != nil {
		fmt.Println("error", "load", err)
		os.Exit(1)
	}
	validators := append(interfaces.Validators{}, validation.DefaultBundleValidators...)
	validators = append(validators,
		validation.OperatorHubV2Validator,
		validation.StandardCapabilitiesValidator,
		validation.StandardCategoriesValidator,
		validation.ObjectValidator,
		validation.GoodPracticesValidator,
		validation.AlphaDeprecatedAPIsValidator,
	)
	// The validators of the CSV and of the CRDs look only at objects of these types.
	objects := []any{bundle, map[string]string{"k8s-version": os.Args[2]}}
	if bundle.CSV != nil {
		objects = append(objects, bundle.CSV)
	}
	for _, definition := range bundle.V1CRDs {
		objects = append(objects, definition)
	}
	failed := false
	for _, result := range validators.Validate(objects...) {
		for _, err := range result.Errors {
			failed = true
			fmt.Println("error", result.Name, err.Error())
		}
		for _, warning := range result.Warnings {
			fmt.Println("warning", result.Name, warning.Error())
		}
	}
	fmt.Println("bundle", bundle.Name, "in channels", bundle.Channels)
	if failed {
		os.Exit(1)
	}
}
