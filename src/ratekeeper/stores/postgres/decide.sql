-- One row by its rule: the new state; NULL if the cost does not fit.
CREATE OR REPLACE FUNCTION ratekeeper.decide_row(kind text, state bigint[], now bigint, cost bigint, lim bigint[])
RETURNS bigint[] LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE kind
    WHEN 'g' THEN ratekeeper.gcra_decide(state, now, cost, lim)
    WHEN 'f' THEN ratekeeper.fixed_window_decide(state, now, cost, lim)
    WHEN 'w' THEN ratekeeper.sliding_window_decide(state, now, cost, lim)
    WHEN 'l' THEN ratekeeper.sliding_log_decide(state, now, cost, lim)
    WHEN 'c' THEN ratekeeper.calendar_window_decide(state, now, cost, lim)
    WHEN 'u' THEN ratekeeper.first_use_window_decide(state, now, cost, lim)
    WHEN 'k' THEN ratekeeper.concurrency_decide(state, now, cost, lim)
  END
$$;

-- What a refusal leaves behind: the state as it was, unless it is from too far in the future.
CREATE OR REPLACE FUNCTION ratekeeper.mended_row(kind text, state bigint[], now bigint, lim bigint[])
RETURNS bigint[] LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE kind
    WHEN 'g' THEN ratekeeper.gcra_mended(state, now, lim)
    WHEN 'f' THEN ratekeeper.fixed_window_mended(state, now, lim)
    WHEN 'w' THEN ratekeeper.sliding_window_mended(state, now, lim)
    WHEN 'l' THEN ratekeeper.sliding_log_mended(state, now, lim)
    WHEN 'c' THEN ratekeeper.calendar_window_mended(state, now, lim)
    WHEN 'u' THEN ratekeeper.first_use_window_mended(state, now, lim)
    WHEN 'k' THEN ratekeeper.concurrency_mended(state, now, lim)
  END
$$;

CREATE OR REPLACE FUNCTION ratekeeper.debit_row(kind text, state bigint[], now bigint, cost bigint, lim bigint[])
RETURNS bigint[] LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE kind
    WHEN 'g' THEN ratekeeper.gcra_debit(state, now, cost, lim)
    WHEN 'f' THEN ratekeeper.fixed_window_debit(state, now, cost, lim)
    WHEN 'w' THEN ratekeeper.sliding_window_debit(state, now, cost, lim)
    WHEN 'l' THEN ratekeeper.sliding_log_debit(state, now, cost, lim)
    WHEN 'c' THEN ratekeeper.calendar_window_debit(state, now, cost, lim)
    WHEN 'u' THEN ratekeeper.first_use_window_debit(state, now, cost, lim)
  END
$$;

CREATE OR REPLACE FUNCTION ratekeeper.refund_row(
  kind text, state bigint[], now bigint, cost bigint, taken_at bigint, lim bigint[]
) RETURNS bigint[] LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE kind
    WHEN 'g' THEN ratekeeper.gcra_refund(state, now, cost, lim)
    WHEN 'f' THEN ratekeeper.fixed_window_refund(state, now, cost, taken_at, lim)
    WHEN 'w' THEN ratekeeper.sliding_window_refund(state, now, cost, taken_at, lim)
    WHEN 'l' THEN ratekeeper.sliding_log_refund(state, now, cost, taken_at, lim)
    WHEN 'c' THEN ratekeeper.calendar_window_refund(state, now, cost, taken_at, lim)
    WHEN 'u' THEN ratekeeper.first_use_window_refund(state, now, cost, taken_at, lim)
    WHEN 'k' THEN ratekeeper.concurrency_refund(state, now, cost, taken_at, lim)
  END
$$;

-- Deletes the expired rows of a page drawn at random, for one new key in eight.  A page holds dozens of rows, so few
-- expired ones can gather.  Rows that are in use are skipped, so nothing waits.
CREATE OR REPLACE FUNCTION ratekeeper.sweep(real_now bigint)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  pages bigint;
  page bigint;
