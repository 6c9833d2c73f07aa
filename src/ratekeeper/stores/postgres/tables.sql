-- What a store keeps on the server: one row for each limit of a key.  Nothing here is worth a backup.
--
-- key          a digest of the space, the limit's layout and the caller's key: neither shows
-- state        the whole numbers of the rule, as the twin of the algorithm writes them; {} is a key never seen
-- expires_at   microseconds since 1970: from then on the row means nothing, and any write may delete it
--
-- No index but the key: an update then stays in its page, if the page has room.
CREATE TABLE IF NOT EXISTS ratekeeper.state (
  key bytea PRIMARY KEY,
  state bigint[] NOT NULL,
  expires_at bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);
