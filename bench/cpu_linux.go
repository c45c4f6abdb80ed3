package main

import "golang.org/x/sys/unix"

// pin keeps the calling thread on the i-th processor that it may use. The
// function that it returns lets go of it.
func pin(i int) func() {
	var all, one unix.CPUSet
	if unix.SchedGetaffinity(0, &all) != nil {
		return func() {}
	}
	for cpu, seen := 0, 0; cpu < 1024; cpu++ {
		if !all.IsSet(cpu) {
			continue
		}
		if seen == i {
			one.Set(cpu)
			break
		}
		seen++
	}
	if one.Count() == 0 || unix.SchedSetaffinity(0, &one) != nil {
		return func() {}
	}
	return func() { _ = unix.SchedSetaffinity(0, &all) } // only a later sample would be the worse for it
}

// interruptions returns how often the kernel took a processor from a thread of
// this process that could have gone on.
func interruptions() int {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return int(u.Nivcsw)
}
