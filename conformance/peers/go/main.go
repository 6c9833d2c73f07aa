// Four Go limiters behind the line protocol: peers xtime|throttled|ulule|redis_rate [store].
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	redis_rate "github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"
	"github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/store/memory"
	"golang.org/x/time/rate"
)

type object = map[string]any
type checker func(key string, cost int) object

var now time.Time

func micros(d time.Duration) int64 { return (int64(d) + 999) / 1000 }

// A limiter has no keys of its own: one limiter a key, made at its first call.
func xtime(limit object) checker {
	var lock sync.Mutex
	all := map[string]*rate.Limiter{}
	period := time.Duration(limit["period"].(float64)) * time.Microsecond
	every := rate.Limit(limit["count"].(float64) / period.Seconds())
	return func(key string, cost int) object {
		lock.Lock()
		one := all[key]
		if one == nil {
			one = rate.NewLimiter(every, int(limit["burst"].(float64)))
			all[key] = one
		}
		lock.Unlock()
		return object{"allowed": one.AllowN(now, cost)}
	}
}

func gcra(limit object) checker {
	store, _ := memstore.NewCtx(65536)
	period := time.Duration(limit["period"].(float64)) * time.Microsecond
	quota := throttled.RateQuota{
		MaxRate:  throttled.PerDuration(int(limit["count"].(float64)), period),
		MaxBurst: int(limit["burst"].(float64)) - 1,
	}
	one, err := throttled.NewGCRARateLimiterCtx(store, quota)
	if err != nil {
		panic(err)
	}
	return func(key string, cost int) object {
		limited, result, err := one.RateLimitCtx(context.Background(), key, cost)
		if err != nil {
			return object{"allowed": false, "error": err.Error()}
		}
		answer := object{"allowed": !limited, "remaining": result.Remaining, "reset_after": micros(result.ResetAfter)}
		if limited {
			if result.RetryAfter < 0 {
				answer["retry_after"] = "never"
			} else {
				answer["retry_after"] = micros(result.RetryAfter)
			}
		}
		return answer
	}
}

func ulule(limit object) checker {
	period := time.Duration(limit["period"].(float64)) * time.Microsecond
	// By default it forgets keys every 30 s; the suite has less patience.
	store := memory.NewStoreWithOptions(limiter.StoreOptions{CleanUpInterval: time.Second})
	one := limiter.New(store, limiter.Rate{Period: period, Limit: int64(limit["count"].(float64))})
	return func(key string, cost int) object {
		found, err := one.Increment(context.Background(), key, int64(cost))
		if err != nil {
			return object{"allowed": false, "error": err.Error()}
		}
		return object{"allowed": !found.Reached, "remaining": found.Remaining}
	}
}

func onRedis(store string) func(name string, limit object) checker {
	options, err := redis.ParseURL(store)
	if err != nil {
		panic(err)
	}
	one := redis_rate.NewLimiter(redis.NewClient(options))
	return func(name string, limit object) checker {
		quota := redis_rate.Limit{
			Rate: int(limit["count"].(float64)), Burst: int(limit["burst"].(float64)),
			Period: time.Duration(limit["period"].(float64)) * time.Microsecond,
		}
		return func(key string, cost int) object {
			found, err := one.AllowN(context.Background(), name+":"+key, quota, cost)
			if err != nil {
				return object{"allowed": false, "error": err.Error()}
			}
			answer := object{"allowed": found.Allowed > 0, "remaining": found.Remaining, "reset_after": micros(found.ResetAfter)}
			if found.Allowed == 0 {
				answer["retry_after"] = micros(found.RetryAfter)
			}
			return answer
		}
	}
}

func version(module string) string {
	info, _ := debug.ReadBuildInfo()
	for _, each := range info.Deps {
		if each.Path == module {
			return each.Version
		}
	}
	return "?"
}

func main() {
	kind, store := os.Args[1], ""
	if len(os.Args) > 2 {
		store = os.Args[2]
	}
	hello := map[string]object{
		"xtime": {"name": "golang.org/x/time/rate", "version": version("golang.org/x/time"), "promises": object{
			"algorithms": []string{"token_bucket"}, "clock": "virtual", "precision": 1,
			"features": []string{"cost", "refusal_free", "concurrent"}}},
		"throttled": {"name": "throttled/throttled", "version": version("github.com/throttled/throttled/v2"), "promises": object{
			"algorithms": []string{"gcra"}, "clock": "real",
			"features": []string{"cost", "remaining", "retry_after", "reset_after", "keys", "refusal_free", "concurrent", "bounded_memory"}}},
		"ulule": {"name": "ulule/limiter", "version": version("github.com/ulule/limiter/v3"), "promises": object{
			"algorithms": []string{"first_use_window"}, "clock": "real",
			"features": []string{"cost", "remaining", "keys", "concurrent", "bounded_memory"}}},
		"redis_rate": {"name": "go-redis/redis_rate", "version": version("github.com/go-redis/redis_rate/v10"), "promises": object{
			"algorithms": []string{"gcra"}, "clock": "real", "store": "redis", "precision": 1,
			"features": []string{"cost", "remaining", "retry_after", "reset_after", "keys", "refusal_free", "concurrent", "processes", "expiry"}}},
	}[kind]
	open := map[string]func(string, object) checker{
		"xtime":     func(_ string, limit object) checker { return xtime(limit) },
		"throttled": func(_ string, limit object) checker { return gcra(limit) },
		"ulule":     func(_ string, limit object) checker { return ulule(limit) },
	}
	if kind == "redis_rate" {
		open[kind] = onRedis(store)
	}
	limiters := map[string]checker{}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 1<<20), 1<<20)
	for lines.Scan() {
		var asked object
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			panic(err)
		}
		answer := object{"ok": true}
		switch asked["op"] {
		case "hello":
			answer = hello
		case "open":
			name := asked["name"].(string)
			limiters[name] = open[kind](name, asked["limits"].([]any)[0].(object))
		case "time":
			now = time.UnixMicro(int64(asked["now"].(float64)))
		case "check":
			answer = limiters[asked["limiter"].(string)](asked["key"].(string), int(asked["cost"].(float64)))
		case "burst":
			check := limiters[asked["limiter"].(string)]
			clients := int(asked["clients"].(float64))
			each := int(asked["calls"].(float64)) / clients
			var admitted atomic.Int64
			var all sync.WaitGroup
			for range clients {
				all.Add(1)
				go func() {
					defer all.Done()
					for range each {
						if check(asked["key"].(string), 1)["allowed"] == true {
							admitted.Add(1)
						}
					}
				}()
			}
			all.Wait()
			answer = object{"admitted": admitted.Load()}
		case "flood":
			check := limiters[asked["limiter"].(string)]
			for number := range int(asked["keys"].(float64)) {
				check(fmt.Sprint(asked["prefix"], number), 1)
			}
		case "collect":
			debug.FreeOSMemory()
		case "stored":
			answer = object{"keys": nil}
		default:
			answer = object{"error": fmt.Sprintf("op: got %v", asked["op"])}
		}
		text, _ := json.Marshal(answer)
		fmt.Println(string(text))
	}
}
