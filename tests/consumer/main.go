// Command consumer stands for the program on a firewall that uses the access which the agent keeps: a real client-go
// program that requests its own Firewall over and over and counts what fails. Owns the command line and the clock;
// where its client comes from is in access.go, what an answer means in count.go.
//
// It prints one line of JSON for each request that did not succeed, and one with the sums when it gets SIGTERM.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path"
	"sync"
	"syscall"
	"time"
)

const requestTimeout = 10 * time.Second

func main() {
	kubeconfig := flag.String("kubeconfig", "", "the seed's kubeconfig on the machine")
	firewall := flag.String("firewall", "", "name of the Firewall that is requested")
	interval := flag.Duration("interval", 100*time.Millisecond, "time between two requests")
	stock := flag.Bool("stock", false, "client-go as it comes and as today's firewall-controller sets it up, instead of "+
		"a new client for each change of a file")
	flag.Parse()
	if *kubeconfig == "" || *firewall == "" {
		fmt.Fprintln(os.Stderr, "consumer: -kubeconfig and -firewall are needed")
		os.Exit(2)
	}
	access := watching
	if *stock {
		// Read by client-go when its first client is made.
		if err := os.Setenv("KUBE_FEATURE_ClientsAllowCARotation", "false"); err != nil {
			fmt.Fprintln(os.Stderr, "consumer:", err)
			os.Exit(1)
		}
		access = asItComes
	}
	if err := run(access(*kubeconfig), *firewall, *interval); err != nil {
		fmt.Fprintln(os.Stderr, "consumer:", err)
		os.Exit(1)
	}
}

func run(access *access, firewall string, interval time.Duration) error {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	hook := make(chan os.Signal, 1)
	signal.Notify(hook, syscall.SIGHUP)

	// Without a client at the start nothing is measured.
	if err := access.renew(); err != nil {
		return err
	}
	count := newCount(os.Stdout)
	// Whoever started it may end without a word.
	parent := os.Getppid()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	look := time.NewTicker(lookInterval)
	defer look.Stop()
	var requests sync.WaitGroup
	for os.Getppid() == parent {
		select {
		case <-end:
			requests.Wait()
			return count.print()
		case <-hook:
			// What cannot be read leaves the client that there is: it may be good yet.
			count.renewed(access.renew())
		case <-look.C:
			if access.changed() {
				count.renewed(access.renew())
			}
			access.forgetConnections()
		case <-tick.C:
			// Each in its own time: one that hangs must not keep others from being counted.
			requests.Go(func() { count.request(request(access.client(), firewall)) })
		}
	}
	return fmt.Errorf("who started this is gone")
}

// request reports how it went, and whether it took a second attempt.
func request(client *client, firewall string) (outcome, bool, error) {
	path := path.Join("/apis/firewall.metal-stack.io/v2/namespaces", client.namespace, "firewalls", firewall)
	get := func() error {
		ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
		defer cancel()
		// Retries of client-go's own would hide what is to be counted.
		answer, err := client.rest.Get().AbsPath(path).MaxRetries(0).DoRaw(ctx)
		if err != nil && len(answer) > 0 {
			return fmt.Errorf("%w: %s", err, bytes.TrimSpace(answer[:min(len(answer), 300)]))
		}
		return err
	}
	err := get()
	if judge(err) != cut {
		return judge(err), false, err
	}
	if again := get(); again != nil {
		return judge(again), true, again
	}
	return good, true, err
}
