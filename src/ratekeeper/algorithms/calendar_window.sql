-- Twin of calendar_window.py: no tables, whole numbers.
-- The edges are those around the caller's present: the window before it, the present one and the one after it.  Where
-- now is outside of them, as the caller's clock is far off, windows are as long as the present one.
--
-- state   an instant in the window, used in it; {} is EMPTY
-- limit   count, owes; first, second, third, fourth edge

-- Where the window of now starts, where it stops, and where the next one stops.
CREATE OR REPLACE FUNCTION ratekeeper.calendar_window_edges(now bigint, lim bigint[])
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  size bigint := lim[5] - lim[4];
  start bigint;
BEGIN
  IF now < lim[3] OR now >= lim[6] THEN
    start := now - ((now - lim[4]) % size + size) % size;
    RETURN ARRAY[start, start + size, start + 2 * size];
  ELSIF now < lim[4] THEN
    RETURN lim[3:5];
  ELSIF now < lim[5] THEN
    RETURN lim[4:6];
  END IF;
  RETURN ARRAY[lim[5], lim[6], 2 * lim[6] - lim[5]];
END $$;

CREATE OR REPLACE FUNCTION ratekeeper.calendar_window_decide(state bigint[], now bigint, cost bigint, lim bigint[])
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  edges bigint[] := ratekeeper.calendar_window_edges(now, lim);
  instant bigint := now;
  used bigint := 0;
BEGIN
  IF state[1] >= edges[1] THEN
    used := state[2];
    IF state[1] >= edges[2] AND state[1] < edges[3] THEN -- the clock stepped back: the later window stays current
      instant := state[1];
    END IF;
  END IF;
  IF used + cost > lim[1] THEN
    RETURN NULL;
  END IF;
  RETURN ARRAY[instant, used + cost];
END $$;

-- What a refusal leaves behind: after a step back by more than a window, what was used counts in the present one.
CREATE OR REPLACE FUNCTION ratekeeper.calendar_window_mended(state bigint[], now bigint, lim bigint[])
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF state[1] >= (ratekeeper.calendar_window_edges(now, lim))[3] THEN
    RETURN ARRAY[now, state[2]];
  END IF;
  RETURN state;
END $$;

CREATE OR REPLACE FUNCTION ratekeeper.calendar_window_refund(
  state bigint[], now bigint, cost bigint, taken_at bigint, lim bigint[]
) RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  edges bigint[] := ratekeeper.calendar_window_edges(now, lim);
  used bigint := CASE WHEN state[1] >= edges[1] THEN state[2] ELSE 0 END;
  instant bigint := now;
  stop bigint := edges[2];
BEGIN
  IF state[1] >= edges[2] AND state[1] < edges[3] THEN
    instant := state[1];
    stop := edges[3];
  END IF;
  IF used = 0 OR taken_at < edges[1] OR taken_at >= stop THEN
    RETURN state;
  END IF;
  RETURN CASE WHEN used > cost THEN ARRAY[instant, used - cost] ELSE '{}' END;
END $$;

CREATE OR REPLACE FUNCTION ratekeeper.calendar_window_debit(state bigint[], now bigint, cost bigint, lim bigint[])
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  edges bigint[] := ratekeeper.calendar_window_edges(now, lim);
  used bigint := CASE WHEN state[1] >= edges[1] THEN state[2] ELSE 0 END;
  instant bigint := CASE WHEN state[1] >= edges[2] AND state[1] < edges[3] THEN state[1] ELSE now END;
BEGIN
  RETURN ARRAY[instant, greatest(used, least(used + cost, lim[2]))];
END $$;
