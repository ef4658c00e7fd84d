package main

import (
	"fmt"
	"sort"
	"time"

	"github.com/hibiken/asynq"
)

func unix(instant time.Time) int64 {
	if instant.IsZero() {
		return 0
	}
	return instant.Unix()
}

func taskFacts(info *asynq.TaskInfo) map[string]any {
	return map[string]any{
		"id": info.ID, "queue": info.Queue, "type": info.Type, "payload": info.Payload, "state": info.State.String(),
		"max_retry": info.MaxRetry, "retried": info.Retried, "error": info.LastErr, "failed_at": unix(info.LastFailedAt),
		"timeout": info.Timeout.Seconds(), "deadline": unix(info.Deadline), "group": info.Group, "next_at": unix(info.NextProcessAt),
		"orphaned": info.IsOrphaned, "retention": info.Retention.Seconds(), "completed_at": unix(info.CompletedAt),
		"result": info.Result, "headers": headersOf(info),
	}
}

func (p *Peer) inspect(order Order) (any, error) {
	i, queue := p.inspector, order.Queue
	switch order.Do {
	case "list":
		return p.list(order)
	case "task":
		info, err := i.GetTaskInfo(queue, order.ID)
		if err != nil {
			return nil, err
		}
		return taskFacts(info), nil
	case "queue":
		return p.queueFacts(queue)
	case "queues":
		names, err := i.Queues()
		sort.Strings(names)
		return names, err
	case "groups":
		return i.Groups(queue)
	case "servers":
		return i.Servers()
	case "entries":
		return p.entries()
	case "history":
		return p.history(queue)
	case "events":
		return p.events(order.ID)
	case "pause":
		return nil, i.PauseQueue(queue)
	case "unpause":
		return nil, i.UnpauseQueue(queue)
	case "delete_queue":
		return nil, i.DeleteQueue(queue, order.Force)
	case "cancel":
		return nil, i.CancelProcessing(order.ID)
	case "run":
		return nil, i.RunTask(queue, order.ID)
	case "archive":
		return nil, i.ArchiveTask(queue, order.ID)
	case "delete":
		return nil, i.DeleteTask(queue, order.ID)
	case "update":
		return nil, p.update(queue, order.ID, order.Payload)
	case "run_all", "archive_all", "delete_all":
		return p.all(order)
	}
	return nil, fmt.Errorf("unknown order %q", order.Do)
}

func (p *Peer) list(order Order) (any, error) {
	i, size := p.inspector, []asynq.ListOption{asynq.PageSize(10000)}
	if order.Page > 0 {
		size = []asynq.ListOption{asynq.PageSize(order.Count), asynq.Page(order.Page)}
	}
	var infos []*asynq.TaskInfo
	var err error
	switch order.State {
	case "pending":
		infos, err = i.ListPendingTasks(order.Queue, size...)
	case "active":
		infos, err = i.ListActiveTasks(order.Queue, size...)
	case "scheduled":
		infos, err = i.ListScheduledTasks(order.Queue, size...)
	case "retry":
		infos, err = i.ListRetryTasks(order.Queue, size...)
	case "archived":
		infos, err = i.ListArchivedTasks(order.Queue, size...)
	case "completed":
		infos, err = i.ListCompletedTasks(order.Queue, size...)
	case "aggregating":
		infos, err = i.ListAggregatingTasks(order.Queue, order.Group, size...)
	default:
		err = fmt.Errorf("unknown state %q", order.State)
	}
	facts := []map[string]any{}
	for _, info := range infos {
		facts = append(facts, taskFacts(info))
	}
	return facts, err
}

func (p *Peer) queueFacts(queue string) (any, error) {
	info, err := p.inspector.GetQueueInfo(queue)
	if err != nil {
		return nil, err
	}
	return map[string]any{
		"queue": info.Queue, "size": info.Size, "groups": info.Groups, "pending": info.Pending, "active": info.Active,
		"scheduled": info.Scheduled, "retry": info.Retry, "archived": info.Archived, "completed": info.Completed,
		"aggregating": info.Aggregating, "processed": info.Processed, "failed": info.Failed, "processed_total": info.ProcessedTotal,
		"failed_total": info.FailedTotal, "paused": info.Paused, "latency": info.Latency.Seconds(),
	}, nil
}

func (p *Peer) history(queue string) (any, error) {
	days, err := p.inspector.History(queue, 3)
	facts := []map[string]any{}
	for _, day := range days {
		facts = append(facts, map[string]any{
			"queue": day.Queue, "date": day.Date.Format(time.DateOnly), "processed": day.Processed, "failed": day.Failed,
		})
	}
	return facts, err
}

func (p *Peer) events(entry string) (any, error) {
	events, err := p.inspector.ListSchedulerEnqueueEvents(entry)
	facts := []map[string]any{}
	for _, event := range events {
		facts = append(facts, map[string]any{"task_id": event.TaskID, "at": event.EnqueuedAt.Unix()})
	}
	return facts, err
}

func (p *Peer) entries() (any, error) {
	entries, err := p.inspector.SchedulerEntries()
	facts := []map[string]any{}
	for _, entry := range entries {
		var options []string
		for _, option := range entry.Opts {
			options = append(options, option.String())
		}
		facts = append(facts, map[string]any{
			"id": entry.ID, "spec": entry.Spec, "type": entry.Task.Type(), "payload": entry.Task.Payload(), "options": options,
			"next": unix(entry.Next), "prev": unix(entry.Prev),
		})
	}
	return facts, err
}

func (p *Peer) all(order Order) (any, error) {
	i, queue, group := p.inspector, order.Queue, order.Group
	verbs := map[string]func() (int, error){
		"run_all scheduled":       func() (int, error) { return i.RunAllScheduledTasks(queue) },
		"run_all retry":           func() (int, error) { return i.RunAllRetryTasks(queue) },
		"run_all archived":        func() (int, error) { return i.RunAllArchivedTasks(queue) },
		"run_all aggregating":     func() (int, error) { return i.RunAllAggregatingTasks(queue, group) },
		"archive_all pending":     func() (int, error) { return i.ArchiveAllPendingTasks(queue) },
		"archive_all scheduled":   func() (int, error) { return i.ArchiveAllScheduledTasks(queue) },
		"archive_all retry":       func() (int, error) { return i.ArchiveAllRetryTasks(queue) },
		"archive_all aggregating": func() (int, error) { return i.ArchiveAllAggregatingTasks(queue, group) },
		"delete_all pending":      func() (int, error) { return i.DeleteAllPendingTasks(queue) },
		"delete_all scheduled":    func() (int, error) { return i.DeleteAllScheduledTasks(queue) },
		"delete_all retry":        func() (int, error) { return i.DeleteAllRetryTasks(queue) },
		"delete_all archived":     func() (int, error) { return i.DeleteAllArchivedTasks(queue) },
		"delete_all completed":    func() (int, error) { return i.DeleteAllCompletedTasks(queue) },
		"delete_all aggregating":  func() (int, error) { return i.DeleteAllAggregatingTasks(queue, group) },
	}
	verb, found := verbs[order.Do+" "+order.State]
	if !found {
		return nil, fmt.Errorf("unknown order %q for state %q", order.Do, order.State)
	}
	return verb()
}
