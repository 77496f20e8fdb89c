package main

import (
	"io"
	"os"
	"time"
)

const (
	// Set to anything: the process ends when its standard input does. The caller holds the other end
	// of that pipe, so the kernel closes it however the caller dies, SIGKILL included.
	untilStdinCloses = "CONTROL_PLANE_UNTIL_STDIN_CLOSES"
	// A directory to delete when the caller is gone. Every process of one control plane is given the
	// same one: the last to end finds nobody writing in it any more.
	removeDir = "CONTROL_PLANE_REMOVE_DIR"
)

// endWithCaller ends this process at once when its caller is gone. No orderly shutdown: nobody is
// left to want the data, and a shutdown that hangs would be the leftover this is here to prevent.
func endWithCaller() {
	if os.Getenv(untilStdinCloses) == "" {
		return
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		remove(os.Getenv(removeDir))
		os.Exit(0)
	}()
}

// remove deletes dir, several times if a process that has not ended yet still writes in it.
func remove(dir string) {
	if dir == "" {
		return
	}
	for range 20 {
		if os.RemoveAll(dir) == nil {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}
