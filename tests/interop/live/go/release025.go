//go:build asynq025

// Release 0.25 has neither headers nor a way to replace a payload.
package main

import (
	"errors"

	"github.com/hibiken/asynq"
)

func newTask(name string, payload []byte, headers map[string]string) *asynq.Task {
	if headers != nil {
		panic("Asynq 0.25 has no headers")
	}
	return asynq.NewTask(name, payload)
}

func headersOf(info *asynq.TaskInfo) map[string]string { return nil }

func headersOfTask(task *asynq.Task) map[string]string { return nil }

func (p *Peer) update(queue, id string, payload []byte) error {
	return errors.New("Asynq 0.25 cannot replace a payload")
}
