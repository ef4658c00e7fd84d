package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"
)

// ServeConfig is what the test sets of a server.
type ServeConfig struct {
	Types        []string       `json:"types"`
	Queues       map[string]int `json:"queues"`
	Concurrency  int            `json:"concurrency"`
	SleepMs      int64          `json:"sleep_ms"`
	RetryMs      int64          `json:"retry_ms"`
	CheckMs      int64          `json:"check_ms"`
	GroupGraceMs int64          `json:"group_grace_ms"`
	GroupSize    int            `json:"group_size"`
	ShutdownMs   int64          `json:"shutdown_ms"`
	// NoFailure lets IsFailure say of every error that it is none.
	NoFailure bool `json:"no_failure"`
	Strict    bool `json:"strict"`
}

// Behaviour is what a payload asks its handler to do. A payload that is something else is simply run.
type Behaviour struct {
	Behave string `json:"behave"`
	Ms     int64  `json:"ms"`
	Result string `json:"result"`
	// Raw is a result that need not be text.
	Raw []byte `json:"raw"`
	// Times is how many attempts behave so; later ones succeed. 0 for all.
	Times int `json:"times"`
}

// errLimited is no failure, as that of a rate limit in a Go service.
var errLimited = errors.New("over the limit")

func (p *Peer) serve(config ServeConfig) error {
	mux := asynq.NewServeMux()
	for _, name := range config.Types {
		mux.HandleFunc(name, func(ctx context.Context, task *asynq.Task) error { return run(ctx, task, config) })
	}
	settings := asynq.Config{
		Concurrency: config.Concurrency, Queues: config.Queues, LogLevel: asynq.FatalLevel,
		ShutdownTimeout: ms(max(config.ShutdownMs, 5000)), GroupGracePeriod: ms(max(config.GroupGraceMs, 1000)), GroupMaxSize: config.GroupSize,
		TaskCheckInterval: ms(config.CheckMs), DelayedTaskCheckInterval: ms(config.CheckMs), StrictPriority: config.Strict,
	}
	if config.RetryMs > 0 {
		settings.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return ms(config.RetryMs) }
	}
	settings.IsFailure = func(err error) bool { return err != nil && !config.NoFailure && !errors.Is(err, errLimited) }
	if config.GroupGraceMs > 0 {
		settings.GroupAggregator = asynq.GroupAggregatorFunc(aggregate)
	}
	p.server = asynq.NewServer(p.redis, settings)
	return p.server.Start(mux)
}

// aggregate joins the payloads with a comma, in the order in which Asynq hands them over. The groups "panic" and "nothing" do not
// become a task.
func aggregate(group string, tasks []*asynq.Task) *asynq.Task {
	var parts [][]byte
	types := []string{}
	for _, task := range tasks {
		parts = append(parts, task.Payload())
		types = append(types, task.Type())
	}
	joined := bytes.Join(parts, []byte(","))
	say(map[string]any{"aggregated": group, "types": types, "payload": joined, "at": now()})
	switch group {
	case "panic":
		panic("told to panic")
	case "nothing":
		return nil
	}
	return asynq.NewTask("aggregated:"+group, joined)
}

func run(ctx context.Context, task *asynq.Task, config ServeConfig) (err error) {
	id, _ := asynq.GetTaskID(ctx)
	retried, _ := asynq.GetRetryCount(ctx)
	maxRetry, _ := asynq.GetMaxRetry(ctx)
	queue, _ := asynq.GetQueueName(ctx)
	deadline, _ := ctx.Deadline()
	fact := map[string]any{
		"type": task.Type(), "id": id, "queue": queue, "retried": retried, "max_retry": maxRetry, "payload": task.Payload(),
		"headers": headersOfTask(task), "deadline": deadline.Unix(), "deadline_ns": deadline.UnixNano(), "at": now(),
	}
	tell := func(what string) {
		copied := map[string]any{}
		for key, value := range fact {
			copied[key] = value
		}
		copied[what] = task.Type()
		say(copied)
	}
	tell("began")
	defer func() {
		fact["at"] = now()
		if err != nil {
			fact["failed"] = err.Error()
		}
		tell("ran")
	}()
	if config.SleepMs > 0 {
		time.Sleep(ms(config.SleepMs))
	}
	var wanted Behaviour
	if json.Unmarshal(task.Payload(), &wanted) != nil {
		return nil
	}
	if wanted.Result != "" {
		wanted.Raw = []byte(wanted.Result)
	}
	if wanted.Raw != nil {
		if _, err := task.ResultWriter().Write(wanted.Raw); err != nil {
			return err
		}
	}
	if wanted.Times > 0 && retried >= wanted.Times {
		return nil
	}
	if wanted.Behave == "write late" {
		time.Sleep(ms(wanted.Ms))
		_, err := task.ResultWriter().Write([]byte("late"))
		return err
	}
	return behave(ctx, wanted)
}

func behave(ctx context.Context, wanted Behaviour) error {
	switch wanted.Behave {
	case "fail":
		return errors.New("told to fail")
	case "fail in bytes":
		return errors.New("told to fail: \xff\xfe")
	case "limited":
		return errLimited
	case "skip":
		return fmt.Errorf("told to skip: %w", asynq.SkipRetry)
	case "revoke":
		return fmt.Errorf("told to revoke: %w", asynq.RevokeTask)
	case "panic":
		panic("told to panic")
	case "sleep":
		time.Sleep(ms(wanted.Ms))
	case "wait":
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(ms(wanted.Ms)):
		}
	}
	return nil
}

func now() float64 { return float64(time.Now().UnixMicro()) / 1e6 }
