-- Twin of sliding_log.py: no tables, whole numbers.
--
-- state   the instants of all units, oldest first; {} is EMPTY
-- limit   micros, count, owes

-- How many came no later than `instant`.
CREATE OR REPLACE FUNCTION ratekeeper.sliding_log_bisect_right(state bigint[], instant bigint)
RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  low int := 0;
  high int := cardinality(state);
  middle int;
BEGIN
  WHILE low < high LOOP
    middle := (low + high) / 2;
    IF state[middle + 1] > instant THEN
      high := middle;
    ELSE
      low := middle + 1;
    END IF;
  END LOOP;
  RETURN low;
END $$;

-- The log if nothing was admitted after now.
CREATE OR REPLACE FUNCTION ratekeeper.sliding_log_until(state bigint[], now bigint)
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  past int := ratekeeper.sliding_log_bisect_right(state, now);
BEGIN
  RETURN state[1:past] || array_fill(now, ARRAY[cardinality(state) - past]);
END $$;

CREATE OR REPLACE FUNCTION ratekeeper.sliding_log_decide(state bigint[], now bigint, cost bigint, lim bigint[])
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  instants bigint[] := state;
  size int := cardinality(state);
  entered_at bigint := now;
  gone int;
BEGIN
  IF state[size] > now THEN
    IF state[size] < now + lim[1] THEN -- the clock stepped back: it is taken to be where the newest came
      entered_at := state[size];
    ELSE -- by one period or more: nothing was admitted after now
      instants := ratekeeper.sliding_log_until(state, now);
    END IF;
  END IF;
  gone := ratekeeper.sliding_log_bisect_right(instants, entered_at - lim[1]);
  IF size - gone + cost > lim[2] THEN
    RETURN NULL;
  END IF;
  RETURN instants[gone + 1 :] || array_fill(entered_at, ARRAY[cost::int]);
END $$;

CREATE OR REPLACE FUNCTION ratekeeper.sliding_log_mended(state bigint[], now bigint, lim bigint[])
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF state[cardinality(state)] >= now + lim[1] THEN
    RETURN ratekeeper.sliding_log_until(state, now);
  END IF;
  RETURN state;
END $$;

CREATE OR REPLACE FUNCTION ratekeeper.sliding_log_refund(
  state bigint[], now bigint, cost bigint, taken_at bigint, lim bigint[]
) RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  stop int := cardinality(state);
BEGIN
  -- What was taken at or after now, though the clock stepped back, was entered as the newest.
  IF taken_at < now THEN
    stop := ratekeeper.sliding_log_bisect_right(state, taken_at);
  END IF;
  RETURN state[1 : greatest(0, stop - cost)] || state[stop + 1 :];
END $$;

CREATE OR REPLACE FUNCTION ratekeeper.sliding_log_debit(state bigint[], now bigint, cost bigint, lim bigint[])
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  mended bigint[] := state;
  live bigint[];
  size int := cardinality(state);
  entered_at bigint := now;
  entered bigint;
BEGIN
  IF state[size] >= now + lim[1] THEN
    mended := ratekeeper.sliding_log_until(state, now);
  ELSIF state[size] > now THEN
    entered_at := state[size];
  END IF;
  live := mended[ratekeeper.sliding_log_bisect_right(mended, entered_at - lim[1]) + 1 :];
  size := cardinality(live);
  entered := least(cost, lim[2], greatest(0, lim[3] - size));
  IF entered = 0 THEN
    RETURN mended;
  END IF;
  live := live || array_fill(entered_at, ARRAY[entered::int]);
  RETURN live[greatest(0, cardinality(live) - greatest(lim[2], size)) + 1 :];
END $$;