BEGIN
  IF random() >= 0.125 THEN
    RETURN;
  END IF;
  pages := pg_relation_size('ratekeeper.state') / current_setting('block_size')::int;
  page := floor(random() * pages);
  DELETE FROM ratekeeper.state WHERE ctid = ANY (ARRAY(
    SELECT s.ctid FROM ratekeeper.state s
    WHERE s.ctid = ANY (ARRAY(SELECT format('(%s,%s)', page, line)::tid FROM generate_series(1, 100) line))
      AND s.expires_at < real_now
    FOR UPDATE SKIP LOCKED
  ));
END $$;

-- Decides a batch of plans in one statement, by the server's clock, atomically.
--
-- marks      one letter for each row, which is one limit of one check.  The first row of a plan has its operation:
--            c check, p peek, t take, d debit, r refund, e end leases, x reset, s states.
--            Of the other rows, the first of a check has ',' and the rest have '.'
-- places     for each row the place of its key in `keys`
-- kinds      one letter for each row: which rule decides
-- costs      for each row
-- limits     seven numbers for each row: see the twins
-- keeps      for each row: microseconds after which any state is EMPTY again, and more
-- taken_at   for each row the instant of which a refund gives back; NULL is now
-- keys       distinct, in ascending order: all statements lock rows in the same order, so none waits in a circle
-- given      the time of a test in place of the server's
-- patience   milliseconds to wait for a row that another statement is writing
--
-- Returns now, and for each row 1 or 0 (it fits or not), how many numbers its state has, and these numbers.
CREATE OR REPLACE FUNCTION ratekeeper.decide_1(
  marks text, places int[], kinds text, costs bigint[], limits bigint[], keeps bigint[], taken_at bigint[],
  keys bytea[], given bigint, patience int
) RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  mark CONSTANT bigint := 4503599627370496; -- of gcra.sql
  size int := length(marks);
  many int := cardinality(keys);
  real_now bigint;
  now bigint;
  entry record;
  entries ratekeeper.state[]; -- by place: as they are read, then as they are to be written
  written ratekeeper.state[]; -- those that change
  changed boolean[] := array_fill(false, ARRAY[many]);
  missing bytea[] := '{}';
  hits int;
  operation text;
  first int := 1; -- row of the plan
  last int;
  start int; -- row of the check
  place int;
  kind text;
  lim bigint[];
  old bigint[];
  new bigint[];
  befores ratekeeper.state[]; -- by row: what a check met
  afters ratekeeper.state[];
  fits boolean[];
  check_fits boolean;
  plan_fits boolean;
  low bigint;
  high bigint;
  middle bigint;
  answer bigint[] := '{0}';
