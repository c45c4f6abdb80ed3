//go:build !linux

package main

func pin(int) func() { return func() {} }

func interruptions() int { return 0 }
