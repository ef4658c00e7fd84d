// Peer is the Go side of the live tests: real Asynq, driven by one JSON object per line on standard input. It answers each order
// with one JSON object per line on standard output, and reports every attempt that it runs in the same way.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/hibiken/asynq"
)

// Order is what the test wants done. Each order reads the fields that it needs.
type Order struct {
	Do   string `json:"do"`
	Seq  int    `json:"seq"`
	Type string `json:"type"`
	// Payload travels as base64, because it may be any bytes.
	Payload []byte  `json:"payload"`
	Count   int     `json:"count"`
	Options Options `json:"options"`

	Serve    ServeConfig `json:"serve"`
	Cron     string      `json:"cron"`
	Periodic []Periodic  `json:"periodic"`

	Queue string `json:"queue"`
	ID    string `json:"id"`
	Group string `json:"group"`
	State string `json:"state"`
	Force bool   `json:"force"`
	// Page counts from 1; 0 for everything.
	Page int `json:"page"`
}

// Peer holds one of everything that Asynq has.
type Peer struct {
	redis     asynq.RedisConnOpt
	client    *asynq.Client
	inspector *asynq.Inspector
	server    *asynq.Server
	scheduler *asynq.Scheduler
	manager   *asynq.PeriodicTaskManager
	periodic  provider
}

var printing sync.Mutex

func say(fact map[string]any) {
	data, err := json.Marshal(fact)
	if err != nil {
		panic(err)
	}
	printing.Lock()
	defer printing.Unlock()
	fmt.Println(string(data))
}

func (p *Peer) obey(order Order) (any, error) {
	switch order.Do {
	case "serve":
		return nil, p.serve(order.Serve)
	case "quiet":
		p.server.Stop()
		return nil, nil
	case "stop":
		p.stop()
		return nil, nil
	case "enqueue":
		return p.enqueue(order)
	case "send_struct":
		return p.sendStruct(order)
	case "schedule":
		return p.schedule(order)
	case "manage":
		return nil, p.manage(order.Periodic)
	default:
		return p.inspect(order)
	}
}

func (p *Peer) stop() {
	if p.manager != nil {
		p.manager.Shutdown()
		p.manager = nil
	}
	if p.scheduler != nil {
		p.scheduler.Shutdown()
		p.scheduler = nil
	}
	if p.server != nil {
		p.server.Shutdown()
		p.server = nil
	}
}

// connection also takes the URL of one node of a cluster.
func connection(url string) (asynq.RedisConnOpt, error) {
	if node, found := strings.CutPrefix(url, "redis+cluster://"); found {
		return asynq.RedisClusterClientOpt{Addrs: []string{node}}, nil
	}
	return asynq.ParseRedisURI(url)
}

func main() {
	redis, err := connection(os.Args[1])
	if err != nil {
		panic(err)
	}
	peer := &Peer{redis: redis, client: asynq.NewClient(redis), inspector: asynq.NewInspector(redis)}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 1<<20), 1<<26)
	for lines.Scan() {
		var order Order
		var answer any
		err := json.Unmarshal(lines.Bytes(), &order)
		if err == nil {
			answer, err = peer.obey(order)
		}
		fact := map[string]any{"did": order.Do, "seq": order.Seq, "answer": answer}
		if err != nil {
			fact["error"] = err.Error()
		}
		say(fact)
	}
	peer.stop()
}
