// Package proof holds tests of package ddbseq that need more than the standard
// library: random operations of several processes against a model, and a check
// that the history of one Sequence is linearizable.
package proof
