// The Go side of `make bench-peers`: an Asynq server and an Asynq client with the default settings of the release that go.mod
// names, except for the concurrency, which is that of a Veredus worker. benchmarks/peers/ours.py is the same for Veredus.
//
//	peer work URL                        serve the queue until killed
//	peer enqueue URL one|concurrent N    send N no-op tasks; prints {"seconds": ..., "cpu": ...}
//	peer send URL now|later|hang N       tasks that write down when they began
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hibiken/asynq"
)

const (
	queue       = "bench"
	concurrency = 100
	producers   = 50
)

var payload = []byte(`{"data":"` + strings.Repeat("x", 87) + `"}`)

func main() {
	redis, err := asynq.ParseRedisURI(os.Args[2])
	check(err)
	if os.Args[1] == "work" {
		check(work(redis))
		return
	}
	count, err := strconv.Atoi(os.Args[4])
	check(err)
	client := asynq.NewClient(redis)
	defer client.Close()
	if os.Args[1] == "enqueue" {
		enqueue(client, os.Args[3], count)
	} else {
		send(client, os.Args[3], count)
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func now() float64 { return float64(time.Now().UnixMicro()) / 1e6 }

// cpu returns the seconds of CPU that this process has used.
func cpu() float64 {
	var usage syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

func work(redis asynq.RedisConnOpt) error {
	mux := asynq.NewServeMux()
	mux.HandleFunc("noop", func(context.Context, *asynq.Task) error { return nil })
	mux.HandleFunc("stamp", stamp)
	mux.HandleFunc("hang", hang)
	server := asynq.NewServer(redis, asynq.Config{Concurrency: concurrency, Queues: map[string]int{queue: 1}, LogLevel: asynq.FatalLevel})
	return server.Run(mux)
}

// note appends one line to the file in BENCH_STAMPS.
func note(value float64) error {
	file, err := os.OpenFile(os.Getenv("BENCH_STAMPS"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = fmt.Fprintf(file, "%.6f\n", value)
	return err
}

// stamp notes how late it began.
func stamp(_ context.Context, task *asynq.Task) error {
	at := now()
	var wanted struct{ Due float64 }
	if err := json.Unmarshal(task.Payload(), &wanted); err != nil {
		return err
	}
	return note(at - wanted.Due)
}

// hang notes when it began, and never ends in its first attempt.
func hang(ctx context.Context, _ *asynq.Task) error {
	if err := note(now()); err != nil {
		return err
	}
	if retried, _ := asynq.GetRetryCount(ctx); retried == 0 {
		<-ctx.Done()
	}
	return nil
}

func enqueue(client *asynq.Client, how string, count int) {
	lanes := map[string]int{"one": 1, "concurrent": producers}[how]
	if lanes == 0 {
		check(fmt.Errorf("this release of Asynq cannot enqueue %q", how))
	}
	one := func() {
		_, err := client.Enqueue(asynq.NewTask("noop", payload), asynq.Queue(queue))
		check(err)
	}
	one()
	began, spent := time.Now(), cpu()
	var all sync.WaitGroup
	for range lanes {
		all.Add(1)
		go func() {
			defer all.Done()
			for range count / lanes {
				one()
			}
		}()
	}
	all.Wait()
	fmt.Printf("{\"seconds\": %f, \"cpu\": %f}\n", time.Since(began).Seconds(), cpu()-spent)
}

func send(client *asynq.Client, how string, count int) {
	for range count {
		due := time.Now()
		options := []asynq.Option{asynq.Queue(queue)}
		name := "stamp"
		switch how {
		case "now":
			time.Sleep(time.Duration(rand.Int63n(int64(100 * time.Millisecond))))
			due = time.Now()
		case "later":
			due = due.Add(time.Duration(500+rand.Int63n(9500)) * time.Millisecond)
			options = append(options, asynq.ProcessAt(due))
		case "hang":
			name = "hang"
		}
		data := fmt.Sprintf("{\"due\":%.6f}", float64(due.UnixMicro())/1e6)
		_, err := client.Enqueue(asynq.NewTask(name, []byte(data)), options...)
		check(err)
	}
}
