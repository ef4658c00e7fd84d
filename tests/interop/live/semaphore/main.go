// Semaphore runs tasks with Asynq 0.19, the last release whose module has x/rate. Each line "take" on standard input is a task that
// takes one of two tokens; a line is printed with its id, and whether it has one. It keeps the token until a line "end <id>" cancels
// it. The program ends when its standard input is closed.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/hibiken/asynq"
	"github.com/hibiken/asynq/x/rate"
)

func main() {
	redis, err := asynq.ParseRedisURI(os.Args[1])
	if err != nil {
		panic(err)
	}
	client, inspector, tokens := asynq.NewClient(redis), asynq.NewInspector(redis), rate.NewSemaphore(redis, os.Args[2], 2)
	server := asynq.NewServer(redis, asynq.Config{
		Concurrency: 5, Queues: map[string]int{"tokens": 1}, LogLevel: asynq.FatalLevel,
	})
	err = server.Start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		taken, err := tokens.Acquire(ctx)
		fmt.Println(id, taken)
		if err != nil || !taken {
			return err
		}
		<-ctx.Done()
		err = tokens.Release(context.WithoutCancel(ctx))
		fmt.Println(id, "released")
		return err
	}))
	if err != nil {
		panic(err)
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if id, ends := strings.CutPrefix(lines.Text(), "end "); ends {
			err = inspector.CancelProcessing(id)
		} else {
			_, err = client.Enqueue(asynq.NewTask("take", nil), asynq.Queue("tokens"), asynq.MaxRetry(0))
		}
		if err != nil {
			panic(err)
		}
	}
	server.Shutdown()
}
