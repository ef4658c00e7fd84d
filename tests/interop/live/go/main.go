// Peer is the Go side of the live tests: real Asynq, driven by one JSON object per line on standard input. It answers each with
// one JSON object per line on standard output, and tells of every task that it runs in the same way.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/hibiken/asynq"
)

// Order is what the test wants done.
type Order struct {
	Do          string         `json:"do"`
	Queues      map[string]int `json:"queues"`
	Types       []string       `json:"types"`
	Concurrency int            `json:"concurrency"`
	SleepMs     int            `json:"sleep_ms"`
	Type        string         `json:"type"`
	Queue       string         `json:"queue"`
	Count       int            `json:"count"`
	Payload     string         `json:"payload"`
	MaxRetry    int            `json:"max_retry"`
}

var (
	printing sync.Mutex
	server   *asynq.Server
)

func say(fact map[string]any) {
	data, err := json.Marshal(fact)
	if err != nil {
		panic(err)
	}
	printing.Lock()
	defer printing.Unlock()
	fmt.Println(string(data))
}

func serve(redis asynq.RedisConnOpt, order Order) error {
	mux := asynq.NewServeMux()
	for _, name := range order.Types {
		mux.HandleFunc(name, func(ctx context.Context, task *asynq.Task) error {
			time.Sleep(time.Duration(order.SleepMs) * time.Millisecond)
			id, _ := asynq.GetTaskID(ctx)
			retried, _ := asynq.GetRetryCount(ctx)
			say(map[string]any{"ran": task.Type(), "id": id, "retried": retried, "at": float64(time.Now().UnixMicro()) / 1e6})
			return nil
		})
	}
	server = asynq.NewServer(redis, asynq.Config{
		Concurrency: order.Concurrency, Queues: order.Queues, LogLevel: asynq.ErrorLevel, ShutdownTimeout: 5 * time.Second,
	})
	return server.Start(mux)
}

func enqueue(client *asynq.Client, order Order) error {
	for i := 0; i < order.Count; i++ {
		task := asynq.NewTask(order.Type, []byte(order.Payload))
		if _, err := client.Enqueue(task, asynq.Queue(order.Queue), asynq.MaxRetry(order.MaxRetry)); err != nil {
			return err
		}
	}
	return nil
}

func main() {
	redis, err := asynq.ParseRedisURI(os.Args[1])
	if err != nil {
		panic(err)
	}
	client := asynq.NewClient(redis)
	defer client.Close()
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 1<<20), 1<<26)
	for lines.Scan() {
		var order Order
		err := json.Unmarshal(lines.Bytes(), &order)
		if err == nil {
			switch order.Do {
			case "serve":
				err = serve(redis, order)
			case "enqueue":
				err = enqueue(client, order)
			default:
				err = fmt.Errorf("unknown order %q", order.Do)
			}
		}
		answer := map[string]any{"did": order.Do}
		if err != nil {
			answer["error"] = err.Error()
		}
		say(answer)
	}
	if server != nil {
		server.Shutdown()
	}
}
