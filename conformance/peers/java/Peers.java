// Three Java limiters behind the line protocol: Peers bucket4j|resilience4j|guava.
import com.google.common.util.concurrent.RateLimiter;
import io.github.bucket4j.Bandwidth;
import io.github.bucket4j.Bucket;
import io.github.bucket4j.TimeMeter;
import io.github.resilience4j.ratelimiter.RateLimiterConfig;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

public class Peers {
    interface Limiter {
        String check(int cost);
    }

    static volatile long now; // microseconds

    static final TimeMeter CLOCK = new TimeMeter() {
        public long currentTimeNanos() {
            return now * 1000;
        }

        public boolean isWallClockBased() {
            return true;
        }
    };

    static Limiter bucket4j(long count, long period, long burst) {
        Bucket bucket = Bucket.builder()
            .withCustomTimePrecision(CLOCK)
            .addLimit(Bandwidth.builder().capacity(burst).refillGreedy(count, Duration.ofNanos(period * 1000)).build())
            .build();
        return cost -> {
            var probe = bucket.tryConsumeAndReturnRemaining(cost);
            if (probe.isConsumed()) {
                return "{\"allowed\": true, \"remaining\": " + probe.getRemainingTokens() + "}";
            }
            long wait = probe.getNanosToWaitForRefill();
            String retry = wait == Long.MAX_VALUE ? "\"never\"" : String.valueOf((wait + 999) / 1000);
            return "{\"allowed\": false, \"remaining\": " + probe.getRemainingTokens() + ", \"retry_after\": " + retry + "}";
        };
    }

    static Limiter resilience4j(long count, long period, long burst) {
        var limiter = io.github.resilience4j.ratelimiter.RateLimiter.of("conformance", RateLimiterConfig.custom()
            .limitForPeriod((int) count).limitRefreshPeriod(Duration.ofNanos(period * 1000)).timeoutDuration(Duration.ZERO)
            .build());
        return cost -> "{\"allowed\": " + limiter.acquirePermission(cost) + "}";
    }

    // Its burst is what one idle second gives, so it is asked for limits per second only.
    static Limiter guava(long count, long period, long burst) {
        RateLimiter limiter = RateLimiter.create(count / (period / 1e6));
        return cost -> "{\"allowed\": " + limiter.tryAcquire(cost) + "}";
    }

    static final Map<String, String> HELLO = Map.of(
        "bucket4j", "{\"name\": \"bucket4j\", \"version\": \"" + version(Bucket.class) + "\", \"promises\": {"
            + "\"algorithms\": [\"token_bucket\"], \"clock\": \"virtual\", \"precision\": 1, \"features\": "
            + "[\"cost\", \"positive_cost\", \"remaining\", \"retry_after\", \"refusal_free\", \"concurrent\"]}}",
        "resilience4j", "{\"name\": \"resilience4j-ratelimiter\", \"version\": \"" + version(RateLimiterConfig.class)
            + "\", \"promises\": {\"algorithms\": [\"fixed_window\"], \"has_burst\": false, \"features\": "
            + "[\"cost\", \"concurrent\"], \"note\": \"its windows start with the limiter\"}}",
        "guava", "{\"name\": \"Guava RateLimiter\", \"version\": \"" + version(RateLimiter.class) + "\", \"promises\": {"
            + "\"algorithms\": [\"token_bucket\"], \"units\": [1], \"has_burst\": false, \"features\": [], "
            + "\"starts_full\": false, \"ahead\": 1, "
            + "\"note\": \"a call may be admitted in advance; the next one pays for it\"}}");

    static String version(Class<?> type) {
        Matcher found = Pattern.compile("-([0-9][0-9.]*[0-9])").matcher(
            type.getProtectionDomain().getCodeSource().getLocation().getPath());
        String version = "?";
        while (found.find()) {
            version = found.group(1);
        }
        return version;
    }

    static String text(String line, String name) {
        Matcher found = Pattern.compile("\"" + name + "\": \"((?:[^\"\\\\]|\\\\.)*)\"").matcher(line);
        return found.find() ? found.group(1) : "";
    }

    static long number(String line, String name) {
        Matcher found = Pattern.compile("\"" + name + "\": (-?[0-9]+)").matcher(line);
        return found.find() ? Long.parseLong(found.group(1)) : 0;
    }

    // One limiter a key, made at its first call.
    static Limiter of(String kind, Map<String, Limiter> all, Map<String, long[]> limits, String limiter, String key) {
        return all.computeIfAbsent(limiter + "|" + key, whole -> {
            long[] limit = limits.get(limiter);
            switch (kind) {
                case "bucket4j": return bucket4j(limit[0], limit[1], limit[2]);
                case "guava": return guava(limit[0], limit[1], limit[2]);
                default: return resilience4j(limit[0], limit[1], limit[2]);
            }
        });
    }

    static String check(Limiter limiter, long cost) {
        try {
            return limiter.check((int) Math.max(Integer.MIN_VALUE, Math.min(Integer.MAX_VALUE, cost)));
        } catch (RuntimeException error) {
            return "{\"allowed\": false, \"error\": \"" + String.valueOf(error.getMessage()).replaceAll("[\"\\\\\n]", " ") + "\"}";
        }
    }

    public static void main(String[] words) throws Exception {
        String kind = words[0];
        Map<String, Limiter> all = new HashMap<>();
        Map<String, long[]> limits = new HashMap<>();
        var lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line; (line = lines.readLine()) != null; ) {
            String answer = "{\"ok\": true}";
            switch (text(line, "op")) {
                case "hello": answer = HELLO.get(kind); break;
                case "open":
                    limits.put(text(line, "name"),
                        new long[] {number(line, "count"), number(line, "period"), number(line, "burst")});
                    break;
                case "time": now = number(line, "now"); break;
                case "check":
                    answer = check(of(kind, all, limits, text(line, "limiter"), text(line, "key")), number(line, "cost"));
                    break;
                case "burst": {
                    Limiter limiter = of(kind, all, limits, text(line, "limiter"), text(line, "key"));
                    int clients = (int) number(line, "clients");
                    long each = number(line, "calls") / clients;
                    AtomicLong admitted = new AtomicLong();
                    Thread[] threads = new Thread[clients];
                    for (int place = 0; place < clients; place++) {
                        threads[place] = new Thread(() -> {
                            for (long call = 0; call < each; call++) {
                                if (check(limiter, 1).contains("\"allowed\": true")) {
                                    admitted.incrementAndGet();
                                }
                            }
                        });
                    }
                    for (Thread thread : threads) {
                        thread.start();
                    }
                    for (Thread thread : threads) {
                        thread.join();
                    }
                    answer = "{\"admitted\": " + admitted + "}";
                    break;
                }
                case "collect": System.gc(); break;
                case "stored": answer = "{\"keys\": null}"; break;
                default: answer = "{\"error\": \"op\"}";
            }
            System.out.println(answer);
        }
    }
}
