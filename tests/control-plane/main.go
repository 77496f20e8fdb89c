// Command control-plane is a whole Kubernetes control plane in one binary: kube-apiserver,
// kube-controller-manager, etcd and kubectl, built from the released Go modules.
// It owns nothing but the choice of the program and the end of a process whose caller is gone.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/component-base/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
)

const usage = "usage: control-plane kube-apiserver|kube-controller-manager|etcd|kubectl|version [ARGS]"

func main() {
	name, args := choose(os.Args)
	// What follows reads os.Args itself, and must see what the program of that name would see.
	os.Args = append([]string{name}, args...)
	switch name {
	case "kube-apiserver":
		endWithCaller()
		os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
	case "kube-controller-manager":
		endWithCaller()
		os.Exit(cli.Run(controllermanager.NewControllerManagerCommand()))
	case "etcd":
		endWithCaller()
		etcdmain.Main(os.Args)
	case "kubectl":
		if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
			kubectlutil.CheckErr(err)
		}
	case "version":
		fmt.Println(version.Get().GitVersion)
	default:
		fmt.Fprintln(os.Stderr, usage)
		os.Exit(2)
	}
}

// choose takes the program from the name this binary was called by (a link named `etcd`), or else
// from the first argument.
func choose(argv []string) (string, []string) {
	switch called := filepath.Base(argv[0]); called {
	case "kube-apiserver", "kube-controller-manager", "etcd", "kubectl":
		return called, argv[1:]
	}
	if len(argv) < 2 {
		return "", nil
	}
	return argv[1], argv[2:]
}
