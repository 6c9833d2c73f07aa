-- Twin of sliding_window.py: no tables, whole numbers.  Products of a counter and a time do not fit a bigint: numeric.
--
-- state   index of the newest slice, then the counters from the newest to the oldest; {} is EMPTY
-- limit   slices, micros, count, owes

-- The state as it counts now: twin of unpack.
CREATE OR REPLACE FUNCTION ratekeeper.sliding_window_unpack(state bigint[], now bigint, lim bigint[])
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  slices int := lim[1];
  newest bigint := now * slices / lim[2];
  passed bigint := newest - coalesce(state[1], newest - slices - 1);
BEGIN
  IF passed > slices THEN
    RETURN newest || array_fill(0::bigint, ARRAY[slices + 1]);
  ELSIF passed > 0 THEN
    RETURN newest || array_fill(0::bigint, ARRAY[passed::int]) || state[2 : slices + 2 - passed::int];
  ELSIF passed < -slices THEN -- the clock stepped back far: all that was counted counts in the present slice
    RETURN ARRAY[newest, least(lim[3], ratekeeper.sliding_window_sum(state))]
      || array_fill(0::bigint, ARRAY[slices]);
  END IF;
  RETURN state;
END $$;

CREATE OR REPLACE FUNCTION ratekeeper.sliding_window_sum(state bigint[])
RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  total bigint := 0;
BEGIN
  FOR place IN 2 .. cardinality(state) LOOP
    total := total + state[place];
  END LOOP;
  RETURN total;
END $$;

CREATE OR REPLACE FUNCTION ratekeeper.sliding_window_decide(state bigint[], now bigint, cost bigint, lim bigint[])
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  counted bigint[] := ratekeeper.sliding_window_unpack(state, now, lim);
  width bigint := lim[2];
  oldest bigint := counted[lim[1] + 2];
  room bigint := lim[3] - cost - ratekeeper.sliding_window_sum(counted) + oldest;
  left_of_it bigint := (counted[1] + 1) * width - greatest(now * lim[1], counted[1] * width);
BEGIN
  oldest := least(oldest, lim[4]); -- if the limit was lowered, nobody waits for more than the new limit
  IF room < 0 OR oldest > 0 AND oldest::numeric * left_of_it > room::numeric * width THEN
    RETURN NULL;
  END IF;
  counted[2] := counted[2] + cost;
  RETURN counted;
END $$;

CREATE OR REPLACE FUNCTION ratekeeper.sliding_window_mended(state bigint[], now bigint, lim bigint[])
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF state[1] > now * lim[1] / lim[2] + lim[1] THEN
    RETURN ratekeeper.sliding_window_unpack(state, now, lim);
  END IF;
  RETURN state;
END $$;

CREATE OR REPLACE FUNCTION ratekeeper.sliding_window_refund(
  state bigint[], now bigint, cost bigint, taken_at bigint, lim bigint[]
) RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  counted bigint[] := ratekeeper.sliding_window_unpack(state, now, lim);
  taken_in bigint := taken_at * lim[1] / lim[2];
  left_of_it bigint := cost;
  age bigint := 0;
  back bigint;
BEGIN
  -- What was taken at or after the present slice, though the clock stepped back, was counted in the newest.
  IF taken_in < now * lim[1] / lim[2] THEN
    age := counted[1] - taken_in;
  END IF;
  WHILE age <= lim[1] LOOP
    back := least(left_of_it, counted[age + 2]);
    counted[age + 2] := counted[age + 2] - back;
    left_of_it := left_of_it - back;
    age := age + 1;
  END LOOP;
  RETURN CASE WHEN ratekeeper.sliding_window_sum(counted) > 0 THEN counted ELSE '{}' END;
END $$;

CREATE OR REPLACE FUNCTION ratekeeper.sliding_window_debit(state bigint[], now bigint, cost bigint, lim bigint[])
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  counted bigint[] := ratekeeper.sliding_window_unpack(state, now, lim);
  width bigint := lim[2];
  oldest bigint := counted[lim[1] + 2];
  weighed numeric := (ratekeeper.sliding_window_sum(counted) - oldest)::numeric * width
    + least(oldest, lim[4])::numeric * ((counted[1] + 1) * width - greatest(now * lim[1], counted[1] * width));
BEGIN
  counted[2] := counted[2] + least(cost, greatest(0, lim[4] - div(weighed + width - 1, width)::bigint));
  RETURN CASE WHEN ratekeeper.sliding_window_sum(counted) > 0 THEN counted ELSE '{}' END;
END $$;
