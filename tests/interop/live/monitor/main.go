// Monitor serves asynqmon's pages and its JSON API over the Redis that it is given, on a free port of this machine, which it
// prints. It ends when its standard input is closed.
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"

	"github.com/hibiken/asynq"
	"github.com/hibiken/asynqmon"
)

func main() {
	redis, err := asynq.ParseRedisURI(os.Args[1])
	if err != nil {
		panic(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	handler := asynqmon.New(asynqmon.Options{RedisConnOpt: redis})
	fmt.Println(listener.Addr().String())
	go func() { panic(http.Serve(listener, handler)) }()
	io.Copy(io.Discard, os.Stdin)
	handler.Close()
}
