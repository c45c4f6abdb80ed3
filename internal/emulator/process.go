package emulator

import (
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// process is one run of a server program.
type process struct {
	cmd       *exec.Cmd
	output    *tail
	announced <-chan struct{}
	exited    chan struct{} // closed once the process has been waited for
}

// startProcess starts a process that dies with us.
//
// The kernel's parent-death signal is bound to the thread that forked, not to
// the process: were that thread to end (the runtime may end an idle or a
// wrongly locked one), the server would be killed in mid-test. So one goroutine
// keeps its thread locked from the fork until the process is gone. The price is
// one sleeping thread for each server.
func startProcess(name string, args []string) (*process, error) {
	announced := make(chan struct{})
	p := &process{
		cmd:       exec.Command(name, args...),
		output:    &tail{announced: announced},
		announced: announced,
		exited:    make(chan struct{}),
	}
	p.cmd.Stdout = p.output
	p.cmd.Stderr = p.output
	// A grandchild that inherits the pipe must not keep Wait from returning.
	p.cmd.WaitDelay = time.Second
	dieWithParent(p.cmd)

	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		_ = p.cmd.Wait() // how it ended is in cmd.ProcessState
		close(p.exited)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

func (p *process) hasExited() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// kill ends the process and waits. Killing one that has ended is an error that
// says nothing, so it is dropped.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// failure describes a process that went wrong, with what it printed.
func (p *process) failure(what string) error {
	state := "running"
	if p.hasExited() {
		state = p.cmd.ProcessState.String()
	}
	out := strings.TrimSpace(p.output.String())
	if out == "" {
		out = "(none)"
	}
	return fmt.Errorf("process %d %s (%s); output: %s", p.cmd.Process.Pid, what, state, out)
}
