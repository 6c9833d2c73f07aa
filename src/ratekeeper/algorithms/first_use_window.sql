-- Twin of first_use_window.py: no tables, whole numbers.
--
-- state   start of the window, used in it; {} is EMPTY
-- limit   micros, count, owes

CREATE OR REPLACE FUNCTION ratekeeper.first_use_window_decide(state bigint[], now bigint, cost bigint, lim bigint[])
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  start bigint := now;
  used bigint := 0;
BEGIN
  IF state[2] > 0 AND now < state[1] + lim[1] THEN
    used := state[2];
    IF state[1] < now + lim[1] THEN -- else the clock stepped back by a period or more: the window starts now
      start := state[1];
    END IF;
  END IF;
  IF used + cost > lim[2] THEN
    RETURN NULL;
  END IF;
  RETURN ARRAY[start, used + cost];
END $$;

-- What a refusal leaves behind: after a step back by a period or more, the window starts now.
CREATE OR REPLACE FUNCTION ratekeeper.first_use_window_mended(state bigint[], now bigint, lim bigint[])
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF state[2] > 0 AND state[1] >= now + lim[1] THEN
    RETURN ARRAY[now, state[2]];
  END IF;
  RETURN state;
END $$;

CREATE OR REPLACE FUNCTION ratekeeper.first_use_window_refund(
  state bigint[], now bigint, cost bigint, taken_at bigint, lim bigint[]
) RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  used bigint := CASE WHEN now < state[1] + lim[1] THEN state[2] ELSE 0 END;
  start bigint := CASE WHEN state[1] >= now + lim[1] THEN now ELSE state[1] END;
BEGIN
  IF used = 0 OR taken_at < least(start, now) OR taken_at >= start + lim[1] THEN
    RETURN state;
  END IF;
  RETURN CASE WHEN used > cost THEN ARRAY[start, used - cost] ELSE '{}' END;
END $$;

CREATE OR REPLACE FUNCTION ratekeeper.first_use_window_debit(state bigint[], now bigint, cost bigint, lim bigint[])
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  used bigint := CASE WHEN now < state[1] + lim[1] THEN state[2] ELSE 0 END;
  start bigint := CASE WHEN used = 0 OR state[1] >= now + lim[1] THEN now ELSE state[1] END;
BEGIN
  RETURN ARRAY[start, greatest(used, least(used + cost, lim[3]))];
END $$;
