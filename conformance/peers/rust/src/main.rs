//! governor behind the line protocol, keyed, on its own FakeRelativeClock.
use governor::clock::FakeRelativeClock;
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::{Quota, RateLimiter};
use serde_json::{json, Value};
use std::collections::HashMap;
use std::io::{self, BufRead, Write};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

type Store = governor::state::keyed::DefaultKeyedStateStore<String>;
type Keyed = RateLimiter<String, Store, FakeRelativeClock, NoOpMiddleware<Nanos>>;

struct Limiter {
    keyed: Keyed,
    clock: FakeRelativeClock,
}

impl Limiter {
    fn check(&self, key: &str, cost: i64) -> Value {
        use governor::clock::Clock;
        let cells = match u32::try_from(cost).ok().and_then(NonZeroU32::new) {
            Some(cells) => cells,
            None => return json!({"allowed": false, "error": "cost: not a NonZeroU32"}),
        };
        match self.keyed.check_key_n(&key.to_string(), cells) {
            Ok(Ok(())) => json!({"allowed": true}),
            Ok(Err(refused)) => {
                let wait = refused.wait_time_from(self.clock.now());
                json!({"allowed": false, "retry_after": (wait.as_nanos() as u64).div_ceil(1000)})
            }
            Err(_) => json!({"allowed": false, "retry_after": "never"}),
        }
    }
}

fn main() {
    let clock = FakeRelativeClock::default();
    let mut start: Option<u64> = None;
    let mut last: u64 = 0;
    let mut limiters: HashMap<String, Arc<Limiter>> = HashMap::new();
    for line in io::stdin().lock().lines() {
        let asked: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let text = |name: &str| asked[name].as_str().unwrap().to_string();
        let answer = match asked["op"].as_str().unwrap() {
            "hello" => json!({"name": "governor", "version": env!("GOVERNOR_VERSION"), "promises": {
                "algorithms": ["gcra"], "clock": "virtual", "precision": 1,
                "features": ["cost", "positive_cost", "retry_after", "keys", "refusal_free", "concurrent", "bounded_memory"]}}),
            "open" => {
                let limit = &asked["limits"][0];
                let count = limit["count"].as_u64().unwrap();
                let burst = NonZeroU32::new(limit["burst"].as_u64().unwrap() as u32).unwrap();
                let each = Duration::from_nanos(limit["period"].as_u64().unwrap() * 1000 / count);
                let quota = Quota::with_period(each).unwrap().allow_burst(burst);
                let keyed = RateLimiter::new(quota, Default::default(), clock.clone());
                limiters.insert(text("name"), Arc::new(Limiter { keyed, clock: clock.clone() }));
                json!({"ok": true})
            }
            "time" => {
                let now = asked["now"].as_u64().unwrap();
                if start.is_none() {
                    start = Some(now);
                    last = now;
                }
                // Its fake clock only advances, as the monotonic clock of its users does.
                if now > last {
                    clock.advance(Duration::from_micros(now - last));
                    last = now;
                }
                json!({"ok": true})
            }
            "check" => limiters[&text("limiter")].check(&text("key"), asked["cost"].as_i64().unwrap()),
            "burst" => {
                let (clients, calls) = (asked["clients"].as_u64().unwrap(), asked["calls"].as_u64().unwrap());
                let admitted = Arc::new(AtomicU64::new(0));
                let threads: Vec<_> = (0..clients)
                    .map(|_| {
                        let (limiter, admitted) = (limiters[&text("limiter")].clone(), admitted.clone());
                        let key = text("key");
                        std::thread::spawn(move || {
                            for _ in 0..calls / clients {
                                if limiter.check(&key, 1)["allowed"] == true {
                                    admitted.fetch_add(1, Ordering::Relaxed);
                                }
                            }
                        })
                    })
                    .collect();
                for each in threads {
                    each.join().unwrap();
                }
                json!({"admitted": admitted.load(Ordering::Relaxed)})
            }
            "flood" => {
                let limiter = &limiters[&text("limiter")];
                // Its documentation asks for this call from time to time.
                limiter.keyed.retain_recent();
                limiter.keyed.shrink_to_fit();
                for number in 0..asked["keys"].as_u64().unwrap() {
                    limiter.check(&format!("{}{}", text("prefix"), number), 1);
                }
                json!({"ok": true})
            }
            "collect" => json!({"ok": true}),
            "stored" => json!({"keys": null}),
            other => json!({"error": format!("op: got {other}")}),
        };
        println!("{answer}");
        io::stdout().flush().unwrap();
    }
}