BEGIN
  IF translate(marks, 'ps,.', '') = '' THEN -- nothing is written, so nothing is locked
    FOR entry IN
      SELECT u.place, s AS hit FROM unnest(keys) WITH ORDINALITY u (key, place)
      JOIN ratekeeper.state s ON s.key = u.key
    LOOP
      entries[entry.place] := entry.hit;
    END LOOP;
    FOR at IN 1 .. many LOOP
      IF entries[at].key IS NULL THEN
        entries[at] := ROW(keys[at], '{}', 0);
      END IF;
    END LOOP;
  ELSE
    PERFORM set_config('lock_timeout', patience::text, true);
    LOOP
      hits := 0;
      FOR entry IN
        SELECT u.place, s AS hit FROM unnest(keys) WITH ORDINALITY u (key, place)
        JOIN ratekeeper.state s ON s.key = u.key ORDER BY u.place FOR UPDATE OF s
      LOOP
        entries[entry.place] := entry.hit;
        hits := hits + 1;
      END LOOP;
      EXIT WHEN hits = many;
      missing := '{}';
      FOR at IN 1 .. many LOOP
        IF entries[at].key IS NULL THEN
          missing := missing || keys[at];
          entries[at] := ROW(keys[at], '{}', 0);
        END IF;
      END LOOP;
      INSERT INTO ratekeeper.state SELECT u.key, '{}', extract(epoch FROM clock_timestamp()) * 1000000
        FROM unnest(missing) u (key) ON CONFLICT DO NOTHING;
      GET DIAGNOSTICS hits = ROW_COUNT;
      EXIT WHEN hits = cardinality(missing);
      entries := NULL; -- another statement inserts or deletes one of them: look again
    END LOOP;
  END IF;
  real_now := extract(epoch FROM clock_timestamp()) * 1000000; -- after the states were read, never before
  now := coalesce(given, real_now);
  answer[1] := now;

  WHILE first <= size LOOP
    operation := substr(marks, first, 1);
    last := first;
    WHILE substr(marks, last + 1, 1) IN (',', '.') LOOP
      last := last + 1;
    END LOOP;

    IF operation = 'c' AND first = last THEN -- the common case, with the least work
      place := places[first];
      kind := substr(kinds, first, 1);
      lim := limits[7 * first - 6 : 7 * first];
      old := entries[place].state;
      new := ratekeeper.decide_row(kind, old, now, costs[first], lim);
      IF new IS NOT NULL THEN
        answer := answer || ARRAY[1, cardinality(new)] || new;
      ELSE
        answer := answer || ARRAY[0, cardinality(old)] || old;
        new := ratekeeper.mended_row(kind, old, now, lim);
      END IF;
      IF new <> old THEN
        entries[place] := ROW(keys[place], new, real_now + keeps[first]);
        changed[place] := true;
      END IF;

    ELSIF operation IN ('c', 'p') THEN
      plan_fits := true;
      check_fits := true;
      start := first;
      FOR at IN first .. last LOOP
        place := places[at];
        kind := substr(kinds, at, 1);
        lim := limits[7 * at - 6 : 7 * at];
        old := entries[place].state;
        new := ratekeeper.decide_row(kind, old, now, costs[at], lim);
        fits[at] := new IS NOT NULL;
        IF new IS NULL THEN
          new := ratekeeper.mended_row(kind, old, now, lim);
          check_fits := false;
          plan_fits := false;
        END IF;
        befores[at] := entries[place];
        afters[at] := ROW(keys[place], new, real_now + keeps[at]);
        entries[place] := afters[at];
        IF at = last OR substr(marks, at + 1, 1) = ',' THEN
          IF NOT check_fits THEN -- the limits of a check are all or nothing, for a later check of the plan too
            FOR part IN start .. at LOOP
              IF fits[part] THEN
                entries[places[part]] := befores[part];
              END IF;
            END LOOP;
          END IF;
          start := at + 1;
          check_fits := true;
        END IF;
      END LOOP;
      IF operation = 'c' AND plan_fits THEN
        FOR at IN first .. last LOOP
          changed[places[at]] := true;
          answer := answer || ARRAY[1, cardinality(afters[at].state)] || afters[at].state;
        END LOOP;
      ELSE
        FOR at IN REVERSE last .. first LOOP -- each key as the plan met it
          entries[places[at]] := befores[at];
        END LOOP;
        FOR at IN first .. last LOOP -- of a refusal only states from the future are written
          answer := answer || ARRAY[fits[at]::int, cardinality(befores[at].state)] || befores[at].state;
          IF operation = 'c' AND NOT fits[at] AND afters[at].state <> befores[at].state
            AND befores[at].state = entries[places[at]].state
          THEN
            entries[places[at]] := afters[at];
            changed[places[at]] := true;
          END IF;
        END LOOP;
      END IF;

    ELSIF operation = 't' THEN -- of all limits of a check the same cost: the largest that fits
      low := 0;
      high := costs[first];
      WHILE low < high LOOP
        middle := (low + high + 1) / 2;
        check_fits := true;
        FOR at IN first .. last LOOP
          check_fits := check_fits AND ratekeeper.decide_row(
            substr(kinds, at, 1), entries[places[at]].state, now, middle, limits[7 * at - 6 : 7 * at]
          ) IS NOT NULL;
        END LOOP;
        IF check_fits THEN
          low := middle;
        ELSE
          high := middle - 1;
        END IF;
      END LOOP;
      FOR at IN first .. last LOOP
        place := places[at];
        new := entries[place].state;
        IF low > 0 THEN
          new := ratekeeper.decide_row(substr(kinds, at, 1), new, now, low, limits[7 * at - 6 : 7 * at]);
          entries[place] := ROW(keys[place], new, real_now + keeps[at]);
          changed[place] := true;
        END IF;
        answer := answer || ARRAY[1, cardinality(new)] || new;
      END LOOP;

    ELSE
      FOR at IN first .. last LOOP
        place := places[at];
        kind := substr(kinds, at, 1);
        lim := limits[7 * at - 6 : 7 * at];
        old := entries[place].state;
        new := CASE operation
          WHEN 's' THEN old
          WHEN 'x' THEN '{}'
          WHEN 'd' THEN ratekeeper.debit_row(kind, old, now, costs[at], lim)
          WHEN 'r' THEN ratekeeper.refund_row(kind, old, now, costs[at], coalesce(taken_at[at], now), lim)
          WHEN 'e' THEN ratekeeper.concurrency_give_back(old, now, costs[at], lim)
        END;
        IF new <> old THEN
          entries[place] := ROW(keys[place], new, real_now + keeps[at] + CASE
            WHEN kind = 'g' AND new[1] >= mark THEN new[1] - mark - now -- kept until the debt is recovered
            ELSE 0
          END);
          changed[place] := true;
        END IF;
        answer := answer || ARRAY[1, cardinality(new)] || new;
      END LOOP;
    END IF;
    first := last + 1;
  END LOOP;

  FOR at IN 1 .. many LOOP
    IF changed[at] THEN
      written := written || entries[at];
    END IF;
  END LOOP;
  IF written IS NOT NULL THEN
    UPDATE ratekeeper.state s SET state = w.state, expires_at = w.expires_at
      FROM unnest(written) w WHERE s.key = w.key;
    IF missing <> '{}' THEN
      PERFORM ratekeeper.sweep(real_now);
    END IF;
  END IF;
  RETURN answer;
