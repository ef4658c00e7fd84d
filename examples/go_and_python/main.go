// Command main is the Go half: it sends a task that Python runs, and runs a task that Python sends.
//
//	go mod init example && go get github.com/hibiken/asynq@v0.26.0
//	REDIS_ADDR=localhost:6379 go run main.go
//
// The Python half is worker.py. `make interop` compiles and runs both.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"

	"github.com/hibiken/asynq"
)

// Resize has its fields in the order of the Python function's parameters, so that both make the same unique lock.
type Resize struct {
	Path  string `json:"path"`
	Width int    `json:"width"`
}

func main() {
	redis := asynq.RedisClientOpt{Addr: os.Getenv("REDIS_ADDR")}

	client := asynq.NewClient(redis)
	defer client.Close()
	payload, err := json.Marshal(Resize{Path: "/a.png", Width: 64})
	if err != nil {
		log.Fatal(err)
	}
	info, err := client.Enqueue(asynq.NewTask("image:resize", payload), asynq.Queue("images"), asynq.MaxRetry(5))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("sent", info.ID, "to Python")

	mux := asynq.NewServeMux()
	mux.HandleFunc("thumbnail:ready", func(_ context.Context, task *asynq.Task) error {
		fmt.Println("from Python:", string(task.Payload()))
		return nil
	})
	server := asynq.NewServer(redis, asynq.Config{Concurrency: 10, Queues: map[string]int{"thumbnails": 1}})
	if err := server.Run(mux); err != nil {
		log.Fatal(err)
	}
}
