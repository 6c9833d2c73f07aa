-- Twin of gcra.py, and of token_bucket.py and leaky_bucket.py, which decide alike: no tables, whole numbers.
--
-- An instant in ticks does not fit a bigint, so it is kept in two digits: whole microseconds, and the ticks left over
-- (0 .. drain - 1).  Pairs are compared as rows, the first digit first.
--
-- state   tat, rest; {} is EMPTY; a state in debt has MARK, 2^52 microseconds, added to its tat.  The rest may be one of
--         another rate: it counts as less than a microsecond
-- limit   drain; unit, unit_rest; full, full_rest; slack, owes

CREATE OR REPLACE FUNCTION ratekeeper.gcra_decide(state bigint[], now bigint, cost bigint, lim bigint[])
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  mark CONSTANT bigint := 4503599627370496;
  tat bigint := coalesce(state[1], 0);
  rest bigint := least(coalesce(state[2], 0), lim[1] - 1);
  new_rest bigint;
BEGIN
  IF tat >= mark THEN
    tat := tat - mark;
  END IF;
  IF tat < now THEN
    tat := now;
    rest := 0;
  END IF;
  rest := rest + cost * lim[3];
  new_rest := rest % lim[1];
  tat := tat + cost * lim[2] + rest / lim[1];
  IF tat > now + lim[4] OR tat = now + lim[4] AND new_rest > lim[5] THEN
    RETURN NULL;
  END IF;
  RETURN ARRAY[tat, new_rest];
END $$;

-- What a refusal leaves behind: the clock stepped back far, or the burst was lowered.
CREATE OR REPLACE FUNCTION ratekeeper.gcra_mended(state bigint[], now bigint, lim bigint[])
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  mark CONSTANT bigint := 4503599627370496;
BEGIN
  IF state[1] < mark AND (state[1], least(state[2], lim[1] - 1)) > (now + lim[4] + lim[6], lim[5]) THEN
    RETURN ARRAY[now + lim[4] + lim[6], lim[5]];
  END IF;
  RETURN state;
END $$;

-- The ticks that have yet to drain, in two digits.
CREATE OR REPLACE FUNCTION ratekeeper.gcra_backlog(state bigint[], now bigint, lim bigint[])
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  mark CONSTANT bigint := 4503599627370496;
  owed bigint := coalesce(state[1], 0) - now;
  rest bigint := least(coalesce(state[2], 0), lim[1] - 1);
BEGIN
  IF state[1] >= mark THEN
    owed := owed - mark;
  ELSIF (owed, rest) > (lim[4] + lim[6], lim[5]) THEN
    RETURN ARRAY[lim[4] + lim[6], lim[5]];
  END IF;
  IF owed < 0 THEN
    RETURN ARRAY[0, 0];
  END IF;
  RETURN ARRAY[owed, rest];
END $$;

-- The state that owes so many ticks.
CREATE OR REPLACE FUNCTION ratekeeper.gcra_owing(owed bigint, rest bigint, now bigint, lim bigint[])
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  mark CONSTANT bigint := 4503599627370496;
BEGIN
  IF owed < 0 OR owed = 0 AND rest = 0 THEN
    RETURN '{}';
  ELSIF (owed, rest) <= (lim[4] + lim[6], lim[5]) THEN
    RETURN ARRAY[now + owed, rest];
  ELSIF now + owed >= mark THEN
    RETURN ARRAY[mark + mark - 1, lim[1] - 1];
  END IF;
  RETURN ARRAY[mark + now + owed, rest];
END $$;

CREATE OR REPLACE FUNCTION ratekeeper.gcra_refund(state bigint[], now bigint, cost bigint, lim bigint[])
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  owing bigint[] := ratekeeper.gcra_backlog(state, now, lim);
  ticks bigint := cost * lim[3];
  owed bigint := owing[1] - cost * lim[2] - ticks / lim[1];
  rest bigint := owing[2] - ticks % lim[1];
BEGIN
  IF rest < 0 THEN
    owed := owed - 1;
    rest := rest + lim[1];
  END IF;
  RETURN ratekeeper.gcra_owing(owed, rest, now, lim);
END $$;

CREATE OR REPLACE FUNCTION ratekeeper.gcra_debit(state bigint[], now bigint, cost bigint, lim bigint[])
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  owing bigint[] := ratekeeper.gcra_backlog(state, now, lim);
  ticks bigint := owing[2] + cost * lim[3];
  owed bigint := owing[1] + cost * lim[2] + ticks / lim[1];
  rest bigint := ticks % lim[1];
  most bigint := lim[7] * lim[2] + lim[7] * lim[3] / lim[1];
  most_rest bigint := lim[7] * lim[3] % lim[1];
BEGIN
  IF (owed, rest) > (most, most_rest) THEN
    owed := most;
    rest := most_rest;
  END IF;
  IF (owed, rest) < (owing[1], owing[2]) THEN
    owed := owing[1];
    rest := owing[2];
  END IF;
  RETURN ratekeeper.gcra_owing(owed, rest, now, lim);
END $$;
