-- Twin of fixed_window.py: no tables, whole numbers.
--
-- state   index of the window, used in it; {} is EMPTY
-- limit   micros, count, owes

CREATE OR REPLACE FUNCTION ratekeeper.fixed_window_decide(state bigint[], now bigint, cost bigint, lim bigint[])
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  present bigint := now / lim[1];
  win bigint := present;
  used bigint := 0;
BEGIN
  IF state[1] >= present THEN
    used := state[2];
    IF state[1] = present + 1 THEN -- the clock stepped back over the edge: the later window stays the current one
      win := state[1];
    END IF;
  END IF;
  IF used + cost > lim[2] THEN
    RETURN NULL;
  END IF;
  RETURN ARRAY[win, used + cost];
END $$;

-- What a refusal leaves behind: after a step back by more than a period, what was used counts in the present window.
CREATE OR REPLACE FUNCTION ratekeeper.fixed_window_mended(state bigint[], now bigint, lim bigint[])
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF state[1] > now / lim[1] + 1 THEN
    RETURN ARRAY[now / lim[1], state[2]];
  END IF;
  RETURN state;
END $$;

CREATE OR REPLACE FUNCTION ratekeeper.fixed_window_refund(
  state bigint[], now bigint, cost bigint, taken_at bigint, lim bigint[]
) RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  present bigint := now / lim[1];
  used bigint := CASE WHEN state[1] >= present THEN state[2] ELSE 0 END;
  win bigint := CASE WHEN state[1] = present + 1 THEN present + 1 ELSE present END;
BEGIN
  IF used = 0 OR taken_at / lim[1] < present OR taken_at / lim[1] > win THEN
    RETURN state;
  END IF;
  RETURN CASE WHEN used > cost THEN ARRAY[win, used - cost] ELSE '{}' END;
END $$;

CREATE OR REPLACE FUNCTION ratekeeper.fixed_window_debit(state bigint[], now bigint, cost bigint, lim bigint[])
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  present bigint := now / lim[1];
  used bigint := CASE WHEN state[1] >= present THEN state[2] ELSE 0 END;
  win bigint := CASE WHEN state[1] = present + 1 THEN present + 1 ELSE present END;
BEGIN
  RETURN ARRAY[win, greatest(used, least(used + cost, lim[3]))];
END $$;
