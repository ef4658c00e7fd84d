//go:build !asynq025

package main

import "github.com/hibiken/asynq"

func newTask(name string, payload []byte, headers map[string]string) *asynq.Task {
	if headers == nil {
		return asynq.NewTask(name, payload)
	}
	return asynq.NewTaskWithHeaders(name, payload, headers)
}

func headersOf(info *asynq.TaskInfo) map[string]string { return info.Headers }

func headersOfTask(task *asynq.Task) map[string]string { return task.Headers() }

func (p *Peer) update(queue, id string, payload []byte) error {
	return p.inspector.UpdateTaskPayload(queue, id, payload)
}
