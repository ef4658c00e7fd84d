package main

import (
	"time"

	"github.com/hibiken/asynq"
)

// Options are Asynq's options of one task. A pointer that is nil leaves the option out.
type Options struct {
	Queue       string            `json:"queue"`
	TaskID      string            `json:"task_id"`
	MaxRetry    *int              `json:"max_retry"`
	TimeoutMs   *int64            `json:"timeout_ms"`
	DeadlineAt  *int64            `json:"deadline_at"`
	UniqueMs    *int64            `json:"unique_ms"`
	ProcessAt   *int64            `json:"process_at"`
	ProcessInMs *int64            `json:"process_in_ms"`
	RetentionMs *int64            `json:"retention_ms"`
	Group       string            `json:"group"`
	Headers     map[string]string `json:"headers"`
}

func ms(value int64) time.Duration { return time.Duration(value) * time.Millisecond }

func (o Options) list() []asynq.Option {
	var list []asynq.Option
	if o.Queue != "" {
		list = append(list, asynq.Queue(o.Queue))
	}
	if o.TaskID != "" {
		list = append(list, asynq.TaskID(o.TaskID))
	}
	if o.MaxRetry != nil {
		list = append(list, asynq.MaxRetry(*o.MaxRetry))
	}
	if o.TimeoutMs != nil {
		list = append(list, asynq.Timeout(ms(*o.TimeoutMs)))
	}
	if o.DeadlineAt != nil {
		list = append(list, asynq.Deadline(time.Unix(*o.DeadlineAt, 0)))
	}
	if o.UniqueMs != nil {
		list = append(list, asynq.Unique(ms(*o.UniqueMs)))
	}
	if o.ProcessAt != nil {
		list = append(list, asynq.ProcessAt(time.UnixMilli(*o.ProcessAt)))
	}
	if o.ProcessInMs != nil {
		list = append(list, asynq.ProcessIn(ms(*o.ProcessInMs)))
	}
	if o.RetentionMs != nil {
		list = append(list, asynq.Retention(ms(*o.RetentionMs)))
	}
	if o.Group != "" {
		list = append(list, asynq.Group(o.Group))
	}
	return list
}

// enqueue sends one task, or `count` equal ones, and answers with what Asynq says of each.
func (p *Peer) enqueue(order Order) (any, error) {
	infos := []map[string]any{}
	for range max(order.Count, 1) {
		info, err := p.client.Enqueue(newTask(order.Type, order.Payload, order.Options.Headers), order.Options.list()...)
		if err != nil {
			return infos, err
		}
		infos = append(infos, taskFacts(info))
	}
	return infos, nil
}

func (p *Peer) schedule(order Order) (any, error) {
	started := p.scheduler != nil
	if !started {
		p.scheduler = asynq.NewScheduler(p.redis, &asynq.SchedulerOpts{LogLevel: asynq.ErrorLevel, HeartbeatInterval: time.Second})
	}
	id, err := p.scheduler.Register(order.Cron, newTask(order.Type, order.Payload, order.Options.Headers), order.Options.list()...)
	if err == nil && !started {
		err = p.scheduler.Start()
	}
	return id, err
}
