//go:build race

package ddbseq

const raceEnabled = true
