// What programs do with go-redis, against the server at the port and in the protocol version given as arguments.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	ctx               = context.Background()
	address, protocol = "127.0.0.1:" + os.Args[1], os.Args[2]
)

func connect(database int) *redis.Client {
	version, _ := strconv.Atoi(protocol)
	return redis.NewClient(&redis.Options{Addr: address, Protocol: version, DB: database})
}

func fail(format string, values ...any) {
	panic(fmt.Sprintf(format, values...))
}

// same checks the result of a call that must succeed.
func same[T any](expected T) func(T, error) {
	return func(actual T, err error) {
		if err != nil || !reflect.DeepEqual(expected, actual) {
			fail("expected %v, got %v and %v", expected, actual, err)
		}
	}
}

func within(least, most time.Duration) func(time.Duration, error) {
	return func(actual time.Duration, err error) {
		if err != nil || actual < least || actual > most {
			fail("expected %v to %v, got %v and %v", least, most, actual, err)
		}
	}
}

// refused checks the error of a call that must fail.
func refused(err error, text string) {
	if err == nil || !strings.Contains(err.Error(), text) {
		fail("expected an error with %q, got %v", text, err)
	}
}

func counts(r *redis.Client) {
	same("OK")(r.Set(ctx, "n", 40, 0).Result())
	same(int64(41))(r.Incr(ctx, "n").Result())
	same(int64(51))(r.IncrBy(ctx, "n", 10).Result())
	same(int64(50))(r.Decr(ctx, "n").Result())
	same(int64(42))(r.DecrBy(ctx, "n", 8).Result())
	same("42")(r.Get(ctx, "n").Result())
	same(42)(r.Get(ctx, "n").Int())
	same([]any{"42", nil})(r.MGet(ctx, "n", "missing").Result())
	same(int64(1))(r.Del(ctx, "n").Result())
	if err := r.Get(ctx, "n").Err(); !errors.Is(err, redis.Nil) {
		fail("a missing key: %v", err)
	}
	refused(r.Set(ctx, "n", "text", 0).Err(), "ERR value is not an integer or out of range")
	same(int64(0))(r.Exists(ctx, "n").Result())
}

func sets(r *redis.Client) {
	same("OK")(r.MSet(ctx, "s1", 1, "s2", 2).Result())
	same(false)(r.MSetNX(ctx, "s2", 5, "s3", 5).Result())
	same(true)(r.SetNX(ctx, "s3", 3, 0).Result())
	same(false)(r.SetNX(ctx, "s3", 4, time.Minute).Result())
	same(false)(r.SetXX(ctx, "s4", 4, 0).Result())
	same([]any{"1", "2", "3"})(r.MGet(ctx, "s1", "s2", "s3").Result())
	same("3")(r.GetSet(ctx, "s3", 33).Result())
}

func expires(r *redis.Client) {
	same("OK")(r.Set(ctx, "passing", 1, time.Minute).Result())
	within(time.Second, time.Minute)(r.TTL(ctx, "passing").Result())
	same("OK")(r.SetEx(ctx, "passing", 2, 100*time.Second).Result())
	within(61*time.Second, 100*time.Second)(r.TTL(ctx, "passing").Result())
	same("OK")(r.Set(ctx, "passing", 3, redis.KeepTTL).Result())
	within(61*time.Second, 100*time.Second)(r.PTTL(ctx, "passing").Result())
	same(true)(r.Persist(ctx, "passing").Result())
	same(time.Duration(-1))(r.TTL(ctx, "passing").Result())
	same(true)(r.Expire(ctx, "passing", time.Minute).Result())
	within(time.Second, time.Minute)(r.TTL(ctx, "passing").Result())
	same("3")(r.GetEx(ctx, "passing", 0).Result())
}

func pipelines(r *redis.Client) {
	replies, err := r.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i := 0; i < 1_000; i++ {
			pipe.Incr(ctx, "piped")
		}
		return nil
	})
	same(1_000)(len(replies), err)
	for i, reply := range replies {
		same(int64(i + 1))(reply.(*redis.IntCmd).Result())
	}
}

func transactions(r *redis.Client) {
	var value *redis.IntCmd
	replies, err := r.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Set(ctx, "t", 1, 0)
		value = pipe.Incr(ctx, "t")
		pipe.Get(ctx, "t")
		return nil
	})
	same(3)(len(replies), err)
	same(int64(2))(value.Result())
	same("2")(replies[2].(*redis.StringCmd).Result())
}

// Doubles a counter, like the examples of Watch. Before it writes, it calls interrupt.
func double(r *redis.Client, key string, interrupt func()) error {
	return r.Watch(ctx, func(tx *redis.Tx) error {
		value, err := tx.Get(ctx, key).Int()
		if err != nil {
			return err
		}
		interrupt()
		_, err = tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.Set(ctx, key, value*2, 0)
			return nil
		})
		return err
	}, key)
}

func optimisticTransactions(r *redis.Client) {
	other := connect(0)
	defer other.Close()
	r.Set(ctx, "o", 5, 0)
	if err := double(r, "o", func() {}); err != nil {
		fail("without an interruption: %v", err)
	}
	same(10)(r.Get(ctx, "o").Int())
	err := double(r, "o", func() { same(int64(11))(other.Incr(ctx, "o").Result()) })
	if !errors.Is(err, redis.TxFailedErr) {
		fail("after an interruption: %v", err)
	}
	same(11)(r.Get(ctx, "o").Int())
	// The connection went back to the pool without what it watched.
	same(int64(12))(other.Incr(ctx, "o").Result())
	transactions(r)
}

func otherDatabases(r *redis.Client) {
	const outOfRange = "ERR DB index is out of range"
	other := connect(1)
	defer other.Close()
	refused(other.Incr(ctx, "d").Err(), outOfRange)
	refused(other.Set(ctx, "d", 1, 0).Err(), outOfRange)
	refused(other.Get(ctx, "d").Err(), outOfRange)

	conn := r.Conn()
	defer conn.Close()
	refused(conn.Select(ctx, 1).Err(), outOfRange)
	refused(conn.Incr(ctx, "d").Err(), "this connection selected database 1")
	same(int64(0))(r.Exists(ctx, "d").Result())
	same("OK")(conn.Select(ctx, 0).Result())
	same(int64(1))(conn.Incr(ctx, "d").Result())
}

func main() {
	r := connect(0)
	same("OK")(r.FlushAll(ctx).Result())
	for _, check := range []struct {
		name string
		run  func(*redis.Client)
	}{
		{"counts", counts},
		{"sets", sets},
		{"expires", expires},
		{"pipelines", pipelines},
		{"transactions", transactions},
		{"optimisticTransactions", optimisticTransactions},
		{"otherDatabases", otherDatabases},
	} {
		check.run(r)
		fmt.Println("ok", check.name)
	}
}
