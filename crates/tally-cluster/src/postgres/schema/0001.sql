CREATE TABLE counters (
    key bytea PRIMARY KEY,
    name text NOT NULL,
    partition int NOT NULL,
    value bigint NOT NULL,
    increments numeric NOT NULL,
    decrements numeric NOT NULL,
    min bigint NOT NULL,
    max bigint NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    expires_at timestamptz,
    record bytea NOT NULL
) WITH (fillfactor = 80);
CREATE INDEX counters_partition ON counters (partition);
CREATE INDEX counters_expires_at ON counters (partition, expires_at) WHERE expires_at IS NOT NULL;
COMMENT ON TABLE counters IS 'Written by Tally. Read it as you like; a change made here is lost or refused.';
COMMENT ON COLUMN counters.key IS 'WHERE key = ''likes:post:42'' uses the index';
COMMENT ON COLUMN counters.name IS 'the key as text; bytes that are not text are escaped as \xNN';
COMMENT ON COLUMN counters.record IS 'what Tally reads; every other column is derived from it';

CREATE TABLE counter_shards (
    key bytea NOT NULL,
    shard int NOT NULL,
    value bigint NOT NULL,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (key, shard)
);
COMMENT ON TABLE counter_shards IS 'Sub-counters of best-effort counters.';

CREATE TABLE idempotent_requests (
    partition int NOT NULL,
    id bytea NOT NULL,
    record bytea NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (partition, id)
);
CREATE INDEX idempotent_requests_expires_at ON idempotent_requests (partition, expires_at);
COMMENT ON TABLE idempotent_requests IS 'Request ids within their idempotency window, and the first outcome of each.';

CREATE TABLE counter_ledger (
    key bytea NOT NULL,
    seq bigint NOT NULL,
    partition int NOT NULL,
    at timestamptz NOT NULL,
    kind text NOT NULL,
    actor text NOT NULL,
    reason text NOT NULL,
    before bigint NOT NULL,
    after bigint NOT NULL,
    previous bytea NOT NULL,
    hash bytea NOT NULL,
    record bytea NOT NULL,
    PRIMARY KEY (key, seq)
);
COMMENT ON TABLE counter_ledger IS 'Corrections. Each hash covers the entry and the hash before it.';

CREATE TABLE partitions (
    partition int PRIMARY KEY,
    position bigint NOT NULL,
    epoch bigint NOT NULL,
    owner text,
    clock bigint,
    counters bigint,
    expiring bigint,
    persisted_at timestamptz,
    owned_at timestamptz
);
COMMENT ON COLUMN partitions.position IS 'offset of the next record of the journal; every table shows this partition as of here';
COMMENT ON COLUMN partitions.epoch IS 'how often the partition was claimed; only the worker of the last claim can persist';
COMMENT ON COLUMN partitions.clock IS 'time of the last record, in milliseconds since 1970';

CREATE TABLE records (
    partition int NOT NULL,
    key bytea NOT NULL,
    value bytea NOT NULL,
    PRIMARY KEY (partition, key)
);
COMMENT ON TABLE records IS 'Records of the store without a table of their own, such as the heads of ledger chains.';
