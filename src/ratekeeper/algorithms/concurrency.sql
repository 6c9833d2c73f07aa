-- Twin of concurrency.py: no tables, whole numbers.
--
-- state   the number of notes; each note as an instant and an id; then each lease as the instant at which it ends and
--         its id, the earliest first.  {} is EMPTY
-- limit   micros, count, and of the lease: its id (0 is nobody's), and how long it lasts (0 is micros)

CREATE OR REPLACE FUNCTION ratekeeper.concurrency_decide(state bigint[], now bigint, cost bigint, lim bigint[])
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  leases bigint[] := ratekeeper.concurrency_mended(state, now, lim);
  first int := 2 + 2 * coalesce(state[1], 0)::int;
  lease bigint := lim[3];
  ends_at bigint := now + CASE WHEN lim[4] > 0 THEN least(lim[4], lim[1]) ELSE lim[1] END;
  earlier bigint[] := coalesce(leases[1 : first - 1], '{0}');
  later bigint[] := '{}';
  others int := 0;
BEGIN
  IF lease <> 0 THEN
    FOR note IN 1 .. coalesce(state[1], 0) LOOP
      IF state[2 * note + 1] = lease AND state[2 * note] > now THEN -- it was withdrawn
        RETURN NULL;
      END IF;
    END LOOP;
  END IF;
  IF earlier = '{}' THEN
    earlier := '{0}';
  END IF;
  FOR place IN 0 .. (cardinality(leases) - first + 1) / 2 - 1 LOOP
    IF leases[first + 2 * place] > now AND (lease = 0 OR leases[first + 2 * place + 1] <> lease) THEN
      others := others + 1;
      IF leases[first + 2 * place] <= ends_at THEN
        earlier := earlier || leases[first + 2 * place] || leases[first + 2 * place + 1];
      ELSE
        later := later || leases[first + 2 * place] || leases[first + 2 * place + 1];
      END IF;
    END IF;
  END LOOP;
  IF others + cost > lim[2] THEN
    RETURN NULL;
  END IF;
  FOR place IN 1 .. cost LOOP
    earlier := earlier || ends_at || lease;
  END LOOP;
  RETURN earlier || later;
END $$;

-- The state without instants that the clock, which stepped back, or a shorter period makes impossible.
CREATE OR REPLACE FUNCTION ratekeeper.concurrency_mended(state bigint[], now bigint, lim bigint[])
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  mended bigint[] := state;
  place int := cardinality(state) - 1;
BEGIN
  WHILE place > 2 * state[1] + 1 AND mended[place] > now + lim[1] LOOP
    mended[place] := now + lim[1];
    place := place - 2;
  END LOOP;
  RETURN mended;
END $$;

-- Let the lease keep at most `cost` places.  `lasts` is for how long it is noted as withdrawn.
CREATE OR REPLACE FUNCTION ratekeeper.concurrency_give_back(state bigint[], now bigint, cost bigint, lim bigint[])
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  most_notes CONSTANT int := 64; -- on one key
  notes bigint[] := coalesce(state[2 : 1 + 2 * state[1]], '{}');
  first int := 2 + 2 * coalesce(state[1], 0)::int;
  lease bigint := lim[3];
  kept bigint[] := '{}';
  ended bigint := -cost;
BEGIN
  IF lease = 0 THEN
    RETURN state;
  END IF;
  FOR place IN 0 .. (cardinality(state) - first + 1) / 2 - 1 LOOP
    IF state[first + 2 * place + 1] = lease THEN
      ended := ended + 1;
    END IF;
  END LOOP;
  FOR place IN 0 .. (cardinality(state) - first + 1) / 2 - 1 LOOP
    IF state[first + 2 * place + 1] = lease AND ended > 0 THEN
      ended := ended - 1;
    ELSE
      kept := kept || state[first + 2 * place] || state[first + 2 * place + 1];
    END IF;
  END LOOP;
  IF lim[4] > 0 THEN
    notes := '{}';
    FOR note IN 1 .. coalesce(state[1], 0) LOOP
      IF state[2 * note] > now AND state[2 * note + 1] <> lease THEN
        notes := notes || state[2 * note] || state[2 * note + 1];
      END IF;
    END LOOP;
    notes := notes[greatest(0, cardinality(notes) - 2 * (most_notes - 1)) + 1 :] || (now + lim[4]) || lease;
  END IF;
  IF notes = '{}' AND kept = '{}' THEN
    RETURN '{}';
  END IF;
  RETURN (cardinality(notes) / 2)::bigint || notes || kept;
END $$;

-- End `cost` leases that nobody can name, of those taken exactly at that instant.
CREATE OR REPLACE FUNCTION ratekeeper.concurrency_refund(
  state bigint[], now bigint, cost bigint, taken_at bigint, lim bigint[]
) RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  first int := 2 + 2 * coalesce(state[1], 0)::int;
  kept bigint[] := state[1 : first - 1];
  ended bigint := 0;
BEGIN
  FOR place IN 0 .. (cardinality(state) - first + 1) / 2 - 1 LOOP
    IF ended < cost AND state[first + 2 * place] = taken_at + lim[1] AND state[first + 2 * place + 1] = 0 THEN
      ended := ended + 1;
    ELSE
      kept := kept || state[first + 2 * place] || state[first + 2 * place + 1];
    END IF;
  END LOOP;
  RETURN CASE WHEN kept = '{0}' THEN '{}' ELSE kept END;
END $$;