END $$;

-- Decides a single check of one limit, with the least work; the parameters are those of decide_1.
-- It needs no lock of its own: it writes if the state is still the one that it read, and a refusal writes nothing.
CREATE OR REPLACE FUNCTION ratekeeper.check_1(
  key bytea, kind text, cost bigint, lim bigint[], keeps bigint, given bigint, patience int
) RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  old bigint[];
  new bigint[];
  real_now bigint;
  now bigint;
  fits int := 1;
BEGIN
  SELECT s.state INTO old FROM ratekeeper.state s WHERE s.key = check_1.key;
  real_now := extract(epoch FROM clock_timestamp()) * 1000000; -- after the state was read, never before
  now := coalesce(given, real_now);
  old := coalesce(old, '{}');
  new := ratekeeper.decide_row(kind, old, now, cost, lim);
  IF new IS NULL THEN
    fits := 0;
    new := ratekeeper.mended_row(kind, old, now, lim);
    IF new = old THEN
      RETURN ARRAY[now, fits, cardinality(old)] || old;
    END IF;
  END IF;
  PERFORM set_config('lock_timeout', patience::text, true);
  UPDATE ratekeeper.state s SET state = new, expires_at = real_now + keeps
    WHERE s.key = check_1.key AND s.state = old;
  IF FOUND THEN
    RETURN ARRAY[now, fits, cardinality(new)] || new;
  END IF;
  IF old = '{}' THEN
    INSERT INTO ratekeeper.state VALUES (check_1.key, new, real_now + keeps) ON CONFLICT DO NOTHING;
    IF FOUND THEN
      PERFORM ratekeeper.sweep(real_now);
      RETURN ARRAY[now, fits, cardinality(new)] || new;
    END IF;
  END IF;
  -- Another statement was quicker: wait for it.
  RETURN ratekeeper.decide_1('c', '{1}', kind, ARRAY[cost], lim, ARRAY[keeps], '{NULL}', ARRAY[key], given, patience);
END $$;
