package main

import (
	"sync"
	"time"

	"github.com/hibiken/asynq"
)

// Periodic is one entry of the list that a PeriodicTaskManager keeps to.
type Periodic struct {
	Cron    string  `json:"cron"`
	Type    string  `json:"type"`
	Payload []byte  `json:"payload"`
	Options Options `json:"options"`
}

// provider hands out the list that the test gave last.
type provider struct {
	lock    sync.Mutex
	entries []Periodic
}

func (p *provider) set(entries []Periodic) {
	p.lock.Lock()
	defer p.lock.Unlock()
	p.entries = entries
}

func (p *provider) GetConfigs() ([]*asynq.PeriodicTaskConfig, error) {
	p.lock.Lock()
	defer p.lock.Unlock()
	var configs []*asynq.PeriodicTaskConfig
	for _, entry := range p.entries {
		configs = append(configs, &asynq.PeriodicTaskConfig{
			Cronspec: entry.Cron, Task: newTask(entry.Type, entry.Payload, entry.Options.Headers), Opts: entry.Options.list(),
		})
	}
	return configs, nil
}

// manage starts a PeriodicTaskManager with this list, or gives the one that runs another list.
func (p *Peer) manage(entries []Periodic) error {
	p.periodic.set(entries)
	if p.manager != nil {
		return nil
	}
	manager, err := asynq.NewPeriodicTaskManager(asynq.PeriodicTaskManagerOpts{
		PeriodicTaskConfigProvider: &p.periodic, RedisConnOpt: p.redis, SyncInterval: 200 * time.Millisecond,
		SchedulerOpts: &asynq.SchedulerOpts{LogLevel: asynq.FatalLevel, HeartbeatInterval: time.Second},
	})
	if err != nil {
		return err
	}
	p.manager = manager
	return manager.Start()
}
